//! Golden files: the message, position and cure for every rule of assembly.
//!
//! `tests/problems/<case>.yaml` breaks a rule, `<case>.txt` is the expected output. After a change
//! of a message, `UPDATE=1 cargo test -p wornpath-routing --test all problems` rewrites the files
//! for review.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use wornpath_routing::{
    Assembly, AssemblyRefused, Candidate, CandidateSet, Choice, Decision, Filter, Make, Parameter,
    Pick, Picked, Plugin, Prepare, Preparing, ProblemKind, Profile, ProfileEnv, Reads, Registry,
    Rejection, Rng, Role, Scale, Score, Slot, Stage, Takes, Writes,
};

const PLAIN: Plugin = Plugin {
    name: "",
    summary: "",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "",
    make: Make::Filter(|_| Ok(Box::new(KeepAll))),
};

struct KeepAll;

impl Filter for KeepAll {
    fn keep(&self, _: &Decision<'_>, _: &[Candidate], _: &mut [bool]) {}

    fn why(&self, _: &Decision<'_>, _: Candidate) -> String {
        String::new()
    }
}

macro_rules! slots {
    ($($name:ident)*) => {$(
        #[derive(Default)]
        struct $name;

        impl Slot for $name {
            const NAME: &'static str = stringify!($name);
        }
    )*};
}

slots! { Chick Shell Calf Milk }

struct Derives<R: Slot, W: Slot>(Reads<R>, Writes<W>);

impl<R: Slot, W: Slot> Prepare for Derives<R, W> {
    fn prepare(&self, preparing: &mut Preparing<'_>) -> Result<(), Rejection> {
        preparing.derive(&self.0, &self.1, |_, _| {});
        Ok(())
    }
}

fn derives<R: Slot, W: Slot>(
    assembly: &mut Assembly<'_>,
) -> Result<Box<dyn Prepare>, AssemblyRefused> {
    Ok(Box::new(Derives::<R, W>(assembly.reads(), assembly.writes())))
}

struct Milliseconds;

impl Score for Milliseconds {
    fn scale(&self) -> Scale {
        Scale::Milliseconds
    }

    fn score(&self, _: &Decision<'_>, _: &[Candidate], _: &mut [f64]) {}
}

struct Beside(Reads<Picked>);

impl Score for Beside {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, _: &[Candidate], scores: &mut [f64]) {
        scores.fill(f64::from(u8::from(decision.read(&self.0).is_some())));
    }
}

struct First;

impl Pick for First {
    fn pick(&self, _: &Decision<'_>, _: CandidateSet<'_>, _: &mut Rng) -> Choice {
        0.into()
    }
}

fn beside(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    Ok(Box::new(Beside(assembly.picked("preprocess"))))
}

/// The shipped plugins, and a few with which a profile can break the rules.
fn test_env() -> ProfileEnv {
    const LONELY: Plugin =
        Plugin { name: "lonely", needs: &[(Stage::Prepare, "tokenize")], ..PLAIN };
    const SIZE: Parameter = Parameter::required("size", Takes::Whole(1, 9), "Required.");
    let registry = Registry::shipped()
        .with(Plugin { name: "hen", make: Make::Prepare(derives::<Chick, Shell>), ..PLAIN })
        .with(Plugin { name: "egg", make: Make::Prepare(derives::<Shell, Chick>), ..PLAIN })
        .with(Plugin { name: "cow", make: Make::Prepare(derives::<Calf, Milk>), ..PLAIN })
        .with(Plugin { name: "calf", make: Make::Prepare(derives::<Milk, Calf>), ..PLAIN })
        .with(LONELY)
        .with(Plugin { name: "first", make: Make::Pick(|_| Ok(Box::new(First))), ..LONELY })
        .with(Plugin { name: "cat", conflicts: &[(Stage::Filter, "dog")], ..PLAIN })
        .with(Plugin { name: "dog", ..PLAIN })
        .with(Plugin { name: "particular", parameters: &[SIZE], ..PLAIN })
        .with(Plugin {
            name: "patience",
            make: Make::Score(|_| Ok(Box::new(Milliseconds))),
            ..PLAIN
        })
        .with(Plugin { name: "beside", make: Make::Score(beside), ..PLAIN });
    let roles = [Role::SERVE, Role::PREFILL, Role::DECODE].map(Role::named).to_vec();
    ProfileEnv { registry, roles: Some(roles), ..ProfileEnv::default() }
}

#[test]
fn every_broken_rule_is_reported_with_its_position_and_cure() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/problems");
    let mut cases: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    cases.sort();
    let mut kinds = HashSet::new();
    let mut wrong = Vec::new();
    for path in &cases {
        let file = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(path).unwrap();
        let problems = match Profile::check(file, &text, &test_env()) {
            Ok(_) => panic!("{file} breaks no rule"),
            Err(problems) => problems,
        };
        kinds.extend(problems.all().iter().map(wornpath_routing::Problem::kind));
        let shown = problems.to_string();
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&expected, &shown).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != shown {
            wrong.push(shown);
        }
    }
    assert!(wrong.is_empty(), "not what the .txt files say:\n{}", wrong.join("\n"));
    for kind in ProblemKind::OF_PROFILES {
        assert!(kinds.contains(&kind), "no case breaks the rule {}", kind.code());
    }
}

#[test]
fn problems_are_also_available_as_json() {
    let text = "pick: max_scor\n";
    let problems = Profile::check("p.yaml", text, &test_env()).unwrap_err().to_json();
    assert_eq!(
        problems,
        serde_json::json!([{
            "code": "unknown-plugin", "file": "p.yaml", "line": 1, "column": 7, "length": 8,
            "message": "unknown `pick` plugin `max_scor`", "cure": "did you mean `max_score`?",
            "also": [],
        }])
    );
}

/// Shows that the cases above fail by their rule, not by the environment.
#[test]
fn a_profile_that_breaks_no_rule_is_accepted_in_the_same_environment() {
    let text = "prepare: [tokenize, block_hash]\nfilter: [healthy]\nscore: [cache_affinity, {least_load: {weight: 0}}]\npick: max_score\n";
    Profile::check("p.yaml", text, &test_env()).unwrap();
}

#[test]
fn settings_without_effect_are_refused() {
    let hold = "hold: {unless: [{concurrency: {requests: 8, on_empty: skip}}]}";
    let cases = [
        (hold, "`on_empty` of `concurrency` has no effect in `unless` of `hold`"),
        ("description: [1, 2]", "`description` is a list, not text"),
    ];
    for (line, message) in cases {
        let text = format!("pick: max_score\n{line}\n");
        let problems = Profile::check("p.yaml", &text, &test_env()).unwrap_err();
        assert_eq!(problems.all().len(), 1, "{problems}");
        assert_eq!(problems.all()[0].message(), message);
    }
}
