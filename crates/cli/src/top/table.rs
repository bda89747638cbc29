//! Lays out rows of cells on a screen that may be too narrow for them.
//!
//! Columns are as wide as their widest cell. If they do not all fit, whole columns are dropped, and
//! names of pods and requests are shortened; a number is never cut, because a part of it is another
//! number. Widths are those of a terminal, in which an ideograph takes two cells.

use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};
use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

/// A column. On a narrow screen, the column with the highest `drop_order` is dropped first, and one
/// with 0 never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    kind: ColumnKind,
    drop_order: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ColumnKind {
    /// May be shortened.
    Name,
    Word,
    Number,
    /// Draws the number in the next column.
    Bar,
}

/// Shortest width of a name on a narrow screen.
const MIN_NAME: usize = 8;
/// Longer names are shortened on any screen.
const MAX_NAME: usize = 24;
/// Cells between two columns.
const SPACING: usize = 2;

impl Column {
    pub(super) const fn name(name: &'static str, drop_order: u8) -> Self {
        Self { name, kind: ColumnKind::Name, drop_order }
    }

    pub(super) const fn word(name: &'static str, drop_order: u8) -> Self {
        Self { name, kind: ColumnKind::Word, drop_order }
    }

    pub(super) const fn number(name: &'static str, drop_order: u8) -> Self {
        Self { name, kind: ColumnKind::Number, drop_order }
    }

    pub(super) const fn bar(drop_order: u8) -> Self {
        Self { name: "", kind: ColumnKind::Bar, drop_order }
    }

    fn cell(self, text: &str, width: usize) -> Line<'static> {
        match self.kind {
            ColumnKind::Number => Line::from(text.to_owned()).right_aligned(),
            ColumnKind::Name if text.width() > width => {
                let (start, _) = text.unicode_truncate(width.saturating_sub(1));
                Line::from(format!("{start}…"))
            }
            ColumnKind::Name | ColumnKind::Word | ColumnKind::Bar => Line::from(text.to_owned()),
        }
    }
}

/// One row: the text of every column, and how it is painted.
pub(super) struct TableRow {
    pub(super) style: Style,
    pub(super) cells: Vec<String>,
}

/// A table of all rows, in as many columns as fit into `available`.
pub(super) fn fit(columns: &[Column], rows: &[TableRow], available: usize) -> Table<'static> {
    let widths = widths(columns, rows, available);
    let shown = |cells: &[&str]| {
        let shown = columns.iter().zip(cells).zip(&widths);
        let shown = shown.filter_map(|((column, cell), width)| Some(column.cell(cell, (*width)?)));
        Row::new(shown.collect::<Vec<_>>())
    };
    let head: Vec<_> = columns.iter().map(|column| column.name).collect();
    let body = rows.iter().map(|row| {
        let cells: Vec<_> = row.cells.iter().map(String::as_str).collect();
        shown(&cells).style(row.style)
    });
    let constraints = widths.iter().flatten().map(|width| Constraint::Length(*width as u16));
    Table::new(body, constraints)
        .column_spacing(SPACING as u16)
        .header(shown(&head).style(Style::new().dim()))
        .row_highlight_style(Style::new().reversed())
}

/// The width of each column; none if it is dropped.
fn widths(columns: &[Column], rows: &[TableRow], available: usize) -> Vec<Option<usize>> {
    let widest = |at: usize| {
        let cells = rows.iter().map(|row| row.cells[at].width());
        let width = cells.max().unwrap_or(0).max(columns[at].name.width());
        if columns[at].kind == ColumnKind::Name { width.min(MAX_NAME) } else { width }
    };
    let mut widths: Vec<_> = (0..columns.len()).map(|at| Some(widest(at))).collect();
    let used = |widths: &[Option<usize>]| -> usize {
        widths.iter().flatten().map(|width| width + SPACING).sum::<usize>() - SPACING
    };
    while used(&widths) > available {
        let shown = |at: &usize| widths[*at].is_some();
        let last = (0..columns.len()).filter(shown).max_by_key(|at| columns[*at].drop_order);
        match last.filter(|at| columns[*at].drop_order > 0) {
            Some(at) => widths[at] = None,
            None => break,
        }
    }
    for (at, column) in columns.iter().enumerate() {
        let over = used(&widths).saturating_sub(available);
        if let (ColumnKind::Name, Some(wide)) = (column.kind, widths[at]) {
            widths[at] = Some(wide.saturating_sub(over).max(MIN_NAME.min(wide)));
        }
    }
    widths
}

/// Joins as many of the first parts as fit into `available`.
pub(super) fn joined(parts: &[String], available: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let between = if text.is_empty() { "" } else { " · " };
        if !text.is_empty() && text.width() + between.width() + part.width() > available {
            break;
        }
        text.push_str(between);
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;
    use ratatui::widgets::Widget;

    const COLUMNS: [Column; 4] = [
        Column::name("POD", 0),
        Column::bar(2),
        Column::number("LOAD", 0),
        Column::word("STATE", 1),
    ];

    fn shown(name: &str, available: u16) -> [String; 2] {
        let cells = [name, "████", "1234", "up"].map(str::to_owned).to_vec();
        let rows = [TableRow { style: Style::new(), cells }];
        let area = Rect::new(0, 0, available, 2);
        let mut buffer = Buffer::empty(area);
        fit(&COLUMNS, &rows, available.into()).render(area, &mut buffer);
        crate::top::screen::lines(&buffer).try_into().unwrap()
    }

    #[test]
    fn bars_are_dropped_first_then_other_columns_and_names_are_shortened_last() {
        let shown = |available| shown("a-pod-with-a-name", available);
        assert_eq!(shown(40)[1], "a-pod-with-a-name  ████  1234  up");
        assert_eq!(shown(33)[1], "a-pod-with-a-name  1234  up");
        assert_eq!(shown(24)[1], "a-pod-with-a-name  1234");
        assert_eq!(shown(20), ["POD             LOAD", "a-pod-with-a-…  1234"]);
    }

    #[test]
    fn a_wide_character_takes_two_cells() {
        assert_eq!(
            shown("東京のpod", 40),
            ["POD              LOAD  STATE", "東京のpod  ████  1234  up"]
        );
        assert_eq!(shown("東京の大きいポッド", 20)[1], "東京の大きい…   1234");
    }

    #[test]
    fn figures_that_do_not_fit_are_left_out_whole() {
        let parts = ["12 requests/s", "0 failed", "first byte 20 ms"].map(str::to_owned);
        assert_eq!(joined(&parts, 80), "12 requests/s · 0 failed · first byte 20 ms");
        assert_eq!(joined(&parts, 30), "12 requests/s · 0 failed");
    }
}
