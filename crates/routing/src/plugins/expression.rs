//! `expression`: a score or a rule written by the user in CEL, over the pod, the request and all
//! candidates.
//!
//! The expression is parsed and type-checked when the profile is assembled; see [`cel`](super::cel)
//! for the language and [`vocabulary`] for the fields. A decision computes only the fields that the
//! expression names.

pub(super) mod filter;
mod placed_tokens;
mod scope;
pub(super) mod score;
mod vocabulary;

use super::cel::FUNCTIONS;

/// The cure of an expression that does not compile.
fn language() -> String {
    format!("expressions are CEL; functions: {}", FUNCTIONS.join(", "))
}

#[cfg(test)]
mod tests;
