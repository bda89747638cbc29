//! The task of a batch: reads the input, plans, runs and finalizes it; and resumes it after a
//! restart.

use crate::batches::{Batches, PAUSE};
use crate::damage::is_damage;
use crate::eligible_pods::{WORTH, pods, wait_until_gone};
use crate::file_reader::{StoredBytes, StoredLines, store_error};
use crate::finalize::{FinishedBatch, end_damaged, finalize};
use crate::forest::forest_json;
use crate::model::{BatchModel, is_serving};
use crate::overview::{PlannedBatch, RunningBatch, figures};
use crate::prefix_match::match_to_caches;
use crate::run_slots::{RunSlot, TURN};
use std::collections::btree_map::Entry;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use wornpath_gateway::proxy::unix_time;
use wornpath_gateway::watchdog::TaskName;
use wornpath_gateway::watchdog::heartbeat::named;
use wornpath_index::Moment;
use wornpath_jobs::{
    Batch, BatchState, BatchStatus, DedupGroups, DueTime, ExternalSort, Identical, Input,
    InputError, InputRules, Interface, Lease, Leased, LineForm, LineProblem, PromptHasher,
    RetryPolicy, RunChannels, RunControl, RunProgress, RunWork, Scheduler, StoreError, run,
};
use wornpath_planner::{Forest, Plan, PlannerRates, Queue, Speeds, Window};
use wornpath_routing::Role;

/// Maximum number of invalid lines that a failed batch lists.
const SHOWN: usize = 100;
/// Assumed output length of a line without a maximum.
const OUTPUT_TOKENS: usize = 256;
/// Polling interval for a lease that another gateway holds.
const ELSEWHERE: Duration = Duration::from_secs(1);
/// How long to wait for a serving pod if the fleet has only pods of other roles.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Maximum interval between two renewals of a lease.
const RENEWAL: Duration = Duration::from_secs(60);
/// Tokens that an engine computes in one step, about.
const STEP_TOKENS: usize = 8_192;
/// Assumed milliseconds per prompt token and per output token; only their ratio matters.
pub(crate) const RATES: PlannerRates = PlannerRates::flat(0.016, 0.06);

/// Starts the task of a batch, unless it is running.
pub(crate) fn start(batches: &Arc<Batches>, batch: &Batch) {
    let (control, controls) = watch::channel(RunControl::GoOn);
    let id = batch.id.clone();
    let owner = batch.owner.clone();
    match batches.running().entry(id.clone()) {
        Entry::Occupied(_) => return,
        Entry::Vacant(entry) => {
            entry.insert(control);
        }
    }
    let batches = Arc::clone(batches);
    let handle = batches.worker.gateway().pods().background().clone();
    let task = TaskName::new(&format!("batch {id}"));
    handle.spawn(named(task, async move {
        while run_turn(&batches, &id, &owner, &controls).await == TurnEnd::Again {}
        batches.running().remove(&id);
        batches.overview.finish(&id);
    }));
}

/// What follows the turn of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnEnd {
    Done,
    Again,
}

/// Waits for a slot, and runs the batch until it ends, or another tenant needs the slot.
async fn run_turn(
    batches: &Arc<Batches>,
    id: &str,
    owner: &str,
    controls: &watch::Receiver<RunControl>,
) -> TurnEnd {
    let now = || batches.worker.gateway().now();
    let slot = tokio::select! {
        slot = batches.run_slots.acquire(owner, now) => slot,
        () = cancelled_or_expired(batches, id, controls.clone()) => {
            batches.closing_slots.acquire(owner, now).await
        }
    };
    match run_leases(batches, id, controls.clone(), &slot).await {
        Ok(end) => end,
        Err(error) if error.is_passing() => {
            tracing::warn!(%error, batch = id, "batch blocked; retrying");
            sleep(Duration::from_secs(1)).await;
            TurnEnd::Again
        }
        Err(error) => {
            tracing::error!(%error, batch = id, "batch failed");
            TurnEnd::Done
        }
    }
}

/// Waits until a batch expires or its owner cancels it.
async fn cancelled_or_expired(
    batches: &Arc<Batches>,
    id: &str,
    mut controls: watch::Receiver<RunControl>,
) {
    let name = id.to_owned();
    // If the store fails now, the batch is read when it gets a slot.
    let Ok(batch) = batches.with_store(move |store| store.batch(&name)).await else {
        return std::future::pending().await;
    };
    if batch.status() == BatchStatus::Cancelling {
        return;
    }
    tokio::select! {
        () = sleep(Duration::from_secs(batch.expires_at.saturating_sub(unix_time()))) => {}
        _ = controls.wait_for(|control| *control != RunControl::GoOn) => {}
    }
}

/// Takes one lease after another until the batch is finished, here or at another gateway, or another
/// tenant needs the slot.
async fn run_leases(
    batches: &Arc<Batches>,
    id: &str,
    controls: watch::Receiver<RunControl>,
    slot: &RunSlot,
) -> Result<TurnEnd, StoreError> {
    loop {
        let name = id.to_owned();
        let leased =
            batches.with_store(move |store| Ok((store.lease(&name)?, store.batch(&name)?))).await;
        let (lease, batch) = match leased {
            Ok((Some(lease), batch)) => (lease, batch),
            Ok((None, _)) => {
                // Other gateways hold the rest. If one of them fails, its lease expires.
                sleep(ELSEWHERE).await;
                continue;
            }
            Err(StoreError::Conflict(_) | StoreError::Missing(_)) => return Ok(TurnEnd::Done),
            Err(error) => return Err(error),
        };
        let ended = tokio::select! {
            ended = run_lease(batches, &lease, &batch, controls.clone(), slot) => ended,
            lost = renew(batches, &lease) => Err(lost),
        };
        let ended = match ended {
            Err(error) if is_damage(&error) => end_damaged(batches, &lease, error).await,
            ended => ended,
        };
        match ended {
            Ok(FinishedBatch::Yes) => return Ok(TurnEnd::Done),
            // The last gateway to finish its part finalizes the batch under a lease on all of it.
            Ok(FinishedBatch::NotYet) => {
                batches.with_store(move |store| store.release(&lease)).await?;
                if slot.is_wanted(batches.worker.gateway().now()) {
                    return Ok(TurnEnd::Again);
                }
                sleep(PAUSE).await;
            }
            // Other gateways can take the lease before this one retries.
            Ok(FinishedBatch::Unserved) => {
                batches.with_store(move |store| store.release(&lease)).await?;
                sleep(batches.store.term()).await;
            }
            // Taken over or finished by another gateway: read the state again.
            Err(StoreError::Fenced(_)) => sleep(PAUSE).await,
            Err(error) => {
                // Another gateway may be able to run it.
                let _ = batches.with_store(move |store| store.release(&lease)).await;
                return Err(error);
            }
        }
    }
}

/// Renews a lease until it is lost, and applies a cancellation that another gateway received.
async fn renew(batches: &Arc<Batches>, lease: &Lease) -> StoreError {
    loop {
        sleep((batches.store.term() / 3).min(RENEWAL)).await;
        let of = lease.clone();
        match batches.with_store(move |store| store.renew(&of)).await {
            Ok(BatchStatus::Cancelling) => {
                if let Some(running) = batches.running().get(&lease.batch) {
                    running.send_replace(RunControl::Finish);
                }
            }
            Ok(_) => {}
            Err(error) if error.is_passing() => {}
            Err(error) => return error,
        }
    }
}

/// Computes the part of the batch that a lease covers.
async fn run_lease(
    batches: &Arc<Batches>,
    lease: &Lease,
    batch: &Batch,
    controls: watch::Receiver<RunControl>,
    slot: &RunSlot,
) -> Result<FinishedBatch, StoreError> {
    let began = batches.worker.gateway().now();
    let Some(ReadInput { mut input, model }) = read(batches, lease, batch).await? else {
        return Ok(FinishedBatch::Yes);
    };
    if batch.status() == BatchStatus::Validating && !has_serving_pod(batches).await {
        return fail_unserved(batches, lease).await;
    }
    let mark = input.mark;
    let of = lease.clone();
    let standing = batches.with_store(move |store| store.standing(&of, mark)).await?;
    let of = lease.clone();
    batches
        .with_store(move |store| {
            store.change_leased(&of, &mut |batch| match batch.status() {
                BatchStatus::Validating => batch.reach(BatchStatus::InProgress, unix_time()),
                _ => Ok(()),
            })
        })
        .await?;
    let source = Arc::new(StoredLines {
        store: Arc::clone(&batches.store),
        file: batch.input_file_id.clone(),
        spans: std::mem::take(&mut input.spans),
    });
    let (input, forest) = pending_forest(batches, input, lease, &standing).await?;
    let is_wanted = batch.status() != BatchStatus::Cancelling && unix_time() < batch.expires_at;
    if !forest.order().is_empty() && is_wanted {
        let numbered = Arc::clone(&source);
        let work = RunWork {
            source: source.clone(),
            name: batch.id.trim_start_matches("batch_").to_owned(),
            numbers: Arc::new(move |line: u32| numbered.spans[line as usize].number),
            copies: DedupGroups::default(),
        };
        let job = ComputeJob {
            batch,
            model: &model,
            began,
            queue: input.queue,
            forest,
            work,
            lease: lease.clone(),
            state: &standing,
            slot,
        };
        if let ServedBatch::No = compute(batches, job, controls).await? {
            return Ok(FinishedBatch::Unserved);
        }
    }
    let of = lease.clone();
    batches.with_store(move |store| store.settle(&of)).await?;
    finalize(batches, lease.clone(), source, mark).await
}

/// Whether the fleet has a pod with the role that batches need, or no pods yet.
async fn has_serving_pod(batches: &Arc<Batches>) -> bool {
    let has_no_serving_pod = || {
        let snapshot = batches.worker.gateway().snapshot();
        let pods = snapshot.fleet().pods();
        !pods.is_empty() && !pods.iter().any(is_serving)
    };
    let waiting = async {
        while has_no_serving_pod() {
            sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(ARRIVAL, waiting).await.is_ok()
}

/// Fails a batch that no pod of the fleet can serve.
async fn fail_unserved(batches: &Arc<Batches>, lease: &Lease) -> Result<FinishedBatch, StoreError> {
    let message = format!(
        "no pod has the role `{role}`, which batches need; give a pod that role, or add one",
        role = Role::SERVE
    );
    tracing::error!(batch = lease.batch, "{message}");
    let of = lease.clone();
    batches
        .with_store(move |store| {
            let message = message.clone();
            let problem = LineProblem { code: "no_serving_pod", message, param: None };
            store.change_leased(&of, &mut |batch| match batch.status() {
                BatchStatus::Cancelling => batch.reach(BatchStatus::Cancelled, unix_time()),
                _ => batch.fail(&[(None, problem.clone())], unix_time()),
            })
        })
        .await?;
    Ok(FinishedBatch::Yes)
}

/// The forest of the lines without a record in the segments of a lease. All gateways cut the same
/// segments, because the order follows from the input alone.
async fn pending_forest(
    batches: &Arc<Batches>,
    input: Input,
    lease: &Lease,
    standing: &BatchState,
) -> Result<(Input, Forest), StoreError> {
    let mut is_wanted = vec![false; input.queue.len()];
    for line in &standing.missing {
        is_wanted[*line as usize] = true;
    }
    let lease = lease.clone();
    batches
        .with_store(move |_| {
            if !lease.is_whole() {
                let whole = input.forest(|_| true)?;
                let all = whole.order().len();
                let mut is_own = vec![false; is_wanted.len()];
                for (position, job) in whole.order().iter().enumerate() {
                    is_own[job.index()] = lease.covers(position, all);
                }
                for (copy, original) in whole.copies() {
                    is_own[copy.index()] = is_own[original.index()];
                }
                is_wanted.iter_mut().zip(is_own).for_each(|(wanted, own)| *wanted &= own);
            }
            let forest = input.forest(|line| is_wanted[line as usize])?;
            Ok((input, forest))
        })
        .await
}

/// An input and the model that it is for.
struct ReadInput {
    input: Input,
    model: BatchModel,
}

/// Reads the input; `None` if it is invalid, which fails the batch.
async fn read(
    batches: &Arc<Batches>,
    lease: &Lease,
    batch: &Batch,
) -> Result<Option<ReadInput>, StoreError> {
    let most = most_bytes(batches, batch);
    let of = lease.clone();
    let batch = batch.clone();
    let service = Arc::clone(batches);
    batches
        .with_store(move |store| {
            let file = &batch.input_file_id;
            let model = BatchModel::read(store, file, most)?;
            let InputReading { rules, hasher, sort } = reading(&service, &batch, &model);
            let mut reader = BufReader::with_capacity(1 << 20, StoredBytes::open(store, file)?);
            match Input::read_bounded(&mut reader, &rules, &hasher, sort, most) {
                Ok(input) => Ok(Some(ReadInput { input, model })),
                Err(InputError::Read(error)) => Err(store_error(error)),
                Err(InputError::Spill(error)) => Err(error.into()),
                Err(InputError::Lines { first, .. }) => {
                    // The lines may be invalid because the file was damaged. Its end tells.
                    io::copy(&mut reader, &mut io::sink()).map_err(store_error)?;
                    let shown: Vec<_> =
                        first.into_iter().map(|(line, problem)| (Some(line), problem)).collect();
                    store.change_leased(&of, &mut |batch| match batch.status() {
                        BatchStatus::Cancelling => batch.reach(BatchStatus::Cancelled, unix_time()),
                        _ => batch.fail(&shown, unix_time()),
                    })?;
                    Ok(None)
                }
            }
        })
        .await
}

/// Whether the input was accepted before: it stays accepted, even if limits or tokenizer changed.
const fn was_accepted(batch: &Batch) -> bool {
    batch.counts.total > 0
}

/// Maximum bytes of a line.
pub(crate) fn most_bytes(batches: &Batches, batch: &Batch) -> usize {
    match was_accepted(batch) {
        true => usize::MAX,
        false => batches.worker.gateway().settings().limits.body_bytes,
    }
}

/// The rules and tools to read the input of a batch.
pub(crate) struct InputReading {
    pub(crate) rules: InputRules,
    pub(crate) hasher: PromptHasher,
    pub(crate) sort: ExternalSort,
}

/// How to read the input of a batch for `model`.
pub(crate) fn reading(batches: &Batches, batch: &Batch, model: &BatchModel) -> InputReading {
    let interface = Interface::at(&batch.endpoint).unwrap_or(Interface::Chat);
    let rules = InputRules {
        form: LineForm::Batch(interface),
        most_lines: if was_accepted(batch) { usize::MAX } else { batches.rules.most_lines },
        output_tokens: OUTPUT_TOKENS,
        most_problems: SHOWN,
        identical: match batch.identical_once {
            true => Identical::Once,
            false => Identical::Each,
        },
        due: DueTime {
            left: Some(Duration::from_secs(batch.expires_at.saturating_sub(unix_time()))),
            elapsed: Duration::from_secs(unix_time().saturating_sub(batch.created_at())),
        },
    };
    let settings = batches.worker.gateway().settings();
    let model = model.settings(&batches.worker.gateway().snapshot(), &settings);
    let block_size = model.map_or(batches.rules.block_size, |model| model.block_size.tokens());
    let tokenizer = model.and_then(|model| model.tokenizer.clone());
    let sort = ExternalSort::to(batches.temp_files.next());
    let hasher = PromptHasher::new(&settings.key, block_size, tokenizer);
    let hasher = if was_accepted(batch) { hasher.taking_all() } else { hasher };
    InputReading { rules, hasher, sort }
}

/// Whether a pod was there to compute the batch.
enum ServedBatch {
    Yes,
    No,
}

/// What one run of [`compute`] needs.
struct ComputeJob<'a> {
    batch: &'a Batch,
    model: &'a BatchModel,
    /// When planning began.
    began: Moment,
    queue: Queue,
    forest: Forest,
    work: RunWork,
    lease: Lease,
    state: &'a BatchState,
    slot: &'a RunSlot,
}

/// Sends the lines without a record, until all have one, the batch expires, or its owner cancels.
/// If other gateways share the store, it waits for a pod no longer than the lease time.
async fn compute(
    batches: &Arc<Batches>,
    job: ComputeJob<'_>,
    mut controls: watch::Receiver<RunControl>,
) -> Result<ServedBatch, StoreError> {
    let ComputeJob { batch, model, began, queue, forest, mut work, lease, state, slot } = job;
    let left = Duration::from_secs(batch.expires_at.saturating_sub(unix_time()));
    let over = sleep(left);
    tokio::pin!(over);
    let pods = tokio::select! {
        pods = pods(batches, batch, model) => pods,
        () = &mut over => return Ok(ServedBatch::Yes),
        _ = controls.wait_for(|control| *control != RunControl::GoOn) => return Ok(ServedBatch::Yes),
        () = sleep(batches.store.term()) => return Ok(ServedBatch::No),
    };
    let pods = Arc::new(pods);
    let ids = pods.ids();
    let speeds =
        Speeds::equal(ids.len()).map_err(|error| StoreError::Unreachable(error.to_string()))?;
    let windows = vec![Window::new(batches.rules.window.get(), STEP_TOKENS); ids.len()];
    let names = pods.names();
    let numbers = Arc::clone(&work.numbers);
    let index = batches.worker.gateway().pods().index().clone();
    // Planning millions of lines takes seconds, so it runs on a blocking thread. It consumes the
    // hashes, which the run does not need.
    let plan = move || {
        let mut plan = Plan::of_forest(&queue, forest, &speeds, &RATES);
        match_to_caches(&mut plan, &queue, &index, &ids);
        let forest = forest_json(&plan, &queue, &names, |job| numbers(job.0));
        let planned =
            PlannedBatch { figures: figures(&plan, &queue, &names), forest: Arc::new(forest) };
        Ok((plan, planned))
    };
    let (plan, planned) = batches.with_store(move |_| plan()).await?;
    work.copies = DedupGroups::of(&plan);
    let scheduler = Scheduler::new(plan, windows, RetryPolicy::default());
    let now = batches.worker.gateway().now();
    let took = now.since(began);
    let outdated = wait_until_gone(&pods);
    let wanted = wait_until_wanted(batches, slot, took);
    let publisher = Leased::new(Arc::clone(&batches.store), lease, state);
    let (control, inner) = watch::channel(*controls.borrow_and_update());
    let progress = watch::Sender::new(RunProgress::default());
    let entry = RunningBatch {
        plan: planned,
        progress: progress.subscribe(),
        began: now,
        done_before: state.counts.total - state.counts.pending(),
    };
    batches.overview.start(&batch.id, entry);
    let running = run(
        scheduler,
        work,
        Arc::clone(&pods),
        publisher,
        RunChannels { control: inner, progress },
    );
    tokio::pin!(running, outdated, wanted);
    let mut is_ending = false;
    loop {
        tokio::select! {
            finished = &mut running => return finished.map(|_| ServedBatch::Yes),
            () = &mut over, if !over.is_elapsed() => drop(control.send(RunControl::Stop)),
            // The next round plans the rest, once the requests in flight have finished.
            why = async { tokio::select! {
                () = &mut outdated => "no pod is left",
                () = &mut wanted => "another tenant waits",
            } }, if !is_ending => {
                is_ending = true;
                tracing::info!(batch = batch.id, why, "replanning the rest of the batch");
                finish(&control);
                if slot.is_wanted(batches.worker.gateway().now()) {
                    slot.drain();
                }
            }
            Ok(()) = controls.changed() => drop(control.send(*controls.borrow_and_update())),
        }
    }
}

/// Sends no more requests, unless the run is ending anyway.
fn finish(control: &watch::Sender<RunControl>) {
    control.send_if_modified(|control| match control {
        RunControl::GoOn => {
            *control = RunControl::Finish;
            true
        }
        _ => false,
    });
}

/// Waits until another tenant needs the slot. A batch whose planning `took` long runs longer, so
/// that planning is a small part of it.
async fn wait_until_wanted(batches: &Batches, slot: &RunSlot, took: Duration) {
    sleep(TURN.max(took * WORTH)).await;
    while !slot.is_wanted(batches.worker.gateway().now()) {
        sleep(PAUSE).await;
    }
}
