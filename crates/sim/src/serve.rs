//! The engine model behind a real port: OpenAI's interface, vLLM's metrics and events, and faults on demand.
//!
//! A [`ServedEngine`] has three ports: HTTP, cache events and their replay. It lives in incarnations: a crash
//! ends one without a word to anybody, a restart begins the next at the same addresses with an empty
//! cache and events numbered from 0, as a real engine's process would. A [`Control`] port switches faults,
//! crashes and restarts; it stands apart, because a hanging engine answers nothing.

mod call;
mod clock;
mod control;
mod dialect;
mod driver;
mod engine_site;
mod events;
mod faults;
pub mod fuzzing;
mod http;
mod metrics;
mod options;
mod response;
mod responses;
mod text;
mod transfer;
mod unloaded;

pub use control::Control;
pub use faults::{CachedTokens, FaultError, Faults, KvLoadFailure};
pub use options::{Addresses, EngineOptions, EngineServeError};
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

/// A port of the incarnation before is free again after so many attempts, at the latest.
const BIND_ATTEMPTS: usize = 100;
const BIND_PAUSE: Duration = Duration::from_millis(10);

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
struct BoundAddresses {
    http: TcpListener,
    publisher: ZmtpPublisher,
    replay: ZmtpListener,
}

impl ServedEngine {
    /// Starts an engine.
    ///
    /// # Errors
    /// If an address cannot be had or the tokenizer cannot be used.
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
        let http = http.map_err(|cause| cannot("HTTP", addresses.http, cause))?;
        let addresses =
            Addresses { http, events: bound.publisher.address(), replay: bound.replay.address() };
        let tasks = AsyncMutex::new(JoinSet::new());
        let engine = Self { options: Arc::new(options), text, addresses, faults, tasks };
        engine.run(bound).await;
        Ok(engine)
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What it does wrong now.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Switches faults, for requests and events from now on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Closes all ports and connections at once and forgets everything.
    pub async fn crash(&self) {
        self.tasks.lock().await.shutdown().await;
    }

    /// Whether it has not crashed.
    pub async fn is_running(&self) -> bool {
        let mut tasks = self.tasks.lock().await;
        while tasks.try_join_next().is_some() {}
        !tasks.is_empty()
    }

    /// Crashes it, if it still runs, and starts it again at the same addresses.
    ///
    /// # Errors
    /// If somebody else has taken an address.
    pub async fn restart(&self) -> Result<(), EngineServeError> {
        self.crash().await;
        let mut attempts = 0;
        let bound = loop {
            match bind(self.addresses).await {
                Ok(bound) => break bound,
                Err(error) if attempts == BIND_ATTEMPTS => return Err(error),
                // Connections of the incarnation before are being closed.
                Err(_) => tokio::time::sleep(BIND_PAUSE).await,
            }
            attempts += 1;
        };
        self.run(bound).await;
        Ok(())
    }

    /// Begins an incarnation.
    async fn run(&self, bound: BoundAddresses) {
        let options = &self.options;
        let settings = EngineSettings { tokens: TokenReports::Each, ..options.settings.clone() };
        let http = self.addresses.http;
        let topic = options.topic.clone().unwrap_or_else(|| format!("kv@{http}@{}", options.model));
        let ring = ReplayBuffer::default();
        let block_size = settings.block_size.get();
        let events =
            EventStream::new(bound.publisher, topic.clone(), block_size, Arc::clone(&ring));
        let engine = SimEngine::new(&options.profile, &settings);
        let (commands, orders) = mpsc::unbounded_channel();
        let (crash, crashed) = watch::channel(false);
        let driver = Driver::new(
            engine,
            EngineClock::start(options.speed),
            events,
            Arc::clone(&self.faults),
        );
        let ground = SiteState {
            text: Arc::clone(&self.text),
            commands,
            faults: Arc::clone(&self.faults),
            crash,
            started: unix_seconds(),
            addresses: self.addresses,
            topic: topic.clone(),
        };
        let site = Arc::new(EngineSite::new(Arc::clone(options), ground));
        let mut tasks = self.tasks.lock().await;
        let replay = events::serve_replay(bound.replay, topic, ring, Arc::clone(&self.faults));
        let serving = listen(bound.http, move |request| http::respond(Arc::clone(&site), request));
        tasks.spawn(until(crashed.clone(), driver.run(orders)));
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

async fn bind(addresses: Addresses) -> Result<BoundAddresses, EngineServeError> {
    let Addresses { http, events, replay } = addresses;
    Ok(BoundAddresses {
        http: TcpListener::bind(http).await.map_err(|cause| cannot("HTTP", http, cause))?,
        publisher: ZmtpPublisher::bind(events)
            .await
            .map_err(|cause| cannot("cache events", events, cause))?,
        replay: ZmtpListener::bind(replay, SocketKind::Router)
            .await
            .map_err(|cause| cannot("replay of cache events", replay, cause))?,
    })
}

fn cannot(what: &'static str, address: SocketAddr, cause: std::io::Error) -> EngineServeError {
    EngineServeError::Bind { what, address, cause }
}

/// Serves HTTP until the task is stopped, and its connections with it.
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
                    // Out of file descriptors, most likely: some will be closed.
                    tokio::time::sleep(BIND_PAUSE).await;
                    continue;
                };
                // Tokens are small and late: waiting for more of them helps nobody.
                let _ = stream.set_nodelay(true);
                let service = hyper::service::service_fn(respond.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .half_close(false)
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    // A client that goes, or a fault that cuts, ends a connection with an error.
                    let _ = connection.await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
