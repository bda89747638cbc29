//! From a description to pods with loads and an index that knows what they hold.

use std::sync::Arc;
use std::time::Duration;

use wornpath_blocks::HashKey;
use wornpath_index::{
    Capacity, Content, EngineHash, Event, Index, Limits, NoSlot, Parent, PodGone, PodId, Stored,
};

use super::{DescribedPod, FleetDescription, HeldText};
use crate::fleet::{Fleet, Pod, Reservation};
use crate::models::{Models, Tokenize};
use crate::name::Name;
use crate::request::{ModelChoice, Prompt, Request};

/// A description come to life.
#[derive(Debug)]
pub struct BuiltFleet {
    /// Its models.
    pub models: Arc<Models>,
    /// Its pods.
    pub fleet: Fleet,
    /// What they hold.
    pub index: Index,
    /// The load that was described, on the pods for as long as this lives.
    pub load: Vec<Reservation>,
}

/// A description that cannot come to life.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// More pods than an index can hold.
    #[error("{0} pods are described; an index holds at most 4096")]
    TooManyPods(usize),
    /// A held prompt cannot be tokenized.
    #[error("pod `{pod}` holds a text, but model `{model}` cannot tokenize it: {cause}")]
    NotTokenized {
        /// The pod.
        pod: Name,
        /// Its first model.
        model: Name,
        /// Why.
        cause: String,
    },
    /// No slot was free.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
    /// The pod went while it was built.
    #[error(transparent)]
    PodGone(#[from] PodGone),
}

impl BuiltFleet {
    /// What people call a pod.
    #[must_use]
    pub fn name(&self, pod: PodId) -> String {
        let found = self.fleet.find(pod).map(|at| self.fleet[at].facts().name.to_string());
        found.unwrap_or_else(|| "a pod that has gone".to_owned())
    }
}

impl FleetDescription {
    /// Makes pods and an index. `tokenizer` gives the tokenizer of a model by what the description
    /// says of it.
    ///
    /// # Errors
    /// If there are too many pods, or a held text cannot be tokenized.
    pub fn build(
        &self,
        now: Duration,
        tokenizer: impl Fn(&str) -> Option<Arc<dyn Tokenize>>,
    ) -> Result<BuiltFleet, BuildError> {
        let mut models = Models::new(HashKey::DEFAULT);
        for model in &self.models {
            let tokenizer = model.tokenizer.as_deref().and_then(&tokenizer);
            models = models.with(&model.name, model.block_size, tokenizer);
        }
        let count = self.pods.len();
        let capacity = Capacity::for_pods(count).ok_or(BuildError::TooManyPods(count))?;
        let index = Index::new(Limits { capacity, ..Limits::default() }, 1);
        let (mut pods, mut load) = (Vec::new(), Vec::new());
        for described in &self.pods {
            let pod = Pod::new(index.add_pod()?, described.facts.clone());
            described.burden(&pod, now, &mut load);
            described.fill(&pod, &models, &index)?;
            pods.push(pod);
        }
        Ok(BuiltFleet { models: Arc::new(models), fleet: Fleet::new(pods), index, load })
    }
}

impl DescribedPod {
    /// Puts the described load on the pod.
    fn burden(&self, pod: &Pod, now: Duration, load: &mut Vec<Reservation>) {
        let vitals = pod.vitals();
        vitals.set_health(self.health);
        vitals.set_breaker(self.breaker);
        vitals.set_trust(self.trust);
        vitals.report(self.waiting, self.kv_usage);
        if let Some(silence) = self.silence {
            vitals.heard_at(now.saturating_sub(silence));
        }
        let needed = u32::from(self.prefill_tokens > 0) + u32::from(self.decode_tokens > 0);
        for number in 0..self.requests.max(needed) {
            let prefill = if number == 0 { self.prefill_tokens } else { 0 };
            let is_last = number + 1 == self.requests.max(needed);
            let context = if is_last { self.decode_tokens } else { 0 };
            let mut reservation = Reservation::new(vitals, prefill.max(context), prefill);
            if is_last && context > 0 {
                reservation.first_token();
            }
            load.push(reservation);
        }
    }

    /// Tells the index what the pod holds, as its engine would.
    fn fill(&self, pod: &Pod, models: &Models, index: &Index) -> Result<(), BuildError> {
        let Some(model) = self.facts.models.first().and_then(|name| models.find(name)) else {
            return Ok(());
        };
        let choice = ModelChoice { base: model.name().clone(), lora: None };
        let root = models.root(&choice, None);
        for held in &self.holds {
            let mut tokens = match &held.prompt {
                HeldText::Tokens(tokens) => tokens.clone(),
                HeldText::Text(text) => {
                    let prompt = Prompt::Text(text.clone());
                    let request = Request { model: choice.clone(), prompt, ..Request::default() };
                    let mut tokens = Vec::new();
                    let tokenized = match model.tokenizer() {
                        Some(tokenizer) => tokenizer.tokenize(&request, &mut tokens),
                        None => {
                            Err("it has no tokenizer; give `tokenizer` or held `tokens`".into())
                        }
                    };
                    tokenized.map_err(|cause| BuildError::NotTokenized {
                        pod: self.facts.name.clone(),
                        model: model.name().clone(),
                        cause,
                    })?;
                    tokens
                }
            };
            tokens.truncate(held.first.unwrap_or(usize::MAX));
            let mut contents = Vec::new();
            model.hasher().contents(&tokens, &mut contents);
            let blocks: Vec<_> = root.chain(&contents).map(|hash| EngineHash(hash.0)).collect();
            let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
            let stored = Stored { tier: held.tier, blocks: &blocks, content, locations: &[] };
            index.writer().apply(pod.id(), None, &[Event::Stored(stored)])?;
        }
        Ok(())
    }
}
