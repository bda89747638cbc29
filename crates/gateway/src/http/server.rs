//! Threads and listeners: startup, the accept loop, drain and shutdown.
//!
//! One thread accepts connections and assigns them to the workers round robin, so each worker has
//! about the same number. Every worker runs an event loop of its own, and what a request waits for
//! wakes only that worker. The accept thread, which also polls the wait queue, has its own event
//! loop too: a flood of cache events on the background runtime delays neither connections nor
//! queued requests. A connection stays with its worker, so one busy connection is never rebalanced.

use crate::fleet::checkpoint;
use crate::fleet::probe::maintain_pods;
use crate::fleet::registry::ApplyError;
use crate::http::dispatch::respond;
use crate::http::front::{Accepted, Front, Phase};
#[cfg(feature = "grpc")]
use crate::http::grpc;
use crate::listener::{Acceptor, set_user_timeout};
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
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
use tokio::task::JoinHandle;
use wornpath_config::{GatewayLimits, Settings};
use wornpath_events::{EventPods, run_timers};
use wornpath_execution::{limit_idle_connections, run_coarse_timer};

/// Why a gateway cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] ApplyError),
    /// An address cannot be bound.
    #[error("cannot listen at {address} for {}: {cause}", front.callers())]
    Listen {
        /// Who would connect there.
        front: Front,
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The caller's setup step failed.
    #[error(transparent)]
    Setup(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system cannot provide a runtime, a thread or a signal handler.
    #[error("cannot start the server's threads or signal handlers: {0}")]
    System(#[from] std::io::Error),
}

/// Blocking threads beyond the two per worker that tokenizing needs: batch files, metrics pages.
const EXTRA_BLOCKING_THREADS: usize = 16;

const CONNECTION: TaskName = TaskName::new("client connection");

/// A server that is accepting connections.
#[derive(Debug)]
pub struct RunningServer {
    /// The address that clients connect to, with the port that was bound.
    pub client: SocketAddr,
    /// The address that data planes connect to, with the port that was bound.
    pub epp: Option<SocketAddr>,
    /// The address of the picker's health checks, with the port that was bound.
    pub epp_health: Option<SocketAddr>,
}

impl RunningServer {
    fn at(listeners: &[(Front, TcpListener)]) -> std::io::Result<Self> {
        let at = |front| {
            let mut of_front = listeners.iter().filter(|(known, _)| *known == front);
            of_front.next().map(|(_, listener)| listener.local_addr()).transpose()
        };
        let client = at(Front::Client)?.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        Ok(Self { client, epp: at(Front::Epp)?, epp_health: at(Front::EppHealth)? })
    }
}

/// The addresses to listen at.
fn addresses(settings: &Settings) -> Result<Vec<(Front, SocketAddr)>, ServeError> {
    let mut all = vec![(Front::Client, settings.client)];
    if let Some(epp) = &settings.epp {
        if cfg!(not(feature = "grpc")) {
            return Err(ServeError::Setup("`listen.epp` needs the feature `grpc`".into()));
        }
        all.push((Front::Epp, epp.address));
        all.extend(epp.health.map(|health| (Front::EppHealth, health)));
    }
    Ok(all)
}

/// Serves until the process gets a shutdown signal and the requests in flight have drained.
///
/// `with` runs before the listener is bound and may attach more to the gateway; `started` gets the
/// bound address. If a stuck thread prevents the shutdown within the grace period, the watchdog
/// exits the process with status 70.
///
/// # Errors
/// If the server cannot start.
pub fn serve(
    settings: Settings,
    with: impl FnOnce(&Arc<Gateway>) -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    started: impl FnOnce(&RunningServer),
) -> Result<(), ServeError> {
    let workers = settings.workers.get();
    let addresses = addresses(&settings)?;
    let background = Builder::new_multi_thread()
        // One worker thread, so that one heartbeat covers everything that runs there.
        .worker_threads(1)
        .thread_name("background")
        .max_blocking_threads(2 * workers + EXTRA_BLOCKING_THREADS)
        // A tokenizer builds tables on every new thread, which takes about 100 ms.
        .thread_keep_alive(Duration::from_secs(3600))
        .enable_all()
        .build()?;
    let gateway = Gateway::new(settings, background.handle().clone(), seed())?;
    let watched = gateway.threads().add("background").beat_on(background.handle());
    with(&gateway).map_err(ServeError::Setup)?;
    let accept_runtime = Builder::new_current_thread().enable_all().build()?;
    let mut listeners = Vec::with_capacity(addresses.len());
    for (front, address) in addresses {
        let listener = accept_runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|cause| ServeError::Listen { front, address, cause })?;
        listeners.push((front, listener));
    }
    let running = RunningServer::at(&listeners)?;
    // Before `started`: its caller may send a shutdown signal at once.
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
            let gateway = Arc::clone(&gateway);
            let phases = phases.clone();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let name = format!("worker-{number}");
            let heartbeat = gateway.threads().add(&name);
            inboxes.push(WorkerInbox { connections: inbox, heartbeat: Arc::clone(&heartbeat) });
            std::thread::Builder::new().name(name).spawn_scoped(scope, move || {
                let _watched = heartbeat.beat_on(runtime.handle());
                let worker = Arc::new(Worker::new(gateway, number));
                runtime.block_on(run_worker(worker, connections, phases));
            })?;
        }
        started(&running);
        ServiceManager::from_environment().notify("READY=1");
        accept_runtime
            .block_on(accept_until_shutdown(listeners, inboxes, &gateway, &shutdown, &phase));
        // The scope joins the workers; if one is stuck, the watchdog ends the process.
        Ok(())
    });
    // After the workers, so that the observers flush the last requests too.
    background.block_on(gateway.finish());
    // Waits for the last blocking jobs; if one is stuck, the watchdog names its thread and exits.
    drop(background);
    drop((watched, signals, watchdog));
    served
}

/// Starts the background tasks, accepts connections until the shutdown signal, then drains.
async fn accept_until_shutdown(
    listeners: Vec<(Front, TcpListener)>,
    inboxes: Vec<WorkerInbox>,
    gateway: &Arc<Gateway>,
    shutdown: &Shutdown,
    phase: &watch::Sender<Phase>,
) {
    let watched = gateway.threads().add("accept").beat_on(&Handle::current());
    let background = gateway.pods().background();
    let clock = gateway.pods().clock();
    let timers = move |events: Arc<EventPods>| async move { run_timers(&events, clock).await };
    supervise(background, "event timers", gateway.pods().events(), timers);
    // A worker without connections; its number is one that no serving worker has.
    let supervisor = Arc::new(Worker::new(Arc::clone(gateway), inboxes.len()));
    let maintain_pods = |supervisor: Arc<Worker>| async move {
        let registry = Arc::clone(supervisor.gateway.pods());
        maintain_pods(registry, || supervisor.gateway.wait_queue.poll(&*supervisor)).await
    };
    supervise(background, "pod probes", &supervisor, maintain_pods);
    if let Some(checkpoint) = &gateway.checkpoint {
        let registry = Arc::clone(gateway.pods());
        let write =
            move |checkpoint| checkpoint::write_periodically(checkpoint, Arc::clone(&registry));
        supervise(background, "checkpoint writes", checkpoint, write);
    }
    let run_poller = |supervisor: Arc<Worker>| async move {
        supervisor.gateway.wait_queue.run_poller(&*supervisor).await
    };
    supervise(&Handle::current(), "wait queue poller", &supervisor, run_poller);
    let inboxes: Arc<[WorkerInbox]> = inboxes.into();
    let accepting = listeners.into_iter().map(|(front, listener)| {
        let accept = accept(front, listener, Arc::clone(&inboxes), Arc::clone(gateway));
        tokio::spawn(named("accept connections", accept))
    });
    let accepting: Vec<_> = accepting.collect();
    let mut signals = shutdown.signals();
    // It never fails: `shutdown` holds the sender.
    let _ = signals.wait_for(|count| *count >= 1).await;
    tracing::info!("shutdown signal received; draining");
    let drain = gateway.settings().drain;
    gateway.start_draining();
    // A second signal skips the rest of the drain.
    let mut second_signal = pin!(signals.wait_for(|count| *count >= 2));
    let is_drain_skipped = tokio::select! {
        () = tokio::time::sleep(drain.lame_duck) => false,
        _ = &mut second_signal => true,
    };
    accepting.iter().for_each(JoinHandle::abort);
    // It fails only if all workers have stopped.
    let _ = phase.send(Phase::Draining);
    let all_closed = async {
        while gateway.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let drained = async {
        tokio::select! {
            () = all_closed => true,
            _ = second_signal, if !is_drain_skipped => false,
            () = std::future::ready(()), if is_drain_skipped => false,
        }
    };
    if !tokio::time::timeout(drain.grace, drained).await.unwrap_or(false) {
        tracing::warn!(
            connections = gateway.connections(),
            "drain timeout exceeded; closing open connections"
        );
    }
    let _ = phase.send(Phase::Stopped);
    // Writing a large checkpoint takes longer than the heartbeat timeout.
    drop(watched);
    if let Some(checkpoint) = &gateway.checkpoint {
        checkpoint.write(gateway.pods());
    }
}

/// How the file descriptors of the process are shared. A client's request needs a connection to a
/// pod, so clients get no more than pods; the rest is for what is open already, for idle connections
/// to pods, and for probes, event sources and files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DescriptorShares {
    /// Connections of clients.
    clients: usize,
    /// Idle connections to pods.
    idle: usize,
}

impl DescriptorShares {
    /// Descriptors for what is opened for a moment, such as probes.
    const SPARE: usize = 8;

    const fn new(open_files: usize, in_use: usize) -> Self {
        let idle = open_files / 8;
        let needed = in_use + idle + Self::SPARE;
        let quarter = open_files / 4;
        let reserve = if needed > quarter { needed } else { quarter };
        let clients = open_files.saturating_sub(reserve) / 2;
        Self { clients: if clients == 0 { 1 } else { clients }, idle }
    }

    /// By the soft limit of the process on open files.
    fn of_process() -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let in_use = std::fs::read_dir("/dev/fd").map_or(64, Iterator::count);
        Self::new(files, in_use)
    }
}

/// The sending end of a worker's connection queue.
struct WorkerInbox {
    connections: mpsc::Sender<Accepted>,
    heartbeat: Arc<Heartbeat>,
}

/// Assigns a connection to the next worker, round robin, that is not stuck and whose inbox is not
/// full. If there is none, waits for the first that is only full; if all are stuck, for the next.
/// False if that worker has stopped.
async fn assign(inboxes: &[WorkerInbox], next: &mut usize, mut stream: Accepted) -> bool {
    let first = *next;
    let mut first_full = None;
    *next = (first + 1) % inboxes.len();
    for at in (0..inboxes.len()).map(|more| (first + more) % inboxes.len()) {
        if inboxes[at].heartbeat.is_stuck() {
            continue;
        }
        stream = match inboxes[at].connections.try_send(stream) {
            Ok(()) => {
                *next = (at + 1) % inboxes.len();
                return true;
            }
            Err(TrySendError::Full(stream) | TrySendError::Closed(stream)) => stream,
        };
        first_full.get_or_insert(at);
    }
    inboxes[first_full.unwrap_or(first)].connections.send(stream).await.is_ok()
}

async fn accept(
    front: Front,
    listener: TcpListener,
    inboxes: Arc<[WorkerInbox]>,
    gateway: Arc<Gateway>,
) {
    let shares = DescriptorShares::of_process();
    limit_idle_connections(shares.idle);
    let configured = gateway.settings().limits.connections;
    if shares.clients < configured {
        tracing::warn!(
            configured,
            allowed = shares.clients,
            "the open-file limit allows fewer client connections than `limits.connections`; raise \
             it (`ulimit -n`, `LimitNOFILE`)"
        );
    }
    let mut acceptor = Acceptor::new(Arc::new(listener), front.name());
    let mut next = 0;
    loop {
        while gateway.connections() >= gateway.settings().limits.connections.min(shares.clients) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stream = acceptor.accept().await;
        #[cfg(debug_assertions)]
        crate::fault::stick_accept();
        let user_timeout = gateway.settings().timeouts.between_bytes;
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        if let Err(error) = set_user_timeout(&stream, user_timeout) {
            tracing::debug!(%error, "cannot set the TCP user timeout");
        }
        gateway.connection_count().fetch_add(1, Relaxed);
        let is_assigned = match stream.into_std() {
            Ok(stream) => assign(&inboxes, &mut next, Accepted { front, stream }).await,
            Err(_) => false,
        };
        if !is_assigned {
            gateway.connection_count().fetch_sub(1, Relaxed);
        }
    }
}

/// Serves the connections that a worker is assigned, until the server stops.
async fn run_worker(
    worker: Arc<Worker>,
    mut connections: mpsc::Receiver<Accepted>,
    mut phases: watch::Receiver<Phase>,
) {
    tokio::spawn(run_coarse_timer());
    let connection_phases = phases.clone();
    let stopped = async move { phases.wait_for(|phase| *phase == Phase::Stopped).await.is_ok() };
    let mut stopped = pin!(stopped);
    loop {
        let stream = tokio::select! {
            _ = &mut stopped => return,
            stream = connections.recv() => stream,
        };
        let Some(Accepted { front, stream }) = stream else {
            stopped.await;
            return;
        };
        // Without an address the client has already disconnected.
        let address = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.ip());
        let counted = CountedConnection { worker: Arc::clone(&worker), address };
        if let Ok(stream) = TcpStream::from_std(stream) {
            tokio::spawn(connection(front, stream, counted, connection_phases.clone()));
        }
    }
}

/// A client's connection. Decrements the number of open connections when it is dropped.
struct CountedConnection {
    worker: Arc<Worker>,
    /// The address of the client, or of the proxy before it.
    address: IpAddr,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.worker.gateway.connection_count().fetch_sub(1, Relaxed);
    }
}

async fn connection(
    front: Front,
    stream: TcpStream,
    counted: CountedConnection,
    phases: watch::Receiver<Phase>,
) {
    let settings = counted.worker.gateway.settings();
    let tls = front.tls(&settings);
    let limits = settings.limits;
    drop(settings);
    match tls {
        None => serve_connection(front, stream, counted, phases, limits).await,
        Some(tls) => {
            // Without a handshake there is no way to send the client an error: only log it.
            let handshake = tokio::time::timeout(limits.head_time, tls.accept(stream)).await;
            match handshake {
                Ok(Ok(stream)) => {
                    serve_connection(front, stream, counted, phases, limits).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake with a client failed"),
                Err(_) => tracing::debug!("TLS handshake with a client timed out"),
            }
        }
    }
}

async fn serve_connection(
    front: Front,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    counted: CountedConnection,
    mut phases: watch::Receiver<Phase>,
    limits: GatewayLimits,
) {
    #[cfg(feature = "grpc")]
    if front != Front::Client {
        let CountedConnection { worker, address } = &counted;
        return grpc::serve_connection(stream, worker, *address, phases).await;
    }
    let CountedConnection { worker, address } = &counted;
    let service = service_fn(|request| respond(Arc::clone(worker), request, *address));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes.max(8192))
        // Chunks of a stream are short: one copied buffer costs less than a vectored write, and the
        // buffer that the engine's bytes were read into is free for the next read.
        .writev(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let phase_changes = phases.clone();
    let draining = async { phases.wait_for(|phase| *phase >= Phase::Draining).await.is_ok() };
    let mut draining = pin!(draining);
    let mut registered: Option<Waker> = None;
    // Polling the watch channel takes a lock, and every chunk of a stream would poll it: skip that
    // while the registered waker is still the right one and the phase has not changed.
    let mut draining = pin!(poll_fn(|context| {
        let is_registered =
            registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        if is_registered && !phase_changes.has_changed().unwrap_or(true) {
            return Poll::Pending;
        }
        registered = Some(context.waker().clone());
        draining.as_mut().poll(context)
    }));
    // A connection error concerns only that client, so it is not reported.
    let served = async {
        tokio::select! {
            biased;
            _ended = connection.as_mut() => {}
            _ = draining.as_mut() => {
                connection.as_mut().graceful_shutdown();
                let _ended = connection.await;
            }
        }
    };
    named(CONNECTION, served).await;
}

/// A seed that differs on every start; it is not a secret.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watchdog::heartbeat::Threads;

    #[test]
    fn clients_get_no_more_descriptors_than_the_pods_that_answer_them() {
        for (open_files, in_use, clients) in [(128, 30, 37), (1024, 30, 384), (64, 60, 1)] {
            let shares = DescriptorShares::new(open_files, in_use);
            assert_eq!(shares.clients, clients, "{open_files}");
            let all = 2 * clients + shares.idle + in_use;
            assert!(all <= open_files || clients == 1, "{open_files}: {all}");
        }
    }

    #[tokio::test]
    async fn connections_are_assigned_round_robin_but_not_to_stuck_or_full_workers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = || Accepted {
            front: Front::Client,
            stream: std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
        };
        let threads = Threads::default();
        let mut next = 0;
        let (inboxes, mut workers): (Vec<_>, Vec<_>) = (0..3)
            .map(|number| {
                let (connections, worker) = mpsc::channel(2);
                let heartbeat = threads.add(&format!("worker-{number}"));
                (WorkerInbox { connections, heartbeat }, worker)
            })
            .unzip();
        let mut assign_many = async |inboxes: &[WorkerInbox], count| {
            for _ in 0..count {
                assert!(assign(inboxes, &mut next, stream()).await);
            }
        };
        assign_many(&inboxes, 3).await;
        let queued = |workers: &[mpsc::Receiver<_>]| -> Vec<_> {
            workers.iter().map(mpsc::Receiver::len).collect()
        };
        assert_eq!(queued(&workers), [1, 1, 1]);
        inboxes[1].heartbeat.set_stuck(true);
        assign_many(&inboxes, 2).await;
        assert_eq!(queued(&workers), [2, 1, 2]);
        workers[2].recv().await.unwrap();
        assign_many(&inboxes, 1).await;
        assert_eq!(queued(&workers), [2, 1, 2], "the first worker's inbox was full");
        inboxes[1].heartbeat.set_stuck(false);
        assign_many(&inboxes, 1).await;
        assert_eq!(queued(&workers), [2, 2, 2]);
        // All inboxes are full: it waits for the next worker.
        let (assigned, _) = tokio::join!(assign_many(&inboxes, 1), workers[2].recv());
        assert_eq!((assigned, queued(&workers)), ((), vec![2, 2, 2]));
    }
}
