//! Reports as one HTML page each: self-contained, without scripts, in the style of the dashboard.
//!
//! The style sheet is the dashboard's own, and what reports need beyond it is in `page/report.css`.
//! Text is escaped wherever it enters a page.

mod axis;
mod chart;
mod heat;
mod icicle;

pub(crate) use axis::Axis;
pub(crate) use chart::{Chart, Series};
pub(crate) use heat::{Heat, HeatCell, HeatRow};
pub(crate) use icicle::{Cell, icicle};

use std::fmt::{Display, Write};
use std::time::Duration;
use wornpath_admin::DASHBOARD_STYLE;

const REPORT_STYLE: &str = include_str!("page/report.css");
/// Series that have a colour of their own.
pub(crate) const COLOURS: usize = 5;

/// A page that grows.
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// Begins a page; `command` is what made it, `title` what it is about.
    pub(crate) fn new(command: &str, title: &str, facts: &str) -> Self {
        let mut page = Self { text: String::new() };
        let title = escaped(title);
        let facts = escaped(facts);
        page.push(format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} · wornpath {command}</title>\n\
             <style>\n{DASHBOARD_STYLE}{REPORT_STYLE}</style>\n</head>\n<body>\n\
             <main class=\"report\">\n<p class=\"quiet\">wornpath {command}</p>\n<h1>{title}</h1>\n\
             <p class=\"quiet facts-line\">{facts}</p>\n"
        ));
        page
    }

    /// Appends markup, whose text is escaped already.
    pub(crate) fn push(&mut self, markup: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "{markup}");
    }

    /// Begins a section, with a sentence on how to read it.
    pub(crate) fn section(&mut self, heading: &str, how_to_read: &str) {
        let heading = escaped(heading);
        self.push(format_args!("<h2>{heading}</h2>\n"));
        if !how_to_read.is_empty() {
            self.push(format_args!("<p class=\"quiet read\">{}</p>\n", escaped(how_to_read)));
        }
    }

    /// What the page comes to, in sentences.
    pub(crate) fn verdict(&mut self, sentences: &[String]) {
        for (number, sentence) in sentences.iter().enumerate() {
            let main = if number == 0 { " main" } else { "" };
            self.push(format_args!("<p class=\"told{main}\">{}</p>\n", escaped(sentence)));
        }
    }

    /// A few large figures side by side.
    pub(crate) fn tiles(&mut self, tiles: &[Tile]) {
        self.push("<div class=\"tiles\">\n");
        for Tile { name, value, more } in tiles {
            self.push(format_args!(
                "<div class=\"tile\"><h2>{}</h2><div class=\"figures\"><b>{}</b></div><span class=\"quiet\">{}</span></div>\n",
                escaped(name),
                escaped(value),
                escaped(more)
            ));
        }
        self.push("</div>\n");
    }

    /// A table; the first column names the row, the others are figures.
    pub(crate) fn table(&mut self, heads: &[&str], rows: &[Vec<TableCell>]) {
        self.push("<div class=\"sheet cards\"><table>\n<thead><tr>");
        for (at, head) in heads.iter().enumerate() {
            let class = if at == 0 { "" } else { " class=\"number\"" };
            self.push(format_args!("<th scope=\"col\"{class}>{}</th>", escaped(head)));
        }
        self.push("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.push("<tr>");
            for (at, TableCell { markup, is_best }) in row.iter().enumerate() {
                let best = if *is_best { " good" } else { "" };
                let label = heads.get(at).map_or_else(String::new, |head| escaped(head));
                match at {
                    0 => self.push(format_args!("<th scope=\"row\">{markup}</th>")),
                    _ => self.push(format_args!(
                        "<td class=\"number{best}\" data-label=\"{label}\">{markup}</td>"
                    )),
                }
            }
            self.push("</tr>\n");
        }
        self.push("</tbody></table></div>\n");
    }

    pub(crate) fn finish(mut self) -> String {
        self.push("</main>\n</body>\n</html>\n");
        self.text
    }
}

/// A large figure.
pub(crate) struct Tile {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) more: String,
}

/// A cell of a table.
pub(crate) struct TableCell {
    markup: String,
    is_best: bool,
}

impl TableCell {
    pub(crate) fn text(text: impl Display) -> Self {
        Self { markup: escaped(&text.to_string()), is_best: false }
    }

    /// A name with the mark of its series.
    pub(crate) fn series(number: usize, name: &str) -> Self {
        let markup = format!("<span class=\"name\">{}{}</span>", key(number), escaped(name));
        Self { markup, is_best: false }
    }

    /// The same cell, as the best of its column.
    pub(crate) fn best_if(self, is_best: bool) -> Self {
        Self { is_best, ..self }
    }
}

/// The mark of a series: its colour, and its dashes where colours repeat.
fn key(series: usize) -> String {
    format!(
        "<svg class=\"key {}\" viewBox=\"0 0 18 4\" aria-hidden=\"true\"><path d=\"M0 2H18\"/></svg>",
        series_class(series)
    )
}

/// The style of a series.
fn series_class(series: usize) -> String {
    let dashes = series / COLOURS % 3;
    format!("c{}{}", series % COLOURS, ["", " dashed", " dotted"][dashes])
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A count as people read it: `1,234`, `56.7k`, `8.90M`.
pub(crate) fn count(value: f64) -> String {
    match value {
        1e9.. => format!("{:.2}G", value / 1e9),
        1e6.. => format!("{:.2}M", value / 1e6),
        1e4.. => format!("{:.1}k", value / 1e3),
        1e3.. => format!("{},{:03}", (value as u64) / 1_000, (value as u64) % 1_000),
        _ => format!("{value:.0}"),
    }
}

/// A time as people read it.
pub(crate) fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0 => "0".to_owned(),
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        ..10.0 => format!("{seconds:.2} s"),
        ..120.0 => format!("{seconds:.1} s"),
        ..7_200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests;
