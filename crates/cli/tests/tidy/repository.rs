//! The repository's sources and manifests, for the rules that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates that do no I/O, read no clock and spawn nothing.
pub(crate) const PURE: [&str; 7] =
    ["time", "yaml", "blocks", "index", "routing", "planner", "exchange"];

/// One Rust file.
pub(crate) struct Source {
    /// From the repository's root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn is_pure(&self) -> bool {
        PURE.iter().any(|name| self.path.starts_with(&format!("crates/{name}/")))
    }

    /// Whether the whole file is test, example or benchmark code.
    pub(crate) fn is_test(&self) -> bool {
        let parts: Vec<_> = self.path.split('/').collect();
        parts.iter().any(|part| ["tests", "tests.rs", "examples", "benches"].contains(part))
    }

    /// The rules name what they ban.
    pub(crate) fn is_tidy(&self) -> bool {
        self.path == "crates/cli/tests/tidy/main.rs"
    }

    /// All lines, numbered from one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The lines before the file's own tests, without comments.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines()
            .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// Every Rust file of the repository, build output aside.
pub(crate) fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for folder in ["crates", "examples", "fuzz", "bench"] {
        collect(&root().join(folder), &mut sources);
    }
    assert!(sources.len() > 20, "found only {} files: the rules check nothing", sources.len());
    sources
}

/// What a reader of the repository sees first: documents, scripts and settings at its root.
pub(crate) fn documents() -> Vec<Source> {
    let mut paths: Vec<_> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        // In a linked work tree `.git` is a file that says where the repository is.
        .filter(|path| path.is_file() && !path.ends_with("Cargo.lock") && !path.ends_with(".git"))
        .collect();
    paths.push(root().join(".ci/run"));
    paths.retain(|path| path.exists());
    let document = |path: &PathBuf| Source {
        path: path.file_name().unwrap().to_str().unwrap().to_owned(),
        text: fs::read_to_string(path).unwrap(),
    };
    paths.iter().map(document).collect()
}

/// The names of the folders under `crates/`.
pub(crate) fn crates() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Every crate's manifest with its path.
pub(crate) fn manifests() -> Vec<(String, toml::Table)> {
    crates()
        .into_iter()
        .map(|name| (format!("crates/{name}/Cargo.toml"), manifest(&name)))
        .collect()
}

/// What a crate depends on to build, whatever the platform; what only its tests need is left out.
pub(crate) fn dependencies(name: &str) -> Vec<String> {
    let manifest = manifest(name);
    let mut tables = vec![manifest.get("dependencies"), manifest.get("build-dependencies")];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().map(|target| target.get("dependencies")));
    }
    tables
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_table)
        .flat_map(|table| table.keys().cloned())
        .collect()
}

/// The manifest of the workspace.
pub(crate) fn workspace() -> toml::Table {
    fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap()
}

fn manifest(name: &str) -> toml::Table {
    let path = root().join("crates").join(name).join("Cargo.toml");
    fs::read_to_string(path).unwrap().parse().unwrap()
}

fn collect(folder: &Path, sources: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&entry, sources);
        } else if name.ends_with(".rs") {
            let path = entry.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
            sources.push(Source { path, text: fs::read_to_string(&entry).unwrap() });
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
