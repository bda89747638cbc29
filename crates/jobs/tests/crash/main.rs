//! The crash matrix: whatever dies, wherever, every line of the input ends with exactly one record, and what
//! was acknowledged is never lost.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod disk;
mod matrix;
#[cfg(feature = "postgres")]
mod postgres;
mod runs;
#[cfg(feature = "postgres")]
mod server;
mod shelf;
mod suite;
