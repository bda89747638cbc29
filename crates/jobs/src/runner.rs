//! Carries a run out: sends what the [`Scheduler`] says, and publishes what comes back.
//!
//! One task decides, one task per request waits for its answer, and one task writes records in groups: while
//! a group is being synced, the next one gathers. A disk that is full stops the run, not the process: no
//! request is sent while too many records wait to be written, and it goes on when there is room.

use crate::dedup::{CopyProgress, DedupGroups};
use crate::engines::{CapacitySource, EngineHealth, LineDispatch, Outgoing};
use crate::problem::StoreError;
use crate::reader::LineReader;
use crate::record::{Counts, LineRecord, Publish, TokenUsage};
use crate::reply::{LineReply, Owner, ReplyError, ReplyMeaning};
use crate::scheduler::{LineFate, Scheduler, SchedulerOrder};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use wornpath_planner::JobId;

/// Records in one group at most.
const GROUP: usize = 256;
/// A group gathers for so long.
const GATHERING: Duration = Duration::from_millis(10);
/// No request is sent while so many records wait to be written.
const MOST_WAITING: usize = 1024;
/// How often a failed write is tried again, and pods are asked how they are.
const PERIOD: Duration = Duration::from_millis(500);
/// A prompt whose computation cannot be watched counts as computed after so long.
const UNWATCHED: Duration = Duration::from_secs(1);

/// What a run is of. Jobs of its plan have the numbers of their lines.
pub struct RunWork {
    /// Where its lines come from.
    pub source: Arc<dyn CapacitySource>,
    /// Begins the names of its records.
    pub name: String,
    /// The numbers that a body alone is called by.
    pub numbers: Arc<dyn Fn(u32) -> u32 + Send + Sync>,
    /// Lines that get the answers of others.
    pub copies: DedupGroups,
}

impl std::fmt::Debug for RunWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({})", self.name)
    }
}

/// Whether a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RunControl {
    /// Yes.
    #[default]
    GoOn,
    /// Nothing more is sent; what is under way may end.
    Finish,
    /// Now. What has been answered is still published.
    Stop,
}

/// How far a run is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunProgress {
    /// Lines, those of earlier runs included.
    pub counts: Counts,
    /// Tokens, as engines count them.
    pub usage: TokenUsage,
    /// Requests under way.
    pub in_flight: usize,
    /// Pods that do not answer.
    pub gone: usize,
    /// The pod that was lost last, and why.
    pub trouble: Option<(usize, String)>,
    /// Why nothing is read or written at the moment; at the end, why the last answers were not.
    pub blocked: Option<String>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished<P> {
    /// Who took the records.
    pub publisher: P,
    /// How far it came.
    pub progress: RunProgress,
    /// How often an idle pod took work from another.
    pub thefts: usize,
}

enum RunnerEvent {
    Prefilled(JobId),
    Ended(SchedulerOrder, Owner, Result<LineReply, ReplyError>),
    Copied(Vec<LineRecord>),
    /// A line of the input cannot be read, and the run cannot go on.
    Unreadable(StoreError),
    Health(usize, Option<EngineHealth>),
}

/// Runs until everything has its record, or it is told to stop.
///
/// # Errors
/// If records cannot be published, now or ever, or the input's file cannot be read any more.
pub async fn run<E: LineDispatch, P: Publish + 'static>(
    conductor: Scheduler,
    mut work: RunWork,
    engines: Arc<E>,
    publisher: P,
    (wishes, progress): (watch::Receiver<RunControl>, watch::Sender<RunProgress>),
) -> Result<Finished<P>, StoreError> {
    let (sender, records) = mpsc::unbounded_channel();
    let (news_sender, news) = mpsc::unbounded_channel();
    let (unwritten, written) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let writer = ResultWriter {
        records,
        unwritten: Arc::clone(&unwritten),
        written: Arc::clone(&written),
        progress: progress.clone(),
        wishes: wishes.clone(),
    };
    // A set of one: should this be given up, the writer goes with it.
    let mut writing = JoinSet::new();
    let writer = writing.spawn(writer.write(publisher));
    let mut runner = Runner {
        conductor,
        copying: CopyProgress::of(std::mem::take(&mut work.copies)),
        reader: LineReader::new(work, progress.clone()),
        engines,
        records: sender,
        unwritten,
        written,
        news: news_sender,
        calls: JoinSet::new(),
        progress,
        unreadable: None,
        started: Instant::now(),
    };
    runner.until_settled(news, wishes, &writer).await;
    let unreadable = runner.unreadable.take();
    let thefts = runner.conductor.thefts();
    let progress = runner.progress.clone();
    // The writer ends when nobody can send it anything; requests under way are given up.
    drop(runner);
    let written =
        writing.join_next().await.expect("the writer was spawned and nobody has waited for it");
    let publisher = written.map_err(|error| StoreError::Unreachable(error.to_string()))??;
    if let Some(error) = unreadable {
        return Err(error);
    }
    let progress = progress.borrow().clone();
    Ok(Finished { publisher, progress, thefts })
}

struct Runner<E> {
    conductor: Scheduler,
    copying: CopyProgress,
    reader: Arc<LineReader>,
    engines: Arc<E>,
    records: mpsc::UnboundedSender<LineRecord>,
    unwritten: Arc<AtomicUsize>,
    /// Told when a group has been written.
    written: Arc<Notify>,
    news: mpsc::UnboundedSender<RunnerEvent>,
    calls: JoinSet<()>,
    progress: watch::Sender<RunProgress>,
    /// Why no more lines can be read.
    unreadable: Option<StoreError>,
    started: Instant,
}

impl<E: LineDispatch> Runner<E> {
    async fn until_settled(
        &mut self,
        mut news: mpsc::UnboundedReceiver<RunnerEvent>,
        mut wishes: watch::Receiver<RunControl>,
        writing: &AbortHandle,
    ) {
        let mut look = tokio::time::interval(PERIOD);
        let is_open = |runner: &Self| runner.conductor.unsettled() > 0 || !runner.copying.is_done();
        while is_open(self) && self.unreadable.is_none() && !writing.is_finished() {
            let wish = *wishes.borrow_and_update();
            let is_idle = self.conductor.in_flight() == 0 && self.copying.is_done();
            if wish == RunControl::Stop || wish == RunControl::Finish && is_idle {
                return;
            }
            // What has been computed is given to all that wait for it, before anything else is.
            self.copy();
            if wish == RunControl::GoOn {
                self.send();
            }
            let wakeup = self.conductor.wakeup(self.now()).map(|at| self.started + at);
            let resting = async {
                match wakeup {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(heard) = news.recv() => {
                    self.hear(heard);
                    while let Ok(more) = news.try_recv() {
                        self.hear(more);
                    }
                }
                () = resting => {}
                () = self.written.notified() => {}
                _ = look.tick() => self.look_around(),
                Ok(()) = wishes.changed() => {}
            }
            while self.calls.try_join_next().is_some() {}
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn copy(&mut self) {
        while self.unwritten.load(Relaxed) < MOST_WAITING
            && let Some(portion) = self.copying.next(GROUP)
        {
            self.unwritten.fetch_add(portion.len(), Relaxed);
            let (reader, news) = (Arc::clone(&self.reader), self.news.clone());
            self.calls.spawn(async move {
                let records = reader.records(portion).await;
                let _ =
                    news.send(records.map_or_else(RunnerEvent::Unreadable, RunnerEvent::Copied));
            });
        }
    }

    fn send(&mut self) {
        while self.unwritten.load(Relaxed) < MOST_WAITING
            && let Some(order) = self.conductor.next(self.now())
        {
            let (reader, news) = (Arc::clone(&self.reader), self.news.clone());
            let engines = Arc::clone(&self.engines);
            self.calls.spawn(async move {
                let (owner, interface, body) = match reader.line(order.job.0).await {
                    Ok(named) => named,
                    Err(error) => {
                        let came = Err(ReplyError::Unreadable(error.to_string()));
                        let _ = news.send(match reader.fails_alone(&error) {
                            true => RunnerEvent::Ended(order, reader.nameless(order.job.0), came),
                            false => RunnerEvent::Unreadable(error),
                        });
                        return;
                    }
                };
                let request = Outgoing { interface, body, is_awaited: order.is_awaited };
                let teller = news.clone();
                let prefilled = Box::new(move || {
                    let _ = teller.send(RunnerEvent::Prefilled(order.job));
                });
                let came = call(&*engines, order, request, prefilled, &news).await;
                let _ = news.send(RunnerEvent::Ended(order, owner, came));
            });
        }
        let (in_flight, gone) = (self.conductor.in_flight(), self.conductor.gone().count());
        self.progress.send_if_modified(|progress| {
            let is_new = (progress.in_flight, progress.gone) != (in_flight, gone);
            (progress.in_flight, progress.gone) = (in_flight, gone);
            is_new
        });
    }

    fn hear(&mut self, news: RunnerEvent) {
        let now = self.now();
        match news {
            RunnerEvent::Prefilled(job) => self.conductor.prefilled(job),
            RunnerEvent::Ended(order, owner, came) => {
                let before = self.conductor.gone().count();
                let fate = self.conductor.ended(order, ReplyMeaning::of(&came), now);
                if self.conductor.gone().count() > before {
                    let why = match &came {
                        Ok(reply) => format!("it answered {}", reply.status),
                        Err(trouble) => trouble.to_string(),
                    };
                    self.progress.send_modify(|progress| progress.trouble = Some((order.pod, why)));
                }
                if fate == LineFate::Publish {
                    self.unwritten.fetch_add(1, Relaxed);
                    // Only a writer that has failed does not listen, and then the run ends.
                    let _ = self.records.send(owner.record(&came));
                    self.copying.add(owner.line, came);
                }
            }
            RunnerEvent::Copied(records) => {
                self.copying.made(records.len());
                for record in records {
                    let _ = self.records.send(record);
                }
            }
            RunnerEvent::Unreadable(error) => drop(self.unreadable.get_or_insert(error)),
            // An engine that is busy may be slow to say how it is: only its requests tell that it has gone.
            RunnerEvent::Health(_, None) => {}
            RunnerEvent::Health(pod, Some(EngineHealth { vitals, ceiling })) => {
                self.conductor.back(pod, 1.0);
                self.conductor.hold_below(pod, ceiling);
                if let Some(vitals) = vitals {
                    self.conductor.heard(pod, vitals);
                }
            }
        }
    }

    /// Asks every pod how it is.
    fn look_around(&mut self) {
        for pod in 0..self.conductor.pods() {
            let (engines, news) = (Arc::clone(&self.engines), self.news.clone());
            self.calls.spawn(async move {
                let health = engines.health(pod).await;
                let _ = news.send(RunnerEvent::Health(pod, health));
            });
        }
    }
}

/// Sends a request. Only the prefill of one that is streamed can be watched: that of others is over after a while, or all
/// that is being decoded would count against what the pod may have to compute.
async fn call<E: LineDispatch>(
    engines: &E,
    order: SchedulerOrder,
    request: Outgoing,
    prefilled: Box<dyn FnOnce() + Send>,
    news: &mpsc::UnboundedSender<RunnerEvent>,
) -> Result<LineReply, ReplyError> {
    let is_streamed =
        order.is_awaited && crate::assemble::streaming(request.interface, &request.body).is_some();
    let answer = engines.send(order.pod, request, prefilled);
    if is_streamed {
        return answer.await;
    }
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        came = answer.as_mut() => return came,
        () = sleep(UNWATCHED) => {}
    }
    let _ = news.send(RunnerEvent::Prefilled(order.job));
    answer.await
}

/// Writes records in groups.
struct ResultWriter {
    records: mpsc::UnboundedReceiver<LineRecord>,
    unwritten: Arc<AtomicUsize>,
    written: Arc<Notify>,
    progress: watch::Sender<RunProgress>,
    wishes: watch::Receiver<RunControl>,
}

impl ResultWriter {
    /// Writes until nobody sends any more.
    async fn write<P: Publish + 'static>(mut self, mut publisher: P) -> Result<P, StoreError> {
        let mut group = Vec::with_capacity(GROUP);
        loop {
            self.report(&publisher);
            if self.records.recv_many(&mut group, GROUP).await == 0 {
                return Ok(publisher);
            }
            if group.len() < GROUP {
                sleep(GATHERING).await;
                while group.len() < GROUP
                    && let Ok(more) = self.records.try_recv()
                {
                    group.push(more);
                }
            }
            let written;
            (publisher, written) = self.write_group(publisher, group).await?;
            // What was not written is not done: whoever goes on with the run has it computed again.
            let Some(written) = written else { return Ok(publisher) };
            group = written;
            self.unwritten.fetch_sub(group.len(), Relaxed);
            self.written.notify_one();
            group.clear();
        }
    }

    /// Writes one group, however long it takes; none if the run is told to stop while that is not possible.
    async fn write_group<P: Publish + 'static>(
        &self,
        mut publisher: P,
        mut group: Vec<LineRecord>,
    ) -> Result<(P, Option<Vec<LineRecord>>), StoreError> {
        loop {
            let publishing = tokio::task::spawn_blocking(move || {
                let result = publisher.publish(&group);
                (publisher, group, result)
            });
            let result;
            (publisher, group, result) =
                publishing.await.map_err(|error| StoreError::Unreachable(error.to_string()))?;
            match result {
                Ok(_) => return Ok((publisher, Some(group))),
                Err(error) if error.is_passing() => {
                    self.progress.send_modify(|now| now.blocked = Some(error.to_string()));
                    if *self.wishes.borrow() == RunControl::Stop {
                        return Ok((publisher, None));
                    }
                    sleep(PERIOD).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn report(&self, publisher: &impl Publish) {
        self.progress.send_modify(|progress| {
            progress.blocked = None;
            (progress.counts, progress.usage) = (publisher.counts(), publisher.usage());
        });
    }
}
