//! What a decision does not do: allocate for each candidate, explain itself unasked, prepare a request twice.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::cell::Cell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use wornpath_blocks::HashKey;
use wornpath_index::{Capacity, Index, IndexLimits};
use wornpath_routing::{
    Candidate, Decision, DecisionEnv, DecisionState, Filter, Fleet, FleetPod, Make, Models, Name,
    Outcome, Plugin, PodFacts, Prepare, Preparing, Profile, ProfileEnv, Prompt, Recorder, Registry,
    Rejection, Request, Retry, Rng, Role, RoutingContext, Tokenize, TokenizeError,
};

/// Pods that can play every role of the shipped profiles, and what it takes to decide.
struct Town {
    surroundings: ProfileEnv,
    fleet: Fleet,
    state: DecisionState,
    rng: Rng,
    now: Duration,
}

impl Town {
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
        let registry = Registry::shipped().with(COUNTS).with(TELLS);
        let surroundings = ProfileEnv { registry, models: Arc::new(models), roles: None };
        Self {
            surroundings,
            fleet,
            state: DecisionState::new(&index),
            rng: Rng::new(1),
            now: Duration::ZERO,
        }
    }

    fn profile(&self, text: &str) -> Profile {
        Profile::check("p.yaml", text, &self.surroundings).unwrap_or_else(|it| panic!("{it}"))
    }

    fn world(&mut self) -> DecisionEnv<'_> {
        DecisionEnv {
            fleet: &self.fleet,
            state: &mut self.state,
            now: self.now,
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

/// How often a decision of this profile asks the allocator, once its buffers have grown.
fn allocations(text: &str, pods: usize) -> u64 {
    let mut town = Town::new(pods, None);
    let profile = town.profile(text);
    let mut context = prepared(&profile);
    for _ in 0..20 {
        planned(&profile.decide(&mut context, &mut town.world()));
    }
    let mut world = town.world();
    let measured =
        allocation_counter::measure(|| planned(&profile.decide(&mut context, &mut world)));
    measured.count_total
}

#[test]
fn no_shipped_profile_allocates_for_a_candidate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (few, many) = (allocations(&text, 4), allocations(&text, 1_000));
        assert_eq!(few, many, "{}: with 4 pods and with 1000", path.display());
    }
}

static PREPARED: AtomicUsize = AtomicUsize::new(0);
static TOKENIZED: AtomicUsize = AtomicUsize::new(0);
static TOLD: AtomicUsize = AtomicUsize::new(0);

const COUNTS: Plugin = Plugin {
    name: "counts",
    summary: "",
    parameters: &[],
    needs: &[],
    conflicts: &[],
    example: "counts",
    make: Make::Prepare(|_| Ok(Box::new(Counts))),
};

struct Counts;

impl Prepare for Counts {
    fn prepare(&self, _: &mut Preparing<'_>) -> Result<(), Rejection> {
        PREPARED.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Tokenize for Counts {
    fn tokenize(&self, _: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        TOKENIZED.fetch_add(1, Relaxed);
        tokens.extend(0..512);
        Ok(())
    }
}

const TELLS: Plugin = Plugin {
    name: "tells",
    example: "tells",
    make: Make::Filter(|_| Ok(Box::new(Tells))),
    ..COUNTS
};

/// Drops the first pod, and counts how often it is asked why.
struct Tells;

impl Filter for Tells {
    fn keep(&self, _: &Decision<'_>, _: &[Candidate], keep: &mut [bool]) {
        keep[0] = false;
    }

    fn why(&self, _: &Decision<'_>, _: Candidate) -> String {
        TOLD.fetch_add(1, Relaxed);
        String::new()
    }
}

#[test]
fn a_request_is_prepared_once_for_all_scorers_selectors_and_decisions() {
    let mut town = Town::new(4, Some(Arc::new(Counts)));
    let profile = town.profile(
        "prepare: [counts, tokenize, block_hash]
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
    let mut world = town.world();
    for step in [None, Some(Name::from("prefill")), Some(Name::from("decode"))] {
        planned(&profile.decide(&mut context, &mut world));
        let retry = Retry { step: step.as_ref(), excluded: &[] };
        planned(&profile.replan(&mut context, &mut world, retry));
    }
    assert_eq!((PREPARED.load(Relaxed), TOKENIZED.load(Relaxed)), (1, 1), "of six decisions");
}

#[test]
fn a_decision_that_nobody_asked_to_explain_finds_no_reasons_and_allocates_only_its_plan() {
    let text = "\
prepare: [tokenize, block_hash]
filter: [tells, healthy]
score: [cache_affinity, least_load]
pick: max_score
";
    let mut town = Town::new(100, None);
    let profile = town.profile(text);
    let mut context = prepared(&profile);
    for _ in 0..20 {
        planned(&profile.decide(&mut context, &mut town.world()));
    }
    let mut world = town.world();
    let mut plan = None;
    let off = allocation_counter::measure(|| {
        plan = Some(profile.decide(&mut context, &mut world));
    });
    let Some(Outcome::Plan(plan)) = plan else { panic!() };
    assert!(!plan.steps[0].fallbacks.is_empty() && !plan.steps[0].cache.runs.is_empty());
    assert_eq!(off.count_total, 4, "who takes the steps, the steps, fallbacks, what is cached");
    assert_eq!(TOLD.load(Relaxed), 0);

    let read = Cell::new(0_u64);
    let clock = || Duration::from_nanos(read.replace(read.get() + 1));
    let mut recorder = Recorder::new(&clock);
    let on = allocation_counter::measure(|| {
        planned(&profile.decide_explained(&mut context, &mut world, &mut recorder));
    });
    assert_eq!(TOLD.load(Relaxed), 1, "one pod was dropped");
    assert!(read.get() >= 2 * 6, "two filters, two scorers, the picker and the index are timed");
    assert!(on.count_total > 100, "every candidate is written down: {}", on.count_total);
}
