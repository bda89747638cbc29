//! The block sizes at which a prompt has as many blocks as a line of a trace says.

use std::fmt;
use std::num::NonZeroUsize;

/// The block size of the Mooncake traces, and of texts.
pub(super) const USUAL: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// A range of block sizes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSizes {
    least: usize,
    most: usize,
}

impl BlockSizes {
    /// The sizes that a configuration may have.
    pub(super) const ALL: Self = Self { least: 1, most: 1 << 16 };

    /// The sizes at which a prompt of so many tokens has so many blocks, with or without its last,
    /// partial one.
    pub(super) fn fitting(tokens: usize, blocks: usize) -> Self {
        let least = tokens / (blocks + 1) + 1;
        let most = match blocks {
            0 | 1 => usize::MAX,
            _ => tokens.saturating_sub(1) / (blocks - 1),
        };
        Self { least, most }
    }

    /// What a line says that does not fit the block size of its trace.
    pub(super) fn hint(self) -> String {
        match self.is_empty() {
            true => "no block size fits this line".to_owned(),
            false => format!("blocks of {self} would fit this line"),
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self { least: self.least.max(other.least), most: self.most.min(other.most) }
    }

    pub(super) fn is_empty(self) -> bool {
        self.least > self.most
    }

    /// Whether a size is in the range.
    #[must_use]
    pub fn contains(self, size: NonZeroUsize) -> bool {
        (self.least..=self.most).contains(&size.get())
    }

    /// The size that is meant: the usual one if it fits, or else the smallest power of two, or else
    /// the one that is divisible by the highest power of two, as engines choose their sizes.
    pub(super) fn roundest(self) -> NonZeroUsize {
        if self.contains(USUAL) {
            return USUAL;
        }
        let power = self.least.next_power_of_two();
        if power <= self.most {
            return NonZeroUsize::new(power).expect("powers of two are not zero");
        }
        let shift = (0..usize::BITS).rev().find(|shift| {
            let step = 1_usize << shift;
            self.least.checked_next_multiple_of(step).is_some_and(|size| size <= self.most)
        });
        let size = self.least.next_multiple_of(1 << shift.unwrap_or(0));
        NonZeroUsize::new(size).expect("every range begins at 1 or more")
    }
}

impl fmt::Display for BlockSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { least, most: usize::MAX } => write!(f, "{least} or more tokens"),
            Self { least, most } if least == most => write!(f, "{least} tokens"),
            Self { least, most } => write!(f, "{least} to {most} tokens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_fits_where_the_number_of_blocks_is_that_of_the_length() {
        for tokens in 1..200_usize {
            for blocks in 0..40 {
                let sizes = BlockSizes::fitting(tokens, blocks);
                for size in 1..300 {
                    let is_expected = (tokens / size..=tokens.div_ceil(size)).contains(&blocks);
                    let size = NonZeroUsize::new(size).unwrap();
                    assert_eq!(sizes.contains(size), is_expected, "{tokens} {blocks} {size}");
                }
            }
        }
    }
}
