//! Positions in a text.

use std::ops::Range;

/// A position in a file: line and column from one, length in characters on that line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The line, from one.
    pub line: usize,
    /// The column, from one, in characters.
    pub column: usize,
    /// How many characters.
    pub length: usize,
}

/// A text, and where each of its lines starts.
pub(crate) struct LineStarts<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> LineStarts<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    /// The bytes of a span, as far as they are on its line; empty at its end, or after the last
    /// line.
    pub(crate) fn bytes(&self, span: Span) -> Range<usize> {
        let Some(start) = self.starts.get(span.line.saturating_sub(1)) else {
            return self.text.len()..self.text.len();
        };
        let line = self.text[*start..].lines().next().unwrap_or_default();
        let byte = |column: usize| {
            start + line.char_indices().nth(column).map_or(line.len(), |(at, _)| at)
        };
        let first = span.column.saturating_sub(1);
        byte(first)..byte(first.saturating_add(span.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_cut_at_the_end_of_its_line() {
        let lines = LineStarts::of("a: é東\r\nb\n");
        let bytes = |line, column, length| lines.bytes(Span { line, column, length });
        assert_eq!(bytes(1, 4, 1), 3..5);
        assert_eq!(bytes(1, 4, 99), 3..8);
        assert_eq!((bytes(1, 99, 1), bytes(2, 1, 1)), (8..8, 10..11));
        assert_eq!((bytes(3, 1, 1), bytes(9, 1, 1)), (12..12, 12..12));
    }
}
