//! OpenAI's Files and Batches APIs, served through the gateway's own pipeline.
//!
//! Files and batches are written to a [`Store`] before the client gets a response. Each unfinished
//! batch has one task ([`task`]) that reads the input, plans it over the pods that are up, and
//! sends its requests through the same routing and the same queue as online requests, at the lowest
//! priority and with the planned pod as a hint. The more online requests there are, the fewer batch
//! requests are in flight.
#![forbid(unsafe_code)]

mod batches;
mod damage;
mod download;
mod eligible_pods;
mod engines;
mod error;
mod explained;
mod file_reader;
mod finalize;
mod forest;
mod lists;
mod model;
mod new_batch;
mod overview;
mod prefix_match;
mod profile;
mod quota;
mod retention;
mod retry;
mod routes;
mod run_slots;
mod start;
mod storage_quota;
mod sweeper;
mod task;
mod temp_files;
mod upload;
mod upload_slots;

pub use error::BatchesError;
pub use profile::PLANNED;
pub use start::serve_batches;
