//! The plugins that wornpath ships: one file each, one line in the registry each.

mod block_hash;
mod cache_affinity;
mod healthy;
mod least_load;
mod max_score;
mod tokenize;

#[cfg(test)]
mod tests;

use crate::plugin::Plugin;

/// Every shipped plugin, in the order of the reference page.
pub(crate) const ALL: &[Plugin] = &[
    // prepare
    tokenize::PLUGIN,
    block_hash::PLUGIN,
    // filter
    healthy::PLUGIN,
    // score
    cache_affinity::PLUGIN,
    least_load::PLUGIN,
    // pick
    max_score::PLUGIN,
];
