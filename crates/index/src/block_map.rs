//! A map by block hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use wornpath_blocks::BlockHash;

/// A block hash is a keyed hash already: no client can choose its bucket, so it is used unchanged.
/// The standard library's hasher would cost more than the rest of a speculative insert.
pub(crate) type BlockMap<T> = HashMap<BlockHash, T, BuildHasherDefault<IdentityHasher>>;

/// Returns the key as its hash.
#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = self.0.rotate_left(8) ^ hash;
    }
}
