//! Executes routing plans: calls pods, streams their responses, and retries on another pod when one
//! fails.
//!
//! The decisions are pure and take time as an argument: the retry budget, the circuit breaker of an
//! endpoint, what follows a failure, the KV transfer protocols, and the splicing of bodies. Around
//! them is one HTTP/1.1 client on hyper ([`call`]) whose connections are driven by the task that
//! serves the client: no other task wakes up for a chunk, and a client that disconnects cancels the
//! upstream call.
#![forbid(unsafe_code)]

mod breaker;
mod call;
mod connection;
mod egress_policy;
mod endpoint;
mod execute;
mod failure;
mod json_scan;
mod poison;
mod response;
mod retry;
mod retry_after;
mod splice;
mod timeouts;
mod transfer;
mod usage_support;

pub use breaker::{BreakerRules, CallOutcome, CircuitBreaker};
pub use call::{CallOptions, STREAM_OPTIONS, StepCall, Target, call, check_connection};
pub use connection::spend_coop_budget;
pub use egress_policy::{AddressRange, EgressDenied, EgressPolicy, PodTls, RangeError};
pub use endpoint::{Endpoint, EndpointError, WorkerNumber, limit_idle_connections};
pub use execute::{CallAttempt, PlanResponse, PrefillResult, Router, execute};
pub use failure::{CallError, CallFailure};
pub use json_scan::{JsonScan, MemberName, NotAnObject};
pub use poison::{PoisonRequests, RequestFingerprint};
pub use response::{EngineBody, EngineResponse};
pub use retry::{BudgetRules, Producer, RetryBudget, RetryBudgets, RetryDecision, RetryState};
pub use retry_after::retry_after;
pub use splice::{Edit, field, splice};
pub use timeouts::{Timeouts, run_coarse_timer};
pub use transfer::{MissingPart, transfer_fields};
pub use usage_support::UsageSupport;
pub use wornpath_tls::tls_error;
