//! Builds a described fleet: pods with loads, and an index of what they hold.

use std::sync::Arc;

use wornpath_blocks::HashKey;
use wornpath_index::Moment;
use wornpath_index::{
    CacheEvent, Capacity, Content, EngineHash, Index, IndexLimits, NoSlot, Parent, PodId,
    PodRemoved, StoredBlocks,
};

use super::{FleetSpec, HeldPrompt, HeldText, PodSpec};
use crate::fleet::{Fleet, FleetPod, Reservation};
use crate::models::{Models, RoutedModel, Tokenize, TokenizeError};
use crate::name::Name;
use crate::request::{ModelChoice, Prompt, Request};

/// A fleet built from a description.
#[derive(Debug)]
pub struct BuiltFleet {
    /// Its models.
    pub models: Arc<Models>,
    /// Its pods.
    pub fleet: Fleet,
    /// What they hold.
    pub index: Index,
    /// The described load, on the pods for as long as this lives.
    pub load: Vec<Reservation>,
}

/// A described fleet cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// More pods than an index can hold.
    #[error("the fleet has {0} pods; the limit is 4096")]
    TooManyPods(usize),
    /// A held prompt cannot be tokenized.
    #[error(
        "pod `{pod}` holds a text or messages, but model `{model}` cannot tokenize them: {cause}"
    )]
    NotTokenized {
        /// The pod.
        pod: Name,
        /// Its first model.
        model: Name,
        /// The tokenizer's error.
        cause: TokenizeError,
    },
    /// No slot was free.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
    /// The pod was removed while it was built.
    #[error(transparent)]
    PodGone(#[from] PodRemoved),
}

impl BuiltFleet {
    /// The name of a pod.
    #[must_use]
    pub fn name(&self, pod: PodId) -> String {
        let found = self.fleet.find(pod).map(|at| self.fleet[at].facts().name.to_string());
        found.unwrap_or_else(|| "a removed pod".to_owned())
    }
}

impl FleetSpec {
    /// Builds pods and an index. `tokenizer` loads a model's tokenizer by its description.
    ///
    /// # Errors
    /// If there are too many pods, or a held text cannot be tokenized.
    pub fn build(
        &self,
        now: Moment,
        tokenizer: impl Fn(&str) -> Option<Arc<dyn Tokenize>>,
    ) -> Result<BuiltFleet, BuildError> {
        let mut models = Models::new(HashKey::DEFAULT);
        for model in &self.models {
            let tokenizer = model.tokenizer.as_deref().and_then(&tokenizer);
            models = models.with(&model.name, model.block_size, tokenizer);
        }
        let count = self.pods.len();
        let capacity = Capacity::for_pods(count).ok_or(BuildError::TooManyPods(count))?;
        let index = Index::new(IndexLimits { capacity, ..IndexLimits::default() }, 1);
        let mut pods = Vec::new();
        let mut load = Vec::new();
        for described in &self.pods {
            let pod = FleetPod::new(index.add_pod()?, described.facts.clone());
            described.add_load(&pod, now, &mut load);
            described.fill(&pod, &models, &index)?;
            pods.push(pod);
        }
        Ok(BuiltFleet { models: Arc::new(models), fleet: Fleet::new(pods), index, load })
    }
}

impl PodSpec {
    /// Puts the described load on the pod.
    fn add_load(&self, pod: &FleetPod, now: Moment, load: &mut Vec<Reservation>) {
        let pod_state = pod.state();
        pod_state.set_health(self.health);
        pod_state.set_breaker(self.breaker);
        pod_state.set_trust(self.trust);
        pod_state.report(self.waiting, self.kv_usage);
        if let Some(silence) = self.silence {
            pod_state.heard_at(now.saturating_sub(silence));
        }
        let computing = match (self.prefill_tokens, self.decode_tokens) {
            (0, _) => 0,
            (_, 0) => self.requests,
            // Engines compute few prompts at a time; most requests decode.
            _ => 1,
        };
        let decoding = self.requests.saturating_sub(computing);
        for tokens in shares(self.prefill_tokens, computing) {
            load.push(Reservation::new(pod_state, tokens, tokens));
        }
        for tokens in shares(self.decode_tokens, decoding) {
            let mut reservation = Reservation::new(pod_state, tokens, 0);
            if self.decode_tokens > 0 {
                reservation.first_token();
            }
            load.push(reservation);
        }
    }

    /// Tells the index what the pod holds, as its engine would.
    fn fill(&self, pod: &FleetPod, models: &Models, index: &Index) -> Result<(), BuildError> {
        let Some(model) = self.facts.models.first().and_then(|name| models.find(name)) else {
            return Ok(());
        };
        for held in &self.holds {
            let choice = ModelChoice { base: model.name().clone(), lora: held.lora.clone() };
            let root = models.root(&choice, held.salt.as_deref());
            let mut tokens = self.tokens(held, model, choice)?;
            tokens.truncate(held.first.unwrap_or(usize::MAX));
            let mut contents = Vec::new();
            model.hasher().contents(&tokens, &mut contents);
            let blocks: Vec<_> = root.chain(&contents).map(|hash| EngineHash(hash.0)).collect();
            let content = Content::Chained { parent: Parent::Root(root), contents: &contents };
            let stored = StoredBlocks { tier: held.tier, blocks: &blocks, content, locations: &[] };
            index.writer().apply(pod.id(), None, &[CacheEvent::Stored(stored)])?;
        }
        Ok(())
    }

    /// The tokens of a held prompt, as those of a request would be found.
    fn tokens(
        &self,
        held: &HeldPrompt,
        model: &RoutedModel,
        choice: ModelChoice,
    ) -> Result<Vec<u32>, BuildError> {
        let prompt = match &held.prompt {
            HeldText::Tokens(tokens) => return Ok(tokens.clone()),
            HeldText::Text(text) => Prompt::Text(text.clone()),
            HeldText::Messages(messages) => {
                Prompt::Chat { messages: messages.clone().into(), tools: None, kwargs: None }
            }
        };
        let request = Request { model: choice, prompt, ..Request::default() };
        let mut tokens = Vec::new();
        let tokenized = match model.tokenizer() {
            Some(tokenizer) => tokenizer.tokenize(&request, &mut tokens),
            None => Err(TokenizeError::NoTokenizer),
        };
        tokenized.map_err(|cause| BuildError::NotTokenized {
            pod: self.facts.name.clone(),
            model: model.name().clone(),
            cause,
        })?;
        Ok(tokens)
    }
}

/// `tokens` in `parts` that differ by one at most.
fn shares(tokens: u64, parts: u32) -> impl Iterator<Item = u64> {
    let parts = u64::from(parts);
    (0..parts).map(move |part| tokens / parts + u64::from(part < tokens % parts))
}
