//! The chained hash: the name of the prefix that ends with a block.
//!
//! A chain step folds a block's content into the hash of the prefix before it by one 128-bit
//! multiplication. The contents are keyed hashes already, so the step must be fast and mix well,
//! but need not resist an attacker on its own: a chain of 512 blocks is a serial dependency of 512
//! steps, and each request pays every nanosecond of a step 512 times.

/// Names a whole prefix: the block it ends with and everything before that block.
///
/// Equal hashes mean equal prefixes under one seed, up to 64-bit collisions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

/// A keyed hash of one block's own content: its tokens (or bytes) and the engine's extra keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct ContentHash(pub u64);

impl BlockHash {
    /// The hash of the prefix that `self` names, extended by one block.
    #[inline]
    #[must_use]
    pub const fn then(self, content: ContentHash) -> Self {
        // Odd constants without structure (digits of pi). A zero factor would swallow the other
        // one, hence the additions before the product and the second use of the parent after it.
        const LEFT: u64 = 0x243F_6A88_85A3_08D3;
        const RIGHT: u64 = 0x1319_8A2E_0370_7345;
        let left = self.0 ^ LEFT;
        let right = content.0 ^ RIGHT;
        let product = (left as u128).wrapping_mul((right | 1) as u128);
        let folded = (product as u64) ^ ((product >> 64) as u64);
        Self(folded.wrapping_add(content.0.rotate_left(29)))
    }

    /// Every prefix of `contents` in order, each extending the one before it, starting from `self`.
    pub fn chain(self, contents: &[ContentHash]) -> impl Iterator<Item = BlockHash> + '_ {
        contents.iter().scan(self, |prefix, content| {
            *prefix = prefix.then(*content);
            Some(*prefix)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_matters() {
        let a = ContentHash(1);
        let b = ContentHash(2);
        let root = BlockHash(7);
        assert_ne!(root.then(a).then(b), root.then(b).then(a));
    }

    #[test]
    fn one_flipped_bit_anywhere_changes_every_later_hash_and_about_half_its_bits() {
        let contents: Vec<_> =
            (0..8).map(|i| ContentHash(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(i))).collect();
        let whole: Vec<_> = BlockHash(3).chain(&contents).collect();
        let mut flipped_bits = 0;
        for bit in 0..64 {
            let mut other = contents.clone();
            other[2].0 ^= 1 << bit;
            let changed: Vec<_> = BlockHash(3).chain(&other).collect();
            assert_eq!(whole[..2], changed[..2]);
            for i in 2..8 {
                assert_ne!(whole[i], changed[i], "bit {bit}, block {i}");
            }
            flipped_bits += (whole[7].0 ^ changed[7].0).count_ones();
        }
        let mean = f64::from(flipped_bits) / 64.0;
        assert!((28.0..36.0).contains(&mean), "mean {mean} of 64 bits");
    }
}
