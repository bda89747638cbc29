//! The largest cached prefixes, and the pods that hold them.

use serde_json::{Value, json};
use wornpath_index::{PrefixLimits, PrefixRun};

use crate::call::{AdminCall, AdminReply, AdminResult};

/// Maximum number of blocks visited over all pods: tens of milliseconds, off the request path.
const MOST_BLOCKS: usize = 200_000;
/// Maximum number of runs: more than a screen can show.
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
    // The index does not know the model of a block, so with different block sizes it is unknown.
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
