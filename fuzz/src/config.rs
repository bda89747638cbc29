//! Operators' files: configurations, profiles, and descriptions of fleets.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wornpath_blocks::HashKey;
use wornpath_config::{Config, Environment, TEXT_PROFILE, builtin_profile};
use wornpath_index::Moment;
use wornpath_index::{Index, IndexLimits};
use wornpath_routing::fleet_spec::FleetSpec;
use wornpath_routing::{
    ByteTokenizer, DecisionEnv, DecisionState, Fleet, FleetPod, Models, Outcome, PodFacts,
    PodState, Profile, ProfileEnv, Recorder, Request, Rng,
};

const NOW: Moment = Moment::from_secs(3600);

/// Every file is a profile, and every folder has a tokenizer.
struct AnyFile;

impl Environment for AnyFile {
    fn text(&self, _: &Path) -> io::Result<String> {
        Ok(builtin_profile(TEXT_PROFILE).unwrap_or_default().to_owned())
    }

    fn output_path(&self, path: &Path) -> Option<PathBuf> {
        Some(path.to_owned())
    }

    fn is_folder(&self, _: &Path) -> Option<bool> {
        None
    }

    fn has_tokenizer(&self, _: &Path) -> bool {
        true
    }
}

/// `wornpath.yaml`: accepted, or refused with its problems. The same text as a file of pods.
pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Config::check("fuzzed.yaml", &text, &AnyFile) {
        Ok(config) => config.pods().iter().for_each(|pod| drop(pod.per_rank())),
        Err(refused) => {
            assert!(refused.to_json().as_array().is_some_and(|all| !all.is_empty()));
            assert!(!refused.to_string().is_empty());
        }
    }
    if let Ok(pods) = Config::bare().check_pods("fuzzed.yaml", &text) {
        pods.iter().for_each(|pod| drop(pod.per_rank()));
    }
}

/// A profile: refused with its problems, or it can be printed and checked again, and decides.
pub fn profile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let size = NonZeroUsize::new(4).expect("four is not zero");
    let models = Models::new(HashKey::DEFAULT).with("m", size, Some(Arc::new(ByteTokenizer)));
    let env = ProfileEnv { models: Arc::new(models), ..ProfileEnv::default() };
    let profile = match Profile::check("fuzzed.yaml", &text, &env) {
        Ok(profile) => profile,
        Err(problems) => {
            assert!(!problems.all().is_empty() && !problems.to_string().is_empty());
            return;
        }
    };
    let printed = profile.printed();
    let again = Profile::check("printed.yaml", &printed, &env);
    assert_eq!(again.expect("what is printed can be read").printed(), printed);
    let index = Index::new(IndexLimits::default(), 1);
    let pod = |name| {
        let id = index.add_pod().expect("there are slots");
        FleetPod::new(id, PodFacts::serving(name, "m"))
    };
    decide(&profile, &index, &Fleet::new(["a", "b", "c"].map(pod).into()));
}

/// A description of a fleet: it can be built, and profiles decide on it.
pub fn described_fleet(bytes: &[u8]) {
    /// More would only make runs slower.
    const MAX_REQUESTS: u32 = 1000;
    let text = String::from_utf8_lossy(bytes);
    let described = match FleetSpec::read("fuzzed.yaml", &text) {
        Ok(described) => described,
        Err(problems) => return assert!(!problems.to_string().is_empty()),
    };
    if described.pods.iter().any(|pod| pod.requests > MAX_REQUESTS) {
        return;
    }
    let Ok(built) = described.build(NOW, |_| Some(Arc::new(ByteTokenizer))) else { return };
    assert_eq!(built.fleet.pods().len(), described.pods.len());
    let models = Arc::clone(&built.models);
    let env = ProfileEnv { models, ..ProfileEnv::default() };
    for name in ["cache-aware", "dynamo", "min-ttft"] {
        let text = builtin_profile(name).expect("it is built in");
        if let Ok(profile) = Profile::check(name, text, &env) {
            decide(&profile, &built.index, &built.fleet);
        }
    }
}

/// Decides two requests in turn. All reserved load is released.
fn decide(profile: &Profile, index: &Index, fleet: &Fleet) {
    let loads = || -> Vec<_> {
        let load = |pod_state: &PodState| (pod_state.requests(), pod_state.prefill_tokens());
        fleet.pods().iter().map(|pod| load(pod.state())).collect()
    };
    let before = loads();
    let mut state = DecisionState::new(index);
    let mut rng = Rng::new(1);
    for body in [
        &br#"{"model":"m","prompt":"one two three four","user":"u","max_tokens":9}"#[..],
        br#"{"model":"m","messages":[{"role":"user","content":"one two three"}],"stream":true}"#,
    ] {
        let request = Request::from_json(body).expect("it is a request");
        let headers = vec![("x-session-id".to_owned(), "s".to_owned())];
        let mut context = profile.context(Request { headers, arrival: NOW, ..request });
        if profile.prepare(&mut context).is_err() {
            continue;
        }
        let clock = || NOW;
        let mut recorder = Recorder::new(&clock);
        let mut world = DecisionEnv { fleet, state: &mut state, now: NOW, rng: &mut rng };
        let outcome = profile.decide_explained(&mut context, &mut world, &mut recorder);
        if let Outcome::Plan(plan) = outcome {
            let known = |id| fleet.pods().iter().any(|pod| pod.id() == id);
            assert!(plan.steps.iter().filter_map(|step| step.pod).all(known), "{plan:?}");
            state.commit_pending();
        }
        let _ = recorder.finish();
    }
    assert_eq!(loads(), before);
}
