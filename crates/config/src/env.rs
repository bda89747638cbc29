//! Files and environment variables of the configuration check, as a trait, so that tests and fuzzing
//! need none.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustls::RootCertStore;

use crate::tls::{TlsError, system_roots};

/// Reads the files and environment variables that a configuration names.
pub trait Environment {
    /// The text of a file; relative paths start at the configuration's folder.
    ///
    /// # Errors
    /// If it cannot be read.
    fn text(&self, path: &Path) -> io::Result<String>;

    /// The path of a file that may not exist yet; `None` if its folder does not exist.
    fn output_path(&self, path: &Path) -> Option<PathBuf>;

    /// Whether a path is a folder; `None` if it does not exist.
    fn is_folder(&self, path: &Path) -> Option<bool>;

    /// Whether a path is something else than a file or a folder: a device, a pipe, a socket.
    fn is_special(&self, _path: &Path) -> bool {
        false
    }

    /// The value of an environment variable, if it is set and is UTF-8.
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    /// The CA certificates that the operating system trusts.
    ///
    /// # Errors
    /// If there are none.
    fn system_roots(&self) -> Result<RootCertStore, TlsError> {
        Err(TlsError::NoSystemRoots(String::new()))
    }

    /// Whether the folder contains a `tokenizer.json`.
    fn has_tokenizer(&self, folder: &Path) -> bool;
}

/// Resolves paths against the configuration's folder.
#[derive(Clone, Debug)]
pub struct RelativePaths(PathBuf);

impl RelativePaths {
    /// Relative to the folder of the configuration at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(path.parent().unwrap_or(Path::new("")).to_owned())
    }

    /// Resolves a path of the configuration.
    #[must_use]
    pub fn path(&self, path: &Path) -> PathBuf {
        self.0.join(path)
    }
}

impl Environment for RelativePaths {
    fn text(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(self.path(path))
    }

    fn output_path(&self, path: &Path) -> Option<PathBuf> {
        let path = self.path(path);
        let folder = path.parent()?;
        (folder.as_os_str().is_empty() || folder.is_dir()).then_some(path)
    }

    fn is_folder(&self, path: &Path) -> Option<bool> {
        fs::metadata(self.path(path)).ok().map(|found| found.is_dir())
    }

    fn is_special(&self, path: &Path) -> bool {
        let found = fs::metadata(self.path(path));
        found.is_ok_and(|found| !found.is_dir() && !found.is_file())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn system_roots(&self) -> Result<RootCertStore, TlsError> {
        system_roots()
    }

    fn has_tokenizer(&self, folder: &Path) -> bool {
        self.path(folder).join("tokenizer.json").is_file()
    }
}
