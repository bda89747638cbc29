//! A cache of replay summaries, so that a long run can be interrupted and resumed.
//!
//! The key of a replay is everything that decides its figures but the simulator itself: part, case,
//! seed and profile. After a change of the simulator the folder must be emptied.

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The file of one replay's summary, if there is a folder.
pub(crate) struct CachedSummary(Option<PathBuf>);

impl CachedSummary {
    /// The file of a policy's replay with this key.
    pub(crate) fn of(folder: Option<&Path>, policy: &str, key: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Self(folder.map(|folder| folder.join(format!("{policy}-{:016x}.json", hasher.finish()))))
    }

    /// The summary of an earlier run.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.0.as_ref()?).ok()?).ok()
    }

    /// Writes the file atomically.
    pub(crate) fn write(&self, summary: &impl Serialize) -> anyhow::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let partial = path.with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(summary)?)
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}
