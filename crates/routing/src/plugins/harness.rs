//! A stage to try one plugin on: a fleet, a request, and the plugin as a profile would make it.

use std::sync::Arc;
use std::time::Duration;

use wornpath_blocks::{BlockHash, HashKey};
use wornpath_index::{Depths, Index, IndexLimits, Moment, PodId};

use crate::assembly::{Blueprint, BuiltPlugin, make};
use crate::fleet::{Candidate, Fleet, FleetPod, PodFacts, Vitals};
use crate::models::Models;
use crate::name::Role;
use crate::plugin::{Registry, Stage};
use crate::problem::Span;
use crate::request::{Prompt, Request};
use crate::rng::Rng;
use crate::slot::{Reads, Slot, Slots};
use crate::stage::{CandidateSet, Choice, Decision, Fallbacks, Preparing, Rejection};
use crate::values::BlockHashes;

/// A fleet, a request and a time.
pub(crate) struct Harness {
    pub(crate) index: Index,
    pub(crate) fleet: Fleet,
    pub(crate) models: Arc<Models>,
    pub(crate) request: Request,
    pub(crate) now: Moment,
    /// What earlier steps were given.
    pub(crate) picks: Vec<(&'static str, PodId)>,
}

impl Harness {
    /// Pods `pod-0`, `pod-1`… that serve model `m` in blocks of two tokens.
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
        let now = Duration::from_secs(100);
        Self { index, fleet, models: Arc::new(models), request, now, picks: vec![] }
    }

    /// The request's prompt is these token ids.
    pub(crate) fn prompt(mut self, tokens: &[u32]) -> Self {
        self.request.prompt = Prompt::Tokens(tokens.to_vec());
        self
    }

    /// The pod holds the first blocks of the request's prompt, which has token ids.
    pub(crate) fn holding(self, pod: usize, blocks: usize) -> Self {
        let Prompt::Tokens(tokens) = &self.request.prompt else { panic!("no token ids") };
        let model = &self.models.all()[0];
        let root = self.models.root(&self.request.model, None);
        let mut chain: Vec<BlockHash> = vec![];
        model.hasher().hash_tokens(tokens, root, &mut chain);
        let expires = self.now + Duration::from_secs(60);
        let pod = self.fleet.pods()[pod].id();
        self.index.writer().insert_speculative(pod, &chain[..blocks], expires).unwrap();
        self
    }

    pub(crate) fn vitals(&self, pod: usize) -> &Arc<Vitals> {
        self.fleet.pods()[pod].vitals()
    }

    pub(crate) fn candidate(&self, pod: usize) -> Candidate {
        self.fleet.candidates().nth(pod).unwrap()
    }

    /// Makes `prepare` and `plugin` as a profile would, and prepares the request.
    pub(crate) fn play(&self, prepare: &[&str], stage: Stage, plugin: &str) -> HarnessRun<'_> {
        let mut blueprint = Blueprint::new(&Registry::shipped(), &self.models);
        let mut made_in = |stage, yaml: &str| {
            let node = crate::yaml::parse(yaml).unwrap();
            let made = make(&mut blueprint, &node, stage, 0);
            made.unwrap_or_else(|_| panic!("{yaml}: {:?}", blueprint.problems)).plugin
        };
        let preparers: Vec<_> = prepare.iter().map(|yaml| made_in(Stage::Prepare, yaml)).collect();
        let made = made_in(stage, plugin);
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
        for preparer in preparers {
            let BuiltPlugin::Prepare(preparer) = preparer else { unreachable!() };
            preparer.prepare(&mut Preparing { request: &self.request, slots: &mut slots }).unwrap();
        }
        let mut depths = vec![0; self.fleet.pods().len()];
        if let Some(blocks) = blocks.as_ref().and_then(|blocks| slots.read(blocks)) {
            let mut answer = Depths::default();
            self.index.reader().lookup(&blocks.chain, &mut answer);
            answer.depths_into(&mut depths);
        }
        let (now, role) = (self.now, Role::named(Role::SERVE));
        HarnessRun { rehearsal: self, made, slots, depths, role, now }
    }

    /// What a preparer writes, if it writes it, or how it turns the request away.
    pub(crate) fn prepared<T: Slot + Clone>(
        &self,
        prepare: &[&str],
    ) -> Result<Option<T>, Rejection> {
        let mut blueprint = Blueprint::new(&Registry::shipped(), &self.models);
        let mut preparers = vec![];
        for yaml in prepare {
            let node = crate::yaml::parse(yaml).unwrap();
            let made = make(&mut blueprint, &node, Stage::Prepare, 0);
            preparers.push(made.unwrap_or_else(|_| panic!("{:?}", blueprint.problems)).plugin);
        }
        let handle: Option<Reads<T>> = blueprint.reads_if_written();
        let mut slots = Slots::new(blueprint.profile, &blueprint.slots);
        for preparer in preparers {
            let BuiltPlugin::Prepare(preparer) = preparer else { unreachable!() };
            preparer.prepare(&mut Preparing { request: &self.request, slots: &mut slots })?;
        }
        Ok(handle.and_then(|handle| slots.read(&handle).cloned()))
    }

    /// What is wrong with a plugin's YAML, in one line.
    pub(crate) fn complaint(stage: Stage, yaml: &str) -> String {
        let models = Arc::new(Models::default());
        let mut blueprint = Blueprint::new(&Registry::shipped(), &models);
        let node = crate::yaml::parse(yaml).unwrap();
        assert!(make(&mut blueprint, &node, stage, 0).is_err(), "{yaml} is fine");
        let messages: Vec<_> = blueprint.problems.iter().map(|problem| problem.message()).collect();
        messages.join("\n")
    }
}

/// A plugin that is ready, with the request's slots filled.
pub(crate) struct HarnessRun<'a> {
    rehearsal: &'a Harness,
    made: BuiltPlugin,
    slots: Slots,
    depths: Vec<u32>,
    role: Role,
    now: Moment,
}

impl HarnessRun<'_> {
    pub(crate) fn at(mut self, now: Moment) -> Self {
        self.now = now;
        self
    }

    fn scene(&self) -> Decision<'_> {
        Decision {
            request: &self.rehearsal.request,
            fleet: &self.rehearsal.fleet,
            now: self.now,
            role: &self.role,
            slots: &self.slots,
            depths: &self.depths,
            index: &self.rehearsal.index,
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        self.rehearsal.fleet.candidates().collect()
    }

    /// Which pods a filter keeps, by number.
    pub(crate) fn kept(&self) -> Vec<usize> {
        let BuiltPlugin::Filter(filter) = &self.made else { panic!("not a filter") };
        let candidates = self.candidates();
        let mut keep = vec![true; candidates.len()];
        filter.keep(&self.scene(), &candidates, &mut keep);
        keep.iter().enumerate().filter(|(_, keep)| **keep).map(|(at, _)| at).collect()
    }

    /// Why a filter does not keep a pod.
    pub(crate) fn why(&self, pod: usize) -> String {
        let BuiltPlugin::Filter(filter) = &self.made else { panic!("not a filter") };
        filter.why(&self.scene(), self.rehearsal.candidate(pod))
    }

    /// How a filter that keeps nobody turns the request away.
    pub(crate) fn rejection(&self) -> Rejection {
        let BuiltPlugin::Filter(filter) = &self.made else { panic!("not a filter") };
        filter.rejection(&self.scene())
    }

    /// What a scorer says of every pod.
    pub(crate) fn scores(&self) -> Vec<f64> {
        let BuiltPlugin::Score(score) = &self.made else { panic!("not a scorer") };
        let candidates = self.candidates();
        let mut scores = vec![0.0; candidates.len()];
        score.score(&self.scene(), &candidates, &mut scores);
        scores
    }

    /// Whom a picker takes of these pods with these totals.
    pub(crate) fn pick(&self, slate: &[(usize, f64)], rng: &mut Rng) -> (usize, Choice) {
        let BuiltPlugin::Pick(pick) = &self.made else { panic!("not a picker") };
        let candidates: Vec<_> =
            slate.iter().map(|(pod, _)| self.rehearsal.candidate(*pod)).collect();
        let totals: Vec<_> = slate.iter().map(|(_, total)| *total).collect();
        let slate = CandidateSet { candidates: &candidates, totals: &totals };
        let choice = pick.pick(&self.scene(), slate, rng);
        (candidates[choice.at].position(), choice)
    }

    /// Who takes over after `chosen`, of all pods with equal totals.
    pub(crate) fn fallbacks(&self, chosen: usize, most: usize) -> Vec<usize> {
        let BuiltPlugin::Pick(pick) = &self.made else { panic!("not a picker") };
        let candidates = self.candidates();
        let totals = vec![0.0; candidates.len()];
        let slate = CandidateSet { candidates: &candidates, totals: &totals };
        let mut positions = vec![];
        let mut fallbacks = Fallbacks { positions: &mut positions, most };
        pick.fallbacks(&self.scene(), slate, chosen, &mut fallbacks);
        positions
    }

    /// The plan was made with this pod.
    pub(crate) fn passed_over(&self, pod: usize) {
        let BuiltPlugin::Pick(pick) = &self.made else { panic!("only pickers are told") };
        pick.passed_over(&self.scene(), self.rehearsal.candidate(pod));
    }

    pub(crate) fn chosen(&self, pod: usize) {
        let pod = self.rehearsal.candidate(pod);
        match &self.made {
            BuiltPlugin::Score(score) => score.chosen(&self.scene(), pod),
            BuiltPlugin::Pick(pick) => pick.chosen(&self.scene(), pod),
            _ => panic!("only scorers and pickers are told"),
        }
    }
}
