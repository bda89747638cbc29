//! Events in Redis Streams: one stream per pod, `<prefix>:<pod>`, an entry's field `e` an envelope.
//!
//! Streams are read without consumer groups, because every router reads everything from its own
//! cursor. Trimming is approximate (`MAXLEN ~`), which is cheap and loses only what an engine would
//! no longer replay either.
//!
//! A heartbeat is the value of `<prefix>-alive:<pod>`, with a short TTL.

use super::{
    Broker, BrokerFailure, BrokerFollower, Positions, ReplayedEntry, push_replayed, read,
    read_heartbeat,
};
use crate::login::BrokerLogin;
use crate::message::{Delivery, SourceMessage};
use crate::sink::{BrokerStream, BrokerTransport, KEPT_PER_POD, Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply, StreamReadReply};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisError, Value, cmd, pipe,
};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long the server blocks a read that finds nothing. A query waits no longer than this.
const BLOCK: Duration = Duration::from_millis(200);
/// For connecting and for every command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Entries per read.
const READ_SIZE: usize = 512;
/// How often heartbeats are read.
const HEARTBEAT_POLL: Duration = Duration::from_secs(1);
const HEARTBEAT_TTL: Duration = Duration::from_secs(3);

/// Reads the streams of some pods.
pub type RedisStreams = BrokerFollower<Streams>;

/// The streams of some pods.
pub struct Streams {
    server: RedisServer,
    streams: Vec<RedisStream>,
    connection: Option<MultiplexedConnection>,
    /// When heartbeats are read next.
    heartbeats_at: Instant,
    signals: VecDeque<SourceSignal>,
    replays: VecDeque<RedisReplay>,
}

struct RedisStream {
    pod: PodName,
    key: String,
    /// The key of its relay's heartbeats.
    heartbeat: String,
    /// The last entry read; unknown before the first connection.
    cursor: Option<String>,
    positions: Positions<String>,
}

/// A replay that is being read, page by page.
struct RedisReplay {
    stream: usize,
    /// The first number that was requested.
    from: u64,
    /// The lowest identifier of the next page.
    start: String,
}

impl BrokerTransport for RedisStreams {
    type Sink = RedisSink;

    fn open(address: &BrokerStream, pods: &[PodName]) -> Result<Self, String> {
        let prefix = &address.stream;
        let stream = |pod: &PodName| RedisStream {
            pod: Arc::clone(pod),
            key: format!("{prefix}:{pod}"),
            heartbeat: heartbeat_key(prefix, pod),
            cursor: None,
            positions: Positions::default(),
        };
        let streams = Streams {
            server: RedisServer::new(address)?,
            streams: pods.iter().map(stream).collect(),
            connection: None,
            heartbeats_at: Instant::now(),
            signals: VecDeque::new(),
            replays: VecDeque::new(),
        };
        Ok(Self::named(format!("{}/{prefix}", address.url), pods, streams))
    }

    fn open_sink(address: &BrokerStream) -> Result<RedisSink, String> {
        let server = RedisServer::new(address)?;
        Ok(RedisSink { server, prefix: address.stream.clone(), connection: None })
    }
}

impl Broker for Streams {
    fn signals(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.signals
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        let mut connection = self.server.connect().await?;
        for stream in &mut self.streams {
            if stream.cursor.is_none() {
                let last = last_entry(&mut connection, &stream.key).await?;
                stream.cursor = Some(last.map_or("0-0".to_owned(), |entry| entry.id));
            }
        }
        self.connection = Some(connection);
        let connected = |stream: &RedisStream| {
            SourceSignal::Pod(Arc::clone(&stream.pod), SourceMessage::Connected)
        };
        self.signals.extend(self.streams.iter().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.replays.clear();
        self.connection.take().is_some()
    }

    /// Reads heartbeats, a page of a replay, or live entries.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if self.streams.is_empty() {
            // Redis refuses a read without keys.
            return std::future::pending().await;
        }
        if Instant::now() >= self.heartbeats_at {
            let mut get = cmd("MGET");
            get.arg(self.streams.iter().map(|stream| &stream.heartbeat).collect::<Vec<_>>());
            let heartbeats: Vec<Option<Vec<u8>>> = get.query_async(connection).await?;
            self.heartbeats_at = Instant::now() + HEARTBEAT_POLL;
            for (stream, heartbeat) in self.streams.iter().zip(heartbeats) {
                let parsed =
                    heartbeat.and_then(|heartbeat| read_heartbeat(&stream.pod, &heartbeat));
                self.signals.extend(
                    parsed.map(|parsed| SourceSignal::Pod(Arc::clone(&stream.pod), parsed)),
                );
            }
            return Ok(());
        }
        if let Some(replaying) = self.replays.front() {
            let stream = &self.streams[replaying.stream];
            let mut range = cmd("XRANGE");
            range.arg(&stream.key).arg(&replaying.start).arg("+").arg("COUNT").arg(READ_SIZE);
            let entries: StreamRangeReply = range.query_async(connection).await?;
            self.handle_replayed(&entries.ids);
            return Ok(());
        }
        let mut request = cmd("XREAD");
        request.arg("COUNT").arg(READ_SIZE).arg("BLOCK").arg(BLOCK.as_millis() as usize);
        request.arg("STREAMS");
        self.streams.iter().for_each(|stream| {
            request.arg(&stream.key);
        });
        self.streams.iter().for_each(|stream| {
            request.arg(stream.cursor.as_deref().unwrap_or("0-0"));
        });
        let entries: Option<StreamReadReply> = request.query_async(connection).await?;
        for read in entries.map_or(Vec::new(), |entries| entries.keys) {
            self.handle_live(&read.key, &read.ids);
        }
        Ok(())
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        let Some(stream) = self.streams.iter().position(|stream| stream.pod == *pod) else {
            return;
        };
        let start = self.streams[stream].positions.before(from).unwrap_or("-".to_owned());
        self.replays.retain(|replaying| replaying.stream != stream);
        self.replays.push_back(RedisReplay { stream, from, start });
    }
}

impl Streams {
    fn handle_live(&mut self, key: &str, entries: &[StreamId]) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return };
        for entry in entries {
            let parsed = read(&stream.pod, envelope(entry), Delivery::Live);
            stream.positions.note(&parsed, entry.id.clone());
            stream.cursor = Some(entry.id.clone());
            self.signals.push_back(SourceSignal::Pod(Arc::clone(&stream.pod), parsed));
        }
    }

    fn handle_replayed(&mut self, entries: &[StreamId]) {
        let Some(replaying) = self.replays.front_mut() else { return };
        let RedisStream { pod, positions, .. } = &mut self.streams[replaying.stream];
        for entry in entries {
            let replayed = ReplayedEntry { bytes: envelope(entry), position: entry.id.clone() };
            push_replayed(pod, replaying.from, replayed, positions, &mut self.signals);
            replaying.start = format!("({}", entry.id);
        }
        if entries.len() < READ_SIZE {
            self.signals.push_back(SourceSignal::Pod(Arc::clone(pod), SourceMessage::ReplayEnd));
            self.replays.pop_front();
        }
    }
}

/// Publishes to streams.
pub struct RedisSink {
    server: RedisServer,
    prefix: String,
    /// Dropped after an error.
    connection: Option<MultiplexedConnection>,
}

impl RedisSink {
    /// The open connection, or a new one.
    async fn connection(&mut self) -> Result<MultiplexedConnection, BrokerFailure> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.server.connect().await,
        }
    }
}

impl Sink for RedisSink {
    async fn last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let key = format!("{}:{pod}", self.prefix);
        let mut connection = self.connection().await?;
        let last = last_entry(&mut connection, &key).await?;
        self.connection = Some(connection);
        Ok(last.map(|entry| envelope(&entry).to_vec()))
    }

    async fn publish(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), SinkError> {
        let mut all = pipe();
        for envelope in envelopes {
            let mut entry = Vec::with_capacity(envelope.payload.len() + 64);
            envelope.write(&mut entry);
            let add = all.cmd("XADD").arg(format!("{}:{}", self.prefix, envelope.pod));
            add.arg("MAXLEN").arg("~").arg(KEPT_PER_POD).arg("*").arg("e").arg(entry).ignore();
        }
        let mut connection = self.connection().await?;
        all.query_async::<()>(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn heartbeat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let mut body = Vec::with_capacity(64);
        envelope.write(&mut body);
        let mut set = cmd("SET");
        set.arg(heartbeat_key(&self.prefix, envelope.pod)).arg(body);
        set.arg("PX").arg(HEARTBEAT_TTL.as_millis() as usize);
        let mut connection = self.connection().await?;
        set.query_async::<()>(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

impl From<RedisError> for SinkError {
    fn from(error: RedisError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

fn heartbeat_key(prefix: &str, pod: &str) -> String {
    format!("{prefix}-alive:{pod}")
}

/// A server, and how to connect to it.
struct RedisServer {
    client: Client,
    tls: Option<ServerTls>,
}

/// TLS to a server of this name.
struct ServerTls {
    connector: TlsConnector,
    host: String,
    port: u16,
    name: ServerName<'static>,
}

impl RedisServer {
    fn new(address: &BrokerStream) -> Result<Self, String> {
        // The client is built without TLS, which is ours: its own takes no server name.
        let url = address.url.replacen("rediss://", "redis://", 1);
        let client = logged_in(url, address.login.as_ref()).map_err(|error| error.to_string())?;
        let Some(tls) = &address.tls else { return Ok(Self { client, tls: None }) };
        let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr().clone() else {
            return Err("TLS needs `rediss://host:port`".to_owned());
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|_| format!("host `{host}` cannot be in a certificate"))?;
        let connector = TlsConnector::from(Arc::clone(tls.config()));
        Ok(Self { client, tls: Some(ServerTls { connector, host, port, name }) })
    }

    async fn connect(&self) -> Result<MultiplexedConnection, BrokerFailure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let Some(tls) = &self.tls else {
            return Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?);
        };
        let connect = async {
            let stream = tls.connect().await?;
            let settings = self.client.get_connection_info().redis_settings();
            let opened = MultiplexedConnection::new_with_config(settings, stream, config).await?;
            Ok::<_, BrokerFailure>(opened)
        };
        let (connection, driver) = timeout(TIMEOUT, connect).await??;
        // It ends with the last clone of the connection.
        tokio::spawn(driver);
        Ok(connection)
    }
}

fn logged_in(url: String, login: Option<&BrokerLogin>) -> Result<Client, RedisError> {
    let mut info = url.into_connection_info()?;
    if let Some(BrokerLogin { user, password }) = login {
        let mut settings = info.redis_settings().clone().set_password(password);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        info = info.set_redis_settings(settings);
    }
    Client::open(info)
}

impl ServerTls {
    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        self.connector.connect(self.name.clone(), stream).await
    }
}

async fn last_entry(
    connection: &mut MultiplexedConnection,
    key: &str,
) -> Result<Option<StreamId>, RedisError> {
    let mut range = cmd("XREVRANGE");
    range.arg(key).arg("+").arg("-").arg("COUNT").arg(1);
    let mut entries: StreamRangeReply = range.query_async(connection).await?;
    Ok(entries.ids.pop())
}

/// The envelope in an entry; empty, and so malformed, if there is none.
fn envelope(entry: &StreamId) -> &[u8] {
    match entry.map.get("e") {
        Some(Value::BulkString(bytes)) => bytes,
        _ => &[],
    }
}
