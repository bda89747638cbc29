//! The outcome of a decision: a plan, a hold or a rejection.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use wornpath_blocks::BlockHash;
use wornpath_index::{Location, Moment, PodId, Tier};

use crate::fleet::Reservation;
use crate::name::{Name, Role};
use crate::stage::Rejection;
pub use crate::transfer::Start;
use crate::transfer::Transfer;
use crate::wait_queue::QueueEntry;

/// What a decision makes of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Execute this plan.
    Plan(RoutingPlan),
    /// Wait, and decide again when a pod may have room.
    Hold(Hold),
    /// Reject the request.
    Reject(Rejection),
}

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hold {
    /// Its entry in the wait queue, with its deadline.
    pub class: QueueEntry,
    /// The pod that was chosen and has no room, if one was chosen.
    pub awaited: Option<AwaitedPod>,
}

/// The pod that a request waits for, and the work that it would bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AwaitedPod {
    /// The pod.
    pub pod: PodId,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens that the pod would compute.
    pub uncached_tokens: u64,
}

/// The steps that answer a request, in order. Dropping it releases the load that it reserved.
#[derive(Debug, Default)]
pub struct RoutingPlan {
    /// At least one.
    pub steps: Vec<PlanStep>,
    /// What was unusual about the decision, such as a skipped filter.
    pub marks: Vec<Mark>,
}

/// One call to one pod.
#[derive(Debug)]
pub struct PlanStep {
    /// Its name in the profile.
    pub name: Name,
    /// The role that its pod must have.
    pub role: Role,
    /// Its pod; none if the step is bound when it starts, by a call of `replan`.
    pub pod: Option<PodId>,
    /// The pods to try if that one fails, best first.
    pub fallbacks: Vec<PodId>,
    /// When it starts, relative to the step before.
    pub start: Start,
    /// What to do if it fails.
    pub failure: FailurePolicy,
    /// Its timeout.
    pub deadline: Option<Duration>,
    /// How long the engine keeps its KV for the next step.
    pub lease: Option<Duration>,
    /// What the pod is believed to hold of the prompt.
    pub cache: CacheHint,
    /// The changes to the request's body for this step.
    pub mutations: Vec<Mutation>,
    /// When the prompt is probably computed, if no first byte shows it: a response that is not
    /// streamed arrives as a whole, long after the pod has started on other prompts.
    pub computed_after: Option<Duration>,
    /// The load that it puts on the pod.
    pub reservation: Option<Reservation>,
    /// Whether the plan's speculative insert has this pod.
    pub is_expected: bool,
}

/// What to do if a step fails before anything was sent to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailurePolicy {
    /// How many pods are tried.
    pub attempts: u32,
    /// What happens when all of them have failed.
    pub then: AfterFailure,
}

/// What happens when all attempts of a step have failed.
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
    /// Of `tokens`, those that no other pod holds.
    pub unique_tokens: u64,
    /// The runs of blocks that hold them, in order.
    pub runs: Vec<CacheRun>,
    /// The last block of `tokens`, if that is speculative: the pod was sent a request with it, and
    /// no event has confirmed it yet. None for a pod without events, whose cache is always
    /// approximated.
    pub speculative: Option<BlockHash>,
    /// The pod that holds most of the prompt, if it holds more than this one.
    pub best: Option<BestCached>,
}

/// A pod that holds more of a prompt than the chosen one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BestCached {
    /// The pod.
    pub pod: PodId,
    /// Leading tokens of the prompt that it need not compute.
    pub tokens: u64,
    /// Why it was not chosen.
    pub why: PassedOver,
}

/// Why a plan does not use the pod that holds most of its prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassedOver {
    /// It passed every filter, and another pod had the better total: it has more to do.
    Load,
    /// It is down, draining or on trial.
    Health,
    /// It lacks the role of the step.
    Role,
    /// It failed in an earlier attempt of the same request.
    Excluded,
    /// It is full: a request would wait for it.
    Hold,
    /// The data plane does not allow it.
    Subset,
    /// Another filter dropped it.
    Filter,
}

impl PassedOver {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Load,
        Self::Health,
        Self::Role,
        Self::Excluded,
        Self::Hold,
        Self::Subset,
        Self::Filter,
    ];

    /// Its word in metrics and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Health => "health",
            Self::Role => "role",
            Self::Excluded => "excluded",
            Self::Hold => "hold",
            Self::Subset => "subset",
            Self::Filter => "filter",
        }
    }
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
    /// Prefill only: one token, no stream.
    PrefillOnly,
    /// Ask the pod to keep the KV for a later step, by a transfer protocol.
    OfferKv(Transfer),
    /// Tell the pod to load the KV of the step before.
    TakeKv(Transfer),
    /// Set a top-level field.
    Set {
        /// The field.
        field: String,
        /// Its new value.
        value: Value,
    },
    /// Keep a part of the response for later steps. The response is not streamed.
    Bring {
        /// The name of the part.
        part: String,
        /// Where it is in the response, as a JSON pointer.
        pointer: String,
    },
    /// Set a top-level field to what earlier steps have brought.
    Fill {
        /// The field.
        field: String,
        /// Its new value, in which every text `<part>` stands for that part.
        template: Value,
    },
}

/// Something unusual about a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A filter would drop every pod and was skipped.
    FilterSkipped {
        /// The step.
        step: Name,
        /// The filter.
        filter: &'static str,
    },
    /// The picker marked its choice.
    Pick {
        /// The step.
        step: Name,
        /// What was unusual.
        mark: &'static str,
    },
    /// A step was left out.
    StepSkipped {
        /// The step.
        step: Name,
        /// The reason.
        why: SkippedBecause,
    },
}

/// Why a step was left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SkippedBecause {
    /// Too little of the prompt was uncached to be worth another step.
    FewUncachedTokens(u64),
    /// No pod can serve it, and the profile allows to go on without it.
    NoPod,
    /// It transfers the KV of one prompt, and the request has several.
    SeveralPrompts,
}

impl PlanStep {
    /// Whether its response is read as a whole and never streamed.
    #[must_use]
    pub fn is_read_whole(&self) -> bool {
        let whole = |it: &Mutation| matches!(it, Mutation::PrefillOnly | Mutation::Bring { .. });
        self.mutations.iter().any(whole)
    }

    /// Whether an earlier step writes a part of its request, so that the prompt may not be the
    /// client's.
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        self.mutations.iter().any(|it| matches!(it, Mutation::Fill { .. }))
    }
}

impl Hold {
    /// When the wait ends.
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
    /// As the engine gets it, and as plans are shown.
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
            Self::Bring { part, pointer } => json!({"bring": {part.as_str(): pointer}}),
            Self::Fill { field, template } => json!({"fill": {field.as_str(): template}}),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FilterSkipped { step, filter } => {
                write!(f, "{step}: `{filter}` would drop every pod; skipped")
            }
            Self::Pick { step, mark } => write!(f, "{step}: {mark}"),
            Self::StepSkipped { step, why: SkippedBecause::FewUncachedTokens(tokens) } => {
                write!(f, "{step}: left out: only {tokens} tokens are uncached")
            }
            Self::StepSkipped { step, why: SkippedBecause::NoPod } => {
                write!(f, "{step}: left out: no pod can serve it")
            }
            Self::StepSkipped { step, why: SkippedBecause::SeveralPrompts } => {
                write!(f, "{step}: left out: it cannot transfer the KV of several prompts")
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
