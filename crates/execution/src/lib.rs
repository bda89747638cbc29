//! Carries out plans: calls pods, streams their answers, and tries elsewhere when one fails.
//!
//! What decides is pure and takes time as an argument: the retry budget, the breaker of an endpoint, what
//! comes after a failure, what a transfer protocol says, and the splicing of bodies. Around it stands one
//! HTTP/1.1 client on hyper ([`send`]) whose connections are driven by the very task that answers the
//! client: no other task is woken for a chunk, and a client that leaves takes the upstream call with it.
#![forbid(unsafe_code)]

mod breaker;
mod budget;
mod coarse_timer;
mod concurrent_steps;
mod connection;
mod connector;
mod coop_budget;
mod egress_policy;
mod endpoint;
mod execute;
mod failure;
mod in_flight;
mod io;
mod io_waker;
mod kv_load;
mod replan;
mod request_builder;
mod response;
mod retry_state;
mod send;
mod splice;
mod timeouts;

pub use breaker::{BreakerRules, CallOutcome, CircuitBreaker};
pub use budget::{BudgetRules, RetryBudget};
pub use coarse_timer::beat;
pub use coop_budget::take_turn;
pub use egress_policy::{AddressRange, EgressDenied, EgressPolicy, PodTls, RangeError};
pub use endpoint::{Endpoint, EndpointError, WorkerNumber};
pub use execute::execute;
pub use failure::{CallError, CallFailure, tls_error};
pub use replan::{CallAttempt, CallOptions, PlanResponse, PrefillResult, Replan, StepCall, Target};
pub use response::{EngineBody, EngineResponse};
pub use retry_state::{Producer, RetryDecision, RetryState};
pub use send::call;
pub use splice::{Edit, NotAnObject, field, splice};
pub use timeouts::Timeouts;
