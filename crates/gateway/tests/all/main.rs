//! What of the gateway can be checked without a running server.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod numbers;
mod ops;
