//! What a configuration needs from outside its own file, so that checking it can be tried without one.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Reads what a configuration names.
pub trait Environment {
    /// The text of a file; relative paths start beside the configuration.
    ///
    /// # Errors
    /// If it cannot be read.
    fn text(&self, path: &Path) -> io::Result<String>;

    /// Where a file is or would be, if there is a folder for it.
    fn place(&self, path: &Path) -> Option<PathBuf>;

    /// Whether what is at a path is a folder; none if nothing is there.
    fn is_folder(&self, path: &Path) -> Option<bool>;

    /// Whether there is a folder with a tokenizer.
    fn has_tokenizer(&self, folder: &Path) -> bool;
}

/// The files beside a configuration.
#[derive(Clone, Debug)]
pub struct RelativePaths(PathBuf);

impl RelativePaths {
    /// Beside the configuration at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(path.parent().unwrap_or(Path::new("")).to_owned())
    }

    /// Where a path in the configuration leads.
    #[must_use]
    pub fn path(&self, path: &Path) -> PathBuf {
        self.0.join(path)
    }
}

impl Environment for RelativePaths {
    fn text(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(self.path(path))
    }

    fn place(&self, path: &Path) -> Option<PathBuf> {
        let place = self.path(path);
        let folder = place.parent()?;
        (folder.as_os_str().is_empty() || folder.is_dir()).then_some(place)
    }

    fn is_folder(&self, path: &Path) -> Option<bool> {
        fs::metadata(self.path(path)).ok().map(|found| found.is_dir())
    }

    fn has_tokenizer(&self, folder: &Path) -> bool {
        self.path(folder).join("tokenizer.json").is_file()
    }
}
