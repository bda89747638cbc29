//! What batches may be like, where they are kept, and how much of that one owner may have.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Where files and batches are.
#[derive(Clone, PartialEq, Eq)]
pub enum BatchStoreSettings {
    /// In a folder that is this gateway's alone.
    Folder(PathBuf),
    /// In a PostgreSQL database, at this address, which several gateways share.
    Postgres(String),
}

/// Not the address of a database: a password may stand in it.
impl fmt::Debug for BatchStoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "Folder({})", folder.display()),
            Self::Postgres(_) => write!(f, "Postgres"),
        }
    }
}

impl BatchStoreSettings {
    /// As it is written on a command line: a folder, or `postgres://…`.
    #[must_use]
    pub fn at(written: &str) -> Self {
        match written.starts_with("postgres://") || written.starts_with("postgresql://") {
            true => Self::Postgres(written.to_owned()),
            false => Self::Folder(PathBuf::from(written)),
        }
    }
}

/// How much one owner may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchQuota {
    /// Bytes of all its files.
    pub bytes: u64,
    /// Batches that have not ended.
    pub batches: usize,
}

/// What batches may be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchRules {
    /// Where they are kept.
    pub kept: BatchStoreSettings,
    /// Lines of an input.
    pub most_lines: usize,
    /// Bytes of an upload.
    pub most_bytes: u64,
    /// Offline requests on one pod at once.
    pub window: NonZeroUsize,
    /// Tokens in a block, where the model's are not known.
    pub block_size: NonZeroUsize,
    /// What engines are told as `priority` of offline requests, if anything.
    pub priority: Option<i32>,
    /// How much one owner may have.
    pub quota: BatchQuota,
    /// Bytes of hashes that planning a batch keeps in memory; what is more goes to disk.
    pub planning_memory: usize,
    /// How long an ended batch and its results are kept.
    pub keep: Duration,
}

impl BatchRules {
    /// As OpenAI has it, but for higher limits.
    #[must_use]
    pub const fn kept(kept: BatchStoreSettings) -> Self {
        Self {
            kept,
            most_lines: 1_000_000,
            most_bytes: 4 << 30,
            window: NonZeroUsize::new(128).expect("128 is not zero"),
            block_size: NonZeroUsize::new(16).expect("16 is not zero"),
            priority: None,
            quota: BatchQuota { bytes: 64 << 30, batches: 1_000 },
            planning_memory: 64 << 20,
            keep: Duration::from_secs(30 * 86_400),
        }
    }
}
