//! Our own decision, with the built-in profiles.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use wornpath_blocks::HashKey;
use wornpath_index::{
    CacheEvent, Capacity, Content, EngineHash, Index, IndexLimits, Moment, Parent, StoredBlocks,
    Tier,
};
use wornpath_routing::{
    DecisionEnv, DecisionState, Fleet, FleetPod, ModelChoice, Models, Outcome, PodFacts, Profile,
    ProfileEnv, Prompt, Request, Reservation, Rng, RoutingContext, RoutingPlan,
};

use crate::Contestant;
use crate::workload::{BLOCK, Workload};

const PROFILES: [(&str, &str); 4] = [
    ("round-robin", include_str!("../../../profiles/round-robin.yaml")),
    ("cache-affinity", include_str!("../../../profiles/cache-affinity.yaml")),
    ("cache-aware", include_str!("../../../profiles/cache-aware.yaml")),
    ("dynamo's formula (expression)", include_str!("../../../profiles/dynamo.yaml")),
];

/// Plans that stay in flight, so that load is never zero.
const IN_FLIGHT: usize = 32;

struct Ours {
    name: String,
    judged: bool,
    profile: Profile,
    fleet: Arc<Fleet>,
    state: DecisionState,
    rng: Rng,
    now: Moment,
    context: RoutingContext,
    /// Taken out while the context has it.
    requests: Vec<Option<Request>>,
    last: Option<usize>,
    plans: VecDeque<RoutingPlan>,
    _load: Arc<Vec<Reservation>>,
}

pub(crate) fn contestants(workload: &Workload) -> Vec<Box<dyn Contestant>> {
    let models = Arc::new(Models::new(HashKey::DEFAULT).with("m", block(), None));
    let mut all: Vec<Box<dyn Contestant>> = Vec::new();
    for (name, text) in PROFILES {
        all.push(Box::new(Ours::new(name, text, workload, &models)));
    }
    // The same without speculative inserts: the difference is their cost.
    let (name, text) = PROFILES[1];
    let silent = format!("{text}speculate: off\n");
    all.push(Box::new(Ours::new(&format!("{name}, no speculation"), &silent, workload, &models)));
    all
}

fn block() -> NonZeroUsize {
    NonZeroUsize::new(BLOCK).expect("a block has tokens")
}

impl Ours {
    fn new(name: &str, text: &str, workload: &Workload, models: &Arc<Models>) -> Self {
        let capacity = Capacity::for_pods(workload.pods).expect("no more than 4096 pods");
        let index = Index::new(IndexLimits { capacity, ..IndexLimits::default() }, 1);
        let pods: Vec<_> = (0..workload.pods)
            .map(|at| {
                let id = index.add_pod().expect("a slot for each pod");
                FleetPod::new(id, PodFacts::serving(&format!("pod-{at}"), "m"))
            })
            .collect();
        fill(&index, models, &pods, workload);
        let mut load = Vec::new();
        for (pod, requests) in pods.iter().zip(&workload.load) {
            load.extend((0..*requests).map(|_| Reservation::new(pod.state(), 512, 256)));
        }
        let surroundings = ProfileEnv { models: Arc::clone(models), ..ProfileEnv::default() };
        let profile = Profile::check(name, text, &surroundings).unwrap_or_else(|it| panic!("{it}"));
        let model = ModelChoice { base: "m".into(), lora: None };
        let request = |tokens: &Vec<u32>| {
            let prompt = Prompt::Tokens(tokens.clone());
            Some(Request { model: model.clone(), prompt, ..Request::default() })
        };
        Self {
            name: format!("wornpath {name}"),
            judged: ["cache-affinity", "cache-aware"].contains(&name),
            context: profile.context(Request::default()),
            requests: workload.prompts.iter().map(request).collect(),
            profile,
            fleet: Arc::new(Fleet::new(pods)),
            state: DecisionState::new(&index),
            rng: Rng::new(1),
            now: Moment::ZERO,
            last: None,
            plans: VecDeque::new(),
            _load: Arc::new(load),
        }
    }
}

/// Fills the index with the blocks that every pod holds.
fn fill(index: &Index, models: &Models, pods: &[FleetPod], workload: &Workload) {
    let choice = ModelChoice { base: "m".into(), lora: None };
    let root = models.root(&choice, None);
    let hasher = models.find(&choice.base).expect("the model was added").hasher();
    let mut writer = index.writer();
    for (tokens, homes) in &workload.conversations {
        let mut contents = Vec::new();
        hasher.contents(tokens, &mut contents);
        let blocks: Vec<_> = root.chain(&contents).map(|hash| EngineHash(hash.0)).collect();
        let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
        let stored = StoredBlocks { tier: Tier::Gpu, blocks: &blocks, content, locations: &[] };
        for home in homes {
            let applied = writer.apply(pods[*home].id(), None, &[CacheEvent::Stored(stored)]);
            applied.expect("the pod is there");
        }
    }
}

impl Contestant for Ours {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_judged(&self) -> bool {
        self.judged
    }

    fn decide(&mut self, request: usize) {
        let Self { profile, fleet, state, rng, now, context, requests, last, plans, .. } = self;
        if *last != Some(request) {
            let next = requests[request].take().expect("only the last request is out");
            let done = context.reuse(next);
            if let Some(last) = last.replace(request) {
                requests[last] = Some(done);
            }
        }
        profile.prepare(context).expect("every prompt can be served");
        let mut world = DecisionEnv { fleet, state, now: *now, rng };
        match profile.decide(context, &mut world) {
            Outcome::Plan(plan) => plans.push_back(plan),
            other => panic!("no plan: {other:?}"),
        }
        if plans.len() > IN_FLIGHT {
            plans.pop_front();
        }
    }

    fn settle(&mut self) {
        self.state.commit_pending();
    }

    /// Expires the speculative inserts of the last round, so that every round starts from the same
    /// index.
    fn rest(&mut self) {
        self.now += Duration::from_secs(60);
        self.state.expire(self.now);
    }
}
