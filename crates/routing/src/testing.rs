//! A test bench for plugins and decisions: pods, an index, and profiles from a few lines of YAML.

use std::num::NonZeroUsize;
use std::sync::Arc;
use wornpath_index::Moment;

use wornpath_blocks::{BlockHash, HashKey};
use wornpath_index::{
    CacheEvent, Content, EngineHash, Index, IndexLimits, Location, Parent, StoredBlocks, Tier,
};

use crate::decision_state::{DecisionEnv, DecisionState};
use crate::explain::{Explanation, Recorder};
use crate::fleet::{Fleet, FleetPod, PodFacts};
use crate::models::Models;
use crate::plan::{Outcome, RoutingPlan};
use crate::profile::{Profile, ProfileEnv};
use crate::request::{ModelChoice, Prompt, Request};
use crate::rng::Rng;
use crate::slot::RoutingContext;

/// Tokens in a block of the test model.
pub(crate) const BLOCK: usize = 4;

pub(crate) struct TestBench {
    pub(crate) index: Index,
    pub(crate) fleet: Fleet,
    pub(crate) state: DecisionState,
    pub(crate) rng: Rng,
    pub(crate) now: Moment,
    pub(crate) surroundings: ProfileEnv,
}

impl TestBench {
    /// Pods `p0`, `p1`, … that serve model `m`.
    pub(crate) fn with_pods(count: usize) -> Self {
        Self::with(count, |_, _| {})
    }

    /// The same, with facts changed for each.
    pub(crate) fn with(count: usize, change: impl Fn(usize, &mut PodFacts)) -> Self {
        let index = Index::new(IndexLimits::default(), 1);
        let pods = (0..count).map(|at| {
            let mut facts = PodFacts::serving(&format!("p{at}"), "m");
            change(at, &mut facts);
            FleetPod::new(index.add_pod().unwrap(), facts)
        });
        let fleet = Fleet::new(pods.collect());
        let models =
            Models::new(HashKey::DEFAULT).with("m", NonZeroUsize::new(BLOCK).unwrap(), None);
        let surroundings = ProfileEnv { models: Arc::new(models), ..ProfileEnv::default() };
        let state = DecisionState::new(&index);
        Self { index, fleet, state, rng: Rng::new(7), now: Moment::ZERO, surroundings }
    }

    pub(crate) fn pod(&self, at: usize) -> &FleetPod {
        &self.fleet.pods()[at]
    }

    /// A request whose prompt is these tokens.
    pub(crate) fn request(tokens: &[u32]) -> Request {
        let model = ModelChoice { base: "m".into(), lora: None };
        Request { model, prompt: Prompt::Tokens(tokens.to_vec()), ..Request::default() }
    }

    /// The pod tells that it holds the full blocks of a prompt, on one tier.
    pub(crate) fn cache(&self, at: usize, tokens: &[u32], tier: Tier) {
        self.cache_at(at, tokens, tier, &[]);
    }

    /// The same, and where on the tier each block lies.
    pub(crate) fn cache_at(&self, at: usize, tokens: &[u32], tier: Tier, locations: &[Location]) {
        let models = &self.surroundings.models;
        let choice = ModelChoice { base: "m".into(), lora: None };
        let root: BlockHash = models.root(&choice, None);
        let mut contents = Vec::new();
        models.find(&choice.base).unwrap().hasher().contents(tokens, &mut contents);
        let chain: Vec<_> = root.chain(&contents).map(|hash| EngineHash(hash.0)).collect();
        let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
        let stored = CacheEvent::Stored(StoredBlocks { tier, blocks: &chain, content, locations });
        self.index.writer().apply(self.pod(at).id(), None, &[stored]).unwrap();
    }

    pub(crate) fn profile(&self, yaml: &str) -> Profile {
        Profile::check("test.yaml", yaml, &self.surroundings)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn prepared(&self, profile: &Profile, request: Request) -> RoutingContext {
        let mut context = profile.context(request);
        profile.prepare(&mut context).unwrap();
        context
    }

    pub(crate) fn decide(&mut self, profile: &Profile, request: Request) -> Outcome {
        let mut context = self.prepared(profile, request);
        let Self { fleet, state, rng, now, .. } = self;
        profile.decide(&mut context, &mut DecisionEnv { fleet, state, now: *now, rng })
    }

    /// Prepares, decides and explains a request.
    pub(crate) fn explain(
        &mut self,
        profile: &Profile,
        request: Request,
    ) -> (Outcome, Explanation) {
        let clock = || Moment::ZERO;
        let mut recorder = Recorder::new(&clock);
        let mut context = profile.context(request);
        profile.prepare_explained(&mut context, &mut recorder).unwrap();
        let Self { fleet, state, rng, now, .. } = self;
        let mut env = DecisionEnv { fleet, state, now: *now, rng };
        let outcome = profile.decide_explained(&mut context, &mut env, &mut recorder);
        (outcome, recorder.finish())
    }

    /// The plan, or the test fails.
    pub(crate) fn plan(&mut self, profile: &Profile, request: Request) -> RoutingPlan {
        match self.decide(profile, request) {
            Outcome::Plan(plan) => plan,
            other => panic!("no plan: {other:?}"),
        }
    }

    /// The position of the pod that the first step of a plan was given.
    pub(crate) fn chosen(&mut self, profile: &Profile, request: Request) -> usize {
        let plan = self.plan(profile, request);
        self.fleet.find(plan.steps[0].pod.unwrap()).unwrap().position()
    }

    /// The scores that one scorer, written as in a profile, gives every pod. `prepare` lists
    /// preparers, or "".
    pub(crate) fn scores(&mut self, prepare: &str, scorer: &str, request: Request) -> Vec<f64> {
        let yaml = format!(
            "prepare: [{prepare}]\nscore:\n  - {scorer}\npick: max_score\nspeculate: off\n"
        );
        let profile = self.profile(&yaml);
        let (_, explanation) = self.explain(&profile, request);
        explanation.steps[0].candidates.iter().map(|pod| pod.scores[0]).collect()
    }

    /// Which pods one filter, given as in a profile, keeps; and why it dropped the others.
    pub(crate) fn kept(&mut self, filter: &str, request: Request) -> Vec<Result<(), String>> {
        let profile = self.profile(&format!("filter:\n  - {filter}\npick: max_score\n"));
        let (_, explanation) = self.explain(&profile, request);
        let candidates = explanation.steps[0].candidates.iter();
        candidates.map(|pod| pod.dropped.clone().map_or(Ok(()), |(_, why)| Err(why))).collect()
    }
}
