//! The name of a task, in a form that a thread can write down without a lock.

use std::fmt;

/// Words of a name.
pub(crate) const WORDS: usize = 6;

/// The first 48 bytes of a task's name.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskName([u64; WORDS]);

impl TaskName {
    /// A name.
    pub const fn new(name: &str) -> Self {
        let (bytes, mut words, mut at) = (name.as_bytes(), [0; WORDS], 0);
        while at < bytes.len() && at < WORDS * 8 {
            words[at / 8] |= (bytes[at] as u64) << (at % 8 * 8);
            at += 1;
        }
        Self(words)
    }

    pub(crate) const fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    pub(crate) const fn words(&self) -> [u64; WORDS] {
        self.0
    }
}

impl From<&str> for TaskName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("unnamed");
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        // The last character may have been cut.
        let name = String::from_utf8_lossy(&bytes);
        f.write_str(name.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]))
    }
}

impl fmt::Debug for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskName({self})")
    }
}
