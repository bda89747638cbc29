//! The largest prefixes in the caches, and who holds them.

use serde_json::{Value, json};
use wornpath_index::{PrefixLimits, PrefixRun};

use crate::routes::{AdminCall, AdminReply, AdminResult};

/// Blocks that are looked at over all pods: some tens of milliseconds, off the way of requests.
const MOST_BLOCKS: usize = 200_000;
/// Runs that are told: more than a screen can show.
const MOST_RUNS: usize = 240;

pub(crate) fn list(call: &AdminCall<'_>) -> AdminResult {
    let gateway = &call.admin.gateway;
    let snapshot = gateway.snapshot();
    let pods: Vec<_> = snapshot.entries().iter().map(|entry| entry.pod.id()).collect();
    let names: Vec<_> =
        snapshot.entries().iter().map(|entry| entry.pod.facts().name.to_string()).collect();
    let limits = PrefixLimits { blocks_per_pod: MOST_BLOCKS / pods.len().max(1), runs: MOST_RUNS };
    let prefixes = gateway.pods().index().prefixes(&pods, limits);
    let settings = gateway.settings();
    let mut sizes = settings.models.iter().map(|model| model.block_size.tokens().get());
    // A block is not known by its model: where models have blocks of different sizes, there is no telling.
    let block_size = sizes.next().filter(|first| sizes.all(|size| size == *first));
    Ok(AdminReply::Json(json!({
        "pods": names,
        "block_size": block_size,
        "looked_at": prefixes.looked_at,
        "detached": prefixes.detached,
        "cut_short": prefixes.cut_short,
        "runs": prefixes.runs.iter().map(shown).collect::<Vec<_>>(),
    })))
}

fn shown(run: &PrefixRun) -> Value {
    json!({
        "follows": run.follows, "prefix": format!("{:016x}", run.last.0), "depth": run.depth,
        "blocks": run.blocks, "holders": run.holders, "weight": run.weight,
    })
}
