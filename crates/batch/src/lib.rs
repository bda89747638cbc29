//! OpenAI's Files and Batches interface, on the gateway's own pipeline.
//!
//! What clients upload and create is kept in a [`Store`] before they are answered. Every batch that has not ended
//! is run by one task ([`task`]): read, planned over the pods that are there, and sent through the same
//! decisions and the same queue as everybody's requests, at the lowest priority and with its planned pod
//! as a hint. How many are under way at once shrinks as clients want more.
#![forbid(unsafe_code)]

mod batches;
mod eligible_pods;
mod engines;
mod error;
mod explained;
mod file_reader;
mod finalize;
mod forest;
mod lists;
mod model;
mod overview;
mod prefix_match;
mod profile;
mod retry;
mod routes;
mod start;
mod storage_quota;
mod task;
mod temp_files;
mod upload;

pub use error::BatchesError;
pub use profile::PLANNED;
pub use start::serve_batches;
