//! Files that commands write beside their output: none may overwrite an input or another.

use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};

/// Refuses outputs, each named by its option, that would overwrite an input or each other.
pub(crate) fn check(
    inputs: &[&PathBuf],
    outputs: &[(&str, Option<&PathBuf>)],
) -> anyhow::Result<()> {
    let absolute = |path: &PathBuf| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let inputs: Vec<_> = inputs.iter().map(|path| absolute(path)).collect();
    let mut seen: Vec<(&str, Option<PathBuf>)> = Vec::new();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        let name = path.display();
        let place = absolute(path);
        ensure!(
            !(path.exists() && inputs.contains(&place)),
            "{option} {name} would overwrite an input; name another file"
        );
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == place) {
            anyhow::bail!("{other} and {option} are both {name}; give each a file of its own");
        }
        seen.push((option, place));
    }
    Ok(())
}

pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
