//! Events in Redis Streams: one stream per pod, `<prefix>:<pod>`, an entry's field `e` an envelope.
//!
//! Streams are read without consumer groups: every router reads everything from its own cursor. Trimming
//! is approximate (`MAXLEN ~`), which costs nothing and loses only what an engine would have lost too.
//!
//! A beat is the value of `<prefix>-alive:<pod>` and expires soon after.

use super::{Broker, BrokerFailure, BrokerFollower, Positions, read, read_beat, take_replayed};
use crate::message::{Delivery, SourceMessage};
use crate::relay::{KEPT_PER_POD, Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, RedisError, Value, cmd, pipe};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the server holds a read that finds nothing. A question waits no longer than this.
const BLOCK: Duration = Duration::from_millis(200);
/// How long anything may take before the connection is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 512;
/// How often beats are looked for, and how long one is there to be found.
const BEATS_EVERY: Duration = Duration::from_secs(1);
const BEAT_LASTS: Duration = Duration::from_secs(3);

/// Reads the streams of some pods.
pub type RedisStreams = BrokerFollower<Streams>;

/// The streams of some pods.
pub struct Streams {
    client: Client,
    streams: Vec<RedisStream>,
    connection: Option<MultiplexedConnection>,
    /// When beats are to be looked for.
    beats_at: Instant,
    heard: VecDeque<SourceSignal>,
    replays: VecDeque<RedisReplay>,
}

struct RedisStream {
    pod: PodName,
    key: String,
    /// Where its relay says that it is there.
    beat: String,
    /// The last entry read; unknown before the first connection.
    cursor: Option<String>,
    marks: Positions<String>,
}

/// A replay that is being read, piece by piece.
struct RedisReplay {
    stream: usize,
    /// The number asked from.
    from: u64,
    /// The next entry's least identifier.
    start: String,
}

impl RedisStreams {
    /// For pods whose events are in streams under `prefix` at a `redis://` address.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(url: &str, prefix: &str, pods: &[PodName]) -> Result<Self, RedisError> {
        let client = Client::open(url)?;
        let stream = |pod: &PodName| RedisStream {
            pod: Arc::clone(pod),
            key: format!("{prefix}:{pod}"),
            beat: beat_key(prefix, pod),
            cursor: None,
            marks: Positions::default(),
        };
        let address = client.get_connection_info().addr().to_string();
        let streams = Streams {
            client,
            streams: pods.iter().map(stream).collect(),
            connection: None,
            beats_at: Instant::now(),
            heard: VecDeque::new(),
            replays: VecDeque::new(),
        };
        Ok(Self::named(format!("redis://{address}/{prefix}"), pods, streams))
    }
}

impl Broker for Streams {
    fn heard(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.heard
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        let mut connection = connect(&self.client).await?;
        for stream in &mut self.streams {
            if stream.cursor.is_none() {
                let last = last_entry(&mut connection, &stream.key).await?;
                stream.cursor = Some(last.map_or("0-0".to_owned(), |entry| entry.id));
            }
        }
        self.connection = Some(connection);
        let connected = |stream: &RedisStream| {
            SourceSignal::Of(Arc::clone(&stream.pod), SourceMessage::Connected)
        };
        self.heard.extend(self.streams.iter().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.replays.clear();
        self.connection.take().is_some()
    }

    /// Reads a piece of a replay, or what has come.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if self.streams.is_empty() {
            // A read without keys is an error, and nobody waits for anything.
            return std::future::pending().await;
        }
        if Instant::now() >= self.beats_at {
            let mut get = cmd("MGET");
            get.arg(self.streams.iter().map(|stream| &stream.beat).collect::<Vec<_>>());
            let beats: Vec<Option<Vec<u8>>> = get.query_async(connection).await?;
            self.beats_at = Instant::now() + BEATS_EVERY;
            for (stream, beat) in self.streams.iter().zip(beats) {
                let said = beat.and_then(|beat| read_beat(&stream.pod, &beat));
                self.heard.extend(said.map(|said| SourceSignal::Of(Arc::clone(&stream.pod), said)));
            }
            return Ok(());
        }
        if let Some(replaying) = self.replays.front() {
            let stream = &self.streams[replaying.stream];
            let mut range = cmd("XRANGE");
            range.arg(&stream.key).arg(&replaying.start).arg("+").arg("COUNT").arg(AT_ONCE);
            let entries: StreamRangeReply = range.query_async(connection).await?;
            self.replayed(&entries.ids);
            return Ok(());
        }
        let mut request = cmd("XREAD");
        request.arg("COUNT").arg(AT_ONCE).arg("BLOCK").arg(BLOCK.as_millis() as usize);
        request.arg("STREAMS");
        self.streams.iter().for_each(|stream| {
            request.arg(&stream.key);
        });
        self.streams.iter().for_each(|stream| {
            request.arg(stream.cursor.as_deref().unwrap_or("0-0"));
        });
        let entries: Option<StreamReadReply> = request.query_async(connection).await?;
        for read in entries.map_or(Vec::new(), |entries| entries.keys) {
            self.arrived(&read.key, &read.ids);
        }
        Ok(())
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        let Some(stream) = self.streams.iter().position(|stream| stream.pod == *pod) else {
            return;
        };
        let start = self.streams[stream].marks.before(from).unwrap_or("-".to_owned());
        self.replays.retain(|replaying| replaying.stream != stream);
        self.replays.push_back(RedisReplay { stream, from, start });
    }
}

impl Streams {
    fn arrived(&mut self, key: &str, entries: &[StreamId]) {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return };
        for entry in entries {
            let said = read(&stream.pod, envelope(entry), Delivery::Live);
            stream.marks.note(&said, entry.id.clone());
            stream.cursor = Some(entry.id.clone());
            self.heard.push_back(SourceSignal::Of(Arc::clone(&stream.pod), said));
        }
    }

    fn replayed(&mut self, entries: &[StreamId]) {
        let Some(replaying) = self.replays.front_mut() else { return };
        let RedisStream { pod, marks, .. } = &mut self.streams[replaying.stream];
        for entry in entries {
            let (read, from) = ((envelope(entry), entry.id.clone()), replaying.from);
            take_replayed(pod, read, (from, marks), &mut self.heard);
            replaying.start = format!("({}", entry.id);
        }
        if entries.len() < AT_ONCE {
            self.heard.push_back(SourceSignal::Of(Arc::clone(pod), SourceMessage::ReplayEnd));
            self.replays.pop_front();
        }
    }
}

/// Publishes into streams.
pub struct RedisSink {
    client: Client,
    prefix: String,
    /// Kept only while all goes well.
    connection: Option<MultiplexedConnection>,
}

impl RedisSink {
    /// For streams under `prefix` at a `redis://` address.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(url: &str, prefix: &str) -> Result<Self, RedisError> {
        Ok(Self { client: Client::open(url)?, prefix: prefix.to_owned(), connection: None })
    }

    /// The connection, which is made if there is none.
    async fn connection(&mut self) -> Result<MultiplexedConnection, RedisError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => connect(&self.client).await,
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

    async fn beat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let mut body = Vec::with_capacity(64);
        envelope.write(&mut body);
        let mut set = cmd("SET");
        set.arg(beat_key(&self.prefix, envelope.pod)).arg(body);
        set.arg("PX").arg(BEAT_LASTS.as_millis() as usize);
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

fn beat_key(prefix: &str, pod: &str) -> String {
    format!("{prefix}-alive:{pod}")
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WITHIN))
        .set_response_timeout(Some(ANSWER_WITHIN));
    client.get_multiplexed_async_connection_with_config(&config).await
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

/// The envelope in an entry; an entry without one is malformed as any other bytes are.
fn envelope(entry: &StreamId) -> &[u8] {
    match entry.map.get("e") {
        Some(Value::BulkString(bytes)) => bytes,
        _ => &[],
    }
}
