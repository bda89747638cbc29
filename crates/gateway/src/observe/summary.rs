//! The summary of a finished request, and the trait of its observers (metrics, traces, recordings).

use crate::dialect::Api;
use crate::observe::buckets::GapCounts;
use crate::observe::request_trace::RequestTrace;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_index::{Moment, PodId};
use wornpath_routing::{Name, PassedOver};

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestEnd {
    /// The complete response was sent, whatever its status.
    Whole,
    /// The response broke after the first byte; the client got an error event.
    Broken,
    /// The client disconnected first.
    ClientLeft,
    /// The gateway answered itself: the request was refused, or all attempts failed.
    Refused,
}

/// The number of the series that a request is counted in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesIndex(pub(crate) u16);

impl RequestEnd {
    /// All, by their number.
    pub(crate) const ALL: [Self; 4] = [Self::Whole, Self::Broken, Self::ClientLeft, Self::Refused];

    /// Its name in metrics and logs.
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

/// A request from its arrival to its end. Contains nothing that the client sent but its request id, the
/// model name, and what an error message quotes.
#[derive(Clone, Debug)]
pub struct RequestSummary {
    /// The value of `x-request-id`.
    pub id: String,
    /// The API it was sent to.
    pub api: Api,
    /// The profile that routed it.
    pub profile: Name,
    /// The base model.
    pub model: Name,
    /// The tenant that sent it.
    pub tenant: Option<Name>,
    /// The pod that answered.
    pub pod: Option<(PodId, Name)>,
    /// The HTTP status sent to the client.
    pub status: u16,
    /// How it ended.
    pub ended: RequestEnd,
    /// The error that the client got from the gateway, or what broke its response.
    pub reason: Option<Arc<str>>,
    /// Time from its arrival to the decision, including the wait queue.
    pub decided: Duration,
    /// Time in the wait queue, and in waiting for the first pod of its model.
    pub waited: Duration,
    /// Time from its arrival to the first byte of the response body.
    pub first_byte: Option<Duration>,
    /// Time from its arrival to the first event of the response, if it is a stream.
    pub first_token: Option<Duration>,
    /// Time from its arrival to its end.
    pub total: Duration,
    /// Attempts after the first.
    pub retries: u32,
    /// How often another pod continued the stream.
    pub continued: u32,
    /// Whether a failed step of the plan was skipped.
    pub is_degraded: bool,
    /// Cached tokens predicted on the pod that computed the prompt; none if the profile ignores
    /// caches.
    pub predicted_tokens: Option<u64>,
    /// Of the predicted tokens, those that no other pod held.
    pub unique_tokens: u64,
    /// The pod that held most of the prompt, if it held more than the chosen one.
    pub best: Option<Box<BestPod>>,
    /// What the shadow profile chose, if it decided too.
    pub shadow: Option<Box<ShadowChoice>>,
    /// The speculative part of the prediction, which does not show whether router and engine agree
    /// on tokens.
    pub speculative: Option<Speculative>,
    /// Times between the events of a stream.
    pub gaps: GapCounts,
    /// The series of its profile, model and tenant, once they are known.
    pub series: Option<SeriesIndex>,
    /// Token counts reported by the engine that answered.
    pub usage: Usage,
    /// The pod that computed the prompt, if another one answered.
    pub computed: Option<Box<Computed>>,
    /// Tokens of the prompt by the router's own tokenizer, if it tokenized it.
    pub tokenized: Option<u64>,
    /// Events of the response before the end marker, if it was a stream.
    pub events: Option<u64>,
    /// Chunks of the response; in a stream, about one per token.
    pub pieces: u64,
    /// The shape of the prompt without its text, if traffic is recorded.
    pub traffic: Option<Box<TrafficStream>>,
    /// The decision and the calls, if the request was sampled.
    pub trace: Option<Arc<RequestTrace>>,
    /// Why the router refused it or gave up on it.
    pub refusal: Option<Box<Refusal>>,
}

impl RequestSummary {
    /// A request that has just arrived.
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
            reason: None,
            decided: Duration::ZERO,
            waited: Duration::ZERO,
            first_byte: None,
            first_token: None,
            total: Duration::ZERO,
            retries: 0,
            continued: 0,
            is_degraded: false,
            predicted_tokens: None,
            unique_tokens: 0,
            speculative: None,
            gaps: GapCounts::default(),
            series: None,
            usage: Usage::default(),
            computed: None,
            tokenized: None,
            events: None,
            pieces: 0,
            traffic: None,
            trace: None,
            best: None,
            shadow: None,
            refusal: None,
        }
    }
}

impl RequestSummary {
    /// The token counts of a generated response whose engine reported none, as the router counted
    /// them: the prompt by its own tokenizer, and one token per event of a stream.
    #[must_use]
    pub fn counted(&self) -> Usage {
        let is_reported = self.usage.prompt_tokens.or(self.usage.output_tokens).is_some();
        if is_reported || !self.api.generates() || !(200..300).contains(&self.status) {
            return Usage::default();
        }
        Usage { prompt_tokens: self.tokenized, cached_tokens: None, output_tokens: self.events }
    }

    /// The trace of the request, if it is exported.
    #[must_use]
    pub fn trace_id(&self) -> Option<u128> {
        self.trace.as_ref()?.context.map(|context| context.trace)
    }

    /// The cached tokens that the best pod held beyond the chosen one, and why it was passed over.
    #[must_use]
    pub fn given_away(&self) -> Option<(u64, PassedOver)> {
        let best = self.best.as_ref()?;
        Some((best.tokens.saturating_sub(self.predicted_tokens?), best.why))
    }

    /// The pod that computed the prompt, and its token counts. A decode pod reports a transferred
    /// prefix as cached, which says nothing about a prefix cache.
    #[must_use]
    pub fn computed(&self) -> (Option<&Name>, Usage) {
        match &self.computed {
            Some(computed) => (computed.pod.as_ref(), computed.usage),
            None => (self.pod.as_ref().map(|(_, name)| name), self.usage),
        }
    }
}

/// A prefix predicted on a pod only because of an earlier request, which no event had confirmed by
/// the end of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speculative {
    /// The pod of the prediction.
    pub pod: PodId,
    /// The last block of the prefix.
    pub last: BlockHash,
}

/// The pod that held most of a prompt, and was not chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BestPod {
    /// Its name.
    pub pod: Name,
    /// Leading tokens of the prompt that it held.
    pub tokens: u64,
    /// Why it was not chosen.
    pub why: PassedOver,
}

/// What a shadow profile made of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShadowChoice {
    /// The profile.
    pub profile: Name,
    /// The pod that would compute the prompt; none if the profile would hold or refuse the request.
    pub pod: Option<Name>,
    /// What became of it.
    pub result: &'static str,
    /// Cached tokens on that pod.
    pub cached_tokens: Option<u64>,
    /// Predicted time to first token on that pod.
    pub first_token: Option<Duration>,
}

/// Why the router refused a request, without anything that the client wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What it is about.
    pub cause: RefusalCause,
    /// The reason.
    pub reason: String,
}

/// What a refusal is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RefusalCause {
    /// No pod can serve the request.
    NoPod,
    /// Pods, queues, quotas or memory are full.
    Saturated,
    /// The request waited until its deadline.
    Expired,
    /// The router is shutting down.
    ShuttingDown,
    /// All calls to pods failed.
    CallsFailed,
    /// The request itself.
    Request,
}

impl RefusalCause {
    /// Its word in JSON and links.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NoPod => "no_pod",
            Self::Saturated => "saturated",
            Self::Expired => "expired",
            Self::ShuttingDown => "shutting_down",
            Self::CallsFailed => "calls_failed",
            Self::Request => "request",
        }
    }
}

/// A prompt computed by one pod and transferred to another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Computed {
    /// The pod that computed it.
    pub pod: Option<Name>,
    /// Its token counts; empty if its response was not awaited.
    pub usage: Usage,
}

/// The token counts of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: Option<u64>,
    /// Of those, served from a prefix cache.
    pub cached_tokens: Option<u64>,
    /// Generated tokens.
    pub output_tokens: Option<u64>,
}

impl Usage {
    /// Fills missing counts from an earlier report.
    pub(crate) fn or(self, earlier: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(earlier.prompt_tokens),
            cached_tokens: self.cached_tokens.or(earlier.cached_tokens),
            output_tokens: self.output_tokens.or(earlier.output_tokens),
        }
    }
}

/// An observer of finished requests. Called on the threads that serve clients, so it must be fast
/// and must not block.
pub trait SummaryObserver: Send + Sync {
    /// Called once for each finished request.
    fn ended(&self, record: &RequestSummary);

    /// Called at shutdown, after the last request: flushes buffered data within a short time.
    fn finish(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {})
    }
}

/// The shape of a prompt, without its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficStream {
    /// Arrival of the request.
    pub arrived: Moment,
    /// The hashes of its full blocks.
    pub blocks: Box<[BlockHash]>,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
}
