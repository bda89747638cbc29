//! Errors of stores: who is at fault, and whether a retry helps.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The delay before a store that failed for now is tried again.
pub(crate) const STORE_RETRY: Duration = Duration::from_millis(500);

/// Why an operation of a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system returned an error.
    #[error("cannot {doing} {}: {cause}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The disk is full. Nothing is lost: a retry succeeds once there is space.
    #[error("disk full: cannot write {}; free some space and it continues", path.display())]
    Full {
        /// The file that could not be written.
        path: PathBuf,
    },
    /// The file differs from what was written and synced.
    #[error(
        "{} is damaged at byte {offset}: {what}; restore it from a backup, or start with a new one",
        path.display()
    )]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The offset of the damage.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A stored file is not as it was stored. Other files are not concerned.
    #[error("{name} is damaged in the store: {what}; restore it from a backup, or create it again")]
    DamagedFile {
        /// The file, or the result of a batch.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another process has locked the file.
    #[error("{} is in use by another process; wait for it, or end it", path.display())]
    Busy {
        /// The locked file.
        path: PathBuf,
    },
    /// The results belong to another input.
    #[error("{}: {what}; give the input it was started with, or another output", path.display())]
    OtherInput {
        /// The file of the results.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Another runner holds the lease now, and only that one may write.
    #[error("lease on `{0}` lost: another runner has taken it over")]
    Fenced(String),
    /// The file or batch does not exist.
    #[error("there is no {0}")]
    Missing(String),
    /// The operation is not allowed in the current state.
    #[error("{0}")]
    Conflict(String),
    /// The database refuses the operation, and would refuse a retry.
    #[error("database error: {0}")]
    Refused(String),
    /// The store is unreachable for now.
    #[error("store unreachable: {0}")]
    Unreachable(String),
}

impl StoreError {
    /// Converts an error of the file system.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { doing, path, cause },
        }
    }

    /// Whether a retry can succeed.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Io { .. } | Self::Unreachable(_))
    }
}
