//! The crash matrix: after a crash at any operation, every line of the input ends with exactly one
//! record, and acknowledged records are never lost.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod disk;
mod fs_store;
mod matrix;
#[cfg(feature = "postgres")]
mod postgres;
mod runs;
#[cfg(feature = "postgres")]
mod server;
mod suite;
#[cfg(feature = "postgres")]
mod tls;
#[cfg(feature = "postgres")]
mod wait;
