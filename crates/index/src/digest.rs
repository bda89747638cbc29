//! Short sums of a state, to find out cheaply whether two sides agree.

/// How many there are, and the exclusive or of their hashes. Equal states have equal digests; unequal
/// ones differ but for a chance of about 2^-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockDigest {
    /// The number of hashes.
    pub count: u64,
    /// Their exclusive or.
    pub xor: u64,
}

impl BlockDigest {
    /// Takes a hash in.
    pub fn add(&mut self, hash: u64) {
        self.count += 1;
        self.xor ^= hash;
    }

    /// Takes hashes in.
    pub(crate) fn add_all(&mut self, hashes: impl ExactSizeIterator<Item = u64>) {
        self.count += hashes.len() as u64;
        self.xor ^= hashes.fold(0, |xor, hash| xor ^ hash);
    }

    /// Takes a hash out.
    pub fn remove(&mut self, hash: u64) {
        self.count -= 1;
        self.xor ^= hash;
    }
}

/// What a pod's state comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PodDigest {
    /// The last sequence number applied, if the source numbers its batches.
    pub last_sequence: Option<u64>,
    /// Per tier, over the engine's own hashes: to compare with what the engine says.
    pub tiers: [BlockDigest; 4],
    /// Over our hashes of all blocks held on any tier: to compare with another router.
    pub blocks: BlockDigest,
}
