//! The plugins that wornpath ships.
//!
//! A new plugin is one file here and one line in [`ALL`]; the reference page, the error messages
//! and `wornpath check` read that table. What several plugins share has a file of its own: `cost`,
//! `engine_speed`, `rendezvous`, `sessions`, `weighted_choice`, `value_source`, `label_selector`
//! and `cel`.

mod attributes;
mod backlog;
mod block_hash;
mod cache_affinity;
mod cel;
mod concurrency;
mod cost;
mod engine_speed;
mod expression;
mod fresh;
mod hash_key;
mod hash_ring;
mod healthy;
mod kv_headroom;
mod kv_usage;
mod label_selector;
mod labels;
mod least_load;
mod locality;
mod lora_affinity;
mod max_score;
mod model;
mod plan_hint;
mod planned;
mod power_of_two;
mod predicted_ttft;
mod prefix_held;
mod queue_depth;
mod region;
mod rendezvous;
mod role;
mod round_robin_pick;
mod round_robin_score;
mod session_affinity;
mod session_key;
mod session_pick;
mod sessions;
mod steady;
mod text_blocks;
mod tokenize;
mod value_source;
mod weighted_choice;
mod weighted_random;

#[cfg(test)]
mod harness;
#[cfg(test)]
mod tests;

pub(crate) use engine_speed::EngineSpeed;
pub use engine_speed::SPEEDS;

use crate::plugin::{Plugin, Registry};

/// Every shipped plugin, in the order of the reference page.
const ALL: &[Plugin] = &[
    // prepare
    tokenize::PLUGIN,
    block_hash::PLUGIN,
    text_blocks::PLUGIN,
    session_key::PLUGIN,
    hash_key::PLUGIN,
    attributes::PLUGIN,
    plan_hint::PLUGIN,
    // filter
    healthy::PLUGIN,
    role::PLUGIN,
    model::PLUGIN,
    concurrency::PLUGIN,
    backlog::PLUGIN,
    labels::PLUGIN,
    kv_headroom::PLUGIN,
    fresh::PLUGIN,
    steady::PLUGIN,
    prefix_held::PLUGIN,
    expression::filter::PLUGIN,
    // score
    cache_affinity::PLUGIN,
    least_load::PLUGIN,
    queue_depth::PLUGIN,
    kv_usage::PLUGIN,
    predicted_ttft::PLUGIN,
    locality::PLUGIN,
    region::PLUGIN,
    session_affinity::PLUGIN,
    lora_affinity::PLUGIN,
    round_robin_score::PLUGIN,
    expression::score::PLUGIN,
    // pick
    max_score::PLUGIN,
    round_robin_pick::PLUGIN,
    session_pick::PLUGIN,
    hash_ring::PLUGIN,
    weighted_random::PLUGIN,
    power_of_two::PLUGIN,
    planned::PLUGIN,
];

impl Registry {
    /// The plugins that wornpath ships.
    #[must_use]
    pub fn shipped() -> Self {
        Self::of(ALL.to_vec())
    }
}
