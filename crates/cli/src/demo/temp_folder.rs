//! A temporary folder that is removed when it is dropped.

use anyhow::Context;
use std::fs::DirBuilder;
use std::io::ErrorKind::AlreadyExists;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder that only this user may read.
    pub(super) fn new() -> anyhow::Result<Self> {
        let process = std::process::id();
        for number in 0_u32.. {
            let path = std::env::temp_dir().join(format!("wornpath-demo-{process}-{number}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                // Left behind by a process that was killed, or of another user.
                Err(error) if error.kind() == AlreadyExists => {}
                created => {
                    created.with_context(|| format!("cannot create {}", path.display()))?;
                    return Ok(Self(path));
                }
            }
        }
        anyhow::bail!("every name for a temporary folder is taken")
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::error!(folder = %self.0.display(), %error, "cannot remove temporary folder");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_folder_is_removed_with_its_files_and_another_one_stays() {
        let [one, two] = [TempFolder::new().unwrap(), TempFolder::new().unwrap()];
        assert_ne!(one.path(), two.path());
        std::fs::write(one.path().join("file"), "text").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
