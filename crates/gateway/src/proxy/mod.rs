//! The life of a request, one file a stage.
//!
//! | stage | file | what it does |
//! |---|---|---|
//! | ingress | `ingress`, `body` | authenticates, checks the head and the quota, reads the body |
//! | parse | `parse` | reads the body by its API: model, prompt, limits |
//! | first pod | `first_pod` | waits for a pod of a model that was scaled to zero |
//! | tenancy | `ingress`, `engine_priority`, `isolation` | model aliases, priority, isolation |
//! | usage | `stream_usage` | asks for the token counts of a stream |
//! | prepare | `prepare` | tokenizes and hashes the prompt |
//! | shadow | `shadow` | lets a second profile decide too, without effect |
//! | decide | `decide` | chooses pods, or waits in the queue |
//! | execute | `run_plan`, `execute`, `multi_step` | runs the plan, replans after failures |
//! | respond | `relay` | the head of the answer |
//! | relay | `relay` | the body of the answer, byte by byte |
//! | continuation | `continuation` | goes on with a stream on another pod |
//! | account | `account` | gives load back and tells observers |
//!
//! `route` calls the stages from parse to decide, for every front; `handle` calls them up to the
//! head of the answer, and hyper polls the relay.

pub(crate) mod account;
pub mod body;
pub mod body_budget;
pub mod body_pace;
pub(crate) mod continuation;
pub(crate) mod decide;
mod engine_priority;
pub mod error_response;
mod execute;
mod fair_queue;
mod first_pod;
pub mod gateway;
pub mod handle;
pub mod headers;
pub mod ingress;
pub(crate) mod isolation;
pub(crate) mod low_priority_pool;
pub mod min_rate;
pub(crate) mod model_waits;
mod multi_step;
pub mod multipart;
pub mod parse;
pub(crate) mod pending_summary;
mod prepare;
pub(crate) mod quota;
pub mod relay;
mod report_mode;
pub(crate) mod route;
mod run_plan;
mod sender;
pub mod shadow;
pub(crate) mod stream_usage;
pub(crate) mod usage;
pub(crate) mod wait_queue;
pub mod worker;

/// Seconds since 1970.
#[allow(clippy::disallowed_methods, reason = "the APIs tell times of day")]
#[must_use]
pub fn unix_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
