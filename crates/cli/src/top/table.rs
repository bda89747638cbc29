//! Rows of cells on a screen that may be too narrow for them.
//!
//! Columns are as wide as what stands in them. Where they do not all fit, whole columns go, and names of pods and
//! requests are shortened; a number is never cut, because half of one is another number.

/// What a line wants to say beside its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Usual,
    Head,
    Warn,
    Bad,
}

/// A column, and how soon it goes where there is no room: those with the highest number first, with 0 never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    kind: ColumnKind,
    goes: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ColumnKind {
    /// May be shortened.
    Name,
    Word,
    Number,
    /// A picture of the number beside it, under whose head it stands.
    Bar,
}

/// What a name is shortened to at most, if need be.
const LEAST: usize = 8;
/// A longer name is shortened wherever it stands.
const MOST: usize = 24;
const BETWEEN: &str = "  ";
const CUT: char = '…';

impl Column {
    pub(super) const fn name(name: &'static str, goes: u8) -> Self {
        Self { name, kind: ColumnKind::Name, goes }
    }

    pub(super) const fn word(name: &'static str, goes: u8) -> Self {
        Self { name, kind: ColumnKind::Word, goes }
    }

    pub(super) const fn number(name: &'static str, goes: u8) -> Self {
        Self { name, kind: ColumnKind::Number, goes }
    }

    pub(super) const fn bar(goes: u8) -> Self {
        Self { name: "", kind: ColumnKind::Bar, goes }
    }

    fn cell(&self, text: &str, width: usize) -> String {
        match self.kind {
            ColumnKind::Number => format!("{text:>width$}"),
            ColumnKind::Name if text.chars().count() > width => {
                text.chars().take(width - 1).chain([CUT]).collect()
            }
            ColumnKind::Name | ColumnKind::Word | ColumnKind::Bar => format!("{text:<width$}"),
        }
    }
}

/// The head and all rows, in as many columns as fit.
pub(super) fn fit(
    columns: &[Column],
    rows: Vec<(Tone, Vec<String>)>,
    room: usize,
) -> Vec<(Tone, String)> {
    let head: Vec<_> = columns.iter().map(|column| column.name.to_owned()).collect();
    let rows: Vec<_> = std::iter::once((Tone::Head, head)).chain(rows).collect();
    let widest = |at: usize| {
        let cells = rows.iter().map(|(_, cells)| cells[at].chars().count());
        let width = cells.max().unwrap_or(0);
        if columns[at].kind == ColumnKind::Name { width.min(MOST) } else { width }
    };
    let mut widths: Vec<_> = (0..columns.len()).map(|at| Some(widest(at))).collect();
    let taken = |widths: &[Option<usize>]| -> usize {
        widths.iter().flatten().map(|width| width + BETWEEN.len()).sum::<usize>() - BETWEEN.len()
    };
    while taken(&widths) > room {
        let shown = |at: &usize| widths[*at].is_some();
        let last = (0..columns.len()).filter(shown).max_by_key(|at| columns[*at].goes);
        match last.filter(|at| columns[*at].goes > 0) {
            Some(at) => widths[at] = None,
            None => break,
        }
    }
    for (at, column) in columns.iter().enumerate() {
        let over = taken(&widths).saturating_sub(room);
        if let (ColumnKind::Name, Some(wide)) = (column.kind, widths[at]) {
            widths[at] = Some(wide.saturating_sub(over).max(LEAST.min(wide)));
        }
    }
    let line = |cells: &[String]| {
        let shown = columns.iter().zip(cells).zip(&widths);
        let shown = shown.filter_map(|((column, cell), width)| Some(column.cell(cell, (*width)?)));
        shown.collect::<Vec<_>>().join(BETWEEN)
    };
    rows.iter().map(|(tone, cells)| (*tone, line(cells))).collect()
}

/// As many parts as fit, the first first.
pub(super) fn joined(parts: &[String], room: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let between = if text.is_empty() { "" } else { " · " };
        if !text.is_empty() && text.chars().count() + between.len() + part.chars().count() > room {
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

    fn shown(room: usize) -> Vec<String> {
        let row = ["a-pod-with-a-name", "████", "1234", "up"].map(str::to_owned).to_vec();
        fit(&COLUMNS, vec![(Tone::Usual, row)], room).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn bars_go_first_then_what_is_missed_least_and_names_are_shortened_last() {
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
