//! What a decision answers: a plan, a wait, or a refusal.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use wornpath_blocks::BlockHash;
use wornpath_index::{Location, Moment, PodId, Tier};

use crate::fleet::Reservation;
use crate::name::{Name, Role};
use crate::stage::Rejection;
use crate::wait_queue::QueueEntry;

/// What is to become of a request now.
#[derive(Debug)]
pub enum Outcome {
    /// Carry this out.
    Plan(RoutingPlan),
    /// Not yet: ask again when a pod may have room.
    Hold(Hold),
    /// Turn it away.
    Reject(Rejection),
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hold {
    /// How the queue is to treat it, with the deadline until which it may wait.
    pub class: QueueEntry,
}

/// The steps that answer a request, in order. Dropping it gives back the load that it reserved.
#[derive(Debug, Default)]
pub struct RoutingPlan {
    /// At least one.
    pub steps: Vec<PlanStep>,
    /// What was unusual about the decision, such as a filter that did not count.
    pub marks: Vec<Mark>,
}

/// One call to one pod.
#[derive(Debug)]
pub struct PlanStep {
    /// What the profile calls it.
    pub name: Name,
    /// The role that the pod plays.
    pub role: Role,
    /// Who; none if the step is bound when it starts, by a call of `replan`.
    pub pod: Option<PodId>,
    /// Who else, best first.
    pub fallbacks: Vec<PodId>,
    /// When it starts, seen from the step before.
    pub start: Start,
    /// What to do if it fails.
    pub failure: FailurePolicy,
    /// How long it may take.
    pub deadline: Option<Duration>,
    /// How long what it leaves behind for the next step surely lasts.
    pub lease: Option<Duration>,
    /// What the pod is believed to hold of the prompt.
    pub cache: CacheHint,
    /// How the request's body is changed for this step.
    pub mutations: Vec<Mutation>,
    /// When the prompt is probably computed, where no first byte tells: an answer that is not streamed
    /// comes as a whole, long after the pod has turned to other prompts.
    pub computed_after: Option<Duration>,
    /// The load that it puts on the pod.
    pub reservation: Option<Reservation>,
    /// Whether the pod is expected to hold the prompt because of this step.
    pub is_expected: bool,
}

/// When a step starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    /// When the step before has ended.
    #[default]
    After,
    /// Together with the step before.
    Together,
}

/// What to do if a step fails before anything was sent to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailurePolicy {
    /// How many pods are tried.
    pub attempts: u32,
    /// What comes when all of them failed.
    pub then: AfterFailure,
}

/// What comes when a step has failed for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// The request fails.
    Fail,
    /// The next step does the work of this one too.
    Skip,
    /// The plan starts again.
    Restart,
}

/// What a pod is believed to hold of the prompt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheHint {
    /// Leading tokens of the prompt that need not be computed.
    pub tokens: u64,
    /// The runs of blocks that hold them, in order.
    pub runs: Vec<CacheRun>,
    /// The last block of `tokens`, if that is speculative: the pod was sent a request with it, and no event has confirmed it
    /// yet. None of a pod that sends no events: what it holds is always a guess.
    pub speculative: Option<BlockHash>,
}

/// Blocks in a row that lie on one tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheRun {
    /// How many.
    pub blocks: usize,
    /// The fastest tier that has them.
    pub tier: Tier,
    /// Where the first of them lies, if the engine says so.
    pub location: Option<Location>,
}

/// A change to the request's body for one step.
#[derive(Clone, PartialEq, Debug)]
pub enum Mutation {
    /// Only compute the prompt: one token, no stream.
    PrefillOnly,
    /// Ask the pod to keep the computed prompt for a later step, in the words of a protocol.
    OfferKv(Transfer),
    /// Tell the pod to take the computed prompt from the step before.
    TakeKv(Transfer),
    /// Set a top-level field.
    Set {
        /// The field.
        field: String,
        /// Its new value.
        value: Value,
    },
}

/// How a computed prompt gets from one engine to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transfer {
    /// vLLM's NIXL connector: parameters come back with the prefill response.
    #[default]
    Nixl,
    /// SGLang: both pods get the same bootstrap room, at the same time.
    Bootstrap,
    /// Both read and write one store; nothing is said.
    SharedStorage,
    /// Mooncake: both get a transfer id, at the same time.
    Mooncake,
    /// TensorRT-LLM: `disaggregated_params` come back with the prefill response.
    TensorRt,
}

impl Transfer {
    /// Whether the receiving step starts together with the giving one.
    #[must_use]
    pub const fn start(self) -> Start {
        match self {
            Self::Bootstrap | Self::Mooncake => Start::Together,
            Self::Nixl | Self::SharedStorage | Self::TensorRt => Start::After,
        }
    }

    /// Whether the giving step is told to stop after one token. SGLang's knows by itself.
    #[must_use]
    pub const fn cuts_prefill_short(self) -> bool {
        !matches!(self, Self::Bootstrap)
    }

    /// Its word in YAML.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nixl => "nixl",
            Self::Bootstrap => "bootstrap",
            Self::SharedStorage => "shared_storage",
            Self::Mooncake => "mooncake",
            Self::TensorRt => "tensorrt",
        }
    }
}

/// Something unusual about a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A filter would have left nobody and did not count.
    FilterSkipped {
        /// The step.
        step: Name,
        /// The filter.
        filter: &'static str,
    },
    /// The picker says so.
    Pick {
        /// The step.
        step: Name,
        /// What.
        mark: &'static str,
    },
    /// A step was left out.
    StepSkipped {
        /// The step.
        step: Name,
        /// Why.
        why: SkippedBecause,
    },
}

/// Why a step was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkippedBecause {
    /// Too little of the prompt was uncached to be worth another step.
    FewUncachedTokens(u64),
    /// Nobody could take it, and the profile allows to go on without.
    NoPod,
    /// What it hands over is one prompt's, and the request has several.
    SeveralPrompts,
}

impl Hold {
    /// Until when it may wait.
    #[must_use]
    pub const fn deadline(&self) -> Moment {
        self.class.deadline
    }
}

impl RoutingPlan {
    /// The plan as data, with pods by the names that `name` gives. Equal plans give equal bytes.
    #[must_use]
    pub fn to_json(&self, name: impl Fn(PodId) -> String) -> Value {
        let step = |step: &PlanStep| {
            json!({
                "step": step.name.as_str(),
                "role": step.role.as_str(),
                "pod": step.pod.map(&name),
                "fallbacks": step.fallbacks.iter().map(|pod| name(*pod)).collect::<Vec<_>>(),
                "start": match step.start { Start::After => "after", Start::Together => "together" },
                "attempts": step.failure.attempts,
                "then": step.failure.then.word(),
                "deadline_ms": step.deadline.map(millis),
                "lease_ms": step.lease.map(millis),
                "cached_tokens": step.cache.tokens,
                "cached_runs": step.cache.runs.iter().map(CacheRun::json).collect::<Vec<_>>(),
                "mutations": step.mutations.iter().map(Mutation::json).collect::<Vec<_>>(),
            })
        };
        json!({
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "marks": self.marks.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
}

impl CacheHint {
    /// As an engine is told, and as plans are shown.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let runs = self.runs.iter().map(CacheRun::json).collect::<Vec<_>>();
        json!({"tokens": self.tokens, "runs": runs})
    }
}

impl fmt::Display for CacheHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|run| format!("{} blocks on {}", run.blocks, tier(run.tier)))
            .collect();
        match &runs[..] {
            [] => f.write_str("nothing cached"),
            runs => write!(f, "{} tokens cached ({})", self.tokens, runs.join(", ")),
        }
    }
}

impl AfterFailure {
    /// Its word in YAML.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Restart => "restart",
        }
    }
}

impl CacheRun {
    fn json(&self) -> Value {
        let location = self.location.map(
            |place| json!({"device": place.device, "offset": place.offset, "length": place.length}),
        );
        json!({"blocks": self.blocks, "tier": tier(self.tier), "location": location})
    }
}

impl Mutation {
    fn json(&self) -> Value {
        match self {
            Self::PrefillOnly => json!("prefill_only"),
            Self::OfferKv(transfer) => json!({"offer_kv": transfer.word()}),
            Self::TakeKv(transfer) => json!({"take_kv": transfer.word()}),
            Self::Set { field, value } => json!({"set": {field.as_str(): value}}),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FilterSkipped { step, filter } => {
                write!(f, "{step}: `{filter}` would have left nobody and did not count")
            }
            Self::Pick { step, mark } => write!(f, "{step}: {mark}"),
            Self::StepSkipped { step, why: SkippedBecause::FewUncachedTokens(tokens) } => {
                write!(f, "{step}: left out, only {tokens} tokens are uncached")
            }
            Self::StepSkipped { step, why: SkippedBecause::NoPod } => {
                write!(f, "{step}: left out, no pod can take it")
            }
            Self::StepSkipped { step, why: SkippedBecause::SeveralPrompts } => {
                write!(f, "{step}: left out, it cannot hand several prompts over")
            }
        }
    }
}

const fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Gpu => "gpu",
        Tier::Host => "host",
        Tier::Disk => "disk",
        Tier::Other => "other",
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
