//! The life of a batch: read, planned, run, ended; and taken up again where it was after a restart.

use crate::batches::Batches;
use crate::eligible_pods::{outgrown, pods};
use crate::engines::is_serving;
use crate::file_reader::{StoredBytes, StoredLines};
use crate::finalize::{FinishedBatch, end};
use crate::forest::drawn;
use crate::model::BatchModel;
use crate::overview::{PlannedBatch, Underway, figures};
use crate::prefix_match::match_to_caches;
use std::collections::btree_map::Entry;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use wornpath_gateway::proxy::unix_time;
use wornpath_gateway::watchdog::TaskName;
use wornpath_gateway::watchdog::heartbeat::named;
use wornpath_index::Moment;
use wornpath_jobs::{
    Batch, BatchState, BatchStatus, DedupGroups, ExternalSort, Identical, Input, InputError,
    InputRules, Interface, Lease, Leased, LineForm, LineProblem, PromptHasher, RetryPolicy,
    RunChannels, RunControl, RunProgress, RunWork, Scheduler, StoreError, run,
};
use wornpath_planner::{Forest, Plan, PlannerRates, Queue, Speeds, Window};
use wornpath_routing::Role;

/// Wrong lines that a batch shows.
const SHOWN: usize = 100;
/// Expected answers where a line does not say.
const OUTPUT_TOKENS: usize = 256;
/// How often somebody looks whether something has come.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// How often somebody looks whether a part that others run has come free.
const ELSEWHERE: Duration = Duration::from_secs(1);
/// A fleet that has only pods of other roles may be one whose serving pods are still on their way, for so long.
const ARRIVAL: Duration = Duration::from_secs(5);
/// A lease is renewed at least so often, also where nobody would take it over.
const RENEWAL: Duration = Duration::from_secs(60);
/// What engines compute in one step, about.
const STEP_TOKENS: usize = 8_192;
/// Milliseconds of a prompt token and of an output token, where nobody has measured: their ratio is what counts.
pub(crate) const RATES: PlannerRates = PlannerRates::flat(0.016, 0.06);

/// Runs a batch until it has ended, unless that is being done.
pub(crate) fn start(batches: &Arc<Batches>, id: String) {
    let (wish, wishes) = watch::channel(RunControl::GoOn);
    match batches.running().entry(id.clone()) {
        Entry::Occupied(_) => return,
        Entry::Vacant(place) => {
            place.insert(wish);
        }
    }
    let (batches, handle) =
        (Arc::clone(batches), batches.worker.gateway().pods().background().clone());
    let task = TaskName::new(&format!("batch {id}"));
    handle.spawn(named(task, async move {
        let _turn = tokio::select! {
            turn = batches.turns.acquire() => turn,
            () = unwanted(&batches, &id, wishes.clone()) => batches.leaving.acquire().await,
        };
        while let Err(error) = live(&batches, &id, wishes.clone()).await {
            if !error.is_passing() {
                tracing::error!(%error, batch = id, "a batch cannot go on");
                break;
            }
            tracing::warn!(%error, batch = id, "a batch waits");
            sleep(Duration::from_secs(1)).await;
        }
        batches.running().remove(&id);
        batches.overview.ends(&id);
    }));
}

/// Waits until a batch need not be computed any more, because its time is over or its owner cancels.
async fn unwanted(batches: &Arc<Batches>, id: &str, mut wishes: watch::Receiver<RunControl>) {
    let name = id.to_owned();
    // What cannot be looked at now is looked at when its turn comes.
    let Ok(batch) = batches.ask(move |store| store.batch(&name)).await else {
        return std::future::pending().await;
    };
    if batch.status() == BatchStatus::Cancelling {
        return;
    }
    tokio::select! {
        () = sleep(Duration::from_secs(batch.expires_at.saturating_sub(unix_time()))) => {}
        _ = wishes.wait_for(|wish| *wish != RunControl::GoOn) => {}
    }
}

/// Takes one lease after another until the batch has ended, here or elsewhere.
async fn live(
    batches: &Arc<Batches>,
    id: &str,
    wishes: watch::Receiver<RunControl>,
) -> Result<(), StoreError> {
    loop {
        let name = id.to_owned();
        let leased = batches.ask(move |store| Ok((store.lease(&name)?, store.batch(&name)?))).await;
        let (lease, batch) = match leased {
            Ok((Some(lease), batch)) => (lease, batch),
            Ok((None, _)) => {
                // Others run all that is left. Should one of them die, its part comes free.
                sleep(ELSEWHERE).await;
                continue;
            }
            Err(StoreError::Conflict(_) | StoreError::Missing(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let ended = tokio::select! {
            ended = round(batches, &lease, &batch, wishes.clone()) => ended,
            lost = renew(batches, &lease) => Err(lost),
        };
        match ended {
            Ok(FinishedBatch::Yes) => return Ok(()),
            // Whoever is done last ends it, and needs all of it for that.
            Ok(FinishedBatch::NotYet) => {
                batches.ask(move |store| store.release(&lease)).await?;
                sleep(PAUSE).await;
            }
            // Others have time to take it before this one tries again.
            Ok(FinishedBatch::Unserved) => {
                batches.ask(move |store| store.release(&lease)).await?;
                sleep(batches.store.term()).await;
            }
            // Taken over, or ended by another: what is left is found out anew.
            Err(StoreError::Fenced(_)) => sleep(PAUSE).await,
            Err(error) => {
                // Another gateway may have what this one lacks.
                let _ = batches.ask(move |store| store.release(&lease)).await;
                return Err(error);
            }
        }
    }
}

/// Keeps a lease, until it is lost; and hears what its owner has told another gateway.
async fn renew(batches: &Arc<Batches>, lease: &Lease) -> StoreError {
    loop {
        sleep((batches.store.term() / 3).min(RENEWAL)).await;
        let of = lease.clone();
        match batches.ask(move |store| store.renew(&of)).await {
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

/// Computes what one lease is on.
async fn round(
    batches: &Arc<Batches>,
    lease: &Lease,
    batch: &Batch,
    wishes: watch::Receiver<RunControl>,
) -> Result<FinishedBatch, StoreError> {
    let began = batches.worker.gateway().now();
    let Some((mut intake, model)) = read(batches, lease, batch).await? else {
        return Ok(FinishedBatch::Yes);
    };
    if batch.status() == BatchStatus::Validating && !somebody_may_serve(batches).await {
        return fail_unserved(batches, lease).await;
    }
    let (mark, of) = (intake.mark, lease.clone());
    let standing = batches.ask(move |store| store.standing(&of, mark)).await?;
    let of = lease.clone();
    batches
        .ask(move |store| {
            store.change_leased(&of, &mut |batch| match batch.status() {
                BatchStatus::Validating => batch.reach(BatchStatus::InProgress, unix_time()),
                _ => Ok(()),
            })
        })
        .await?;
    let source = Arc::new(StoredLines {
        store: Arc::clone(&batches.store),
        file: batch.input_file_id.clone(),
        spans: std::mem::take(&mut intake.spans),
    });
    let (intake, forest) = to_compute(batches, intake, (lease, &standing)).await?;
    let is_wanted = batch.status() != BatchStatus::Cancelling && unix_time() < batch.expires_at;
    if !forest.order().is_empty() && is_wanted {
        let numbered = Arc::clone(&source);
        let work = RunWork {
            source: source.clone(),
            name: batch.id.trim_start_matches("batch_").to_owned(),
            numbers: Arc::new(move |line: u32| numbered.spans[line as usize].number),
            copies: DedupGroups::default(),
        };
        let planning = (intake.queue, forest);
        let of = (batch, &model, began);
        let leased = (lease.clone(), &standing);
        if let ServedBatch::No = compute(batches, of, (planning, work), leased, wishes).await? {
            return Ok(FinishedBatch::Unserved);
        }
    }
    let of = lease.clone();
    batches.ask(move |store| store.settle(&of)).await?;
    end(batches, lease.clone(), (source, mark)).await
}

/// Whether the fleet has a pod that could compute a batch, or none at all yet, which is nobody's mistake.
async fn somebody_may_serve(batches: &Arc<Batches>) -> bool {
    let is_hopeless = || {
        let snapshot = batches.worker.gateway().snapshot();
        let pods = snapshot.fleet().pods();
        !pods.is_empty() && !pods.iter().any(is_serving)
    };
    let waiting = async {
        while is_hopeless() {
            sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(ARRIVAL, waiting).await.is_ok()
}

/// Ends a batch that nobody in the fleet can compute.
async fn fail_unserved(batches: &Arc<Batches>, lease: &Lease) -> Result<FinishedBatch, StoreError> {
    let message = format!(
        "no pod of the fleet has the role `{role}`, which batches need; give it to some, or add one",
        role = Role::SERVE
    );
    tracing::error!(batch = lease.batch, "{message}");
    let of = lease.clone();
    batches
        .ask(move |store| {
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

/// The forest of the lines without a record in the segments of a lease. All gateways cut alike: the order follows from the
/// input alone.
async fn to_compute(
    batches: &Arc<Batches>,
    intake: Input,
    (lease, standing): (&Lease, &BatchState),
) -> Result<(Input, Forest), StoreError> {
    let mut is_wanted = vec![false; intake.queue.len()];
    for line in &standing.missing {
        is_wanted[*line as usize] = true;
    }
    let lease = lease.clone();
    batches
        .ask(move |_| {
            if !lease.is_whole() {
                let whole = intake.forest(|_| true)?;
                let (all, mut is_own) = (whole.order().len(), vec![false; is_wanted.len()]);
                for (place, job) in whole.order().iter().enumerate() {
                    is_own[job.index()] = lease.covers(place, all);
                }
                for (copy, original) in whole.copies() {
                    is_own[copy.index()] = is_own[original.index()];
                }
                is_wanted.iter_mut().zip(is_own).for_each(|(wanted, own)| *wanted &= own);
            }
            let forest = intake.forest(|line| is_wanted[line as usize])?;
            Ok((intake, forest))
        })
        .await
}

/// Reads the input, and which model it is for; none if it is wrong, which the batch then says.
async fn read(
    batches: &Arc<Batches>,
    lease: &Lease,
    batch: &Batch,
) -> Result<Option<(Input, BatchModel)>, StoreError> {
    let most = most_bytes(batches, batch);
    let (of, batch, own) = (lease.clone(), batch.clone(), Arc::clone(batches));
    batches
        .ask(move |store| {
            let file = &batch.input_file_id;
            let model = BatchModel::read(store, file, most)
                .map_err(|error| StoreError::Unreachable(error.to_string()))?;
            let (rules, sketcher, spill) = reading(&own, &batch, &model);
            let reader = StoredBytes { store, file, offset: 0 };
            let reader = BufReader::with_capacity(1 << 20, reader);
            match Input::read_bounded(reader, &rules, &sketcher, spill, most) {
                Ok(intake) => Ok(Some((intake, model))),
                Err(InputError::Read(error)) => Err(StoreError::Unreachable(error.to_string())),
                Err(InputError::Spill(error)) => Err(error.into()),
                Err(InputError::Lines { first, .. }) => {
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

/// Whether its input was taken once: it stays taken, whatever limits and tokenizer are by now.
const fn was_taken(batch: &Batch) -> bool {
    batch.counts.total > 0
}

/// The most bytes of a line.
pub(crate) fn most_bytes(batches: &Batches, batch: &Batch) -> usize {
    match was_taken(batch) {
        true => usize::MAX,
        false => batches.worker.gateway().settings().limits.body_bytes,
    }
}

/// How the input of a batch is read.
pub(crate) fn reading(
    batches: &Batches,
    batch: &Batch,
    model: &BatchModel,
) -> (InputRules, PromptHasher, ExternalSort) {
    let interface = Interface::at(&batch.endpoint).unwrap_or(Interface::Chat);
    let rules = InputRules {
        form: LineForm::Batch(interface),
        most_lines: if was_taken(batch) { usize::MAX } else { batches.rules.most_lines },
        output_tokens: OUTPUT_TOKENS,
        most_problems: SHOWN,
        identical: match batch.identical_once {
            true => Identical::Once,
            false => Identical::Each,
        },
    };
    let settings = batches.worker.gateway().settings();
    let model = model.settings(&batches.worker.gateway().snapshot(), &settings);
    let block_size = model.map_or(batches.rules.block_size, |model| model.block_size.tokens());
    let tokenizer = model.and_then(|model| model.tokenizer.clone());
    let spill = ExternalSort::to(batches.scratch.next());
    let sketcher = PromptHasher::new(&settings.key, block_size, tokenizer);
    (rules, if was_taken(batch) { sketcher.taking_all() } else { sketcher }, spill)
}

/// Whether there was a pod that could compute.
enum ServedBatch {
    Yes,
    No,
}

/// Sends what has no record yet, until all have one, the time is over, or its owner cancels. Where other gateways could do it, a
/// pod is waited for no longer than a lease lasts.
async fn compute(
    batches: &Arc<Batches>,
    (batch, model, began): (&Batch, &BatchModel, Moment),
    ((queue, forest), mut work): ((Queue, Forest), RunWork),
    (lease, standing): (Lease, &BatchState),
    mut wishes: watch::Receiver<RunControl>,
) -> Result<ServedBatch, StoreError> {
    let left = Duration::from_secs(batch.expires_at.saturating_sub(unix_time()));
    let over = sleep(left);
    tokio::pin!(over);
    let pods = tokio::select! {
        pods = pods(batches, batch, model) => pods,
        () = &mut over => return Ok(ServedBatch::Yes),
        _ = wishes.wait_for(|wish| *wish != RunControl::GoOn) => return Ok(ServedBatch::Yes),
        () = sleep(batches.store.term()) => return Ok(ServedBatch::No),
    };
    let speeds = Speeds::equal(pods.pods.len())
        .map_err(|error| StoreError::Unreachable(error.to_string()))?;
    let (ids, names, numbers) = (pods.ids(), pods.names(), Arc::clone(&work.numbers));
    let index = batches.worker.gateway().pods().index().clone();
    // Seconds for millions of lines, in which nothing else would run on this thread. A run needs no hashes, and there may be
    // many.
    let plan = move || {
        let mut plan = Plan::of_forest(&queue, forest, &speeds, &RATES);
        match_to_caches(&mut plan, &queue, (&index, &ids));
        let drawn = drawn(&plan, &queue, &names, |job| numbers(job.0));
        let planned =
            PlannedBatch { figures: figures(&plan, &queue, &names), forest: Arc::new(drawn) };
        Ok((plan, planned))
    };
    let (plan, planned) = batches.ask(move |_| plan()).await?;
    work.copies = DedupGroups::of(&plan);
    let window = Window::new(batches.rules.window.get(), STEP_TOKENS);
    let conductor = Scheduler::new(plan, vec![window; pods.pods.len()], RetryPolicy::default());
    let (planned_for, now) = (pods.ids(), batches.worker.gateway().now());
    let outgrown = outgrown(batches, model, (&planned_for, now.saturating_sub(began)));
    let publisher = Leased::new(Arc::clone(&batches.store), lease, standing);
    let (wish, inner) = watch::channel(*wishes.borrow_and_update());
    let progress = watch::Sender::new(RunProgress::default());
    let underway = Underway {
        plan: planned,
        progress: progress.subscribe(),
        began: now,
        done_before: standing.counts.total - standing.counts.pending(),
    };
    batches.overview.begins(&batch.id, underway);
    let running =
        run(conductor, work, Arc::new(pods), publisher, RunChannels { control: inner, progress });
    tokio::pin!(running, outgrown);
    let mut is_outgrown = false;
    loop {
        tokio::select! {
            finished = &mut running => return finished.map(|_| ServedBatch::Yes),
            () = &mut over, if !over.is_elapsed() => drop(wish.send(RunControl::Stop)),
            // Another round plans the rest, as soon as what is under way has been answered.
            () = &mut outgrown, if !is_outgrown => {
                is_outgrown = true;
                tracing::info!(batch = batch.id, "the fleet has changed: the rest is planned anew");
                wish.send_if_modified(|wish| match wish {
                    RunControl::GoOn => {
                        *wish = RunControl::Finish;
                        true
                    }
                    _ => false,
                });
            }
            Ok(()) = wishes.changed() => drop(wish.send(*wishes.borrow_and_update())),
        }
    }
}
