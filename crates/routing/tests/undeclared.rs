//! A plugin cannot touch a slot that it did not ask assembly for: the compiler refuses it, for the reason we
//! mean. Each file in `tests/undeclared` says in its first line which error it must give.
//!
//! The compiler is called on each file with this crate as it was just built; its error codes are compared,
//! because its words change between releases. A handle that was lawfully made and then carried into another
//! profile is the one thing that types do not see, and is refused when it is used.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use wornpath_index::{Index, IndexLimits};
use wornpath_routing::{
    Assembly, AssemblyRefused, Candidate, Decision, DecisionEnv, DecisionState, Filter, Fleet,
    FleetPod, Make, Plugin, PodFacts, Profile, ProfileEnv, Reads, Registry, Request, Rng, Tokens,
};

/// The lines of a command's output that are JSON.
fn messages(output: &[u8]) -> impl Iterator<Item = Value> {
    std::str::from_utf8(output).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// This crate as a library for the compiler.
fn library() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--lib", "--message-format=json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ours =
        messages(&built.stdout).filter(|it| it["target"]["name"] == "wornpath_routing").last();
    let files = ours.unwrap()["filenames"].as_array().unwrap().clone();
    let files = files.iter().map(|file| PathBuf::from(file.as_str().unwrap()));
    files.into_iter().find(|file| file.extension().is_some_and(|it| it == "rlib")).unwrap()
}

/// The codes of the errors that the compiler has for a file.
fn errors(file: &Path, library: &Path) -> Vec<String> {
    let compiled = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=json"])
        .arg(format!("--extern=wornpath_routing={}", library.display()))
        .arg(format!("-Ldependency={}", library.parent().unwrap().join("deps").display()))
        .arg("--out-dir")
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .arg(file)
        .output()
        .unwrap();
    let errors = messages(&compiled.stderr).filter(|it| it["level"] == "error");
    let code = |it: Value| it["code"]["code"].as_str().map(str::to_owned);
    let codes: Vec<_> = errors.filter_map(code).collect();
    assert_eq!(
        codes.is_empty(),
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    codes
}

#[test]
fn undeclared_access_does_not_compile_and_declared_access_does() {
    let library = library();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/undeclared");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 6);
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let expected =
            text.lines().next().and_then(|line| line.strip_prefix("//! error: ")).unwrap();
        let expected: Vec<_> = expected.split_whitespace().filter(|code| *code != "none").collect();
        assert_eq!(errors(file, &library), expected, "{}", file.display());
    }
}

/// Keeps the first profile's handle and uses it in every other one.
struct Smuggler(&'static Reads<Tokens>);

fn smuggler(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    static FIRST: OnceLock<Reads<Tokens>> = OnceLock::new();
    Ok(Box::new(Smuggler(FIRST.get_or_init(|| assembly.reads()))))
}

impl Filter for Smuggler {
    fn keep(&self, scene: &Decision<'_>, _: &[Candidate], keep: &mut [bool]) {
        keep.fill(scene.read(self.0).is_some());
    }

    fn why(&self, _: &Decision<'_>, _: Candidate) -> String {
        String::new()
    }
}

#[test]
#[should_panic(expected = "Reads<Tokens> belongs to another profile")]
fn a_handle_carried_into_another_profile_is_refused_when_it_is_used() {
    let registry = Registry::shipped().with(Plugin {
        name: "smuggler",
        summary: "",
        parameters: &[],
        needs: &[],
        conflicts: &[],
        example: "smuggler",
        make: Make::Filter(smuggler),
    });
    let surroundings = ProfileEnv { registry, ..ProfileEnv::default() };
    let index = Index::new(IndexLimits::default(), 1);
    let fleet =
        Fleet::new(vec![FleetPod::new(index.add_pod().unwrap(), PodFacts::serving("p", "m"))]);
    let (mut state, mut rng) = (DecisionState::new(&index), Rng::new(1));
    let text = "prepare: [tokenize]\nfilter: [smuggler]\npick: max_score\n";
    for _ in 0..2 {
        let profile = Profile::check("p.yaml", text, &surroundings).unwrap();
        let mut context = profile.context(Request::default());
        let mut world =
            DecisionEnv { fleet: &fleet, state: &mut state, now: Duration::ZERO, rng: &mut rng };
        profile.decide(&mut context, &mut world);
    }
}
