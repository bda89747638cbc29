//! The engine model behind real ports: OpenAI's and Anthropic's APIs, vLLM's metrics and cache
//! events, and fault injection.
//!
//! A [`ServedEngine`] has three ports: HTTP, cache events and their replay. It runs in
//! incarnations: a crash ends one without any notice, a restart begins the next at the same
//! addresses with an empty cache and events numbered from 0, as a real engine's process does. A
//! [`Control`] port sets faults, crashes and restarts engines; it is separate, because an engine
//! with the fault `hang` answers nothing.

mod answer;
mod call;
mod clock;
mod control;
mod driver;
mod engine_site;
mod events;
mod faults;
pub mod fuzzing;
mod http;
mod load_failure;
mod metrics;
mod options;
mod response;
mod text;
mod transfer;

pub use control::Control;
pub use faults::{CachedTokens, FaultError, Faults, KvLoadFailure};
pub use options::{Addresses, EngineOptions, EnginePort, EngineServeError};
pub use text::TextError;

use crate::engine::{EngineSettings, SimEngine, TokenReports};
use clock::{EngineClock, unix_seconds};
use driver::Driver;
use engine_site::{EngineSite, SiteState};
use events::{EventStream, ReplayBuffer};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use response::SimBody;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use text::TextModel;
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task::JoinSet;
use wornpath_events::zmtp::{SocketKind, ZmtpListener, ZmtpPublisher};

/// Attempts to bind a port that the previous incarnation still holds.
const BIND_ATTEMPTS: usize = 100;
const BIND_BACKOFF: Duration = Duration::from_millis(10);

/// An engine that can be crashed and restarted. Dropping it stops it.
pub struct ServedEngine {
    options: Arc<EngineOptions>,
    text: Arc<TextModel>,
    addresses: Addresses,
    faults: Arc<Mutex<Faults>>,
    /// The tasks of the current incarnation; none after a crash.
    tasks: AsyncMutex<JoinSet<()>>,
}

/// The sockets of one incarnation.
struct BoundSockets {
    http: TcpListener,
    publisher: ZmtpPublisher,
    replay: ZmtpListener,
}

impl ServedEngine {
    /// Starts an engine.
    ///
    /// # Errors
    /// If an address cannot be bound or the tokenizer cannot be used.
    pub async fn start(
        options: EngineOptions,
        addresses: Addresses,
    ) -> Result<Self, EngineServeError> {
        let text = Arc::new(match &options.tokenizer {
            Some(directory) => TextModel::load(directory)?,
            None => TextModel::Bytes,
        });
        let faults = Arc::new(Mutex::new(options.faults.clone()));
        let bound = bind(addresses).await?;
        let http = bound.http.local_addr();
        let http = http.map_err(|cause| bind_error(EnginePort::Http, addresses.http, cause))?;
        let addresses =
            Addresses { http, events: bound.publisher.address(), replay: bound.replay.address() };
        let tasks = AsyncMutex::new(JoinSet::new());
        let engine = Self { options: Arc::new(options), text, addresses, faults, tasks };
        engine.run(bound).await;
        Ok(engine)
    }

    /// The addresses that it listens at.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The faults in force.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the faults for requests and events from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Closes all ports and connections at once and drops all state.
    pub async fn crash(&self) {
        self.tasks.lock().await.shutdown().await;
    }

    /// Whether the current incarnation is running.
    pub async fn is_running(&self) -> bool {
        let mut tasks = self.tasks.lock().await;
        while tasks.try_join_next().is_some() {}
        !tasks.is_empty()
    }

    /// Crashes it, if it still runs, and starts it again at the same addresses.
    ///
    /// # Errors
    /// If another process holds an address.
    pub async fn restart(&self) -> Result<(), EngineServeError> {
        self.crash().await;
        let mut attempts = 0;
        let bound = loop {
            match bind(self.addresses).await {
                Ok(bound) => break bound,
                Err(error) if attempts == BIND_ATTEMPTS => return Err(error),
                // Connections of the previous incarnation are being closed.
                Err(_) => tokio::time::sleep(BIND_BACKOFF).await,
            }
            attempts += 1;
        };
        self.run(bound).await;
        Ok(())
    }

    /// Starts an incarnation.
    async fn run(&self, bound: BoundSockets) {
        let options = &self.options;
        let settings = EngineSettings { tokens: TokenReports::Each, ..options.settings.clone() };
        let http = self.addresses.http;
        let topic = options.topic.clone().unwrap_or_else(|| format!("kv@{http}@{}", options.model));
        let ring = ReplayBuffer::default();
        let block_size = settings.block_size.get();
        let events =
            EventStream::new(bound.publisher, topic.clone(), block_size, Arc::clone(&ring));
        let engine = SimEngine::new(&options.profile, &settings);
        let (commands, received) = mpsc::unbounded_channel();
        let (crash, crashed) = watch::channel(false);
        let driver = Driver::new(
            engine,
            EngineClock::start(options.speed),
            events,
            Arc::clone(&self.faults),
        );
        let state = SiteState {
            text: Arc::clone(&self.text),
            commands,
            faults: Arc::clone(&self.faults),
            crash,
            started: unix_seconds(),
            addresses: self.addresses,
            topic: topic.clone(),
        };
        let site = Arc::new(EngineSite::new(Arc::clone(options), state));
        let mut tasks = self.tasks.lock().await;
        let replay = events::serve_replay(bound.replay, topic, ring, Arc::clone(&self.faults));
        let serving = listen(bound.http, move |request| http::respond(Arc::clone(&site), request));
        tasks.spawn(until(crashed.clone(), driver.run(received)));
        tasks.spawn(until(crashed.clone(), replay));
        tasks.spawn(until(crashed, serving));
    }
}

/// Runs a task of an incarnation until it crashes.
async fn until(mut crashed: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        _ = crashed.wait_for(|has_crashed| *has_crashed) => {}
    }
}

async fn bind(addresses: Addresses) -> Result<BoundSockets, EngineServeError> {
    let Addresses { http, events, replay } = addresses;
    Ok(BoundSockets {
        http: TcpListener::bind(http)
            .await
            .map_err(|cause| bind_error(EnginePort::Http, http, cause))?,
        publisher: ZmtpPublisher::bind(events)
            .await
            .map_err(|cause| bind_error(EnginePort::Events, events, cause))?,
        replay: ZmtpListener::bind(replay, SocketKind::Router)
            .await
            .map_err(|cause| bind_error(EnginePort::Replay, replay, cause))?,
    })
}

fn bind_error(port: EnginePort, address: SocketAddr, cause: std::io::Error) -> EngineServeError {
    EngineServeError::Bind { port, address, cause }
}

/// Serves HTTP until the task is aborted, together with its connections.
async fn listen<F, A>(listener: TcpListener, respond: F)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Response<SimBody>, response::Cut>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Most likely out of file descriptors: retry after some are closed.
                    tokio::time::sleep(BIND_BACKOFF).await;
                    continue;
                };
                // Each token is sent at once, not batched by Nagle's algorithm.
                let _ = stream.set_nodelay(true);
                let service = hyper::service::service_fn(respond.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .half_close(false)
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    // A client that disconnects, or a fault, ends a connection with an error.
                    let _ = connection.await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
