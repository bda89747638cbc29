//! Tests of the index through its public interface.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod block_locations;
mod blocks_asked;
mod export;
mod memory;
mod model;
mod names;
mod prefixes;
