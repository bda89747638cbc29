//! Figures in pages that come from kept runs: each is what its raw file says, and is written from
//! there.
//!
//! `<!-- gateway.txt; 1 KB, whole, 32 connections; nginx; 1 -->15.1<!-- -->` is, in
//! `bench/results/gateway.txt` below the heading `1 KB, whole, 32 connections`, the first number
//! behind `nginx` at the beginning of a line. Of several headings, joined by ` + `, or of all, said
//! by `*`, it is the least and the greatest: `0.39 to 0.65`. `9/5` is the ninth number over
//! the fifth. `UPDATE=1 cargo test -p wornpath --test docs figures` writes all of them anew.

use crate::page::{Page, pages, root};
use crate::report;
use std::fs;

const BEGINS: &str = "<!-- ";
const ENDS: &str = " -->";
const IS_OVER: &str = "<!-- -->";

#[test]
fn every_figure_that_names_its_raw_file_is_what_that_file_says() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let Some((text, count)) = current(&page, &mut wrong) else { continue };
        seen += count;
        if text == page.text {
            continue;
        }
        if std::env::var_os("UPDATE").is_some() {
            fs::write(root().join(&page.path), &text).unwrap();
            continue;
        }
        for (line, (written, raw)) in (1..).zip(page.text.lines().zip(text.lines())) {
            if written != raw {
                wrong.push(format!("{}:{line}: by the raw file: {raw}", page.path));
            }
        }
        wrong.push("write them with `UPDATE=1 cargo test -p wornpath --test docs figures`".into());
    }
    assert!(seen > 20, "only {seen} figures name their raw file");
    report(&wrong);
}

/// The page with every figure as its raw file has it, and how many there are; none if there are
/// none.
fn current(page: &Page, wrong: &mut Vec<String>) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut rest = page.text.as_str();
    let mut count = 0;
    while let Some((before, mark, after)) = next(rest) {
        let figure = match figure(mark) {
            Ok(figure) => figure,
            Err(problem) => {
                wrong.push(format!("{}: `{mark}`: {problem}", page.path));
                return None;
            }
        };
        text.push_str(&format!("{before}{BEGINS}{mark}{ENDS}{figure}{IS_OVER}"));
        rest = after;
        count += 1;
    }
    text.push_str(rest);
    (count > 0).then_some((text, count))
}

/// What stands before the next mark, the mark, and what stands behind its figure.
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let (written, after) = text.split_once(IS_OVER)?;
    let at = written.rfind(BEGINS)?;
    let (mark, _) = written[at + BEGINS.len()..].split_once(ENDS)?;
    Some((&text[..at], mark, after))
}

fn figure(mark: &str) -> Result<String, String> {
    let [file, headings, line, which] = mark.split("; ").collect::<Vec<_>>()[..] else {
        return Err("write `file; heading; beginning of the line; which number`".into());
    };
    let path = root().join("bench/results").join(file);
    let raw = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    figure_in(&raw, headings, line, which)
}

fn figure_in(raw: &str, headings: &str, line: &str, which: &str) -> Result<String, String> {
    let rows: Vec<&str> = match headings {
        "*" => raw.lines().filter_map(|row| behind(row, line)).collect(),
        some => some.split(" + ").filter_map(|heading| below(raw, heading, line)).collect(),
    };
    if rows.is_empty() || (headings != "*" && rows.len() != headings.split(" + ").count()) {
        return Err("there is no such line".into());
    }
    let values = rows.iter().map(|row| number(row, which));
    let values = values.collect::<Option<Vec<_>>>().ok_or("the line has no such number")?;
    let (least, most) = values
        .iter()
        .fold((f64::MAX, f64::MIN), |(least, most), value| (value.min(least), value.max(most)));
    let least = shown(least);
    let most = shown(most);
    Ok(if least == most { least } else { format!("{least} to {most}") })
}

/// What follows `line` in the first line below a heading that begins with it.
fn below<'a>(raw: &'a str, heading: &str, line: &str) -> Option<&'a str> {
    let is_heading = |row: &&str| row.trim_start_matches(['#', '=', ' ']).starts_with(heading);
    let mut rows = raw.lines().skip_while(|row| !is_heading(row)).skip(1);
    rows.by_ref()
        .take_while(|row| !row.starts_with("#") && !row.starts_with("=="))
        .find_map(|row| behind(row, line))
}

fn behind<'a>(row: &'a str, line: &str) -> Option<&'a str> {
    let rest = row.trim_start_matches(['|', ' ']).strip_prefix(line)?;
    (!rest.starts_with(|letter: char| letter.is_alphanumeric())).then_some(rest)
}

/// The number at a place counted from one, or one over another.
fn number(row: &str, which: &str) -> Option<f64> {
    if let Some((over, under)) = which.split_once('/') {
        return Some(number(row, over)? / number(row, under)?);
    }
    let is_apart = |letter: char| !letter.is_ascii_digit() && letter != '.';
    let mut numbers = row.split(is_apart).filter_map(|word| word.parse::<f64>().ok());
    numbers.nth(which.parse::<usize>().ok()?.checked_sub(1)?)
}

/// Three digits that count, or fewer if there are no more.
fn shown(value: f64) -> String {
    let rounded = match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let whole = value.to_string();
    if whole.len() < rounded.len() { whole } else { rounded }
}

#[test]
fn figures_are_found_by_heading_line_and_place() {
    let raw = "### a, 1\n| nginx | 26.04 | 1.00 |\n| nginx slow | 8 |\n### a, 12\n| nginx | 130 | 2 |\nlast: 0.897\n";
    let found = |headings, line, which| figure_in(raw, headings, line, which);
    assert_eq!(found("a, 12", "nginx", "1"), Ok("130".into()));
    assert_eq!(found("a, 1", "nginx slow", "1"), Ok("8".into()));
    assert_eq!(found("a, 1 + a, 12", "nginx", "1/2"), Ok("26.0 to 65".into()));
    assert_eq!(found("*", "last:", "1"), Ok("0.90".into()));
    for [headings, line, which] in
        [["b", "nginx", "1"], ["a, 12", "nginx slow", "1"], ["*", "last:", "2"]]
    {
        assert!(found(headings, line, which).is_err(), "{headings}; {line}; {which}");
    }
}

#[test]
fn a_figure_is_replaced_and_everything_else_stays() {
    let text = "<!-- not run: x -->\na <!-- f.txt; *; l; 1 -->9<!-- --> b";
    let (before, mark, after) = next(text).unwrap();
    assert_eq!((before, mark, after), ("<!-- not run: x -->\na ", "f.txt; *; l; 1", " b"));
}
