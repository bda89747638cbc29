//! Where a folder has its files and results.

use crate::result_log::ResultPaths;
use std::path::{Path, PathBuf};

/// The path of an upload.
pub(super) fn file_path(folder: &Path, file: &str) -> PathBuf {
    folder.join("files").join(file)
}

/// The paths of the results of a batch.
pub(super) fn result_paths(folder: &Path, batch: &str) -> ResultPaths {
    let path = |suffix: &str| folder.join("results").join(format!("{batch}{suffix}"));
    ResultPaths { output: path(".output.jsonl"), errors: path(".errors.jsonl"), log: path(".log") }
}
