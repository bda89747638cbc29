//! The life of a batch: read, planned, run, ended; and taken up again where it was after a restart.

use super::Batches;
use super::engines::PlannedPods;
use super::overview::{Underway, planned};
use super::unix_time;
use bytes::Bytes;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use wornpath_jobs::{
    Batch, Conductor, FileEntry, Form, Intake, IntakeError, IntakeRules, Interface, Kind, Lease,
    Leased, Line, Owner, Patience, Progress, Sketcher, Source, Span, Standing, Status, Store,
    StoreError, Wish, Work, run,
};
use wornpath_planner::{Job, JobId, Plan, Queue, Rates, Speeds, Window};
use wornpath_routing::{Health, Name};

/// Wrong lines that a batch shows.
const SHOWN: usize = 100;
/// Expected answers where a line does not say.
const OUTPUT_TOKENS: usize = 256;
/// How often somebody looks whether a pod has come.
const PAUSE: Duration = Duration::from_millis(200);
/// What engines compute in one step, about.
const STEP_TOKENS: usize = 8_192;
/// Milliseconds of a prompt token and of an output token, where nobody has measured: their ratio is what counts.
const RATES: Rates = Rates::flat(0.016, 0.06);

/// Runs a batch until it has ended.
pub(super) fn start(batches: &Arc<Batches>, id: String) {
    let (wish, wishes) = watch::channel(Wish::GoOn);
    batches.running().insert(id.clone(), wish);
    let (batches, handle) = (Arc::clone(batches), batches.worker.gateway.background().clone());
    handle.spawn(async move {
        let _turn = batches.turns.acquire().await;
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
    });
}

async fn live(
    batches: &Arc<Batches>,
    id: &str,
    wishes: watch::Receiver<Wish>,
) -> Result<(), StoreError> {
    let name = id.to_owned();
    let (lease, batch) =
        batches.ask(move |store| Ok((store.lease(&name)?, store.batch(&name)?))).await?;
    let Some(intake) = read(batches, &lease, &batch).await? else { return Ok(()) };
    let (mark, of) = (intake.mark, lease.clone());
    let standing = batches.ask(move |store| store.standing(&of, mark)).await?;
    let of = lease.clone();
    batches
        .ask(move |store| {
            store.change_leased(&of, &mut |batch| match batch.status() {
                Status::Validating => batch.reach(Status::InProgress, unix_time()),
                _ => Ok(()),
            })
        })
        .await?;
    let source = Arc::new(StoredLines {
        store: Arc::clone(&batches.store),
        file: batch.input_file_id.clone(),
        spans: intake.spans,
    });
    if !standing.missing.is_empty() && batch.status() != Status::Cancelling {
        let work = Work {
            source: source.clone(),
            name: batch.id.trim_start_matches("batch_").to_owned(),
            lines: standing.missing.clone(),
            numbers: Arc::new(|line| line + 1),
        };
        compute(batches, &batch, (intake.queue, work), (lease.clone(), &standing), wishes).await?;
    }
    end(batches, lease, source).await
}

/// Reads the input; none if it is wrong, which the batch then says.
async fn read(
    batches: &Arc<Batches>,
    lease: &Lease,
    batch: &Batch,
) -> Result<Option<Intake>, StoreError> {
    let interface = Interface::at(&batch.endpoint).unwrap_or(Interface::Chat);
    let rules = IntakeRules {
        form: Form::Batch(interface),
        most_lines: batches.rules.most_lines,
        output_tokens: OUTPUT_TOKENS,
        most_problems: SHOWN,
    };
    let settings = batches.worker.gateway.settings();
    let model = settings.models.first();
    let block_size = model.map_or(batches.rules.block_size, |model| model.block_size);
    let tokenizer = model.and_then(|model| model.tokenizer.clone());
    let sketcher = Sketcher::new(&settings.key, block_size, tokenizer);
    let (of, file) = (lease.clone(), batch.input_file_id.clone());
    batches
        .ask(move |store| {
            let reader = StoredBytes { store, file: &file, offset: 0 };
            match Intake::read(BufReader::with_capacity(1 << 20, reader), &rules, &sketcher) {
                Ok(intake) => Ok(Some(intake)),
                Err(IntakeError::Read(error)) => Err(StoreError::Unreachable(error.to_string())),
                Err(IntakeError::Lines { first, .. }) => {
                    let shown: Vec<_> =
                        first.into_iter().map(|(line, problem)| (Some(line), problem)).collect();
                    store.change_leased(&of, &mut |batch| match batch.status() {
                        Status::Cancelling => batch.reach(Status::Cancelled, unix_time()),
                        _ => batch.fail(&shown, unix_time()),
                    })?;
                    Ok(None)
                }
            }
        })
        .await
}

/// Sends what has no record yet, until all have one, the time is over, or its owner cancels.
async fn compute(
    batches: &Arc<Batches>,
    batch: &Batch,
    (queue, work): (Queue, Work),
    (lease, standing): (Lease, &Standing),
    mut wishes: watch::Receiver<Wish>,
) -> Result<(), StoreError> {
    let left = Duration::from_secs(batch.expires_at.saturating_sub(unix_time()));
    let over = sleep(left);
    tokio::pin!(over);
    let pods = tokio::select! {
        pods = pods(batches, batch) => pods,
        () = &mut over => return Ok(()),
        _ = wishes.wait_for(|wish| *wish != Wish::GoOn) => return Ok(()),
    };
    let rest = rest_of(queue, &work.lines);
    let speeds = Speeds::equal(pods.pods.len())
        .map_err(|error| StoreError::Unreachable(error.to_string()))?;
    let plan = Plan::new(&rest, &speeds, &RATES);
    let planned = planned(&plan, &rest, &pods.names());
    // A run needs no hashes, and there may be many.
    drop(rest);
    let window = Window::new(batches.rules.window.get(), STEP_TOKENS);
    let conductor = Conductor::new(plan, vec![window; pods.pods.len()], Patience::default());
    let publisher = Leased::new(Arc::clone(&batches.store), lease, standing);
    let (wish, inner) = watch::channel(*wishes.borrow_and_update());
    let progress = watch::Sender::new(Progress::default());
    let underway = Underway {
        plan: planned,
        progress: progress.subscribe(),
        began: batches.worker.gateway.now(),
        done_before: standing.counts.total - standing.counts.pending(),
    };
    batches.overview.begins(&batch.id, underway);
    let running = run(conductor, work, Arc::new(pods), publisher, (inner, progress));
    tokio::pin!(running);
    loop {
        tokio::select! {
            finished = &mut running => return finished.map(drop),
            () = &mut over, if !over.is_elapsed() => drop(wish.send(Wish::Stop)),
            Ok(()) = wishes.changed() => drop(wish.send(*wishes.borrow_and_update())),
        }
    }
}

/// The pods that are up; waits until there is one.
async fn pods(batches: &Arc<Batches>, batch: &Batch) -> PlannedPods {
    loop {
        let roster = batches.worker.gateway.roster();
        let up = roster.fleet().pods().iter().filter(|pod| pod.vitals().health() == Health::Up);
        let pods: Vec<_> = up.map(|pod| (pod.id(), AtomicU32::new(0))).collect();
        if !pods.is_empty() {
            let owner = (!batch.owner.is_empty()).then(|| Name::from(batch.owner.as_str()));
            return PlannedPods { batches: Arc::clone(batches), owner, pods };
        }
        sleep(PAUSE).await;
    }
}

/// Gives every line that is left its record, and the batch its end.
async fn end(
    batches: &Arc<Batches>,
    lease: Lease,
    source: Arc<StoredLines>,
) -> Result<(), StoreError> {
    let (output, errors) = (batches.new_id("file-"), batches.new_id("file-"));
    batches
        .ask(move |store| {
            let batch = store.batch(&lease.batch)?;
            let is_cancelled = batch.status() == Status::Cancelling;
            if batch.counts.pending() > 0 {
                let (code, message) = match is_cancelled {
                    true => (
                        "batch_cancelled",
                        "This request was not executed before the batch was cancelled.",
                    ),
                    false if unix_time() < batch.expires_at => return Ok(()),
                    false => (
                        "batch_expired",
                        "This request could not be executed before the completion window expired.",
                    ),
                };
                leave(store, &lease, &source, (code, message))?;
            }
            let is_expired = batch.counts.pending() > 0 && !is_cancelled;
            let batch = store.batch(&lease.batch)?;
            let mut files = [None, None];
            for (at, (id, kind)) in
                [(output, Kind::Output), (errors, Kind::Error)].into_iter().enumerate()
            {
                let count = [batch.counts.completed, batch.counts.failed][at];
                if count > 0 {
                    files[at] = Some(add_results(store, &batch, id, kind)?.id);
                }
            }
            store.change_leased(&lease, &mut |batch| {
                [batch.output_file_id, batch.error_file_id] = files.clone();
                let now = unix_time();
                match batch.status() {
                    Status::Cancelling => batch.reach(Status::Cancelled, now),
                    Status::InProgress if is_expired => batch.reach(Status::Expired, now),
                    Status::InProgress => {
                        batch.reach(Status::Finalizing, now)?;
                        batch.reach(Status::Completed, now)
                    }
                    _ => batch.reach(Status::Completed, now),
                }
            })?;
            Ok(())
        })
        .await
}

/// Records for lines that nobody will compute any more.
fn leave(
    store: &dyn Store,
    lease: &Lease,
    source: &StoredLines,
    (code, message): (&str, &str),
) -> Result<(), StoreError> {
    let batch = store.batch(&lease.batch)?;
    let lines = source.spans.len() as u32;
    let mut group = Vec::new();
    for line in 0..lines {
        let bytes =
            source.line(line).map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let parsed = Line::parse(&bytes, Form::Free).ok().and_then(|line| line.custom_id);
        let custom_id = serde_json::Value::from(parsed).to_string().into_bytes();
        let name = batch.id.trim_start_matches("batch_").to_owned();
        group.push(Owner { line, custom_id, name }.error(code, message));
        if group.len() == 1_024 || line + 1 == lines {
            // Lines that have a record keep it.
            store.publish(lease, &group)?;
            group.clear();
        }
    }
    Ok(())
}

fn add_results(
    store: &dyn Store,
    batch: &Batch,
    id: String,
    kind: Kind,
) -> Result<FileEntry, StoreError> {
    let word = if kind == Kind::Output { "output" } else { "error" };
    let entry = FileEntry {
        id,
        owner: batch.owner.clone(),
        filename: format!("{}_{word}.jsonl", batch.id),
        purpose: "batch_output".to_owned(),
        bytes: store.result_bytes(&batch.id, kind)?,
        created_at: unix_time(),
        expires_at: None,
        of: Some((batch.id.clone(), kind)),
    };
    store.add_file(entry, &mut io::empty())
}

/// The requests of some lines, in a queue of their own.
fn rest_of(all: Queue, lines: &[u32]) -> Queue {
    if all.len() == lines.len() {
        return all;
    }
    let mut rest = Queue::new(all.block_size());
    for job in lines.iter().copied().map(JobId) {
        let again = Job {
            chain: all.chain(job),
            prompt_tokens: all.prompt_tokens(job),
            output_tokens: all.output_tokens(job),
            deadline: None,
            identity: None,
        };
        rest.push(&again).expect("it was in a queue of as many already");
    }
    rest
}

/// A stored file as bytes in a row.
pub(super) struct StoredBytes<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) file: &'a str,
    pub(super) offset: u64,
}

impl Read for StoredBytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read =
            self.store.read_file(self.file, self.offset, buffer).map_err(io::Error::other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// A stored file as lines.
struct StoredLines {
    store: Arc<dyn Store>,
    file: String,
    spans: Vec<Span>,
}

impl Source for StoredLines {
    fn line(&self, line: u32) -> io::Result<Bytes> {
        let span = self.spans[line as usize];
        let mut bytes = vec![0; span.bytes as usize];
        let read =
            self.store.read_file(&self.file, span.offset, &mut bytes).map_err(io::Error::other)?;
        if read < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes.into())
    }
}
