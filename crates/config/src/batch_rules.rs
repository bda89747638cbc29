//! Limits, quotas and the store of the batch service.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;
use wornpath_tls::ClientTls;

/// The store of files and batches.
#[derive(Clone, PartialEq, Eq)]
pub enum BatchStoreSettings {
    /// A folder that only this gateway uses.
    Folder(PathBuf),
    /// A PostgreSQL database, which several gateways can share.
    Postgres(DatabaseSettings),
}

/// A database and how to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// Its address, `postgres://user@host:5432/name`, without a password.
    pub address: String,
    /// The user's password, if the database asks for one.
    pub password: Option<String>,
    /// Connections are encrypted if this is set.
    pub tls: Option<ClientTls>,
}

/// Hides a database, which has a password.
impl fmt::Debug for BatchStoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "Folder({})", folder.display()),
            Self::Postgres(_) => write!(f, "Postgres"),
        }
    }
}

impl BatchStoreSettings {
    /// Whether this is the address of a database, and not of a folder.
    #[must_use]
    pub fn is_database(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }
}

/// Quota of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchQuota {
    /// Total size of its files.
    pub bytes: u64,
    /// Unfinished batches.
    pub batches: usize,
    /// Total size of the entries of its files and batches, ended ones included.
    pub entries: u64,
}

/// Rules of the batch service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchRules {
    /// The store.
    pub kept: BatchStoreSettings,
    /// Maximum number of lines in an input file.
    pub most_lines: usize,
    /// Maximum size of an upload.
    pub most_bytes: u64,
    /// Maximum batch requests in flight on one pod.
    pub window: NonZeroUsize,
    /// Tokens in a block, if the model's block size is not known.
    pub block_size: NonZeroUsize,
    /// Sent to engines as `priority` of batch requests, if set.
    pub priority: Option<i32>,
    /// Quota of each owner.
    pub quota: BatchQuota,
    /// Memory for the responses of all batches, while they are read and until they are written.
    pub answers: usize,
    /// Memory for block hashes while a batch is planned; the rest spills to disk.
    pub planning_memory: usize,
    /// Retention time of a finished batch and its results.
    pub keep: Duration,
}

impl BatchRules {
    /// OpenAI's defaults, but with higher limits.
    #[must_use]
    pub const fn kept(kept: BatchStoreSettings) -> Self {
        Self {
            kept,
            most_lines: 1_000_000,
            most_bytes: 4 << 30,
            window: NonZeroUsize::new(128).expect("128 is not zero"),
            block_size: NonZeroUsize::new(16).expect("16 is not zero"),
            priority: None,
            quota: BatchQuota { bytes: 64 << 30, batches: 1_000, entries: 64 << 20 },
            answers: 256 << 20,
            planning_memory: 64 << 20,
            keep: Duration::from_secs(30 * 86_400),
        }
    }
}
