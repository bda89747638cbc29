//! Figures of replays that were made before, so that a long run can be interrupted and goes on where it was.
//!
//! A replay is known by everything that decides its figures but the simulator itself: part, case, seed and profile.
//! Whoever changes the simulator empties the folder.

use anyhow::Context;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use wornpath_sim::replay::Summary;

/// One replay's place in the folder, if there is one.
pub(crate) struct Place(Option<PathBuf>);

impl Place {
    /// The place of a policy's replay, told from others by what `known_by` hashes.
    pub(crate) fn of(folder: Option<&Path>, policy: &str, known_by: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        known_by.hash(&mut hasher);
        Self(folder.map(|folder| folder.join(format!("{policy}-{:016x}.json", hasher.finish()))))
    }

    /// What was kept.
    pub(crate) fn read(&self) -> Option<Summary> {
        serde_json::from_slice(&std::fs::read(self.0.as_ref()?).ok()?).ok()
    }

    /// Keeps it, whole or not at all.
    pub(crate) fn write(&self, summary: &Summary) -> anyhow::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let partial = path.with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(summary)?)
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot keep {}", path.display()))
    }
}
