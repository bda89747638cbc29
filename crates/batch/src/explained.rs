//! The plan of a batch for clients: shared prefixes, saved tokens, and the requests of each pod.
//!
//! It is computed from the input at every request, for the pods that are up: both determine the
//! plan.

use crate::batches::Batches;
use crate::error::BatchError;
use crate::file_reader::{StoredBytes, require_file, store_error};
use crate::forest::forest_json;
use crate::model::BatchModel;
use crate::prefix_match::match_to_caches;
use crate::task::{RATES, most_bytes, reading};
use serde_json::{Value, json};
use std::io::BufReader;
use std::sync::Arc;
use wornpath_jobs::{Batch, Input, InputError, StoreError};
use wornpath_planner::{Forest, Plan, PromptGroups, Speeds};

/// Maximum number of groups in the list.
const LISTED: usize = 8;

pub(crate) async fn explained(batches: &Arc<Batches>, batch: Batch) -> Result<Value, BatchError> {
    let service = Arc::clone(batches);
    let most = most_bytes(batches, &batch);
    let permit = batches.acquire_reader().await;
    let explained = batches
        .with_store(move |store| {
            let _permit = permit;
            let consequence = format!("batch `{}` has no plan", batch.id);
            require_file(store, &batch.input_file_id, &consequence)?;
            let model = BatchModel::read(store, &batch.input_file_id, most)?;
            let reading = reading(&service, &batch, &model);
            let gateway = service.worker.gateway();
            let snapshot = gateway.snapshot();
            let up = model.ready(&snapshot);
            let up = up.iter().map(|pod| (pod.id(), pod.facts().name.to_string()));
            let (ids, pods): (Vec<_>, Vec<_>) = up.unzip();
            let speeds = Speeds::equal(pods.len()).map_err(|_| {
                StoreError::Unreachable("no pod is up that serves the model of the batch".into())
            })?;
            let reader = StoredBytes::open(store, &batch.input_file_id)?;
            let reader = BufReader::with_capacity(1 << 20, reader);
            let read =
                Input::read_bounded(reader, &reading.rules, &reading.hasher, reading.sort, most);
            let input = read.map_err(|error| match error {
                InputError::Read(error) => store_error(error),
                InputError::Spill(error) => error.into(),
                wrong @ InputError::Lines { .. } => {
                    StoreError::Conflict(format!("batch `{}` has no plan: {wrong}", batch.id))
                }
            })?;
            let forest = input.forest(|_| true)?;
            let mut plan = Plan::of_forest(&input.queue, forest.clone(), &speeds, &RATES);
            match_to_caches(&mut plan, &input.queue, gateway.pods().index(), &ids);
            Ok(page(&batch, &input, &plan, &forest, &pods))
        })
        .await?;
    Ok(explained)
}

fn page(batch: &Batch, input: &Input, plan: &Plan, whole: &Forest, pods: &[String]) -> Value {
    let queue = &input.queue;
    let all = input.prompt_tokens;
    let least = plan.least_tokens();
    let planned = plan.planned_tokens();
    let share = |computed: u64| 1.0 - computed as f64 / all.max(1) as f64;
    let stops = plan.route().stops();
    let parts = plan.segments().iter().map(|segment| {
        let stops = &stops[segment.stops.clone()];
        let tokens = |tokens: fn(&wornpath_planner::RouteStop) -> u32| {
            stops.iter().map(|stop| u64::from(tokens(stop))).sum::<u64>()
        };
        json!({
            "pod": pods[segment.pod],
            "requests": stops.len(),
            "computed_tokens": tokens(|stop| stop.fresh),
            "first_line": stops.first().map(|stop| input.spans[stop.job.index()].number),
        })
    });
    let parts: Vec<_> = parts.collect();
    let forest_json = forest_json(plan, queue, pods, |job| input.spans[job.index()].number);
    let groups = PromptGroups::of(whole.shared().iter().copied());
    let block = queue.block_size().get();
    let listed = groups.biggest(LISTED).into_iter().map(|id| {
        let group = &groups.all()[id.index()];
        let first = whole.order()[group.positions.start];
        json!({
            "shared_tokens": group.blocks * block,
            "requests": group.positions.len(),
            "saved_tokens": group.saved_blocks(groups.blocks_above(group)) * block as u64,
            "line": input.spans[first.index()].number,
        })
    });
    json!({
        "object": "batch.plan",
        "batch_id": batch.id,
        "requests": queue.len(),
        "prompt_tokens": all,
        "least_tokens": least,
        "planned_tokens": planned,
        "sharable": share(least),
        "expected_hit_rate": share(planned),
        "segments": parts,
        "groups": listed.collect::<Vec<_>>(),
        "forest": forest_json,
    })
}
