//! Prefixes as an icicle, as on the dashboard: what follows a prefix stands below it, and wide means
//! many requests.

use super::escaped;
use std::fmt::Write;

/// Cells that are narrower have no words.
const WORDS: f64 = 0.075;

/// A cell; `left` and `width` are shares of the whole width.
pub(crate) struct Cell {
    pub(crate) row: usize,
    pub(crate) left: f64,
    pub(crate) width: f64,
    pub(crate) name: String,
    pub(crate) size: String,
    /// From 0 to 1: how much of the prompts it is.
    pub(crate) strength: f64,
}

pub(crate) fn icicle(label: &str, cells: &[Cell]) -> String {
    let rows = cells.iter().map(|cell| cell.row + 1).max().unwrap_or(1);
    let mut out = format!(
        "<div class=\"icicle\" role=\"list\" aria-label=\"{}\" style=\"--rows:{rows}\">\n",
        escaped(label)
    );
    for Cell { row, left, width, name, size, strength } in cells {
        let slim = if *width < WORDS { " slim" } else { "" };
        let name = escaped(name);
        let size = escaped(size);
        let _ = writeln!(
            out,
            "<div class=\"run{slim}\" role=\"listitem\" title=\"{name} — {size}\" \
             style=\"--left:{left:.5};--width:{width:.5};--row:{row};--held:{strength:.3}\">\
             <span>{name}</span><small>{size}</small></div>"
        );
    }
    out.push_str("</div>\n");
    out
}
