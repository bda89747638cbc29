//! Marks a position in a text, for a terminal: one line, of bounded width, with control characters
//! escaped.

use std::fmt::{self, Write};

/// The most characters of a line that are shown; the marked part is always among them.
const WIDEST: usize = 120;
/// The characters shown before the mark where a line is cut.
const LEAD: usize = 40;

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

/// A text, split into lines once for all its snippets.
pub(crate) struct SnippetLines<'a>(Vec<&'a str>);

impl<'a> SnippetLines<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        Self(text.lines().collect())
    }

    /// Writes the line of `span`, with `mark` below the marked part and `note` beside it.
    pub(crate) fn show(
        &self,
        out: &mut dyn Write,
        span: Span,
        mark: char,
        note: &str,
    ) -> fmt::Result {
        let line = self.0.get(span.line.saturating_sub(1)).copied().unwrap_or_default();
        let number = span.line.to_string();
        let column = span.column.saturating_sub(1);
        let margin = " ".repeat(number.len());
        let start =
            if line.chars().nth(WIDEST).is_none() { 0 } else { column.saturating_sub(LEAD) };
        let window: Vec<char> = line.chars().skip(start).take(WIDEST).collect();
        let (before, rest) = window.split_at((column - start).min(window.len()));
        let marked = &rest[..span.length.min(rest.len())];
        let cut_before = if start > 0 { "…" } else { "" };
        let cut_after = if line.chars().nth(start + WIDEST).is_some() { "…" } else { "" };
        let shown: String = window.iter().copied().map(Shown).map(|c| c.to_string()).collect();
        let blank: String = before.iter().copied().map(blank).collect();
        let width: usize = marked.iter().map(|c| Shown(*c).to_string().chars().count()).sum();
        let indent = " ".repeat(cut_before.chars().count());
        let marks = mark.to_string().repeat(width.max(1));
        writeln!(out, " {margin} |")?;
        writeln!(out, " {number} | {cut_before}{shown}{cut_after}")?;
        writeln!(out, "{}", format!(" {margin} | {indent}{blank}{marks} {note}").trim_end())
    }
}

/// Blanks of the width that the character has when shown.
fn blank(c: char) -> String {
    if c == '\t' { "\t".to_owned() } else { " ".repeat(Shown(c).to_string().chars().count()) }
}

/// A message that may quote a file, with control characters escaped.
pub(crate) struct SnippetText<'a>(pub(crate) &'a str);

impl fmt::Display for SnippetText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| Shown(c).fmt(f))
    }
}

/// A character, escaped if it is a control or formatting character.
struct Shown(char);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_format = matches!(
            self.0,
            '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}'
        );
        if (self.0.is_control() && self.0 != '\t') || is_format {
            write!(f, "{}", self.0.escape_unicode())
        } else {
            f.write_char(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, column: usize, length: usize) -> String {
        let mut out = String::new();
        let span = Span { line: 1, column, length };
        SnippetLines::of(text).show(&mut out, span, '^', "here").unwrap();
        out
    }

    #[test]
    fn the_marked_part_of_a_long_line_is_shown() {
        let text = format!("{}wrong{}", "a".repeat(10_000), "b".repeat(10_000));
        let out = shown(&text, 10_001, 5);
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(lines[1], format!(" 1 | …{}wrong{}…", "a".repeat(40), "b".repeat(75)));
        assert_eq!(lines[2], format!("   | {}^^^^^ here", " ".repeat(41)));
        let whole = shown(&text, 1, 20_005);
        assert!(whole.lines().all(|line| line.chars().count() < 140), "{whole}");
    }

    #[test]
    fn control_characters_are_escaped_and_marks_stay_aligned() {
        let out = shown("\u{1b}[2J\tx\u{202e}y: 1", 7, 2);
        assert_eq!(out, "   |\n 1 | \\u{1b}[2J\tx\\u{202e}y: 1\n   |          \t ^^^^^^^^^ here\n");
        assert_eq!(SnippetText("a\u{7}\nb").to_string(), "a\\u{7}\\u{a}b");
    }
}
