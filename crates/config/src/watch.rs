//! Detects changed files by polling their modification time and size.
//!
//! A poll may see a file while it is being written, so a change counts only when two polls in a row
//! see the same state. File system notifications are not used: they differ between systems and are
//! lost on network volumes and swapped links, and a poll costs a few microseconds.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// Modification time and size of some files; `None` for a file that does not exist.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileState(Vec<Option<(SystemTime, u64)>>);

impl FileState {
    /// The current state of these files.
    #[must_use]
    pub fn at(files: &[PathBuf]) -> Self {
        let state = |path: &PathBuf| {
            let file = fs::metadata(path).ok()?;
            Some((file.modified().ok()?, file.len()))
        };
        Self(files.iter().map(state).collect())
    }
}

impl FileState {
    /// The state of the files of both.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The state of one file, by its place; none also for a file that does not exist.
    pub(crate) fn of(&self, place: usize) -> Option<(SystemTime, u64)> {
        self.0.get(place).copied().flatten()
    }
}

/// Compares successive states of files.
#[derive(Clone, Debug)]
pub struct FileWatch {
    /// The state that was last reported as a change.
    applied: FileState,
    last: FileState,
}

impl FileWatch {
    /// Starts from the state in which the files were read.
    #[must_use]
    pub fn new(state: FileState) -> Self {
        Self { last: state.clone(), applied: state }
    }

    /// Whether the files have changed since the last reported change and are stable.
    pub fn look(&mut self, now: FileState) -> bool {
        let is_new = now != self.applied && now == self.last;
        if is_new {
            self.applied.clone_from(&now);
        }
        self.last = now;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn written(seconds: u64) -> FileState {
        FileState(vec![Some((SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), 9))])
    }

    #[test]
    fn a_change_counts_once_and_only_when_the_file_is_stable() {
        let mut watch = FileWatch::new(written(1));
        assert!(!watch.look(written(1)));
        assert!(!watch.look(written(2)), "it may be half written");
        assert!(!watch.look(written(3)));
        assert!(watch.look(written(3)));
        assert!(!watch.look(written(3)));
    }

    #[test]
    fn a_file_that_disappears_for_one_poll_is_no_change() {
        let mut watch = FileWatch::new(written(1));
        assert!(!watch.look(FileState(vec![None])));
        assert!(!watch.look(written(1)));
        assert!(!watch.look(written(1)));
    }
}
