//! A folder of the demo's own, which goes with it.

use anyhow::Context;
use std::fs::DirBuilder;
use std::io::ErrorKind::AlreadyExists;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Among the system's temporary files, until it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new one, which nobody else may look into.
    pub(super) fn new() -> anyhow::Result<Self> {
        let process = std::process::id();
        for number in 0_u32.. {
            let path = std::env::temp_dir().join(format!("wornpath-demo-{process}-{number}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                // Left behind by a process that was killed, or somebody else's.
                Err(error) if error.kind() == AlreadyExists => {}
                created => {
                    created.with_context(|| format!("cannot make {}", path.display()))?;
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

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::error!("cannot remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_are_apart_and_go_with_all_that_is_in_them() {
        let [one, two] = [Folder::new().unwrap(), Folder::new().unwrap()];
        assert_ne!(one.path(), two.path());
        std::fs::write(one.path().join("file"), "text").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && two.path().exists());
    }
}
