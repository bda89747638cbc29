//! Threads and listeners: how a gateway starts, serves and ends.
//!
//! Connections are accepted in one place and dealt out in turn to the threads that answer, so each has the
//! same number of them. A thread has an event loop of its own; what a request waits for wakes only it. So has the
//! one that accepts and calls in those who wait: a flood of events in the background keeps nobody at the inbox.

use crate::fleet::checkpoint;
use crate::fleet::probe::maintain_pods;
use crate::fleet::registry::ApplyError;
use crate::http::router::respond;
use crate::listener::set_user_timeout;
use crate::proxy::gateway::Gateway;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::Watchdog;
use crate::watchdog::heartbeat::{Heartbeat, named};
use crate::watchdog::shutdown::{Shutdown, listen};
use crate::watchdog::supervise;
use crate::watchdog::systemd::ServiceManager;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use wornpath_config::{GatewayLimits, Settings};
use wornpath_events::{EventPods, run_timers};
use wornpath_execution::run_coarse_timer;

/// Why a gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] ApplyError),
    /// It cannot listen there.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// What stands around it cannot be set up.
    #[error(transparent)]
    Around(Box<dyn std::error::Error + Send + Sync>),
    /// The system refuses threads or signals.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
}

/// Threads for what takes long besides tokenizing, for which there are as many as workers: batches that are read, pages of metrics.
const MORE_THREADS: usize = 16;

const CONNECTION: TaskName = TaskName::new("client connection");

/// A gateway that listens.
#[derive(Debug)]
pub struct RunningServer {
    /// Where clients come.
    pub client: SocketAddr,
}

/// What the threads are told, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Serving,
    /// Connections end after what is under way on them.
    Finishing,
    /// Now.
    Over,
}

/// Serves until the process is told to end, and then until what is under way has ended. `started` learns
/// where it listens; `with` may set up more around the gateway.
///
/// If it has not ended by the end of its grace, because a thread is stuck, the process exits with status 70.
///
/// # Errors
/// If it cannot start.
pub fn serve(
    settings: Settings,
    with: impl FnOnce(&Arc<Gateway>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    started: impl FnOnce(&RunningServer),
) -> Result<(), ServeError> {
    let workers = settings.workers.get();
    let address = settings.client;
    let background = Builder::new_multi_thread()
        // One, so that one heartbeat tells of all that runs there.
        .worker_threads(1)
        .thread_name("background")
        .max_blocking_threads(workers + MORE_THREADS)
        // A tokenizer builds tables on every new thread, which takes a tenth of a second.
        .thread_keep_alive(Duration::from_secs(3600))
        .enable_all()
        .build()?;
    let gateway = Gateway::new(settings, background.handle().clone(), seed())?;
    let watched = gateway.threads().add("background").beat_on(background.handle());
    with(&gateway).map_err(ServeError::Around)?;
    let front = Builder::new_current_thread().enable_all().build()?;
    let listener = front
        .block_on(TcpListener::bind(address))
        .map_err(|cause| ServeError::Listen { address, cause })?;
    let serving = RunningServer { client: listener.local_addr()? };
    // Before anybody knows that it serves, and may tell it to end.
    let owner = Arc::clone(&gateway);
    let (shutdown, signals) = listen(gateway.pods().clock(), move || owner.settings().drain)?;
    let watchdog = Watchdog::start(
        Arc::clone(gateway.threads()),
        gateway.pods().clock(),
        Arc::clone(&shutdown),
    )?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let served = std::thread::scope(|scope| -> Result<(), ServeError> {
        let mut inboxes = Vec::new();
        for number in 0..workers {
            let (inbox, connections) = mpsc::channel(1024);
            let (gateway, phases) = (Arc::clone(&gateway), phases.clone());
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let name = format!("worker-{number}");
            let heartbeat = gateway.threads().add(&name);
            inboxes.push(WorkerInbox { connections: inbox, heartbeat: Arc::clone(&heartbeat) });
            std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                let _watched = heartbeat.beat_on(runtime.handle());
                let worker = Arc::new(Worker::new(gateway, number));
                runtime.block_on(answer_connections(worker, connections, phases));
            })?;
        }
        started(&serving);
        ServiceManager::from_environment().notify("READY=1");
        front.block_on(accept_until_told(listener, inboxes, &gateway, &shutdown, &phase));
        // Workers that are stuck are waited for here, until the watchdog ends the process.
        Ok(())
    });
    // Of what was under way to the very end, too.
    background.block_on(gateway.finish());
    // Waits for the last jobs, as long as the watchdog allows, which names the thread if it is stuck.
    drop(background);
    drop((watched, signals, watchdog));
    served
}

/// Accepts connections and does what is not a worker's, until the process is told to end and requests have ended.
async fn accept_until_told(
    listener: TcpListener,
    inboxes: Vec<WorkerInbox>,
    gateway: &Arc<Gateway>,
    shutdown: &Shutdown,
    phase: &watch::Sender<Phase>,
) {
    let watched = gateway.threads().add("accept").beat_on(&Handle::current());
    let (elsewhere, clock) = (gateway.pods().background(), gateway.pods().clock());
    let timers = move |events: Arc<EventPods>| async move { run_timers(&events, clock).await };
    supervise(elsewhere, "keeping events' time", gateway.pods().events(), timers);
    // No worker that answers clients has this number.
    let overseer = Arc::new(Worker::new(Arc::clone(gateway), inboxes.len()));
    let maintain_pods = |overseer: Arc<Worker>| async move {
        let registry = Arc::clone(overseer.gateway.pods());
        maintain_pods(registry, || overseer.gateway.wait_queue.poll(&*overseer)).await
    };
    supervise(elsewhere, "pod probes", &overseer, maintain_pods);
    if let Some(checkpoint) = &gateway.checkpoint {
        let registry = Arc::clone(gateway.pods());
        let keep =
            move |checkpoint| checkpoint::write_periodically(checkpoint, Arc::clone(&registry));
        supervise(elsewhere, "checkpoint writes", checkpoint, keep);
    }
    let run_poller = |overseer: Arc<Worker>| async move {
        overseer.gateway.wait_queue.run_poller(&*overseer).await
    };
    supervise(&Handle::current(), "deciding held requests", &overseer, run_poller);
    let accept = accept(listener, inboxes, Arc::clone(gateway));
    let accepting = tokio::spawn(named("accept connections", accept));
    let mut signals = shutdown.signals();
    // It never fails: `shutdown` holds the other end.
    let _ = signals.wait_for(|count| *count >= 1).await;
    tracing::info!("shutdown signal received; draining");
    let drain = gateway.settings().drain;
    gateway.start_draining();
    // Whoever asks twice does not want to wait.
    let mut again = pin!(signals.wait_for(|count| *count >= 2));
    let is_hurried = tokio::select! {
        () = tokio::time::sleep(drain.lame_duck) => false,
        _ = &mut again => true,
    };
    accepting.abort();
    // Nobody is listening any more if all threads have ended.
    let _ = phase.send(Phase::Finishing);
    let finished = async {
        while gateway.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let finished = async {
        tokio::select! {
            () = finished => true,
            _ = again, if !is_hurried => false,
            () = std::future::ready(()), if is_hurried => false,
        }
    };
    if !tokio::time::timeout(drain.grace, finished).await.unwrap_or(false) {
        tracing::warn!(
            connections = gateway.connections(),
            "drain timeout exceeded; closing open connections"
        );
    }
    let _ = phase.send(Phase::Over);
    // A large checkpoint takes longer than a heartbeat allows.
    drop(watched);
    if let Some(checkpoint) = &gateway.checkpoint {
        checkpoint.write(gateway.pods());
    }
}

/// How often it is told that no connection can be accepted.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// How many files the process may have open.
fn most_files() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Where a worker's connections are handed in.
struct WorkerInbox {
    connections: mpsc::Sender<std::net::TcpStream>,
    heartbeat: Arc<Heartbeat>,
}

/// Hands a connection to the next worker in turn that is not stuck and has room, or waits for one that has not.
/// Whether it was taken.
async fn hand_over(
    inboxes: &[WorkerInbox],
    turn: &mut usize,
    mut stream: std::net::TcpStream,
) -> bool {
    let (first, mut full) = (*turn, None);
    *turn = (first + 1) % inboxes.len();
    for at in (0..inboxes.len()).map(|more| (first + more) % inboxes.len()) {
        if inboxes[at].heartbeat.is_stuck() {
            continue;
        }
        stream = match inboxes[at].connections.try_send(stream) {
            Ok(()) => {
                *turn = (at + 1) % inboxes.len();
                return true;
            }
            Err(TrySendError::Full(back) | TrySendError::Closed(back)) => back,
        };
        full.get_or_insert(at);
    }
    inboxes[full.unwrap_or(first)].connections.send(stream).await.is_ok()
}

async fn accept(listener: TcpListener, inboxes: Vec<WorkerInbox>, gateway: Arc<Gateway>) {
    let (files, limit) = (most_files(), gateway.settings().limits.connections);
    // Pods' connections are open files too, and so is all else.
    let room = files - files / 4;
    if files < limit {
        tracing::warn!(
            "with {files} open files at most, {room} clients are let in at once, and not the {limit} of `limits.connections`; raise the \
             limit (`ulimit -n`, `LimitNOFILE`)"
        );
    }
    let (mut is_told_at, mut turn) = (None, 0);
    loop {
        while gateway.connections() >= gateway.settings().limits.connections.min(room) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, or a client that went before it was greeted.
                let now = gateway.now();
                if is_told_at.is_none_or(|then| now >= then + TOLD_EVERY) {
                    is_told_at = Some(now);
                    tracing::warn!(%error, "cannot accept");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        #[cfg(debug_assertions)]
        crate::fault::stick_accept();
        let patience = gateway.settings().timeouts.between_bytes;
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        if let Err(error) = set_user_timeout(&stream, patience) {
            tracing::debug!(%error, "cannot set the TCP user timeout");
        }
        gateway.connection_count().fetch_add(1, Relaxed);
        let handed = match stream.into_std() {
            Ok(stream) => hand_over(&inboxes, &mut turn, stream).await,
            Err(_) => false,
        };
        if !handed {
            gateway.connection_count().fetch_sub(1, Relaxed);
        }
    }
}

async fn answer_connections(
    worker: Arc<Worker>,
    mut connections: mpsc::Receiver<std::net::TcpStream>,
    mut phases: watch::Receiver<Phase>,
) {
    tokio::spawn(run_coarse_timer());
    let until_over = phases.clone();
    let over = async move { phases.wait_for(|phase| *phase == Phase::Over).await.is_ok() };
    let mut over = pin!(over);
    loop {
        let stream = tokio::select! {
            _ = &mut over => return,
            stream = connections.recv() => stream,
        };
        let Some(stream) = stream else {
            over.await;
            return;
        };
        let count = CountedConnection(Arc::clone(&worker));
        if let Ok(stream) = TcpStream::from_std(stream) {
            tokio::spawn(connection(stream, count, until_over.clone()));
        }
    }
}

/// One connection less when it goes.
struct CountedConnection(Arc<Worker>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.gateway.connection_count().fetch_sub(1, Relaxed);
    }
}

async fn connection(stream: TcpStream, counted: CountedConnection, phases: watch::Receiver<Phase>) {
    let settings = counted.0.gateway.settings();
    let (tls, limits) = (settings.tls.client.clone(), settings.limits);
    drop(settings);
    match tls {
        None => converse(stream, counted, phases, limits).await,
        Some(tls) => {
            // Whoever cannot agree on how to talk has nothing to say; nor does who takes too long.
            let greeted = tokio::time::timeout(limits.head_time, tls.accept(stream)).await;
            match greeted {
                Ok(Ok(stream)) => converse(stream, counted, phases, limits).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake with a client failed"),
                Err(_) => tracing::debug!("TLS handshake with a client timed out"),
            }
        }
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    counted: CountedConnection,
    mut phases: watch::Receiver<Phase>,
    limits: GatewayLimits,
) {
    let worker = &counted.0;
    let service = service_fn(|request| respond(Arc::clone(worker), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes.max(8192))
        // Chunks of a stream are short: copied together they cost less than a list of their parts, and what the
        // engine's bytes were read into is free for its next ones.
        .writev(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let news = phases.clone();
    let finishing = async { phases.wait_for(|phase| *phase >= Phase::Finishing).await.is_ok() };
    let mut finishing = pin!(finishing);
    let mut wakes: Option<Waker> = None;
    // Polling it takes a lock, and every chunk of a stream would: whom it wakes, and whether, is known without.
    let mut finishing = pin!(poll_fn(|context| {
        let is_set = wakes.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_set && !news.has_changed().unwrap_or(true) {
            return Poll::Pending;
        }
        wakes = Some(context.waker().clone());
        finishing.as_mut().poll(context)
    }));
    // A connection that breaks is its client's affair.
    let served = async {
        tokio::select! {
            biased;
            _ended = connection.as_mut() => {}
            _ = finishing.as_mut() => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            }
        }
    };
    named(CONNECTION, served).await;
}

/// Different for every start, and no secret.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::heartbeat::Threads;

    #[tokio::test]
    async fn connections_are_dealt_in_turn_but_to_no_worker_that_is_stuck_or_full() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (threads, mut turn) = (Threads::default(), 0);
        let (inboxes, mut workers): (Vec<_>, Vec<_>) = (0..3)
            .map(|number| {
                let (connections, worker) = mpsc::channel(2);
                let heartbeat = threads.add(&format!("worker-{number}"));
                (WorkerInbox { connections, heartbeat }, worker)
            })
            .unzip();
        let mut deal = async |inboxes: &[WorkerInbox], count| {
            for _ in 0..count {
                assert!(hand_over(inboxes, &mut turn, stream()).await);
            }
        };
        deal(&inboxes, 3).await;
        let waiting = |workers: &[mpsc::Receiver<_>]| -> Vec<_> {
            workers.iter().map(mpsc::Receiver::len).collect()
        };
        assert_eq!(waiting(&workers), [1, 1, 1]);
        inboxes[1].heartbeat.set_stuck(true);
        deal(&inboxes, 2).await;
        assert_eq!(waiting(&workers), [2, 1, 2]);
        workers[2].recv().await.unwrap();
        deal(&inboxes, 1).await;
        assert_eq!(waiting(&workers), [2, 1, 2], "the first had no room");
        inboxes[1].heartbeat.set_stuck(false);
        deal(&inboxes, 1).await;
        assert_eq!(waiting(&workers), [2, 2, 2]);
        // All are full: it waits for the one whose turn it is.
        let (handed, _) = tokio::join!(deal(&inboxes, 1), workers[2].recv());
        assert_eq!((handed, waiting(&workers)), ((), vec![2, 2, 2]));
    }
}
