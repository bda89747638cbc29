//! Files that ship with the binary: completions, man pages, image, manifests, unit.

mod chart_values;
mod dockerfile;
mod kubernetes;
mod systemd;
mod terminal;
mod yaml;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn wornpath(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wornpath")).args(arguments).output().unwrap()
}

/// A command line that is written down somewhere is one that the binary takes.
fn takes(arguments: &[&str]) {
    let (command, rest) = arguments.split_first().expect("a command");
    let help = wornpath(&[command, "--help"]);
    assert!(help.status.success(), "there is no `wornpath {command}`");
    let help = String::from_utf8(help.stdout).unwrap();
    for option in rest.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(&format!("{option} ")), "`wornpath {command}` has no {option}");
    }
}

/// A folder of one test's own.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("wornpath-packaging-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn the_package_says_what_it_is_and_under_which_licence() {
    let manifest: toml::Table = read("crates/cli/Cargo.toml").parse().unwrap();
    let workspace: toml::Table = read("Cargo.toml").parse().unwrap();
    assert!(manifest["package"]["description"].as_str().unwrap().len() > 20);
    assert_eq!(manifest["bin"][0]["name"].as_str(), Some("wornpath"));
    let shared = &workspace["workspace"]["package"];
    assert_eq!(shared["license"].as_str(), Some("Apache-2.0"));
    assert!(read("LICENSE").contains("Apache License"));
    let version = String::from_utf8(wornpath(&["--version"]).stdout).unwrap();
    assert_eq!(version.trim(), format!("wornpath {}", shared["version"].as_str().unwrap()));
}
