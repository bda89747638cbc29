//! Executes a run: sends the requests that the [`Scheduler`] chooses, and publishes the responses.
//!
//! One task decides, one task per request waits for its response, and one task writes records in
//! groups: while a group is being synced, the next one gathers. A full disk pauses the run and does
//! not fail it: no request is sent while too many records are unwritten, and the run continues when
//! there is space.

use crate::answer_budget::AnswerHold;
use crate::dedup::{CopiedBytes, CopyProgress};
use crate::engines::{EngineHealth, LineDispatch, Outgoing};
use crate::reader::{LineReader, LineRequest};
use crate::record::{LineRecord, Publish};
use crate::reply::{LineReply, Owner, ReplyError, ReplyMeaning};
use crate::result_writer::{GROUP, GROUP_BYTES, ResultWriter, Unwritten};
use crate::run_work::{RunChannels, RunControl, RunProgress, RunWork};
use crate::scheduler::{LineFate, Scheduler, SchedulerOrder};
use crate::store_error::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use wornpath_planner::JobId;

/// No more responses are copied to identical lines while copies of so many bytes are unwritten.
const MAX_COPY_BYTES: usize = 16 << 20;
/// No request is sent while so many records are unwritten.
const MAX_UNWRITTEN: usize = 1024;
/// How often the health of the pods is queried.
const HEALTH_PERIOD: Duration = Duration::from_millis(500);
/// A prompt whose prefill cannot be observed counts as computed after so long.
const ASSUMED_PREFILL: Duration = Duration::from_secs(1);

/// The end of a run.
#[derive(Debug)]
pub struct Finished<P> {
    /// The publisher of its records.
    pub publisher: P,
    /// The progress at the end.
    pub progress: RunProgress,
    /// How often an idle pod stole work from another.
    pub steals: usize,
}

enum RunnerEvent {
    Prefilled(JobId),
    /// A request has its response, or has failed.
    Ended(SchedulerOrder, Owner, Result<LineReply, ReplyError>),
    Copied(Vec<LineRecord>, AnswerHold),
    /// A line of the input cannot be read, and the run cannot continue.
    Unreadable(StoreError),
    Health(usize, Option<EngineHealth>),
}

/// Runs until every line has its record, or the control channel stops it.
///
/// # Errors
/// If records can never be published, or the input file can no longer be read.
pub async fn run<E: LineDispatch, P: Publish + 'static>(
    scheduler: Scheduler,
    mut work: RunWork,
    engines: Arc<E>,
    publisher: P,
    RunChannels { control, progress }: RunChannels,
) -> Result<Finished<P>, StoreError> {
    let (sender, records) = mpsc::unbounded_channel();
    let (event_sender, events) = mpsc::unbounded_channel();
    let unwritten = Arc::<AtomicUsize>::default();
    let written = Arc::<Notify>::default();
    let writer = ResultWriter {
        records,
        unwritten: Arc::clone(&unwritten),
        written: Arc::clone(&written),
        progress: progress.clone(),
        control: control.clone(),
    };
    // A set of one: if this future is dropped, the writer is cancelled.
    let mut writing = JoinSet::new();
    let writer = writing.spawn(writer.write(publisher));
    let mut runner = Runner {
        scheduler,
        copying: CopyProgress::of(std::mem::take(&mut work.copies)),
        reader: LineReader::new(work, progress.clone()),
        engines,
        records: sender,
        unwritten,
        copied_bytes: Arc::default(),
        written,
        events: event_sender,
        calls: JoinSet::new(),
        progress,
        unreadable: None,
        started: Instant::now(),
    };
    runner.until_settled(events, control, &writer).await;
    let unreadable = runner.unreadable.take();
    let steals = runner.scheduler.steals();
    let progress = runner.progress.clone();
    // The writer ends when its channel is closed; requests in flight are cancelled.
    drop(runner);
    let written = writing.join_next().await.expect("the writer was spawned and not yet joined");
    let publisher = written.map_err(|error| StoreError::Unreachable(error.to_string()))??;
    if let Some(error) = unreadable {
        return Err(error);
    }
    let progress = progress.borrow().clone();
    Ok(Finished { publisher, progress, steals })
}

struct Runner<E> {
    scheduler: Scheduler,
    copying: CopyProgress,
    reader: Arc<LineReader>,
    engines: Arc<E>,
    records: mpsc::UnboundedSender<Unwritten>,
    unwritten: Arc<AtomicUsize>,
    copied_bytes: Arc<AtomicUsize>,
    /// Notified when a group has been written.
    written: Arc<Notify>,
    events: mpsc::UnboundedSender<RunnerEvent>,
    calls: JoinSet<()>,
    progress: watch::Sender<RunProgress>,
    /// Why no more lines can be read.
    unreadable: Option<StoreError>,
    started: Instant,
}

impl<E: LineDispatch> Runner<E> {
    async fn until_settled(
        &mut self,
        mut events: mpsc::UnboundedReceiver<RunnerEvent>,
        mut control: watch::Receiver<RunControl>,
        writing: &AbortHandle,
    ) {
        let mut health = tokio::time::interval(HEALTH_PERIOD);
        let is_open = |runner: &Self| runner.scheduler.unsettled() > 0 || !runner.copying.is_done();
        while is_open(self) && self.unreadable.is_none() && !writing.is_finished() {
            let wanted = *control.borrow_and_update();
            let is_idle = self.scheduler.in_flight() == 0 && self.copying.is_done();
            if wanted == RunControl::Stop || wanted == RunControl::Finish && is_idle {
                return;
            }
            // Copies of responses come before new requests.
            self.copy();
            if wanted == RunControl::GoOn {
                self.send();
            }
            let wakeup = self.scheduler.wakeup(self.now()).map(|at| self.started + at);
            let rest_over = async {
                match wakeup {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(event) = events.recv() => {
                    self.handle(event);
                    while let Ok(more) = events.try_recv() {
                        self.handle(more);
                    }
                }
                () = rest_over => {}
                () = self.written.notified() => {}
                _ = health.tick() => self.query_health(),
                Ok(()) = control.changed() => {}
            }
            while self.calls.try_join_next().is_some() {}
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn copy(&mut self) {
        while self.unwritten.load(Relaxed) < MAX_UNWRITTEN
            && self.copied_bytes.load(Relaxed) < MAX_COPY_BYTES
            && let Some(batch) = self.copying.next(GROUP, GROUP_BYTES)
        {
            self.unwritten.fetch_add(batch.lines.len(), Relaxed);
            let copies = CopiedBytes::add(&self.copied_bytes, batch.bytes());
            let reader = Arc::clone(&self.reader);
            let events = self.events.clone();
            self.calls.spawn(async move {
                let records = reader.records(batch).await;
                let _ = events.send(match records {
                    Ok(records) => RunnerEvent::Copied(records, AnswerHold::on(copies)),
                    Err(error) => RunnerEvent::Unreadable(error),
                });
            });
        }
    }

    fn send(&mut self) {
        while self.unwritten.load(Relaxed) < MAX_UNWRITTEN
            && let Some(order) = self.scheduler.next(self.now())
        {
            let reader = Arc::clone(&self.reader);
            let events = self.events.clone();
            let engines = Arc::clone(&self.engines);
            self.calls.spawn(async move {
                let LineRequest { owner, interface, body } = match reader.line(order.job.0).await {
                    Ok(request) => request,
                    Err(error) => {
                        let reply = Err(ReplyError::Unreadable(error.to_string()));
                        let _ = events.send(match reader.fails_alone(&error) {
                            true => RunnerEvent::Ended(order, reader.nameless(order.job.0), reply),
                            false => RunnerEvent::Unreadable(error),
                        });
                        return;
                    }
                };
                let request = Outgoing { interface, body, is_awaited: order.is_awaited };
                let on_prefill = events.clone();
                let prefilled = Box::new(move || {
                    let _ = on_prefill.send(RunnerEvent::Prefilled(order.job));
                });
                let reply = call(&*engines, order, request, prefilled, &events).await;
                let _ = events.send(RunnerEvent::Ended(order, owner, reply));
            });
        }
        let in_flight = self.scheduler.in_flight();
        let gone = self.scheduler.gone().count();
        self.progress.send_if_modified(|progress| {
            let is_new = (progress.in_flight, progress.gone) != (in_flight, gone);
            progress.in_flight = in_flight;
            progress.gone = gone;
            is_new
        });
    }

    fn handle(&mut self, event: RunnerEvent) {
        let now = self.now();
        match event {
            RunnerEvent::Prefilled(job) => self.scheduler.prefilled(job),
            RunnerEvent::Ended(order, owner, reply) => {
                let before = self.scheduler.gone().count();
                let fate = self.scheduler.ended(order, ReplyMeaning::of(&reply), now);
                if self.scheduler.gone().count() > before {
                    let why = match &reply {
                        Ok(reply) => format!("engine returned status {}", reply.status),
                        Err(error) => error.to_string(),
                    };
                    self.progress.send_modify(|progress| progress.trouble = Some((order.pod, why)));
                }
                if fate == LineFate::Publish {
                    self.unwritten.fetch_add(1, Relaxed);
                    // The channel is closed only if the writer has failed, and then the run ends.
                    let held =
                        reply.as_ref().map_or_else(|_| AnswerHold::default(), |it| it.held.clone());
                    let _ = self.records.send(Unwritten { record: owner.record(&reply), held });
                    self.copying.add(owner.line, reply);
                }
            }
            RunnerEvent::Copied(records, held) => {
                self.copying.copied(records.len());
                for record in records {
                    let _ = self.records.send(Unwritten { record, held: held.clone() });
                }
            }
            RunnerEvent::Unreadable(error) => drop(self.unreadable.get_or_insert(error)),
            // A busy engine may be slow to report its health: only failed requests show that it is
            // lost.
            RunnerEvent::Health(_, None) => {}
            RunnerEvent::Health(pod, Some(EngineHealth { pod_state, ceiling })) => {
                self.scheduler.back(pod, 1.0);
                self.scheduler.hold_below(pod, ceiling);
                if let Some(pod_state) = pod_state {
                    self.scheduler.observe(pod, pod_state);
                }
            }
        }
    }

    /// Queries the health of every pod, those that have joined included.
    fn query_health(&mut self) {
        for _ in self.scheduler.pods()..self.engines.pods().unwrap_or(0) {
            self.scheduler.join();
        }
        for pod in 0..self.scheduler.pods() {
            let engines = Arc::clone(&self.engines);
            let events = self.events.clone();
            self.calls.spawn(async move {
                let health = engines.health(pod).await;
                let _ = events.send(RunnerEvent::Health(pod, health));
            });
        }
    }
}

/// Sends a request. Only the prefill of a streamed request can be observed; that of another counts
/// as over after a while, or all requests that are decoding would count against the prefill window
/// of the pod.
async fn call<E: LineDispatch>(
    engines: &E,
    order: SchedulerOrder,
    request: Outgoing,
    prefilled: Box<dyn FnOnce() + Send>,
    events: &mpsc::UnboundedSender<RunnerEvent>,
) -> Result<LineReply, ReplyError> {
    let is_streamed =
        order.is_awaited && crate::assemble::streaming(request.interface, &request.body).is_some();
    let reply = engines.send(order.pod, request, prefilled);
    if is_streamed {
        return reply.await;
    }
    let mut reply = std::pin::pin!(reply);
    tokio::select! {
        reply = reply.as_mut() => return reply,
        () = sleep(ASSUMED_PREFILL) => {}
    }
    let _ = events.send(RunnerEvent::Prefilled(order.job));
    reply.await
}
