//! A decision does not allocate per candidate, does not compute explanations unless asked, and
//! prepares a request only once.
//!
//! A binary of its own: `allocation_counter` replaces the global allocator, and the plugins count
//! in statics.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::cell::Cell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use wornpath_index::Moment;

use wornpath_blocks::HashKey;
use wornpath_index::{Capacity, Index, IndexLimits};
use wornpath_routing::{
    Candidate, Decision, DecisionEnv, DecisionState, Filter, Fleet, FleetPod, Make, Models, Name,
    Outcome, Plugin, PodFacts, Prepare, Preparing, Profile, ProfileEnv, Prompt, Recorder, Registry,
    Rejection, Request, Retry, Rng, Role, RoutingContext, Tokenize, TokenizeError,
};

/// Pods with every role of the shipped profiles, and the inputs of a decision.
struct Cluster {
    env: ProfileEnv,
    fleet: Fleet,
    state: DecisionState,
    rng: Rng,
    now: Duration,
}

impl Cluster {
    fn new(pods: usize, tokenizer: Option<Arc<dyn Tokenize>>) -> Self {
        let capacity = Capacity::for_pods(pods).unwrap();
        let index = Index::new(IndexLimits { capacity, ..IndexLimits::default() }, 1);
        let roles =
            [Role::SERVE, Role::PREFILL, Role::DECODE, "preprocess"].map(Role::named).to_vec();
        let pod = |at: usize| {
            let facts =
                PodFacts { roles: roles.clone(), ..PodFacts::serving(&format!("p{at}"), "m") };
            FleetPod::new(index.add_pod().unwrap(), facts)
        };
        let fleet = Fleet::new((0..pods).map(pod).collect());
        let models =
            Models::new(HashKey::DEFAULT).with("m", NonZeroUsize::new(16).unwrap(), tokenizer);
        let registry = Registry::shipped().with(COUNTING).with(DROPS_FIRST);
        let env = ProfileEnv { registry, models: Arc::new(models), roles: None };
        Self {
            env,
            fleet,
            state: DecisionState::new(&index),
            rng: Rng::new(1),
            now: Duration::ZERO,
        }
    }

    fn profile(&self, text: &str) -> Profile {
        Profile::check("p.yaml", text, &self.env).unwrap_or_else(|it| panic!("{it}"))
    }

    fn decision_env(&mut self) -> DecisionEnv<'_> {
        DecisionEnv {
            fleet: &self.fleet,
            state: &mut self.state,
            now: Moment::at(self.now),
            rng: &mut self.rng,
        }
    }
}

fn prepared(profile: &Profile) -> RoutingContext {
    let mut request = Request { prompt: Prompt::Tokens((0..512).collect()), ..Request::default() };
    request.model.base = Name::from("m");
    let mut context = profile.context(request);
    profile.prepare(&mut context).unwrap();
    context
}

fn planned(outcome: &Outcome) {
    assert!(matches!(outcome, Outcome::Plan(_)), "{outcome:?}");
}

/// The number of allocations of one decision, once its buffers have grown.
fn allocations(text: &str, pods: usize) -> u64 {
    let mut cluster = Cluster::new(pods, None);
    let profile = cluster.profile(text);
    let mut context = prepared(&profile);
    for _ in 0..20 {
        planned(&profile.decide(&mut context, &mut cluster.decision_env()));
    }
    let mut env = cluster.decision_env();
    let measured = allocation_counter::measure(|| planned(&profile.decide(&mut context, &mut env)));
    measured.count_total
}

#[test]
fn no_shipped_profile_allocates_per_candidate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let few = allocations(&text, 4);
        let many = allocations(&text, 1_000);
        assert_eq!(few, many, "{}: with 4 pods and with 1000", path.display());
    }
}

static PREPARED: AtomicUsize = AtomicUsize::new(0);
static TOKENIZED: AtomicUsize = AtomicUsize::new(0);
static REASONS: AtomicUsize = AtomicUsize::new(0);

const COUNTING: Plugin = Plugin {
    name: "counting",
    summary: "",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "counting",
    make: Make::Prepare(|_| Ok(Box::new(Counting))),
};

struct Counting;

impl Prepare for Counting {
    fn prepare(&self, _: &mut Preparing<'_>) -> Result<(), Rejection> {
        PREPARED.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Tokenize for Counting {
    fn tokenize(&self, _: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        TOKENIZED.fetch_add(1, Relaxed);
        tokens.extend(0..512);
        Ok(())
    }
}

const DROPS_FIRST: Plugin = Plugin {
    name: "drops_first",
    example: "drops_first",
    make: Make::Filter(|_| Ok(Box::new(DropsFirst))),
    ..COUNTING
};

/// Drops the first pod, and counts how often its reason is requested.
struct DropsFirst;

impl Filter for DropsFirst {
    fn keep(&self, _: &Decision<'_>, _: &[Candidate], keep: &mut [bool]) {
        keep[0] = false;
    }

    fn why(&self, _: &Decision<'_>, _: Candidate) -> String {
        REASONS.fetch_add(1, Relaxed);
        String::new()
    }
}

#[test]
fn a_request_is_prepared_once_for_all_scorers_selectors_and_decisions() {
    let mut cluster = Cluster::new(4, Some(Arc::new(Counting)));
    let profile = cluster.profile(
        "prepare: [counting, tokenize, block_hash]
selectors:
  prefill: {score: [cache_affinity, kv_usage], pick: max_score}
  decode: {score: [cache_affinity, least_load, {locality: {step: prefill}}], pick: max_score}
workflow: {prefill_decode: {min_uncached_tokens: 1}}
",
    );
    let mut request = Request { prompt: Prompt::Text("a text".into()), ..Request::default() };
    request.model.base = Name::from("m");
    let mut context = profile.context(request);
    profile.prepare(&mut context).unwrap();
    let mut env = cluster.decision_env();
    for step in [None, Some(Name::from("prefill")), Some(Name::from("decode"))] {
        planned(&profile.decide(&mut context, &mut env));
        let retry = Retry { step: step.as_ref(), excluded: &[] };
        planned(&profile.replan(&mut context, &mut env, retry));
    }
    assert_eq!((PREPARED.load(Relaxed), TOKENIZED.load(Relaxed)), (1, 1), "of six decisions");
}

#[test]
fn a_decision_without_explanation_computes_no_reasons_and_allocates_only_its_plan() {
    let text = "\
prepare: [tokenize, block_hash]
filter: [drops_first, healthy]
score: [cache_affinity, least_load]
pick: max_score
";
    let mut cluster = Cluster::new(100, None);
    let profile = cluster.profile(text);
    let mut context = prepared(&profile);
    for _ in 0..20 {
        planned(&profile.decide(&mut context, &mut cluster.decision_env()));
    }
    let mut env = cluster.decision_env();
    let mut plan = None;
    let off = allocation_counter::measure(|| {
        plan = Some(profile.decide(&mut context, &mut env));
    });
    let Some(Outcome::Plan(plan)) = plan else { panic!() };
    assert!(!plan.steps[0].fallbacks.is_empty() && !plan.steps[0].cache.runs.is_empty());
    assert_eq!(off.count_total, 4, "chosen pods, steps, fallbacks, cached runs");
    assert_eq!(REASONS.load(Relaxed), 0);

    let read = Cell::new(0_u64);
    let clock = || Moment::from_nanos(read.replace(read.get() + 1));
    let mut recorder = Recorder::new(&clock);
    let on = allocation_counter::measure(|| {
        planned(&profile.decide_explained(&mut context, &mut env, &mut recorder));
    });
    assert_eq!(REASONS.load(Relaxed), 1, "one pod was dropped");
    assert!(read.get() >= 2 * 6, "two filters, two scorers, the picker and the index are timed");
    assert!(on.count_total > 100, "every candidate is recorded: {}", on.count_total);
}
