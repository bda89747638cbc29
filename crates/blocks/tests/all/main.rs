//! Tests of tokenizers and chat templates through the public interface.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod damaged;
mod families;
mod model;
mod skeletons;
mod templates;
mod tokenizers;
