//! `wornpath engine`, run as a user runs it.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod answers;
mod events;
mod served;
