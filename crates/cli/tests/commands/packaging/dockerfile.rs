//! The Dockerfile, checked without Docker: copied files exist, the binary that it builds is the one
//! it runs, and not as root.

use super::{read, root, takes};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// An instruction and what stands behind it.
fn instructions() -> Vec<(String, String)> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let all: Vec<_> = lines.map(|line| line.split_once(' ').unwrap()).collect();
    #[rustfmt::skip]
    const KNOWN: [&str; 11] = [
        "FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD",
    ];
    for (word, _) in &all {
        assert!(
            KNOWN.contains(word),
            "Dockerfile: `{word}` is no instruction that this test knows"
        );
    }
    all.into_iter().map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect()
}

/// What is copied from the repository: the words but the last.
fn copied() -> Vec<String> {
    let all = instructions();
    let copies = all.iter().filter(|(word, rest)| word == "COPY" && !rest.starts_with("--from"));
    let sources = copies.flat_map(|(_, rest)| {
        let mut words: Vec<_> = rest.split_whitespace().map(str::to_owned).collect();
        words.pop();
        words
    });
    sources.collect()
}

#[test]
fn everything_that_the_image_copies_exists_and_is_let_through() {
    let ignored = read(".dockerignore");
    assert_eq!(ignored.lines().next(), Some("*"), "what is not named is left out");
    for source in copied() {
        assert!(root().join(&source).exists(), "Dockerfile copies {source}, which does not exist");
        assert!(
            ignored.lines().any(|line| line == format!("!{source}")),
            ".dockerignore hides {source}"
        );
    }
}

#[test]
fn everything_that_the_build_reads_is_copied() {
    let copied = copied();
    for path in sources(&root().join("crates")) {
        let text = fs::read_to_string(&path).unwrap();
        for macro_name in ["include_str!(\"", "include_bytes!(\""] {
            for included in text.split(macro_name).skip(1).filter_map(|rest| rest.split('"').next())
            {
                let target = plain(&path.parent().unwrap().join(included));
                let inside = target.strip_prefix(root()).unwrap();
                let top = inside.components().next().unwrap().as_os_str().to_str().unwrap();
                assert!(
                    copied.iter().any(|name| name == top),
                    "{} includes {included}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn every_member_of_the_workspace_is_copied() {
    let copied = copied();
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap().trim_end_matches("/*");
        assert!(copied.iter().any(|name| name == member), "the image is built without {member}");
    }
}

/// Rust files that are part of the binary.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() && !["tests", "examples", "benches"].contains(&name) {
            all.extend(sources(&entry));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            all.push(entry);
        }
    }
    all
}

fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn the_image_runs_the_binary_that_it_built_and_not_as_root() {
    let all = instructions();
    let find =
        |word: &str| all.iter().rfind(|(known, _)| known == word).map(|(_, rest)| rest.as_str());
    let build =
        all.iter().find(|(word, rest)| word == "RUN" && rest.starts_with("cargo install")).unwrap();
    assert!(
        build.1.contains("--locked --path crates/cli") && build.1.ends_with("--root /installed")
    );
    let manifest: toml::Table = read("crates/cli/Cargo.toml").parse().unwrap();
    let features = build.1.split("--features ").nth(1).unwrap().split(' ').next().unwrap();
    for feature in features.split(',') {
        assert!(manifest["features"].get(feature).is_some(), "there is no feature {feature}");
    }
    let built = "--from=build /installed/bin/wornpath /usr/local/bin/wornpath";
    assert!(all.contains(&("COPY".to_owned(), built.to_owned())), "{all:?}");
    assert_eq!(find("ENTRYPOINT"), Some(r#"["/usr/local/bin/wornpath"]"#));
    let command: Vec<String> = serde_json::from_str(find("CMD").unwrap()).unwrap();
    takes(&command.iter().map(String::as_str).collect::<Vec<_>>());
    let user = find("USER").unwrap().split(':').next().unwrap();
    assert!(user.parse::<u32>().is_ok_and(|user| user > 0), "USER {user} may be root");
    let last = all.iter().rposition(|(word, _)| word == "FROM").unwrap();
    assert!(all[last..].iter().any(|(word, _)| word == "USER"), "the last stage names no user");
}

#[test]
fn the_image_is_built_by_the_compiler_that_the_workspace_asks_for() {
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = workspace["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(read("Dockerfile").contains(&format!("FROM rust:{version}-")), "not Rust {version}");
}
