//! Profiles of checked plugins, and the plans they make.
//!
//! A request passes five stages, always in this order: **prepare** computes something from it once
//! (tokens, block hashes, a session key); **filter** says which pods cannot take it; **score** says
//! how well each of the others suits; **pick** chooses; and the plan that results is **executed**,
//! by a crate above this one. Plugins hand values to each other through typed slots ([`slot`]), and
//! a profile is checked as a whole before it runs ([`Profile::check`]).
//!
//! Nothing here does I/O, reads a clock or spawns a thread: time and randomness are in the
//! [`DecisionEnv`] that the caller passes in.
//!
//! ```
//! use wornpath_index::{Index, IndexLimits, Moment};
//! use wornpath_routing::{
//!     DecisionEnv, DecisionState, Fleet, FleetPod, Outcome, PodFacts, Profile, ProfileEnv, Request,
//!     Rng,
//! };
//!
//! let profile = "filter: [healthy]\nscore: [least_load]\npick: max_score\n";
//! let profile = Profile::check("mine.yaml", profile, &ProfileEnv::default())?;
//!
//! let index = Index::new(IndexLimits::default(), 7);
//! let pod = FleetPod::new(index.add_pod()?, PodFacts::serving("a", "qwen3"));
//! let fleet = Fleet::new(vec![pod]);
//! let mut state = DecisionState::new(&index);
//! let mut rng = Rng::new(1);
//!
//! let mut context = profile.context(Request::from_json(br#"{"prompt": "hello"}"#)?);
//! profile.prepare(&mut context).expect("it can be served");
//! let now = Moment::ZERO;
//! let mut env = DecisionEnv { fleet: &fleet, state: &mut state, now, rng: &mut rng };
//! let Outcome::Plan(plan) = profile.decide(&mut context, &mut env) else { panic!("a pod is idle") };
//! assert_eq!(plan.steps[0].pod, Some(fleet.pods()[0].id()));
//! assert_eq!(fleet.pods()[0].state().requests(), 1);
//! drop(plan);
//! assert_eq!(fleet.pods()[0].state().requests(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod assembly;
mod decide;
mod decision_state;
mod explain;
mod fleet;
pub mod fleet_spec;
mod held_requests;
mod messages;
mod models;
mod name;
mod plan;
mod plugin;
mod plugins;
mod profile;
mod reading;
mod reference;
mod request;
mod rng;
mod selector;
pub mod slot;
mod stage;
pub mod template;
#[cfg(test)]
mod testing;
#[cfg(feature = "text")]
mod text;
mod transfer;
mod wait_queue;
mod workflow;

pub use assembly::PluginView;
pub use decide::{PodEstimate, Retry};
pub use decision_state::{
    DecisionEnv, DecisionState, RoutingHistory, SentChain, SpeculativeInsert,
};
pub use explain::{
    CandidateExplanation, Explanation, FilterExplanation, JudgeExplanation, PickExplanation,
    Recorder, ScorerExplanation, StepExplanation,
};
pub use fleet::{
    BreakerState, Candidate, EventTrust, Fleet, FleetPod, Health, PodFacts, PodState, Reservation,
    RouterLoad, Topology,
};
pub use messages::Messages;
pub use models::{ByteTokenizer, Models, RoutedModel, Tokenize, TokenizeError, Untokenized};
pub use name::{Name, Role};
pub use plan::{
    AfterFailure, AwaitedPod, BestCached, CacheHint, CacheRun, FailurePolicy, Hold, Mark, Mutation,
    Outcome, PassedOver, PlanStep, RoutingPlan, SkippedBecause, Start,
};
pub use plugin::{Assembly, AssemblyRefused, InstalledTooLate, Make, PICKER, Plugin, Registry};
pub use plugins::SPEEDS;
pub use profile::{Profile, ProfileEnv, SlotGraph, StepView, WithoutEvents};
pub use request::{
    AllowedPods, ModelChoice, PodAddress, Prompt, PromptApi, PromptReading, Request, RequestError,
};
pub use rng::Rng;
pub use slot::{
    Attributes, BlockHashes, Picked, PlanHint, Reads, RingKey, RoutingContext, SessionKey, Slot,
    Tokens, Writes,
};
pub use stage::{
    CandidateSet, Choice, Decision, Fallbacks, Filter, HeldBlocks, HeldDepth, Pick, Prepare,
    Preparing, Rejection, RejectionCause, Scale, Score, Stage, WhenEmpty,
};
#[cfg(feature = "text")]
pub use text::TextTokenizer;
pub use transfer::{Transfer, TransferredPart};
pub use wornpath_yaml::{
    Absent, FromValue, Parameter, Problem, ProblemKind, Problems, Span, Takes, Value, nearest,
};

/// The queue of requests that wait for a pod.
pub mod queue {
    pub use crate::held_requests::{Dequeued, HeldRequest, HeldRequests, Redecision};
    pub use crate::wait_queue::{
        Enqueued, Priority, QueueEntry, QueueFull, QueueOrder, QueueRules, QueueRulesError, Tenant,
        Ticket, WaitQueue,
    };
}
