//! The engine profiles against measured times, and vLLM's block hashes against vLLM's own.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod composed;
mod deadlines;
mod measured;
mod vllm_fixtures;
mod vllm_vectors;
