//! Rules for every file and every crate of the repository, as tests.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod cycles;
mod repository;

use std::collections::BTreeSet;
use std::process::Command;

use repository::{PURE, Source, crates, dependencies, documents, manifests, sources};

/// Layers of the workspace: a crate may depend on those after it in this list, never on those
/// before.
#[rustfmt::skip]
const DOWNWARD: &[&str] = &[
    "cli", "admin", "batch", "gateway", "config", "jobs", "sim", "execution", "events", "tls", "planner", "exchange", "routing", "index", "blocks", "yaml", "time",
];

const MOST_LINES: usize = 600;

#[test]
fn every_file_opens_by_saying_what_it_is_for() {
    report(
        "opens without `//!` docs",
        sources().iter().filter(|source| !source.text.starts_with("//!")),
    );
}

#[test]
fn no_file_is_too_long_to_read() {
    report(
        "has more than 600 lines",
        sources().iter().filter(|source| source.text.lines().count() > MOST_LINES),
    );
}

#[test]
fn no_file_or_crate_has_a_name_that_says_nothing() {
    const EMPTY_NAMES: [&str; 8] =
        ["utils", "util", "helpers", "helper", "common", "types", "core", "misc"];
    report(
        "has a name that says nothing",
        sources()
            .iter()
            .filter(|source| source.path.split(['/', '.']).any(|part| EMPTY_NAMES.contains(&part))),
    );
}

#[test]
fn modules_of_a_crate_import_each_other_without_a_cycle() {
    let all = sources();
    let folders =
        all.iter().filter_map(|source| source.path.find("/src/").map(|at| &source.path[..at + 4]));
    let folders: BTreeSet<_> = folders.collect();
    let mut found = Vec::new();
    for folder in folders {
        let inside = |source: &&Source| source.path.starts_with(folder) && !source.is_test();
        let own: Vec<_> = all.iter().filter(inside).collect();
        found.extend(
            cycles::cycles(&own, folder)
                .into_iter()
                .map(|group| format!("{folder}: {}", group.join(", "))),
        );
    }
    assert!(
        found.is_empty(),
        "modules import each other in a circle; move what they share down:\n{}",
        found.join("\n")
    );
}

#[test]
fn crates_depend_downward_only() {
    let rank = |name: &str| DOWNWARD.iter().position(|known| *known == name);
    for name in crates() {
        let own =
            rank(&name).unwrap_or_else(|| panic!("crates/{name} is not in the design's list"));
        for dependency in dependencies(&name) {
            let Some(other) = dependency.strip_prefix("wornpath-") else { continue };
            let below =
                rank(other).unwrap_or_else(|| panic!("{other} is not in the design's list"));
            assert!(own < below, "crates/{name} depends on {other}, which is not below it");
        }
    }
}

#[test]
fn pure_crates_depend_on_nothing_that_does_io() {
    const IO: [&str; 17] = [
        "tokio",
        "hyper",
        "axum",
        "reqwest",
        "tonic",
        "async-nats",
        "redis",
        "zeromq",
        "zmq",
        "rdkafka",
        "mio",
        "socket2",
        "async-std",
        "smol",
        "rustls",
        "sqlx",
        "rusqlite",
    ];
    for name in crates().iter().filter(|name| PURE.contains(&name.as_str())) {
        for dependency in dependencies(name) {
            assert!(!IO.contains(&dependency.as_str()), "crates/{name} depends on {dependency}");
        }
    }
}

#[test]
fn pure_crates_do_no_io_read_no_clock_and_spawn_nothing() {
    const BANNED: [&str; 9] = [
        "std::net",
        "std::fs",
        "std::process",
        "std::env::",
        "Instant::now",
        "SystemTime",
        "thread::spawn",
        "thread::sleep",
        "std::io::",
    ];
    let pure = sources().into_iter().filter(|source| source.is_pure() && !source.is_test());
    for source in pure {
        for (number, line) in source.code_lines() {
            for banned in BANNED {
                assert!(!line.contains(banned), "{}:{number} mentions {banned}", source.path);
            }
        }
    }
}

#[test]
fn pure_crates_forbid_unsafe_code_and_every_crate_takes_the_workspaces_lints() {
    for (path, manifest) in manifests() {
        let takes = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(takes.and_then(toml::Value::as_bool), Some(true), "{path}: [lints] workspace");
    }
    // The index asks for cache lines ahead of their use, in one file, and denies the rest.
    const EXCEPTED: [(&str, &str); 2] = [
        ("crates/index/src/lib.rs", "#![deny(unsafe_code)]"),
        ("crates/index/src/prefetch.rs", "#![allow(unsafe_code)]"),
    ];
    let excepted = |source: &&Source| EXCEPTED.iter().any(|(path, _)| source.path.ends_with(path));
    report(
        "does not forbid unsafe code",
        sources().iter().filter(|source| {
            source.is_pure()
                && source.path.ends_with("src/lib.rs")
                && !excepted(source)
                && !source.text.contains("#![forbid(unsafe_code)]")
        }),
    );
    let sources = sources();
    for source in sources.iter().filter(excepted) {
        assert!(EXCEPTED.iter().any(|(_, says)| source.text.contains(says)), "{}", source.path);
    }
    let allows = sources.iter().filter(|source| !source.is_tidy() && !excepted(source));
    report(
        "allows unsafe code",
        allows.filter(|source| source.text.contains("allow(unsafe_code)")),
    );
}

#[test]
fn nothing_is_left_for_later() {
    const UNFINISHED: [&str; 5] = ["todo!", "unimplemented!", "FIXME", "TODO", "XXX"];
    for source in sources().iter().filter(|source| !source.is_tidy()) {
        for (number, line) in source.lines() {
            for mark in UNFINISHED {
                assert!(!line.contains(mark), "{}:{number} has {mark}", source.path);
            }
        }
    }
}

/// `let (a, b) = (x, y)` is two lines in one, and a tuple is no struct.
#[test]
fn values_are_bound_one_by_one() {
    for source in sources().iter().filter(|source| !source.is_tidy()) {
        for (number, line) in source.lines() {
            let line = line.trim();
            let is_pair =
                line.starts_with("let (") && line.contains(") = (") && line.ends_with(");");
            assert!(!is_pair, "{}:{number}: {line}", source.path);
        }
    }
}

#[test]
fn no_file_names_a_path_of_a_developers_machine() {
    let mut all = sources();
    all.extend(documents());
    for source in all.iter().filter(|source| !source.is_tidy()) {
        for (number, line) in source.lines() {
            let place = || format!("{}:{number}: {line}", source.path);
            for machine in ["/work/", "/root/", "/home/", "../shared"] {
                assert!(!line.contains(machine), "{}", place());
            }
            assert!(source.is_test() || !line.contains("/tmp/"), "{}", place());
        }
    }
}

/// A profile inherits the packages of another one too.
#[test]
fn the_dist_profile_optimizes_whatever_the_release_profile_does_not() {
    let manifest: toml::Table = repository::workspace();
    let packages = |profile: &str| manifest["profile"][profile]["package"].as_table().unwrap();
    let names = |profile: &str| packages(profile).keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names("release"), names("dist"));
    for (name, package) in packages("dist") {
        assert_eq!(package["opt-level"].as_integer(), Some(3), "{name}");
    }
}

/// Without the feature, floats in prompts differ from the engine's. Asked of cargo for the product
/// alone: the build of a test has the features of all dev-dependencies too, so a test that parses a
/// float could pass while the product lacks it.
#[test]
fn the_product_reads_floats_to_the_last_digit_without_the_help_of_a_dev_dependency() {
    let tree = ["tree", "--frozen", "--package", "wornpath", "--edges", "normal,build"];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .args(["--prefix", "none", "--format", "{p} [{f}]"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).unwrap();
    let mut builds = listed.lines().filter(|line| line.starts_with("serde_json v")).peekable();
    assert!(builds.peek().is_some(), "serde_json is not in\n{listed}");
    for build in builds {
        let features = build.split_once('[').unwrap().1.split(']').next().unwrap();
        assert!(features.split(',').any(|feature| feature == "float_roundtrip"), "{build}");
    }
}

#[test]
fn architecture_and_the_gateway_list_the_same_stages_of_a_request() {
    let text = |path: &str| {
        let found = documents().into_iter().chain(sources()).find(|source| source.path == path);
        found.unwrap_or_else(|| panic!("no {path}")).text
    };
    let stages = |lines: &str, start: &str| {
        let rows = lines.lines().filter_map(|line| line.strip_prefix(start));
        let names = rows.filter_map(|row| row.split(" | ").next()).map(str::to_owned);
        names.filter(|name| name != "stage" && !name.starts_with("---")).collect::<Vec<_>>()
    };
    let architecture = text("ARCHITECTURE.md");
    let (_, request) = architecture.split_once("## Life of a request").unwrap();
    let (request, _) = request.split_once("\n## ").unwrap();
    // The server has the first two.
    let documented = stages(request, "| ").split_off(2);
    let listed = stages(&text("crates/gateway/src/proxy/mod.rs"), "//! | ");
    assert!(listed.len() > 5, "{listed:?}");
    assert_eq!(documented, listed);
}

fn report<'a>(complaint: &str, offenders: impl Iterator<Item = &'a Source>) {
    let offenders: Vec<_> = offenders.map(|source| source.path.as_str()).collect();
    assert!(offenders.is_empty(), "{complaint}:\n  {}", offenders.join("\n  "));
}
