//! The table of contents of the site lists every page once. Building the site needs mdBook; this
//! does not.

use crate::page::{Page, pages};
use crate::{beside, report};

const CONTENTS: &str = "docs/SUMMARY.md";

fn titles(contents: &Page) -> Vec<(String, String)> {
    let entry = |line: &str| {
        let (title, rest) = line.split_once('[')?.1.split_once("](")?;
        Some((title.to_owned(), beside(CONTENTS, rest.split_once(')')?.0)))
    };
    contents.text.lines().filter_map(entry).collect()
}

#[test]
fn the_table_of_contents_lists_every_page_once() {
    let pages = pages();
    let contents = pages.iter().find(|page| page.path == CONTENTS).expect(CONTENTS);
    let listed = titles(contents);
    let mut wrong = Vec::new();
    for page in pages.iter().filter(|page| page.path.starts_with("docs/")) {
        let times = listed.iter().filter(|(_, path)| *path == page.path).count();
        if page.path != CONTENTS && times != 1 {
            wrong.push(format!("{CONTENTS} lists {} {times} times", page.path));
        }
    }
    for (title, path) in &listed {
        if !pages.iter().any(|page| page.path == *path) {
            wrong.push(format!("{CONTENTS}: `{title}` leads to {path}, which does not exist"));
        }
    }
    report(&wrong);
}
