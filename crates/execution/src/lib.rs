//! Executes routing plans: calls pods, streams their responses, and retries on another pod when one
//! fails.
//!
//! The decisions are pure and take time as an argument: the retry budget, the circuit breaker of an
//! endpoint, what follows a failure, the KV transfer protocols, and the splicing of bodies. Around
//! them is one HTTP/1.1 client on hyper ([`call`]) whose connections are driven by the task that
//! serves the client: no other task wakes up for a chunk, and a client that disconnects cancels the
//! upstream call.
#![forbid(unsafe_code)]

mod backoff;
mod breaker;
mod budget;
mod coarse_timer;
mod concurrent_steps;
mod connection;
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
mod transfer;

pub use backoff::Backoff;
pub use breaker::{BreakerRules, CallOutcome, CircuitBreaker};
pub use budget::{BudgetRules, RetryBudget};
pub use coarse_timer::run_coarse_timer;
pub use coop_budget::spend_coop_budget;
pub use egress_policy::{AddressRange, EgressDenied, EgressPolicy, PodTls, RangeError};
pub use endpoint::{Endpoint, EndpointError, WorkerNumber, limit_idle_connections};
pub use execute::execute;
pub use failure::{CallError, CallFailure, tls_error};
pub use replan::{CallAttempt, CallOptions, PlanResponse, PrefillResult, Replan, StepCall, Target};
pub use response::{EngineBody, EngineResponse};
pub use retry_state::{Producer, RetryDecision, RetryState};
pub use send::call;
pub use splice::{Edit, NotAnObject, field, splice};
pub use timeouts::Timeouts;
pub use transfer::transfer_fields;
