//! Why a store cannot do what it is asked.

use std::io;
use std::path::{Path, PathBuf};

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("cannot {doing} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// No room. Nothing is lost: it can be tried again when there is.
    #[error("no room to write {}; free some and it goes on", path.display())]
    Full {
        /// Which file.
        path: PathBuf,
    },
    /// What was written and synced is not what is there.
    #[error(
        "{} is damaged at byte {offset}: {what}; it was not written so, restore it from a copy or start afresh",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// In which way.
        what: &'static str,
    },
    /// Somebody else works with it.
    #[error("{} is in use by another process; wait for it, or end it", path.display())]
    Busy {
        /// Which file.
        path: PathBuf,
    },
    /// The results belong to something else.
    #[error("{}: {what}; give the input it was begun with, or another output", path.display())]
    OtherInput {
        /// Which file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Somebody else has taken over: what was to be written is theirs to write.
    #[error("the lease on `{0}` is lost: another runner has taken it over")]
    Fenced(String),
    /// There is no such thing.
    #[error("there is no {0}")]
    Missing(String),
    /// It is not allowed in the state that it is in.
    #[error("{0}")]
    Conflict(String),
    /// The database does not do what it is asked, however often.
    #[error("the database refuses: {0}")]
    Refused(String),
    /// The store cannot be reached for now.
    #[error("the store does not answer: {0}")]
    Unreachable(String),
}

impl StoreError {
    /// From an error of the file system.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { doing, path, cause },
        }
    }

    /// Whether the same can succeed later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Io { .. } | Self::Unreachable(_))
    }
}
