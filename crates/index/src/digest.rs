//! Digests: cheap checks whether two sides agree on the blocks of a pod.

/// The number of hashes and their exclusive or. Equal sets have equal digests; unequal sets have
/// equal digests with a probability of about 2^-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockDigest {
    /// The number of hashes.
    pub count: u64,
    /// Their exclusive or.
    pub xor: u64,
}

impl BlockDigest {
    /// Adds a hash.
    pub fn add(&mut self, hash: u64) {
        self.count += 1;
        self.xor ^= hash;
    }

    pub(crate) fn add_all(&mut self, hashes: impl ExactSizeIterator<Item = u64>) {
        self.count += hashes.len() as u64;
        self.xor ^= hashes.fold(0, |xor, hash| xor ^ hash);
    }

    /// Removes a hash that was added.
    pub fn remove(&mut self, hash: u64) {
        self.count -= 1;
        self.xor ^= hash;
    }
}

/// The digests of a pod's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodDigest {
    /// The last sequence number applied, if the source numbers its batches.
    pub last_sequence: Option<u64>,
    /// Per tier, over the engine's own hashes: to compare with the engine.
    pub tiers: [BlockDigest; 4],
    /// Over our hashes of all blocks held on any tier: to compare with another router.
    pub blocks: BlockDigest,
}
