//! A typed subset of CEL, the Common Expression Language, for rules that need no compiler.
//!
//! Literals, fields such as `pod.requests`, arithmetic, comparison, `&&`, `||`, `!`, `? :`, `in`
//! with a list of literals, `has`, and the functions in [`FUNCTIONS`]. The subset means what it
//! means in CEL, with one addition: an int beside a double is converted to a double, so that `2 *
//! pod.kv_usage` needs no `2.0`. Ints have 53 bits instead of 64.
//!
//! The public CEL crates interpret dynamically typed values: a misspelt field fails at the first
//! request, and every evaluation builds maps of strings. Here an expression is parsed ([`parse`])
//! and type-checked ([`check`]) when a profile is assembled, and evaluated for all candidates at
//! once ([`program`]).

mod check;
#[cfg(all(test, feature = "cel-oracle"))]
mod oracle;
mod parse;
mod program;
#[cfg(test)]
mod tests;

pub(crate) use check::{compile_number, compile_rule};
pub(crate) use program::{CelBatch, Program};

/// The type of an expression or a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Int,
    Double,
    Bool,
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

/// The functions with their parameters, as error messages and cures show them.
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
    /// A resolved field, as the program names it at evaluation.
    type Field: Copy;

    /// The field at a path such as `["pod", "labels", "zone"]`, and its type.
    fn resolve(&self, path: &[&str]) -> Option<(Self::Field, Type)>;

    /// The present name of the field that had this path before.
    fn renamed(&self, _path: &[&str]) -> Option<&'static str> {
        None
    }

    /// All paths, for suggestions.
    fn known(&self) -> Vec<String>;
}
