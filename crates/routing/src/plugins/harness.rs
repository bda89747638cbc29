//! Test harness for one plugin: a fleet, a request, and the plugin built as a profile builds it.
//!
//! It runs no pipeline: a test calls the plugin's trait methods on a decision that the harness
//! fills in. Tests of several plugins together use [`TestBench`](crate::testing::TestBench).

use std::sync::Arc;
use std::time::Duration;

use wornpath_blocks::{BlockHash, HashKey};
use wornpath_index::{
    CacheEvent, Content, Depths, EngineHash, Index, IndexLimits, Moment, PodId, StoredBlocks, Tier,
};
use wornpath_yaml::Span;

use crate::assembly::{BuiltPlugin, make};
use crate::fleet::{Candidate, Fleet, FleetPod, PodFacts, PodState};
use crate::models::Models;
use crate::name::Role;
use crate::plugin::Blueprint;
use crate::plugin::Registry;
use crate::request::{Prompt, Request};
use crate::rng::Rng;
use crate::slot::{BlockHashes, Reads, Slot, Slots};
use crate::stage::Stage;
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Preparing, Rejection};

/// The inputs of a decision, for tests to change before they run a plugin.
pub(crate) struct Harness {
    pub(crate) index: Index,
    pub(crate) fleet: Fleet,
    pub(crate) models: Arc<Models>,
    pub(crate) request: Request,
    pub(crate) now: Moment,
    /// The pods that earlier steps of the workflow picked.
    pub(crate) picks: Vec<(&'static str, PodId)>,
}

impl Harness {
    /// A fleet of pods `pod-0`, `pod-1`… that serve model `m`; a block has two tokens.
    pub(crate) fn of(pods: usize) -> Self {
        Self::with((0..pods).map(|at| PodFacts::serving(&format!("pod-{at}"), "m")).collect())
    }

    pub(crate) fn with(facts: Vec<PodFacts>) -> Self {
        let index = Index::new(IndexLimits::default(), 1);
        let pods = facts.into_iter().map(|facts| FleetPod::new(index.add_pod().unwrap(), facts));
        let fleet = Fleet::new(pods.collect());
        let models = Models::new(HashKey::DEFAULT).with("m", 2.try_into().unwrap(), None);
        let mut request = Request::default();
        request.model.base = "m".into();
        let now = Moment::from_secs(100);
        Self { index, fleet, models: Arc::new(models), request, now, picks: vec![] }
    }

    /// Sets the request's prompt to these token ids.
    pub(crate) fn prompt(mut self, tokens: &[u32]) -> Self {
        self.request.prompt = Prompt::Tokens(tokens.to_vec());
        self
    }

    /// Lets the pod hold the first blocks of the request's prompt, which must be token ids.
    pub(crate) fn holding(self, pod: usize, blocks: usize) -> Self {
        let chain = self.chain();
        let expires = self.now + Duration::from_secs(60);
        let pod = self.fleet.pods()[pod].id();
        self.index.writer().insert_speculative(pod, &chain[..blocks], expires).unwrap();
        self
    }

    fn chain(&self) -> Vec<BlockHash> {
        let Prompt::Tokens(tokens) = &self.request.prompt else {
            panic!("the prompt has no token ids")
        };
        let model = &self.models.all()[0];
        let root = self.models.root(&self.request.model, None);
        let mut chain: Vec<BlockHash> = vec![];
        model.hasher().hash_tokens(tokens, root, &mut chain);
        chain
    }

    /// The pod holds that many blocks of the prompt on a tier, as its engine reports.
    pub(crate) fn holding_on(self, pod: usize, blocks: usize, tier: Tier) -> Self {
        let chain = self.chain();
        let names: Vec<EngineHash> =
            chain[..blocks].iter().map(|hash| EngineHash(hash.0)).collect();
        let content = Content::IndexHashes;
        let stored = StoredBlocks { tier, blocks: &names, content, locations: &[] };
        let pod = self.fleet.pods()[pod].id();
        self.index.writer().apply(pod, None, &[CacheEvent::Stored(stored)]).unwrap();
        self
    }

    pub(crate) fn pod_state(&self, pod: usize) -> &Arc<PodState> {
        self.fleet.pods()[pod].state()
    }

    pub(crate) fn candidate(&self, pod: usize) -> Candidate {
        self.fleet.candidates().nth(pod).unwrap()
    }

    /// Builds `prepare` and `plugin` from YAML, and runs the preparers on the request.
    pub(crate) fn run(&self, prepare: &[&str], stage: Stage, plugin: &str) -> HarnessRun<'_> {
        let mut blueprint = Blueprint::new(&Registry::shipped(), &self.models);
        let mut build = |stage, yaml: &str| {
            let node = wornpath_yaml::parse(yaml).unwrap();
            let made = make(&mut blueprint, &node, stage, 0);
            made.unwrap_or_else(|_| panic!("{yaml}: {:?}", blueprint.problems)).plugin
        };
        let preparers: Vec<_> = prepare.iter().map(|yaml| build(Stage::Prepare, yaml)).collect();
        let plugin = build(stage, plugin);
        let blocks: Option<Reads<BlockHashes>> = blueprint.reads_if_written();
        let picks: Vec<_> = self
            .picks
            .iter()
            .map(|(step, pod)| (blueprint.writes_pick(step, 0, Span::default()), *pod))
            .collect();
        let mut slots = Slots::new(blueprint.profile, &blueprint.slots);
        for (handle, pod) in &picks {
            slots.write(handle).0 = Some(*pod);
        }
        let mut untokenized = None;
        for preparer in preparers {
            let BuiltPlugin::Prepare(preparer) = preparer else { unreachable!() };
            let request = &self.request;
            let slots = &mut slots;
            let untokenized = &mut untokenized;
            preparer.prepare(&mut Preparing { request, slots, untokenized }).unwrap();
        }
        let mut depths = vec![0; self.fleet.pods().len()];
        if let Some(blocks) = blocks.as_ref().and_then(|blocks| slots.read(blocks)) {
            let mut found = Depths::default();
            self.index.reader().lookup(&blocks.chain, &mut found);
            found.depths_into(&mut depths);
        }
        let role = Role::named(Role::SERVE);
        HarnessRun { harness: self, plugin, slots, depths, role, now: self.now }
    }

    /// The value of slot `T` after these preparers ran, or the rejection of one of them.
    pub(crate) fn prepared<T: Slot + Clone>(
        &self,
        prepare: &[&str],
    ) -> Result<Option<T>, Rejection> {
        let mut blueprint = Blueprint::new(&Registry::shipped(), &self.models);
        let mut preparers = vec![];
        for yaml in prepare {
            let node = wornpath_yaml::parse(yaml).unwrap();
            let made = make(&mut blueprint, &node, Stage::Prepare, 0);
            preparers.push(made.unwrap_or_else(|_| panic!("{:?}", blueprint.problems)).plugin);
        }
        let handle: Option<Reads<T>> = blueprint.reads_if_written();
        let mut slots = Slots::new(blueprint.profile, &blueprint.slots);
        let mut untokenized = None;
        for preparer in preparers {
            let BuiltPlugin::Prepare(preparer) = preparer else { unreachable!() };
            let request = &self.request;
            let slots = &mut slots;
            let untokenized = &mut untokenized;
            preparer.prepare(&mut Preparing { request, slots, untokenized })?;
        }
        Ok(handle.and_then(|handle| slots.read(&handle).cloned()))
    }

    /// The messages with which assembly refuses a plugin's YAML, one per line.
    pub(crate) fn assembly_error(stage: Stage, yaml: &str) -> String {
        let models = Arc::new(Models::default());
        let mut blueprint = Blueprint::new(&Registry::shipped(), &models);
        let node = wornpath_yaml::parse(yaml).unwrap();
        assert!(make(&mut blueprint, &node, stage, 0).is_err(), "assembly accepts {yaml}");
        let messages: Vec<_> = blueprint.problems.iter().map(|problem| problem.message()).collect();
        messages.join("\n")
    }
}

/// A built plugin, and the decision that it runs on.
pub(crate) struct HarnessRun<'a> {
    harness: &'a Harness,
    plugin: BuiltPlugin,
    slots: Slots,
    depths: Vec<u32>,
    role: Role,
    now: Moment,
}

impl HarnessRun<'_> {
    /// The same run at another time.
    pub(crate) fn at(mut self, now: Moment) -> Self {
        self.now = now;
        self
    }

    fn decision(&self) -> Decision<'_> {
        Decision {
            request: &self.harness.request,
            fleet: &self.harness.fleet,
            now: self.now,
            role: &self.role,
            slots: &self.slots,
            depths: &self.depths,
            index: &self.harness.index,
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        self.harness.fleet.candidates().collect()
    }

    /// The numbers of the pods that a filter keeps.
    pub(crate) fn kept(&self) -> Vec<usize> {
        let BuiltPlugin::Filter(filter) = &self.plugin else { panic!("not a filter") };
        let candidates = self.candidates();
        let mut keep = vec![true; candidates.len()];
        filter.keep(&self.decision(), &candidates, &mut keep);
        keep.iter().enumerate().filter(|(_, keep)| **keep).map(|(at, _)| at).collect()
    }

    /// The reason for which a filter drops a pod.
    pub(crate) fn why(&self, pod: usize) -> String {
        let BuiltPlugin::Filter(filter) = &self.plugin else { panic!("not a filter") };
        filter.why(&self.decision(), self.harness.candidate(pod))
    }

    /// The rejection that a filter gives when it keeps no pod.
    pub(crate) fn rejection(&self) -> Rejection {
        let BuiltPlugin::Filter(filter) = &self.plugin else { panic!("not a filter") };
        filter.rejection(&self.decision())
    }

    /// A scorer's scores, one per pod.
    pub(crate) fn scores(&self) -> Vec<f64> {
        let BuiltPlugin::Score(score) = &self.plugin else { panic!("not a scorer") };
        let candidates = self.candidates();
        let mut scores = vec![0.0; candidates.len()];
        score.score(&self.decision(), &candidates, &mut scores);
        scores
    }

    /// The pod that a picker chooses from these pods and their totals.
    pub(crate) fn pick(&self, pods: &[(usize, f64)], rng: &mut Rng) -> (usize, Choice) {
        let BuiltPlugin::Pick(pick) = &self.plugin else { panic!("not a picker") };
        let candidates: Vec<_> = pods.iter().map(|(pod, _)| self.harness.candidate(*pod)).collect();
        let totals: Vec<_> = pods.iter().map(|(_, total)| *total).collect();
        let set = CandidateSet { candidates: &candidates, totals: &totals };
        let choice = pick.pick(&self.decision(), set, rng);
        (candidates[choice.at].position(), choice)
    }

    /// Whether assembly refuses scorers beside a picker.
    pub(crate) fn ignores_scores(&self) -> bool {
        let BuiltPlugin::Pick(pick) = &self.plugin else { panic!("not a picker") };
        pick.ignores_scores().is_some()
    }

    /// At most `most` fallbacks for `chosen`, from all pods with equal totals.
    pub(crate) fn fallbacks(&self, chosen: usize, most: usize) -> Vec<usize> {
        let BuiltPlugin::Pick(pick) = &self.plugin else { panic!("not a picker") };
        let candidates = self.candidates();
        let totals = vec![0.0; candidates.len()];
        let set = CandidateSet { candidates: &candidates, totals: &totals };
        let mut positions = vec![];
        let mut fallbacks = Fallbacks { positions: &mut positions, most };
        pick.fallbacks(&self.decision(), set, chosen, &mut fallbacks);
        positions
    }

    /// Tells a picker that no plan was made with the pod that it picked.
    pub(crate) fn not_used(&self, pod: usize) {
        let BuiltPlugin::Pick(pick) = &self.plugin else { panic!("not a picker") };
        pick.not_used(&self.decision(), self.harness.candidate(pod));
    }

    /// Tells a scorer or picker that a plan was made with this pod.
    pub(crate) fn chosen(&self, pod: usize) {
        let pod = self.harness.candidate(pod);
        match &self.plugin {
            BuiltPlugin::Score(score) => score.chosen(&self.decision(), pod),
            BuiltPlugin::Pick(pick) => pick.chosen(&self.decision(), pod),
            _ => panic!("neither a scorer nor a picker"),
        }
    }
}
