//! Names for what planning a long batch does not keep in memory. A file loses its name as soon as it is open; one that a
//! gateway could not take away before it died goes at the next start.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use wornpath_config::{BatchRules, BatchStoreSettings};
use wornpath_jobs::SortScratch;

const PREFIX: &str = "spill-";

/// Gives every reader of an input a name of its own.
pub(crate) struct TempFiles {
    folder: PathBuf,
    memory: usize,
    next: AtomicU64,
}

impl TempFiles {
    /// In the folder of batches, which must be open, or where the system has its temporary files.
    pub(crate) fn of(rules: &BatchRules) -> Self {
        let folder = match &rules.kept {
            BatchStoreSettings::Folder(folder) => {
                let left = std::fs::read_dir(folder).into_iter().flatten().flatten();
                for entry in left {
                    if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                        // It is empty, and its name will be used again.
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
        let (process, number) = (std::process::id(), self.next.fetch_add(1, Relaxed));
        let path = self.folder.join(format!("{PREFIX}{process}-{number}"));
        SortScratch { path, cure: "split the batch", memory: self.memory }
    }
}
