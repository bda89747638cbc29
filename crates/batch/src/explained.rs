//! The plan of a batch, explained: what its requests share, what that saves, and which pod gets what.
//!
//! It is made anew from the input whenever somebody asks, for the pods that are up: a plan follows from both alone.

use crate::batches::Batches;
use crate::error::BatchError;
use crate::file_reader::{StoredBytes, needed};
use crate::forest::drawn;
use crate::model::BatchModel;
use crate::prefix_match::match_to_caches;
use crate::task::{RATES, most_bytes, reading};
use serde_json::{Value, json};
use std::io::BufReader;
use std::sync::Arc;
use wornpath_jobs::{Batch, Input, InputError, StoreError};
use wornpath_planner::{Forest, Plan, PromptGroups, Speeds};

/// Groups that are listed.
const LISTED: usize = 8;

pub(crate) async fn explained(batches: &Arc<Batches>, batch: Batch) -> Result<Value, BatchError> {
    let (own, most) = (Arc::clone(batches), most_bytes(batches, &batch));
    let turn = batches.turn_to_read().await;
    let explained = batches
        .ask(move |store| {
            let _turn = turn;
            let cannot = format!("batch `{}` has no plan", batch.id);
            needed(store, &batch.input_file_id, &cannot)?;
            let model = BatchModel::read(store, &batch.input_file_id, most)
                .map_err(|error| StoreError::Unreachable(error.to_string()))?;
            let (rules, sketcher, spill) = reading(&own, &batch, &model);
            let (gateway, snapshot) = (own.worker.gateway(), own.worker.gateway().snapshot());
            let up = model.ready(&snapshot);
            let up = up.iter().map(|pod| (pod.id(), pod.facts().name.to_string()));
            let (ids, pods): (Vec<_>, Vec<_>) = up.unzip();
            let speeds = Speeds::equal(pods.len()).map_err(|_| {
                StoreError::Unreachable("no pod is up that it could be planned for".into())
            })?;
            let reader = StoredBytes { store, file: &batch.input_file_id, offset: 0 };
            let reader = BufReader::with_capacity(1 << 20, reader);
            let read = Input::read_bounded(reader, &rules, &sketcher, spill, most);
            let intake = read.map_err(|error| match error {
                InputError::Read(error) => StoreError::Unreachable(error.to_string()),
                InputError::Spill(error) => error.into(),
                wrong @ InputError::Lines { .. } => {
                    StoreError::Conflict(format!("batch `{}` has no plan: {wrong}", batch.id))
                }
            })?;
            let forest = intake.forest(|_| true)?;
            let mut plan = Plan::of_forest(&intake.queue, forest.clone(), &speeds, &RATES);
            match_to_caches(&mut plan, &intake.queue, (gateway.pods().index(), &ids));
            Ok(page(&batch, &intake, (&plan, &forest), &pods))
        })
        .await?;
    Ok(explained)
}

fn page(batch: &Batch, intake: &Input, (plan, whole): (&Plan, &Forest), pods: &[String]) -> Value {
    let queue = &intake.queue;
    let (all, least, planned) = (intake.prompt_tokens, plan.least_tokens(), plan.planned_tokens());
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
            "first_line": stops.first().map(|stop| intake.spans[stop.job.index()].number),
        })
    });
    let parts: Vec<_> = parts.collect();
    let drawn = drawn(plan, queue, pods, |job| intake.spans[job.index()].number);
    let groups = PromptGroups::of(whole.shared().iter().copied());
    let block = queue.block_size().get();
    let listed = groups.biggest(LISTED).into_iter().map(|id| {
        let group = &groups.all()[id.index()];
        let first = whole.order()[group.positions.start];
        json!({
            "shared_tokens": group.blocks * block,
            "requests": group.positions.len(),
            "saved_tokens": group.saved_blocks(groups.blocks_above(group)) * block as u64,
            "line": intake.spans[first.index()].number,
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
        "forest": drawn,
    })
}
