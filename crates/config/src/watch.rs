//! Whether files have changed, by looking at them now and then.
//!
//! A file that is being written is looked at in the middle. So a change counts only when the files look the
//! same twice in a row. No notification of the system is used: they differ between systems and are lost over
//! network volumes and swapped links, and a look costs a few microseconds.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

/// How files look: when they were written and how long they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileState(Vec<Option<(SystemTime, u64)>>);

impl FileState {
    /// How these files look now.
    #[must_use]
    pub fn at(files: &[PathBuf]) -> Self {
        let look = |path: &PathBuf| {
            let file = fs::metadata(path).ok()?;
            Some((file.modified().ok()?, file.len()))
        };
        Self(files.iter().map(look).collect())
    }
}

impl FileState {
    /// These files and those.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// Remembers how files looked.
#[derive(Clone, Debug)]
pub struct FileWatch {
    taken: FileState,
    last: FileState,
}

impl FileWatch {
    /// The files were just read and looked so.
    #[must_use]
    pub fn new(look: FileState) -> Self {
        Self { last: look.clone(), taken: look }
    }

    /// Whether the files have changed since they were last taken, and stay as they are.
    pub fn look(&mut self, now: FileState) -> bool {
        let is_new = now != self.taken && now == self.last;
        if is_new {
            self.taken.clone_from(&now);
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
    fn a_change_counts_once_and_only_when_the_file_is_at_rest() {
        let mut watch = FileWatch::new(written(1));
        assert!(!watch.look(written(1)));
        assert!(!watch.look(written(2)), "it may be half written");
        assert!(!watch.look(written(3)));
        assert!(watch.look(written(3)));
        assert!(!watch.look(written(3)));
    }

    #[test]
    fn a_file_that_vanishes_for_a_moment_is_not_taken_twice() {
        let mut watch = FileWatch::new(written(1));
        assert!(!watch.look(FileState(vec![None])));
        assert!(!watch.look(written(1)));
        assert!(!watch.look(written(1)));
    }
}
