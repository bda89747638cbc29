//! What is known of a request when it has ended, for whoever counts or remembers.

use crate::dialect::Api;
use crate::observe::request_trace::RequestTrace;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_index::{Moment, PodId};
use wornpath_routing::Name;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestEnd {
    /// The whole answer was sent, whatever its status.
    Whole,
    /// The pod broke off after the first byte; the client was told.
    Broken,
    /// The client went first.
    ClientLeft,
    /// The gateway answered by itself: refused, rejected, or everything failed.
    Refused,
}

impl RequestEnd {
    /// Its word in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Broken => "broken",
            Self::ClientLeft => "client_left",
            Self::Refused => "refused",
        }
    }
}

/// One request from its arrival to its end. Never holds what a client wrote, but names of models.
#[derive(Clone, Debug)]
pub struct RequestSummary {
    /// `x-request-id`.
    pub id: String,
    /// Which interface it came by.
    pub api: Api,
    /// The profile that routed it.
    pub profile: Name,
    /// The base model.
    pub model: Name,
    /// Whose it was.
    pub tenant: Option<Name>,
    /// Who answered.
    pub pod: Option<(PodId, Name)>,
    /// The status that the client got.
    pub status: u16,
    /// How it ended.
    pub ended: RequestEnd,
    /// From its arrival to the decision, waiting included.
    pub decided: Duration,
    /// From its arrival to the first byte of the answer's body.
    pub first_byte: Option<Duration>,
    /// From its arrival to its end.
    pub total: Duration,
    /// How often something was tried again.
    pub retries: u32,
    /// Whether a step was left out because it failed.
    pub is_degraded: bool,
    /// Tokens that the pod was believed to hold that computed the prompt; none if the profile does not look.
    pub predicted_tokens: Option<u64>,
    /// What of the prediction is speculative, which tells nothing about whether router and engine agree on tokens.
    pub speculative: Option<Speculative>,
    /// What the engine says.
    pub usage: Usage,
    /// Who computed the prompt, where the pod that answered took that over.
    pub computed: Option<Box<Computed>>,
    /// Pieces that the answer came in; of a stream, about one for a token.
    pub pieces: u64,
    /// The prompt without its words, if somebody takes traffic down.
    pub trail: Option<Box<TrafficStream>>,
    /// How it was decided and called, if that was taken down.
    pub seen: Option<Arc<RequestTrace>>,
}

impl RequestSummary {
    /// A request that has just come, of which nothing else is known.
    #[must_use]
    pub fn new(id: &str, api: Api) -> Self {
        Self {
            id: id.to_owned(),
            api,
            profile: Name::from(""),
            model: Name::from(""),
            tenant: None,
            pod: None,
            status: 0,
            ended: RequestEnd::Refused,
            decided: Duration::ZERO,
            first_byte: None,
            total: Duration::ZERO,
            retries: 0,
            is_degraded: false,
            predicted_tokens: None,
            speculative: None,
            usage: Usage::default(),
            computed: None,
            pieces: 0,
            trail: None,
            seen: None,
        }
    }
}

impl RequestSummary {
    /// Who computed the prompt, and its own count of it. What another pod took over counts as cached there, and
    /// says nothing of any prefix cache.
    #[must_use]
    pub fn computed(&self) -> (Option<&Name>, Usage) {
        match &self.computed {
            Some(computed) => (computed.pod.as_ref(), computed.usage),
            None => (self.pod.as_ref().map(|(_, name)| name), self.usage),
        }
    }
}

/// A prefix that a pod was believed to hold because of an earlier request that was sent there, which no event had confirmed
/// by the decision nor by the end of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speculative {
    /// The pod.
    pub pod: PodId,
    /// The prefix, by its last block.
    pub last: BlockHash,
}

/// A prompt that one pod computed and another one took over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Computed {
    /// Who computed it.
    pub pod: Option<Name>,
    /// What it said; nothing where its answer was not waited for.
    pub usage: Usage,
}

/// What an answer says of its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// In the prompt.
    pub prompt_tokens: Option<u64>,
    /// Of those, not computed again.
    pub cached_tokens: Option<u64>,
    /// Generated.
    pub output_tokens: Option<u64>,
}

impl Usage {
    /// What is known here, and from an earlier count what is not.
    pub(crate) fn or(self, earlier: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(earlier.prompt_tokens),
            cached_tokens: self.cached_tokens.or(earlier.cached_tokens),
            output_tokens: self.output_tokens.or(earlier.output_tokens),
        }
    }
}

/// Whoever wants to know of every request that ended. Called by the threads that answer clients: quick,
/// and without waiting.
pub trait SummaryObserver: Send + Sync {
    /// A request has ended.
    fn ended(&self, record: &RequestSummary);

    /// No more requests end, and the process is about to: passes on what it keeps, within a short time.
    fn finish(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}
/// A prompt without its words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficStream {
    /// When the request came.
    pub arrived: Moment,
    /// Its full blocks.
    pub blocks: Box<[BlockHash]>,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}
