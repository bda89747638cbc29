//! Names that are compared on the hot path: roles, models, adapters, labels, zones.
//!
//! A decision compares a request's names with those of every pod. A [`Name`] carries a 64-bit hash
//! of its text, and equality compares the hash alone. The names of one installation are a few
//! thousand at most, all from configuration or checked against it, so a chance collision is one in
//! 10^12.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A text that is compared by its hash.
#[derive(Clone)]
pub struct Name {
    key: u64,
    text: Arc<str>,
}

impl Name {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The hash of the text; equal for equal texts, in every process and release.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self { key: fnv1a(text.as_bytes()), text: text.into() }
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.text == *other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// The role of a pod in a plan.
///
/// `serve` answers a whole request, `prefill` and `decode` share one; a profile may define others.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Role(Name);

impl Role {
    /// Answers whole requests.
    pub const SERVE: &'static str = "serve";
    /// Computes the prompt and transfers its KV.
    pub const PREFILL: &'static str = "prefill";
    /// Loads the KV of a computed prompt and generates.
    pub const DECODE: &'static str = "decode";

    /// The role of that name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_equal_when_their_texts_are() {
        assert_eq!(Name::from("eu-1"), Name::from(String::from("eu-1")));
        assert_ne!(Name::from("eu-1"), Name::from("eu-2"));
        assert_eq!(fnv1a(b"a"), 0xAF63_DC4C_8601_EC8C, "published test vector");
    }
}
