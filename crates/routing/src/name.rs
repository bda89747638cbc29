//! Names that are compared on the hot path: roles, models, adapters, labels, zones.
//!
//! A decision compares a request's names with those of every pod, and clients choose some of them:
//! models, adapters. A [`Name`] carries two 64-bit hashes of its text, and equality compares them
//! alone. Routers that share a hash ring need one that is the same in every process, and so texts
//! that collide in it are easy to find; the other has a secret key of this process, so that no client
//! can find a text that equals another's name.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// The key of the second hash, another in every process. Results do not depend on it.
static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A text that is compared by its hashes.
#[derive(Clone)]
pub struct Name {
    key: u64,
    /// The keyed hash, which no client can predict.
    check: u64,
    text: Arc<str>,
}

impl Name {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The hash of the text; equal for equal texts, in every process and release. Clients can choose
    /// texts that collide.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self { key: fnv1a(text.as_bytes()), check: SECRET.hash_one(text), text: text.into() }
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
        self.key == other.key && self.check == other.check
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.check.hash(state);
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

    #[test]
    fn texts_that_were_made_to_collide_are_different_names() {
        let first = Name::from("8yn0iYCKYHlIj4-BwPqk");
        let second = Name::from("GReLUrM4wMqfg9yzV3KQ");
        assert_eq!(first.key(), second.key(), "the point of these texts");
        assert_ne!(first, second);
        let names = std::collections::HashSet::from([first, second]);
        assert_eq!(names.len(), 2);
    }
}
