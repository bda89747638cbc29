//! Pods over time: a row for each pod, a cell for each slice of time.

use super::{Axis, escaped};
use std::fmt::Write;

/// Rows with a name each; with more, every few have one.
const NAMED_ROWS: usize = 24;

/// Rows of equal slices.
pub(crate) struct Heat<'a> {
    /// Read by those who do not see it.
    pub(crate) label: &'a str,
    pub(crate) x: Axis,
    pub(crate) rows: Vec<HeatRow>,
}

/// A row; each cell has a class and a strength from 0 to 1, or is empty.
pub(crate) struct HeatRow {
    pub(crate) name: String,
    pub(crate) cells: Vec<Option<HeatCell>>,
    /// What stands behind the row.
    pub(crate) more: String,
}

/// A slice of time.
#[derive(Clone, PartialEq)]
pub(crate) struct HeatCell {
    pub(crate) colour: &'static str,
    pub(crate) strength: f64,
    pub(crate) title: String,
}

impl Heat<'_> {
    pub(crate) fn markup(&self) -> String {
        let rows = self.rows.len();
        let mut out = format!(
            "<div class=\"heat\" style=\"--rows:{rows}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(self.label)
        );
        let every = rows.div_ceil(NAMED_ROWS).max(1);
        let size = if rows > NAMED_ROWS { " thin" } else { "" };
        for (number, HeatRow { name, cells, more }) in self.rows.iter().enumerate() {
            let is_named = number % every == 0;
            let shown = |text: &str| if is_named { escaped(text) } else { String::new() };
            let _ = write!(out, "<span class=\"row-name{size}\">{}</span>", shown(name));
            let width = cells.len();
            let _ = write!(
                out,
                "<svg class=\"row{size}\" viewBox=\"0 0 {width} 1\" preserveAspectRatio=\"none\">"
            );
            // Slices that are alike are drawn as one.
            let mut at = 0;
            while at < width {
                let length = cells[at..].iter().take_while(|cell| **cell == cells[at]).count();
                if let Some(HeatCell { colour, strength, title }) = &cells[at] {
                    let _ = write!(
                        out,
                        "<rect class=\"{colour}\" x=\"{at}\" width=\"{length}\" height=\"1\" fill-opacity=\"{strength:.2}\"><title>{}</title></rect>",
                        escaped(title)
                    );
                }
                at += length;
            }
            let _ = writeln!(out, "</svg><span class=\"row-more{size}\">{}</span>", shown(more));
        }
        out.push_str("<div class=\"row-axis\">");
        self.x.draw_ticks(&mut out);
        let _ = write!(
            out,
            "</div>\n</div>\n<span class=\"x-name\">{}</span>\n",
            escaped(&self.x.label)
        );
        out
    }
}
