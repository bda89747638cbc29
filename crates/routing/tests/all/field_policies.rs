//! Published routing policies, written as profiles, choose what their formulas say.
//!
//! Each profile runs on random fleets; the pod that it chooses must be one of the best by the
//! formula, which is computed here from the same figures.

use std::num::NonZeroUsize;
use std::sync::Arc;
use wornpath_index::Moment;

use proptest::prelude::*;
use wornpath_blocks::HashKey;
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, Parent, StoredBlocks, Tier,
};
use wornpath_routing::{
    DecisionEnv, DecisionState, Fleet, FleetPod, ModelChoice, Models, Outcome, PodFacts, Profile,
    ProfileEnv, Prompt, Request, Reservation, Rng, RoutingPlan,
};

const BLOCK: usize = 16;
/// Ten blocks and a rest.
const PROMPT: usize = 165;
/// The size of a pod's KV cache.
const KV_TOKENS: u64 = 4096;

/// A pod's load, and how much of the prompt it holds.
#[derive(Clone, Debug)]
struct Load {
    /// Tokens of the pending prompts, one request each.
    pending: Vec<u64>,
    /// Tokens of the decoding contexts, one request each.
    decoding: Vec<u64>,
    waiting: u32,
    kv_usage: f64,
    held_blocks: usize,
}

impl Load {
    fn requests(&self) -> f64 {
        (self.pending.len() + self.decoding.len()) as f64
    }

    fn pending_tokens(&self) -> f64 {
        self.pending.iter().sum::<u64>() as f64
    }

    fn uncached(&self) -> f64 {
        (PROMPT - self.held_blocks * BLOCK) as f64
    }

    fn share(&self) -> f64 {
        self.held_blocks as f64 / 10.0
    }
}

fn load() -> impl Strategy<Value = Load> {
    let tokens = || prop::collection::vec(1..2000_u64, 0..6);
    (tokens(), tokens(), 0..9_u32, 0..=8_u8, 0..=10_usize).prop_map(
        |(pending, decoding, waiting, eighths, held_blocks)| Load {
            pending,
            decoding,
            waiting,
            // Eighths are exact as `f32`, in which usage is kept.
            kv_usage: f64::from(eighths) / 8.0,
            held_blocks,
        },
    )
}

fn loads() -> impl Strategy<Value = Vec<Load>> {
    prop::collection::vec(load(), 1..7)
}

struct Case {
    fleet: Fleet,
    state: DecisionState,
    env: ProfileEnv,
    _load: Vec<Reservation>,
}

impl Case {
    fn of(loads: &[Load]) -> Self {
        let index = Index::new(IndexLimits::default(), 3);
        let block = NonZeroUsize::new(BLOCK).unwrap();
        let models = Models::new(HashKey::DEFAULT).with("m", block, None);
        let mut reserved = vec![];
        let pods: Vec<_> = loads
            .iter()
            .enumerate()
            .map(|(at, load)| {
                let id = index.add_pod().unwrap();
                let facts = PodFacts::serving(&format!("p{at}"), "m");
                let pod = FleetPod::new(id, PodFacts { kv_tokens: Some(KV_TOKENS), ..facts });
                let pending = load.pending.iter().map(|n| Reservation::new(pod.state(), *n, *n));
                reserved.extend(pending);
                reserved.extend(load.decoding.iter().map(|tokens| {
                    let mut reservation = Reservation::new(pod.state(), *tokens, *tokens);
                    reservation.first_token();
                    reservation
                }));
                pod.state().report(load.waiting, load.kv_usage);
                store(&index, &models, &pod, load.held_blocks);
                pod
            })
            .collect();
        let env = ProfileEnv { models: Arc::new(models), ..ProfileEnv::default() };
        Self { fleet: Fleet::new(pods), state: DecisionState::new(&index), env, _load: reserved }
    }

    fn profile(&self, text: &str) -> Profile {
        Profile::check("profile.yaml", text, &self.env)
            .unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// The position of the chosen pod, and the plan, which holds its reservation until it is
    /// dropped.
    fn send(&mut self, profile: &Profile, seed: u64) -> (usize, RoutingPlan) {
        let model = ModelChoice { base: "m".into(), lora: None };
        let request = Request { model, prompt: Prompt::Tokens(prompt()), ..Request::default() };
        let mut context = profile.context(request);
        profile.prepare(&mut context).unwrap();
        let fleet = &self.fleet;
        let mut env = DecisionEnv {
            fleet,
            state: &mut self.state,
            now: Moment::from_secs(1),
            rng: &mut Rng::new(seed),
        };
        match profile.decide(&mut context, &mut env) {
            Outcome::Plan(plan) => {
                let pod = fleet.find(plan.steps[0].pod.unwrap()).unwrap();
                (pod.position(), plan)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn prompt() -> Vec<u32> {
    (0..PROMPT as u32).collect()
}

fn store(index: &Index, models: &Models, pod: &FleetPod, blocks: usize) {
    let choice = ModelChoice { base: "m".into(), lora: None };
    let root = models.root(&choice, None);
    let mut contents = vec![];
    let hasher = models.all()[0].hasher();
    hasher.contents(&prompt()[..blocks * BLOCK], &mut contents);
    let names: Vec<_> = root.chain(&contents).map(|hash| EngineHash(hash.0)).collect();
    let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
    let stored = StoredBlocks { tier: Tier::Gpu, blocks: &names, content, locations: &[] };
    index.writer().apply(pod.id(), None, &[CacheEvent::Stored(stored)]).unwrap();
}

/// Asserts that no pod has a lower `cost` than the one that the profile chooses.
fn chooses_the_least(yaml: &str, loads: &[Load], cost: impl Fn(&Load) -> f64) {
    let mut case = Case::of(loads);
    let profile = case.profile(yaml);
    let (chosen, _plan) = case.send(&profile, 5);
    let costs: Vec<_> = loads.iter().map(cost).collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(costs[chosen] <= least + 1e-9, "chose {chosen} of {costs:?}");
}

proptest! {
    #[test]
    fn llm_d_weighs_prefix_queue_and_kv_cache_by_3_2_2(loads in loads()) {
        let most = loads.iter().map(|load| load.waiting).max().unwrap();
        let least = loads.iter().map(|load| load.waiting).min().unwrap();
        let queue = |load: &Load| if most == least { 1.0 } else {
            f64::from(most - load.waiting) / f64::from(most - least)
        };
        chooses_the_least(include_str!("../../../../profiles/llm-d.yaml"), &loads, |load| {
            -(3.0 * load.share() + 2.0 * queue(load) + 2.0 * (1.0 - load.kv_usage))
        });
    }

    #[test]
    fn llm_d_sticky_stays_with_the_warm_pods_and_takes_the_least_prefill(loads in loads()) {
        // Loads this small never saturate: the warm pods lead by less than 878,000 tokens.
        let any_warm = loads.iter().any(|load| load.share() >= 0.8);
        chooses_the_least(include_str!("../../../../profiles/llm-d-sticky.yaml"), &loads, |load| {
            let cold = any_warm && load.share() < 0.8;
            if cold { f64::INFINITY } else { load.pending_tokens() + load.uncached() }
        });
    }

    #[test]
    fn dynamo_adds_prefill_and_used_blocks(loads in loads()) {
        chooses_the_least(include_str!("../../../../profiles/dynamo.yaml"), &loads, |load| {
            let prefill = load.pending_tokens() + load.uncached();
            let used = load.kv_usage * KV_TOKENS as f64 + load.uncached();
            (prefill + used) / BLOCK as f64
        });
    }

    #[test]
    fn min_ttft_adds_pending_and_uncached_tokens(loads in loads()) {
        chooses_the_least(include_str!("../../../../profiles/min-ttft.yaml"), &loads, |load| {
            load.pending_tokens() + load.uncached()
        });
    }

    #[test]
    fn lmetric_multiplies_prefill_by_requests(loads in loads()) {
        chooses_the_least(include_str!("../../../../profiles/lmetric.yaml"), &loads, |load| {
            (load.pending_tokens() + load.uncached()) * (load.requests() + 1.0)
        });
    }

    #[test]
    fn sglang_takes_the_longest_match_while_the_fleet_is_in_balance(loads in loads()) {
        let matched = loads.iter().any(|load| load.share() > 0.3);
        chooses_the_least(include_str!("../../../../profiles/sglang.yaml"), &loads, |load| {
            // No pod was sent anything yet, so all trees are equally small.
            if matched { -load.share() } else { 0.0 }
        });
    }

    #[test]
    fn sticky_least_loaded_takes_the_least_loaded_holder_of_the_key(loads in loads()) {
        // 64 tokens are four blocks.
        let any_holder = loads.iter().any(|load| load.held_blocks >= 4);
        chooses_the_least(include_str!("../../../../profiles/sticky-least-loaded.yaml"), &loads, |load| {
            let lacks_key = any_holder && load.held_blocks < 4;
            if lacks_key { f64::INFINITY } else { load.requests() }
        });
    }
}

fn idle() -> Load {
    Load { pending: vec![], decoding: vec![], waiting: 0, kv_usage: 0.0, held_blocks: 0 }
}

#[test]
fn llm_d_sticky_leaves_a_saturated_pod() {
    let yaml = include_str!("../../../../profiles/llm-d-sticky.yaml");
    let warm = |pending| Load { pending: vec![pending], held_blocks: 10, ..idle() };
    for (pending, expected) in [(878_000, 0), (878_001, 1)] {
        let mut case = Case::of(&[warm(pending), idle()]);
        let profile = case.profile(yaml);
        assert_eq!(case.send(&profile, 1).0, expected, "{pending} tokens pending");
    }
}

#[test]
fn sglang_takes_the_shortest_queue_when_out_of_balance_and_the_smallest_tree_when_nothing_matches()
{
    let yaml = include_str!("../../../../profiles/sglang.yaml");
    let busy = |requests| Load { decoding: vec![1; requests], held_blocks: 10, ..idle() };
    for (requests, expected) in [(64, 0), (65, 1)] {
        let mut case = Case::of(&[busy(requests), idle()]);
        let profile = case.profile(yaml);
        assert_eq!(case.send(&profile, 1).0, expected, "{requests} requests on the warm pod");
    }
    let mut case = Case::of(&[idle(), idle(), idle()]);
    let yaml = format!("{yaml}speculate: off\n");
    let profile = case.profile(&yaml);
    let mut pods: Vec<_> = (0..3).map(|seed| case.send(&profile, seed).0).collect();
    pods.sort_unstable();
    assert_eq!(pods, [0, 1, 2], "each prompt goes to the pod with the fewest placed tokens");
}

#[test]
fn sticky_least_loaded_records_a_new_key_at_once() {
    let mut case = Case::of(&[idle(), idle(), idle(), idle()]);
    let profile = case.profile(include_str!("../../../../profiles/sticky-least-loaded.yaml"));
    let sent: Vec<_> = (0..5).map(|seed| case.send(&profile, seed)).collect();
    assert!(
        sent.iter().all(|(pod, _)| *pod == sent[0].0),
        "without any event, all follow the first request"
    );
}
