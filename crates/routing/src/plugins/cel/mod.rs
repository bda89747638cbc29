//! A typed part of CEL, the Common Expression Language, for rules that need no compiler.
//!
//! Literals, fields such as `pod.requests`, arithmetic, comparison, `&&`, `||`, `!`, `? :`, `in` with
//! a list of literals, `has`, and the functions [listed here](FUNCTIONS). What is written in this part
//! means what it means in CEL, with one addition: an int beside a double is taken as a double, so that
//! `2 * request.uncached_ms` needs no `2.0`.
//!
//! The public CEL crates interpret dynamically typed values: a misspelt field shows at the first
//! request, and every evaluation builds maps of strings. Here an expression is parsed ([`parse`]) and
//! typed ([`check`]) when a profile is assembled, and evaluated for all candidates at once
//! ([`program`]). Ints have 53 bits instead of 64.

mod check;
mod parse;
mod program;
#[cfg(test)]
mod tests;

pub(crate) use check::compile;
pub(crate) use program::{CelBatch, Program};

/// What an expression's value, or a field's, can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    /// An integer.
    Int,
    /// A floating-point number.
    Double,
    /// `true` or `false`.
    Bool,
    /// A text.
    String,
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Int => "int",
            Self::Double => "double",
            Self::Bool => "bool",
            Self::String => "string",
        })
    }
}

/// The functions and what they take.
pub(crate) const FUNCTIONS: &[&str] = &[
    "min(number, number)",
    "max(number, number)",
    "int(number)",
    "double(number)",
    "has(field)",
    "string.size()",
    "string.contains(string)",
    "string.startsWith(string)",
    "string.endsWith(string)",
];

/// The fields that expressions of one kind may name.
pub(crate) trait Vocabulary {
    /// How a field is named at evaluation.
    type Field: Copy;

    /// The field at a path such as `["pod", "labels", "zone"]`, and its type.
    fn resolve(&self, path: &[&str]) -> Option<(Self::Field, Type)>;

    /// The paths that exist, for suggestions.
    fn known(&self) -> Vec<String>;
}
