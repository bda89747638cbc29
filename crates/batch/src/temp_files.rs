//! Temporary files for planning batches that do not fit into memory. A file is unlinked as soon as
//! it is open; one that a crashed gateway left behind is removed at the next start.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use wornpath_config::{BatchRules, BatchStoreSettings};
use wornpath_jobs::SortScratch;

const PREFIX: &str = "spill-";

/// Assigns a unique temporary file to every reader of an input.
pub(crate) struct TempFiles {
    folder: PathBuf,
    memory: usize,
    next: AtomicU64,
}

impl TempFiles {
    /// In the store's folder, which must exist, or in the system's temporary folder.
    pub(crate) fn of(rules: &BatchRules) -> Self {
        let folder = match &rules.kept {
            BatchStoreSettings::Folder(folder) => {
                let left = std::fs::read_dir(folder).into_iter().flatten().flatten();
                for entry in left {
                    if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                        // Left behind by a crash.
                        let _ = std::fs::remove_file(entry.path());
                    }
                }
                folder.clone()
            }
            BatchStoreSettings::Postgres(_) => std::env::temp_dir(),
        };
        Self { folder, memory: rules.planning_memory, next: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> SortScratch {
        let process = std::process::id();
        let number = self.next.fetch_add(1, Relaxed);
        let path = self.folder.join(format!("{PREFIX}{process}-{number}"));
        SortScratch { path, cure: "split the batch", memory: self.memory }
    }
}
