//! Batches for operators: progress, estimated time left, and the plan.
//!
//! The task of a batch registers its plan here; only the batch itself is read from the store.

use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use wornpath_gateway::proxy::unix_time;
use wornpath_index::Moment;
use wornpath_jobs::{Batch, RunProgress, Store};
use wornpath_planner::{Plan, Queue};

/// Number of finished batches that are still shown.
const ENDED: usize = 10;

/// Invalid lines that are shown of a batch.
const SHOWN_ERRORS: usize = 10;

/// State of batches that is not stored.
#[derive(Default)]
pub(crate) struct Overview(Mutex<OverviewState>);

#[derive(Default)]
struct OverviewState {
    running: BTreeMap<String, RunningBatch>,
    /// The latest first, each with its plan if it was planned.
    ended: VecDeque<(String, Option<PlannedBatch>)>,
}

/// The plan of a batch.
#[derive(Clone)]
pub(crate) struct PlannedBatch {
    /// Its figures, which every snapshot contains.
    pub(crate) figures: Value,
    /// Its prefix forest, on request.
    pub(crate) forest: Arc<Value>,
}

/// A batch whose requests are being sent.
pub(crate) struct RunningBatch {
    pub(crate) plan: PlannedBatch,
    pub(crate) progress: watch::Receiver<RunProgress>,
    /// When sending began.
    pub(crate) began: Moment,
    /// Lines that had a record at that time.
    pub(crate) done_before: u32,
}

impl Overview {
    /// Registers a batch whose requests are being sent.
    pub(crate) fn start(&self, id: &str, running: RunningBatch) {
        self.known().running.insert(id.to_owned(), running);
    }

    /// The task of a batch has ended.
    pub(crate) fn finish(&self, id: &str) {
        let mut known = self.known();
        let plan = known.running.remove(id).map(|running| running.plan);
        known.ended.push_front((id.to_owned(), plan));
        known.ended.truncate(ENDED);
    }

    fn known(&self) -> MutexGuard<'_, OverviewState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Invalid lines by their code and line number. Their messages quote what the client wrote.
fn errors(object: &Value) -> Vec<Value> {
    let lines = object["errors"]["data"].as_array().map_or(&[][..], Vec::as_slice);
    let shown = |error: &Value| json!({"code": error["code"], "line": error["line"]});
    lines.iter().take(SHOWN_ERRORS).map(shown).collect()
}

/// A plan in figures: what each pod gets, and what sharing prefixes saves.
pub(crate) fn figures(plan: &Plan, queue: &Queue, pods: &[String]) -> Value {
    let stops = plan.route().stops().iter();
    let prompt_tokens: u64 = stops.map(|stop| queue.prompt_tokens(stop.job) as u64).sum();
    let share = |(at, pod): (usize, &String)| {
        let own = || plan.segments().iter().filter(move |segment| segment.pod == at);
        let stops = own().flat_map(|segment| &plan.route().stops()[segment.stops.clone()]);
        let millis: f64 = own().map(|segment| plan.route().cost(segment.stops.clone())).sum();
        json!({
            "pod": pod, "requests": plan.jobs_of(at).count(),
            "computed_tokens": stops.map(|stop| u64::from(stop.fresh)).sum::<u64>(),
            // At the speed that all pods are compared with.
            "work_seconds": millis / 1e3,
        })
    };
    json!({
        "requests": plan.route().stops().len() + plan.copies().len(),
        "copies": plan.copies().len(),
        "prompt_tokens": prompt_tokens,
        // The lower bound of any plan, and the tokens computed by this plan.
        "least_tokens": plan.least_tokens(),
        "planned_tokens": plan.planned_tokens(),
        "pods": pods.iter().enumerate().map(share).collect::<Vec<_>>(),
    })
}

impl Overview {
    /// Running batches, the newest first, then those that finished last. Batches that the store
    /// cannot read are omitted.
    pub(crate) fn list(&self, running: &[String], store: &dyn Store, now: Moment) -> Vec<Value> {
        let ended: Vec<_> = self.known().ended.iter().cloned().collect();
        let stored = |id: &String| store.batch(id).ok();
        let mut batches: Vec<Batch> = running.iter().filter_map(stored).collect();
        batches.sort_by_key(|batch| std::cmp::Reverse((batch.created_at(), batch.id.clone())));
        let running = batches.iter().map(|batch| self.shown(batch, now));
        let ended = ended.into_iter().filter_map(|(id, plan)| {
            let mut shown = self.shown(&stored(&id)?, now);
            shown["plan"] = plan.map(|plan| plan.figures).into();
            Some(shown)
        });
        running.chain(ended).collect()
    }

    /// The prefix forest of a batch's plan, if it runs or was among the last to finish.
    pub(crate) fn forest(&self, id: &str) -> Option<Arc<Value>> {
        let known = self.known();
        let ended = || known.ended.iter().find(|(ended, _)| ended == id)?.1.as_ref();
        let plan = known.running.get(id).map(|running| &running.plan).or_else(ended);
        plan.map(|plan| Arc::clone(&plan.forest))
    }

    fn shown(&self, batch: &Batch, now: Moment) -> Value {
        let object = batch.to_json();
        let mut shown = json!({
            "id": batch.id,
            "name": batch.metadata.as_ref().and_then(|metadata| metadata.get("name")),
            "created_at": batch.created_at(),
            "started_at": object["in_progress_at"],
            "ended_at": batch.ended_at(),
            "error_file": batch.error_file_id,
            "errors": errors(&object),
            "owner": batch.owner,
            "endpoint": batch.endpoint,
            "status": batch.status().word(),
            "lines": batch.counts,
            "prompt_tokens": batch.usage.input,
            "cached_tokens": batch.usage.cached,
            "output_tokens": batch.usage.output,
            "expires_in_seconds": batch.expires_at.saturating_sub(unix_time()),
        });
        if let Some(running) = self.known().running.get(&batch.id) {
            let progress = running.progress.borrow();
            shown["plan"] = running.plan.figures.clone();
            shown["in_flight"] = progress.in_flight.into();
            shown["pods_gone"] = progress.gone.into();
            shown["blocked"] = progress.blocked.clone().into();
            let done = batch.counts.total - batch.counts.pending();
            let done = done.saturating_sub(running.done_before);
            if done > 0 {
                let each = now.since(running.began).as_secs_f64() / f64::from(done);
                shown["seconds_left"] = (each * f64::from(batch.counts.pending())).into();
            }
        }
        shown
    }
}
