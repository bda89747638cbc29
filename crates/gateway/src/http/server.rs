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
use crate::http::accept::{ClientListener, WorkerInbox};
use crate::http::dispatch::respond;
use crate::http::exchange::exchange;
use crate::http::front::{Accepted, Front, Phase};
#[cfg(feature = "grpc")]
use crate::http::grpc;
use crate::listener::Acceptor;
use crate::proxy::gateway::Gateway;
use crate::proxy::worker::Worker;
use crate::watchdog::TaskName;
use crate::watchdog::Watchdog;
use crate::watchdog::heartbeat::named;
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
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use wornpath_config::{GatewayLimits, Settings};
use wornpath_events::{EventPods, run_timers};
use wornpath_execution::run_coarse_timer;

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

/// How long a connection without a request is kept open when the drain begins: it was opened a
/// moment ago, or its request is on the way.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// Time for clients to read the errors that end their requests after the drain.
const CUT_TIMEOUT: Duration = Duration::from_millis(500);

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
    all.extend(settings.exchange.iter().map(|exchange| (Front::Exchange, exchange.listen)));
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
    let (close, closing) = watch::channel(false);
    let mut accepting = JoinSet::new();
    for (front, listener) in listeners {
        if front == Front::Exchange {
            start_exchange(&supervisor, listener);
            continue;
        }
        let acceptor = Acceptor::new(Arc::new(listener), front.name());
        let inboxes = Arc::clone(&inboxes);
        let gateway = Arc::clone(gateway);
        let listener = ClientListener { front, inboxes, next: 0, gateway };
        accepting.spawn(named("accept connections", listener.accept(acceptor, closing.clone())));
    }
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
    // These fail only if all listeners or workers have stopped.
    let _ = close.send(true);
    let _ = phase.send(Phase::Draining);
    let all_closed = async {
        while accepting.join_next().await.is_some() {}
        while_open(gateway).await;
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
            "drain timeout exceeded; what is in flight ends with an error"
        );
        gateway.cut();
        let _ = phase.send(Phase::Cut);
        // Only errors are left to write.
        let _ = tokio::time::timeout(CUT_TIMEOUT, while_open(gateway)).await;
    }
    let _ = phase.send(Phase::Stopped);
    // Writing a large checkpoint takes longer than the heartbeat timeout.
    drop(watched);
    if let Some(checkpoint) = &gateway.checkpoint {
        checkpoint.write(gateway.pods());
    }
}

/// Exchanges with other routers, on the background runtime.
fn start_exchange(supervisor: &Arc<Worker>, listener: TcpListener) {
    let listener = match listener.into_std() {
        Ok(listener) => Arc::new(listener),
        Err(error) => return tracing::error!(%error, "cannot listen for other routers"),
    };
    let exchange = move |supervisor| exchange(supervisor, Arc::clone(&listener));
    supervise(supervisor.gateway.pods().background(), "exchange", supervisor, exchange);
}

/// Waits while clients are connected.
async fn while_open(gateway: &Gateway) {
    while gateway.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
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
    let has_request = AtomicBool::new(false);
    let service = service_fn(|request| {
        has_request.store(true, Relaxed);
        respond(Arc::clone(worker), request, *address)
    });
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
    let mut cuts = phases.clone();
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
                let is_cut = |phase: &Phase| *phase >= Phase::Cut;
                if !has_request.load(Relaxed) {
                    tokio::select! {
                        biased;
                        _ended = connection.as_mut() => return,
                        _ = cuts.wait_for(is_cut) => {}
                        () = tokio::time::sleep(FIRST_REQUEST) => {}
                    }
                }
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    _ended = connection.as_mut() => return,
                    _ = cuts.wait_for(is_cut) => {}
                }
                // What is in flight ends with an error when it is polled.
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
