//! Connections between routers: who calls whom, and how they authenticate each other.
//!
//! Every router listens and calls all others that it is told of, by addresses or by names that are
//! resolved again and again. Both ends of a connection say what they know, so one direction is
//! enough, and both are harmless: what arrives twice counts once. A name may also give the router's
//! own address; it finds out by the greeting and does not call itself again for a while.
//!
//! Updates leave every [`TICK`] if something has changed. All of this runs on the background
//! runtime: no request waits for another router.

use crate::fleet::peer_routers::{BlockHashes, PeerRouters, Subscription};
use crate::listener::Acceptor;
use crate::log_limit::LogLimit;
use crate::proxy::worker::Worker;
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsConnector;
use wornpath_config::{ExchangeSettings, KeyDigest, PeerAddress};
use wornpath_exchange::{
    DecodeError, FORGOTTEN_AFTER, Hello, HelloError, MAX_UPDATE, Proof, RouterId, Side,
    TenantChange, Update, is_proof, proof,
};

/// Time between two updates.
const TICK: Duration = Duration::from_millis(10);
/// Time between two resolutions of a name.
const RESOLVE: Duration = Duration::from_secs(1);
/// How long connecting, or the greetings, may take.
const GREETING: Duration = Duration::from_secs(2);
/// Delay before a router is called again.
const CALL_AGAIN: Duration = Duration::from_millis(200);
/// The same if the address is this router's own.
const OWN_ADDRESS: Duration = Duration::from_secs(30);
/// Connections of routers that call.
const MAX_CALLERS: usize = 512;

/// Why a connection with another router ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("connection lost: {0}")]
    Lost(#[from] io::Error),
    #[error("silent for {} s", FORGOTTEN_AFTER.as_secs())]
    Silent,
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error(transparent)]
    Hello(#[from] HelloError),
    #[error("another key; give all routers the same `exchange.key_file`")]
    Key,
    #[error("invalid update: {0}")]
    Update(#[from] DecodeError),
    #[error("it speaks for another router")]
    Impostor,
    #[error("this router itself")]
    Own,
}

/// What all connections share.
struct Exchange {
    worker: Arc<Worker>,
    routers: Arc<PeerRouters>,
    settings: ExchangeSettings,
}

/// Exchanges with other routers until the process ends. `worker` polls the wait queue when another
/// router's load has changed.
pub(super) async fn exchange(worker: Arc<Worker>, listener: Arc<std::net::TcpListener>) {
    let gateway = worker.gateway();
    let settings = gateway.settings().exchange.clone();
    let (Some(settings), Some(routers)) = (settings, gateway.pods().peer_routers.clone()) else {
        return;
    };
    let listener = listener.try_clone().and_then(TcpListener::from_std);
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot listen for other routers"),
    };
    let router = routers.origin().router;
    tracing::info!(%router, listen = %settings.listen, "exchanging with other routers");
    let shared = Arc::new(Exchange { worker, routers, settings });
    let mut tasks = JoinSet::new();
    for peer in shared.settings.peers.clone() {
        tasks.spawn(call_all(Arc::clone(&shared), peer));
    }
    let acceptor = Acceptor::new(Arc::new(listener), "exchange");
    tokio::select! {
        _ = shared.accept(acceptor) => {}
        _ = shared.tick() => {}
    }
}

impl Exchange {
    /// Tells the others what has changed, for ever.
    async fn tick(&self) -> Infallible {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let gateway = self.worker.gateway();
            let now = gateway.now();
            let tenants = gateway.quotas.reports(&gateway.settings().tenants, now);
            self.apply(&self.routers.tick(gateway.snapshot(), &tenants, now));
        }
    }

    fn apply(&self, tenants: &[TenantChange]) {
        let gateway = self.worker.gateway();
        if !tenants.is_empty() {
            let settings = gateway.settings();
            gateway.quotas.hear(&settings.tenants, tenants, gateway.now());
        }
    }

    /// Serves the routers that call, for ever.
    async fn accept(self: &Arc<Self>, mut acceptor: Acceptor) -> Infallible {
        let mut open = JoinSet::new();
        let mut refused = RefusalLog::default();
        loop {
            let stream = tokio::select! {
                Some(ended) = open.join_next() => {
                    if let Ok((address, Err(error))) = ended {
                        refused.note(address, &error);
                    }
                    continue;
                }
                stream = acceptor.accept() => stream,
            };
            if open.len() < MAX_CALLERS {
                let shared = Arc::clone(self);
                open.spawn(async move {
                    let address = stream.peer_addr().map(|address| address.ip().to_string());
                    (address.unwrap_or_default(), shared.called(stream).await)
                });
            }
        }
    }

    async fn called(&self, stream: TcpStream) -> Result<(), ConnectionError> {
        let _ = stream.set_nodelay(true);
        match &self.settings.tls {
            None => self.converse(stream, Side::Called).await,
            Some(tls) => {
                let handshake = timeout(GREETING, tls.listener.accept(stream)).await;
                let stream = handshake.map_err(|_| ConnectionError::Silent)?;
                self.converse(stream.map_err(ConnectionError::Tls)?, Side::Called).await
            }
        }
    }

    async fn call(&self, peer: &PeerAddress, address: SocketAddr) -> Result<(), ConnectionError> {
        let stream = timeout(GREETING, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| ConnectionError::Silent)?;
        let stream = stream.map_err(ConnectionError::Connect)?;
        let _ = stream.set_nodelay(true);
        match &self.settings.tls {
            None => self.converse(stream, Side::Caller).await,
            Some(tls) => {
                let name = ServerName::try_from(peer.host.clone());
                let name = name.map_err(|error| ConnectionError::Tls(io::Error::other(error)))?;
                let connector = TlsConnector::from(Arc::clone(tls.client.config()));
                let handshake = timeout(GREETING, connector.connect(name, stream)).await;
                let stream = handshake.map_err(|_| ConnectionError::Silent)?;
                self.converse(stream.map_err(ConnectionError::Tls)?, Side::Caller).await
            }
        }
    }

    /// Greets the other router, and then tells and hears until the connection ends.
    async fn converse<S>(&self, mut stream: S, side: Side) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let greeting = timeout(GREETING, self.greet(&mut stream, side)).await;
        let (router, hashes) = greeting.map_err(|_| ConnectionError::Silent)??;
        let _connected = Connected::new(self, router);
        let (read, write) = tokio::io::split(stream);
        tokio::select! {
            ended = self.hear(read, router, hashes) => ended,
            ended = self.tell(write) => ended,
        }
    }

    /// Both show that they have the key. The side that was called says nothing of itself before the
    /// caller has shown it.
    async fn greet<S>(
        &self,
        stream: &mut S,
        side: Side,
    ) -> Result<(RouterId, BlockHashes), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let gateway = self.worker.gateway();
        let mut nonce = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random.fill(&mut nonce);
        random.map_err(|_| io::Error::other("the system gives no randomness"))?;
        let hashes = gateway.settings().key.tenant_scoped("", "exchange", "");
        let hashes = KeyDigest::of(hashes.as_bytes()).0;
        let hashes = *hashes.first_chunk().expect("a digest has 32 bytes");
        let own = Hello { origin: self.routers.origin(), nonce, hashes };
        stream.write_all(&own.encode()).await?;
        let mut bytes = [0; Hello::LENGTH];
        stream.read_exact(&mut bytes).await?;
        let other = Hello::decode(&bytes)?;
        if other.origin.router == own.origin.router {
            return Err(ConnectionError::Own);
        }
        let key = &self.settings.key.0;
        let mut shown: Proof = [0; 32];
        match side {
            Side::Caller => {
                stream.write_all(&proof(key, Side::Caller, &own, &other)).await?;
                // A router with another key closes the connection instead.
                stream.read_exact(&mut shown).await.map_err(|_| ConnectionError::Key)?;
                if !is_proof(key, Side::Called, [&own, &other], &shown) {
                    return Err(ConnectionError::Key);
                }
            }
            Side::Called => {
                stream.read_exact(&mut shown).await?;
                if !is_proof(key, Side::Caller, [&other, &own], &shown) {
                    return Err(ConnectionError::Key);
                }
                stream.write_all(&proof(key, Side::Called, &other, &own)).await?;
            }
        }
        let is_same = other.hashes == own.hashes;
        let hashes = if is_same { BlockHashes::Same } else { BlockHashes::Different };
        Ok((other.origin.router, hashes))
    }

    async fn hear(
        &self,
        mut stream: impl AsyncRead + Unpin,
        router: RouterId,
        hashes: BlockHashes,
    ) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        loop {
            let read = timeout(FORGOTTEN_AFTER, read_update(&mut stream, &mut bytes)).await;
            read.map_err(|_| ConnectionError::Silent)??;
            let update = Update::decode(&bytes)?;
            if update.origin.router != router {
                return Err(ConnectionError::Impostor);
            }
            let gateway = self.worker.gateway();
            self.apply(&self.routers.hear(gateway.snapshot(), update, hashes, gateway.now()));
            // A pod may have got room.
            gateway.wait_queue.poll(&*self.worker);
        }
    }

    async fn tell(&self, mut stream: impl AsyncWrite + Unpin) -> Result<(), ConnectionError> {
        loop {
            let gateway = self.worker.gateway();
            let now = gateway.now();
            let tenants = gateway.quotas.reports(&gateway.settings().tenants, now);
            let subscription = self.routers.subscribe(gateway.snapshot(), &tenants, now);
            let Subscription { full, mut updates } = subscription;
            write_update(&mut stream, &full).await?;
            tell_changes(&mut stream, &mut updates).await?;
        }
    }
}

/// Sends updates until the connection is too far behind.
async fn tell_changes(
    stream: &mut (impl AsyncWrite + Unpin),
    updates: &mut Receiver<Arc<[u8]>>,
) -> Result<(), ConnectionError> {
    loop {
        match updates.recv().await {
            Ok(update) => write_update(stream, &update).await?,
            Err(RecvError::Lagged(_) | RecvError::Closed) => return Ok(()),
        }
    }
}

/// Counts a connection while it is open.
struct Connected<'a> {
    shared: &'a Exchange,
    router: RouterId,
}

impl<'a> Connected<'a> {
    fn new(shared: &'a Exchange, router: RouterId) -> Self {
        shared.routers.connected(router);
        Self { shared, router }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.shared.routers.disconnected(self.router, self.shared.worker.gateway().now());
    }
}

async fn read_update(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> Result<(), ConnectionError> {
    let length = stream.read_u32_le().await? as usize;
    if length > MAX_UPDATE {
        return Err(DecodeError::TooLong(length).into());
    }
    bytes.clear();
    let read = stream.take(length as u64).read_to_end(bytes).await?;
    if read < length { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
}

async fn write_update(
    stream: &mut (impl AsyncWrite + Unpin),
    update: &[u8],
) -> Result<(), ConnectionError> {
    let length = u32::try_from(update.len()).map_err(|_| DecodeError::TooLong(update.len()))?;
    let written = async {
        stream.write_u32_le(length).await?;
        stream.write_all(update).await?;
        stream.flush().await
    };
    let written = timeout(FORGOTTEN_AFTER, written).await;
    Ok(written.map_err(|_| ConnectionError::Silent)??)
}

/// Calls all addresses of a peer, as its name is resolved.
async fn call_all(shared: Arc<Exchange>, peer: PeerAddress) {
    let mut tasks = JoinSet::new();
    let mut called: HashMap<SocketAddr, AbortHandle> = HashMap::new();
    loop {
        match lookup_host((peer.host.as_str(), peer.port)).await {
            Ok(found) => {
                let found: Vec<_> = found.collect();
                called.retain(|address, call| {
                    let is_there = found.contains(address);
                    if !is_there {
                        call.abort();
                    }
                    is_there
                });
                for address in found {
                    called.entry(address).or_insert_with(|| {
                        tasks.spawn(call_again(Arc::clone(&shared), peer.clone(), address))
                    });
                }
            }
            // The addresses of before are as good as any.
            Err(error) => tracing::debug!(%peer, %error, "name of routers not resolved"),
        }
        while tasks.try_join_next().is_some() {}
        sleep(RESOLVE).await;
    }
}

/// Calls one address, again and again.
async fn call_again(shared: Arc<Exchange>, peer: PeerAddress, address: SocketAddr) {
    let mut refused = RefusalLog::default();
    loop {
        let pause = match shared.call(&peer, address).await {
            Err(ConnectionError::Own) => OWN_ADDRESS,
            Err(error) => {
                refused.note(address.to_string(), &error);
                CALL_AGAIN
            }
            Ok(()) => CALL_AGAIN,
        };
        sleep(pause).await;
    }
}

/// Why connections ended, logged when the reason is another one than last time, and not more often
/// than a caller without the key may make them end.
struct RefusalLog {
    reasons: HashMap<String, String>,
    limit: LogLimit,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self { reasons: HashMap::new(), limit: LogLimit::new(Duration::from_secs(1)) }
    }
}

impl RefusalLog {
    fn note(&mut self, address: String, error: &ConnectionError) {
        const MOST: usize = 1024;
        let reason = error.to_string();
        let last = self.reasons.get(&address);
        let has_room = last.is_some() || self.reasons.len() < MOST;
        if matches!(error, ConnectionError::Own)
            || last == Some(&reason)
            || !has_room
            || !self.limit.is_due()
        {
            return;
        }
        tracing::warn!(address, reason, "no exchange with a router");
        self.reasons.insert(address, reason);
    }
}
