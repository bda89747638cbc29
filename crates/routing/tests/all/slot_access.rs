//! A plugin cannot access a slot that it did not declare to assembly: the code does not compile,
//! with the expected error. The first line of each file in `tests/compile_fail` names the error
//! codes.
//!
//! The test runs the compiler on each file against the present build of this crate. It compares
//! error codes, because the messages change between releases. Types cannot prevent one misuse: a
//! handle of one profile that is used in another panics.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use wornpath_index::Moment;

use serde_json::Value;
use wornpath_index::{Index, IndexLimits};
use wornpath_routing::{
    Assembly, AssemblyRefused, Candidate, Decision, DecisionEnv, DecisionState, Filter, Fleet,
    FleetPod, Make, Plugin, PodFacts, Profile, ProfileEnv, Reads, Registry, Request, Rng, Tokens,
};

/// The JSON lines of a command's output.
fn messages(output: &[u8]) -> impl Iterator<Item = Value> {
    std::str::from_utf8(output).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The library that this test is linked with, or one of the same sources: the newest in the folder
/// of this test. To ask cargo for it would build all its dependencies once more, with other
/// features.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let files = fs::read_dir(test.parent().unwrap()).unwrap().map(|it| it.unwrap().path());
    let ours = files.filter(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libwornpath_routing-") && name.ends_with(".rlib")
    });
    ours.max_by_key(|file| file.metadata().unwrap().modified().unwrap()).unwrap()
}

/// The error codes that the compiler reports for a file.
fn errors(file: &Path, library: &Path) -> Vec<String> {
    let compiled = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=json"])
        .arg(format!("--extern=wornpath_routing={}", library.display()))
        .arg(format!("-Ldependency={}", library.parent().unwrap().display()))
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
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

/// Uses the first profile's handle in every profile.
struct ForeignHandle(&'static Reads<Tokens>);

fn foreign_handle(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    static FIRST: OnceLock<Reads<Tokens>> = OnceLock::new();
    Ok(Box::new(ForeignHandle(FIRST.get_or_init(|| assembly.reads()))))
}

impl Filter for ForeignHandle {
    fn keep(&self, decision: &Decision<'_>, _: &[Candidate], keep: &mut [bool]) {
        keep.fill(decision.read(self.0).is_some());
    }

    fn why(&self, _: &Decision<'_>, _: Candidate) -> String {
        String::new()
    }
}

#[test]
#[should_panic(expected = "Reads<Tokens> belongs to another profile")]
fn a_handle_used_in_another_profile_panics() {
    let registry = Registry::shipped().with(Plugin {
        name: "foreign_handle",
        summary: "",
        parameters: &[],
        needs: &[],
        conflicts: &[],
        example: "foreign_handle",
        make: Make::Filter(foreign_handle),
    });
    let env = ProfileEnv { registry, ..ProfileEnv::default() };
    let index = Index::new(IndexLimits::default(), 1);
    let fleet =
        Fleet::new(vec![FleetPod::new(index.add_pod().unwrap(), PodFacts::serving("p", "m"))]);
    let mut state = DecisionState::new(&index);
    let mut rng = Rng::new(1);
    let text = "prepare: [tokenize]\nfilter: [foreign_handle]\npick: max_score\n";
    for _ in 0..2 {
        let profile = Profile::check("p.yaml", text, &env).unwrap();
        let mut context = profile.context(Request::default());
        let mut decision_env =
            DecisionEnv { fleet: &fleet, state: &mut state, now: Moment::ZERO, rng: &mut rng };
        profile.decide(&mut context, &mut decision_env);
    }
}
