//! Lays out rows of cells on a screen that may be too narrow for them.
//!
//! Columns are as wide as their widest cell. If they do not all fit, whole columns are dropped, and
//! names of pods and requests are shortened; a number is never cut, because a part of it is another
//! number.

/// The severity of a line, shown as its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Usual,
    Head,
    Warn,
    Bad,
}

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
const SEPARATOR: &str = "  ";
const ELLIPSIS: char = '…';

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

    fn cell(&self, text: &str, width: usize) -> String {
        match self.kind {
            ColumnKind::Number => format!("{text:>width$}"),
            ColumnKind::Name if text.chars().count() > width => {
                text.chars().take(width - 1).chain([ELLIPSIS]).collect()
            }
            ColumnKind::Name | ColumnKind::Word | ColumnKind::Bar => format!("{text:<width$}"),
        }
    }
}

/// The header and all rows, in as many columns as fit into `available`.
pub(super) fn fit(
    columns: &[Column],
    rows: Vec<(Tone, Vec<String>)>,
    available: usize,
) -> Vec<(Tone, String)> {
    let head: Vec<_> = columns.iter().map(|column| column.name.to_owned()).collect();
    let rows: Vec<_> = std::iter::once((Tone::Head, head)).chain(rows).collect();
    let widest = |at: usize| {
        let cells = rows.iter().map(|(_, cells)| cells[at].chars().count());
        let width = cells.max().unwrap_or(0);
        if columns[at].kind == ColumnKind::Name { width.min(MAX_NAME) } else { width }
    };
    let mut widths: Vec<_> = (0..columns.len()).map(|at| Some(widest(at))).collect();
    let used = |widths: &[Option<usize>]| -> usize {
        widths.iter().flatten().map(|width| width + SEPARATOR.len()).sum::<usize>()
            - SEPARATOR.len()
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
    let line = |cells: &[String]| {
        let shown = columns.iter().zip(cells).zip(&widths);
        let shown = shown.filter_map(|((column, cell), width)| Some(column.cell(cell, (*width)?)));
        shown.collect::<Vec<_>>().join(SEPARATOR)
    };
    rows.iter().map(|(tone, cells)| (*tone, line(cells))).collect()
}

/// Joins as many of the first parts as fit into `available`.
pub(super) fn joined(parts: &[String], available: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let between = if text.is_empty() { "" } else { " · " };
        if !text.is_empty()
            && text.chars().count() + between.len() + part.chars().count() > available
        {
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

    const COLUMNS: [Column; 4] = [
        Column::name("POD", 0),
        Column::bar(2),
        Column::number("LOAD", 0),
        Column::word("STATE", 1),
    ];

    fn shown(available: usize) -> Vec<String> {
        let row = ["a-pod-with-a-name", "████", "1234", "up"].map(str::to_owned).to_vec();
        fit(&COLUMNS, vec![(Tone::Usual, row)], available)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn bars_are_dropped_first_then_other_columns_and_names_are_shortened_last() {
        assert_eq!(shown(40)[1], "a-pod-with-a-name  ████  1234  up   ");
        assert_eq!(shown(33)[1], "a-pod-with-a-name  1234  up   ");
        assert_eq!(shown(24)[1], "a-pod-with-a-name  1234");
        assert_eq!(shown(20)[1], "a-pod-with-a-…  1234");
        assert_eq!(shown(20)[0], "POD             LOAD");
    }

    #[test]
    fn figures_that_do_not_fit_are_left_out_whole() {
        let parts = ["12 requests/s", "0 failed", "first byte 20 ms"].map(str::to_owned);
        assert_eq!(joined(&parts, 80), "12 requests/s · 0 failed · first byte 20 ms");
        assert_eq!(joined(&parts, 30), "12 requests/s · 0 failed");
    }
}
