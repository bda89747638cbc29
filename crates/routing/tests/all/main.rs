//! Integration tests of routing, in one binary: profiles, problems, printing and the
//! reference page. What counts allocations has a binary of its own (`allocations.rs`).
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod damaged_input;
mod field_policies;
mod printed;
mod problems;
mod profiles;
mod reference;
mod slot_access;
