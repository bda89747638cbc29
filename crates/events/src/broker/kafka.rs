//! Events in Kafka: one topic, a pod's records in one of its partitions, a record's value an
//! envelope.
//!
//! A hash of a pod's name selects its partition, so its batches stay in order. Each router reads
//! every partition that has one of its pods, from a cursor of its own, without consumer groups: all
//! routers need all events. The topic's own settings limit how long records are kept; expired ones
//! are a gap like any other.
//!
//! Heartbeats are records of a topic of their own, `<topic>-alive`, which relays trim as they go
//! and routers read from its end only.

mod topic;

use super::{
    Broker, BrokerFailure, BrokerFollower, Positions, ReplayedEntry, push_replayed, read,
    read_heartbeat,
};
use crate::message::{Delivery, SourceMessage};
use crate::sink::{BrokerStream, BrokerTransport, Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient};
use rskafka::record::RecordAndOffset;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use topic::{KafkaAddress, TIMEOUT, is_too_large, partition_of, record, value, with_timeout};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How long a broker blocks a fetch that finds nothing.
const HOLD: Duration = Duration::from_millis(250);
/// Bytes per produce request; by default brokers refuse more than a million.
const PRODUCED_BYTES: usize = 512 << 10;
/// Bytes per fetch.
const READ_SIZE: std::ops::Range<i32> = 1..4 << 20;
/// The setting that limits the size of a record.
const CURE: &str = "the topic's `max.message.bytes`";
/// Partitions of a topic that a relay creates.
const PARTITIONS: i32 = 8;
/// Capacity of the queue of fetched records, in fetches.
const MAX_FETCHED: usize = 16;
/// The partition number of heartbeats in that queue.
const HEARTBEATS: i32 = -1;
/// Delay before a topic of heartbeats that cannot be read is tried again.
const HEARTBEATS_RETRY: Duration = Duration::from_secs(5);
/// A relay deletes old heartbeats after every so many.
const HEARTBEATS_KEPT: u32 = 64;

/// Reads the partitions of some pods.
pub type Kafka = BrokerFollower<Partitions>;

/// The partitions of some pods.
pub struct Partitions {
    address: KafkaAddress,
    pods: Vec<KafkaPod>,
    /// The next record of each partition; unknown before the first connection.
    cursors: BTreeMap<i32, Cursor>,
    connection: Option<KafkaConnection>,
    signals: VecDeque<SourceSignal>,
    replays: VecDeque<KafkaReplay>,
}

struct KafkaPod {
    pod: PodName,
    positions: Positions<i64>,
}

/// A position in a partition, with a fingerprint of the record before it: in a topic that was wiped
/// and filled past the position, another record is there. The client does not expose Kafka's own
/// topic id.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cursor {
    next: i64,
    before: Option<u64>,
}

/// Records of one partition, in the queue.
struct Fetched {
    partition: i32,
    records: Vec<RecordAndOffset>,
}

struct KafkaConnection {
    /// Clients of all partitions, for replays.
    replays: Vec<Arc<PartitionClient>>,
    fetched: mpsc::Receiver<Result<Fetched, BrokerFailure>>,
    /// Aborted with the connection.
    _readers: JoinSet<()>,
}

/// A replay that is being read, fetch by fetch.
struct KafkaReplay {
    source: usize,
    /// The first number that was requested.
    from: u64,
    /// An offset at or before that batch, if one is known.
    known: Option<i64>,
    /// The records that are left to read, up to the end at the start of the replay.
    range: Option<std::ops::Range<i64>>,
}

impl BrokerTransport for Kafka {
    type Sink = KafkaSink;

    fn open(address: &BrokerStream, pods: &[PodName]) -> Result<Self, String> {
        let source =
            |pod: &PodName| KafkaPod { pod: Arc::clone(pod), positions: Positions::default() };
        let partitions = Partitions {
            address: KafkaAddress::new(address),
            pods: pods.iter().map(source).collect(),
            cursors: BTreeMap::new(),
            connection: None,
            signals: VecDeque::new(),
            replays: VecDeque::new(),
        };
        Ok(Self::named(format!("{}/{}", address.url, address.stream), pods, partitions))
    }

    fn open_sink(address: &BrokerStream) -> Result<KafkaSink, String> {
        Ok(KafkaSink {
            address: KafkaAddress::new(address),
            partitions: None,
            found: None,
            heartbeats: None,
        })
    }
}

impl Broker for Partitions {
    fn signals(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.signals
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        self.connection = Some(self.open().await?);
        let connected = |source: &KafkaPod| {
            SourceSignal::Pod(Arc::clone(&source.pod), SourceMessage::Connected)
        };
        self.signals.extend(self.pods.iter().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.replays.clear();
        self.connection.take().is_some()
    }

    /// Reads a part of a replay, or takes fetched records from the queue.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        if !self.replays.is_empty() {
            return self.read_replay().await;
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let fetched = connection.fetched.recv().await.ok_or("all partition readers have ended")?;
        let Fetched { partition, records } = fetched?;
        if partition == HEARTBEATS {
            for record in records {
                let Some(source) = self.pod_of(&record) else { continue };
                let parsed = read_heartbeat(&source.pod, value(&record));
                let heard = parsed.map(|parsed| SourceSignal::Pod(Arc::clone(&source.pod), parsed));
                self.signals.extend(heard);
            }
            return Ok(());
        }
        if let Some(last) = records.last() {
            self.cursors.insert(partition, Cursor::after(last));
        }
        for record in records {
            if let Some(source) = self.pod_of(&record) {
                let parsed = read(&source.pod, value(&record), Delivery::Live);
                source.positions.note(&parsed, record.offset);
                let heard = SourceSignal::Pod(Arc::clone(&source.pod), parsed);
                self.signals.push_back(heard);
            }
        }
        Ok(())
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        let Some(source) = self.pods.iter().position(|source| source.pod == *pod) else { return };
        let known = self.pods[source].positions.before(from);
        self.replays.retain(|replaying| replaying.source != source);
        self.replays.push_back(KafkaReplay { source, from, known, range: None });
    }
}

impl Partitions {
    async fn open(&mut self) -> Result<KafkaConnection, BrokerFailure> {
        let replays = self.address.partitions(&self.address.client().await?).await?;
        let (sender, fetched) = mpsc::channel(MAX_FETCHED);
        let mut readers = JoinSet::new();
        let count = replays.len();
        let wanted: BTreeSet<_> =
            self.pods.iter().map(|source| partition_of(&source.pod, count)).collect();
        for partition in wanted {
            // A broker answers the requests of one connection in order, and a fetch that finds
            // nothing blocks. So each reader has a connection of its own, and replays do not wait
            // for them.
            let number = replays[partition].partition();
            let client = self.address.client().await?;
            let client = Arc::new(self.address.partition(&client, number).await?);
            let cursor = self.find(&client).await?;
            readers.spawn(follow(client, cursor.next, sender.clone()));
        }
        readers.spawn(follow_heartbeats(self.address.heartbeats(), sender));
        Ok(KafkaConnection { replays, fetched, _readers: readers })
    }

    /// Where to continue reading a partition: at its end if it is new, and at its beginning if the
    /// record at our cursor has changed. Then no other known offset is valid either.
    async fn find(&mut self, client: &PartitionClient) -> Result<Cursor, BrokerFailure> {
        let earliest = with_timeout(client.get_offset(OffsetAt::Earliest)).await?;
        let latest = with_timeout(client.get_offset(OffsetAt::Latest)).await?;
        let known = self.cursors.get(&client.partition()).copied();
        let mut cursor = Cursor { next: known.map_or(latest, |known| known.next), before: None };
        if (earliest..latest).contains(&(cursor.next - 1)) {
            let (records, _) =
                with_timeout(client.fetch_records(cursor.next - 1, READ_SIZE, 1)).await?;
            let found = records.first().map(Cursor::after);
            cursor = found.filter(|found| found.next == cursor.next).unwrap_or(cursor);
        }
        let is_there = (earliest..=latest).contains(&cursor.next);
        if known.is_some_and(|known| !is_there || known != cursor) {
            cursor = Cursor { next: earliest, before: None };
            self.pods.iter_mut().for_each(|source| source.positions = Positions::default());
        }
        self.cursors.insert(client.partition(), cursor);
        Ok(cursor)
    }

    /// The pod of a record, if it is one of ours.
    fn pod_of(&mut self, record: &RecordAndOffset) -> Option<&mut KafkaPod> {
        let key = record.record.key.as_deref()?;
        self.pods.iter_mut().find(|source| source.pod.as_bytes() == key)
    }

    async fn read_replay(&mut self) -> Result<(), BrokerFailure> {
        let (Some(connection), Some(replaying)) = (&self.connection, self.replays.front_mut())
        else {
            return Ok(());
        };
        let source = &mut self.pods[replaying.source];
        let client = &connection.replays[partition_of(&source.pod, connection.replays.len())];
        let range = match replaying.range.clone() {
            Some(range) => range,
            None => {
                let earliest = with_timeout(client.get_offset(OffsetAt::Earliest)).await?;
                let latest = with_timeout(client.get_offset(OffsetAt::Latest)).await?;
                // An offset before the earliest was trimmed, one after the latest is of a broker
                // that was wiped.
                let known = replaying.known.filter(|known| (earliest..=latest).contains(known));
                known.unwrap_or(earliest)..latest
            }
        };
        let mut records = Vec::new();
        if !range.is_empty() {
            records = with_timeout(client.fetch_records(range.start, READ_SIZE, 1)).await?.0;
        }
        for record in &records {
            if record.record.key.as_deref() == Some(source.pod.as_bytes()) {
                let entry = ReplayedEntry { bytes: value(record), position: record.offset };
                let positions = &mut source.positions;
                push_replayed(&source.pod, replaying.from, entry, positions, &mut self.signals);
            }
        }
        // An empty fetch means that there is nothing more.
        let read_to = records.last().map_or(range.end, |record| record.offset + 1);
        replaying.range = Some(read_to..range.end);
        if read_to >= range.end {
            self.signals
                .push_back(SourceSignal::Pod(Arc::clone(&source.pod), SourceMessage::ReplayEnd));
            self.replays.pop_front();
        }
        Ok(())
    }
}

impl Cursor {
    fn after(record: &RecordAndOffset) -> Self {
        let written = record.record.timestamp.timestamp_millis();
        let before = Some(xxh3_64_with_seed(value(record), written as u64));
        Self { next: record.offset + 1, before }
    }
}

/// Reads a partition until the queue is closed or a fetch fails, for instance because the offset is
/// out of range.
async fn follow(
    client: Arc<PartitionClient>,
    mut cursor: i64,
    to: mpsc::Sender<Result<Fetched, BrokerFailure>>,
) {
    loop {
        let fetched =
            timeout(TIMEOUT, client.fetch_records(cursor, READ_SIZE, HOLD.as_millis() as i32));
        let news = match fetched.await {
            Err(_) => Err("fetch timed out".into()),
            Ok(Ok((records, _))) => Ok(records),
            Ok(Err(error)) => Err(error.into()),
        };
        let is_over = news.is_err();
        if let Ok(records) = &news {
            cursor = records.last().map_or(cursor, |record| record.offset + 1);
            if records.is_empty() {
                continue;
            }
        }
        let news = news.map(|records| Fetched { partition: client.partition(), records });
        if to.send(news).await.is_err() || is_over {
            return;
        }
    }
}

/// Reads heartbeats from now on. Their topic may be created later.
async fn follow_heartbeats(
    address: KafkaAddress,
    to: mpsc::Sender<Result<Fetched, BrokerFailure>>,
) {
    while !to.is_closed() {
        // The error is not reported: without heartbeats the pods go stale.
        let _ = read_heartbeats(&address, &to).await;
        tokio::time::sleep(HEARTBEATS_RETRY).await;
    }
}

async fn read_heartbeats(
    address: &KafkaAddress,
    to: &mpsc::Sender<Result<Fetched, BrokerFailure>>,
) -> Result<(), BrokerFailure> {
    let client = address.client().await?;
    let client = address.partitions(&client).await?.swap_remove(0);
    let mut next = with_timeout(client.get_offset(OffsetAt::Latest)).await?;
    loop {
        let hold = HOLD.as_millis() as i32;
        let (records, _) = with_timeout(client.fetch_records(next, READ_SIZE, hold)).await?;
        let Some(last) = records.last() else { continue };
        next = last.offset + 1;
        to.send(Ok(Fetched { partition: HEARTBEATS, records })).await?;
    }
}

/// Publishes to a topic.
pub struct KafkaSink {
    address: KafkaAddress,
    partitions: Option<Vec<Arc<PartitionClient>>>,
    /// Valid while nothing was appended and the partition does not shrink.
    found: Option<LastRecord>,
    heartbeats: Option<HeartbeatTopic>,
}

/// The last record of a pod, as it was found.
struct LastRecord {
    /// The partition's end at that time.
    partition_end: i64,
    value: Option<Vec<u8>>,
}

struct HeartbeatTopic {
    client: Arc<PartitionClient>,
    /// Heartbeats sent over this connection.
    sent: u32,
}

impl KafkaSink {
    async fn partition(&mut self, pod: &str) -> Result<&PartitionClient, BrokerFailure> {
        let partitions = match &mut self.partitions {
            Some(partitions) => partitions,
            none => none.insert(self.address.create(PARTITIONS).await?),
        };
        Ok(&partitions[partition_of(pod, partitions.len())])
    }

    /// The last record of a pod: searched backwards in growing steps, because pods share
    /// partitions.
    async fn find_last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, BrokerFailure> {
        let found = self.found.take();
        let client = self.partition(pod).await?;
        let earliest = with_timeout(client.get_offset(OffsetAt::Earliest)).await?;
        let latest = with_timeout(client.get_offset(OffsetAt::Latest)).await?;
        if let Some(found) = found.filter(|found| found.partition_end <= latest) {
            let last = found.value.clone();
            self.found = Some(found);
            return Ok(last);
        }
        let mut back = 64;
        loop {
            let start = (latest - back).max(earliest);
            let mut next = start;
            let mut last = None;
            while next < latest {
                let (records, _) = with_timeout(client.fetch_records(next, READ_SIZE, 1)).await?;
                let Some(end) = records.last().map(|record| record.offset + 1) else { break };
                let own =
                    |one: &&RecordAndOffset| one.record.key.as_deref() == Some(pod.as_bytes());
                last = records.iter().rfind(own).map(|one| value(one).to_vec()).or(last);
                next = end;
            }
            if last.is_some() || start <= earliest {
                self.found = Some(LastRecord { partition_end: latest, value: last.clone() });
                return Ok(last);
            }
            back *= 8;
        }
    }

    /// Appends records of one pod, as many per request as brokers accept by default.
    async fn append(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), BrokerFailure> {
        self.found = None;
        let mut records = Vec::new();
        let mut bytes = 0;
        for (at, envelope) in envelopes.iter().enumerate() {
            let mut entry = Vec::with_capacity(envelope.payload.len() + 64);
            envelope.write(&mut entry);
            bytes += entry.len();
            records.push(record(envelope.pod, entry));
            let next = envelopes.get(at + 1).map_or(PRODUCED_BYTES, |next| next.payload.len());
            if bytes + next >= PRODUCED_BYTES {
                let client = self.partition(envelope.pod).await?;
                let some = std::mem::take(&mut records);
                let is_alone = some.len() == 1;
                let produced = with_timeout(client.produce(some, Compression::NoCompression)).await;
                if is_alone && produced.as_ref().is_err_and(is_too_large) {
                    let sequence = envelope.sequence;
                    let cure = CURE;
                    return Err(SinkError::TooLarge { at, sequence, bytes, cure }.into());
                }
                produced?;
                bytes = 0;
            }
        }
        Ok(())
    }
}

impl KafkaSink {
    /// After an error, the next operation reconnects.
    fn checked<T>(&mut self, done: Result<T, BrokerFailure>) -> Result<T, SinkError> {
        done.map_err(|error| {
            self.partitions = None;
            self.found = None;
            self.heartbeats = None;
            error.into()
        })
    }

    async fn produce_heartbeat(&mut self, envelope: Envelope<'_>) -> Result<(), BrokerFailure> {
        let HeartbeatTopic { client, sent } = match self.heartbeats.take() {
            Some(topic) => topic,
            None => {
                let client = self.address.heartbeats().create(1).await?.swap_remove(0);
                HeartbeatTopic { client, sent: 0 }
            }
        };
        let mut entry = Vec::with_capacity(64);
        envelope.write(&mut entry);
        let heartbeat = vec![record(envelope.pod, entry)];
        let offsets = with_timeout(client.produce(heartbeat, Compression::NoCompression)).await?;
        if let Some(offset) =
            offsets.first().filter(|_| sent % HEARTBEATS_KEPT == HEARTBEATS_KEPT - 1)
        {
            // If the broker does not permit it, the records expire.
            let _ = with_timeout(client.delete_records(*offset, TIMEOUT.as_millis() as i32)).await;
        }
        self.heartbeats = Some(HeartbeatTopic { client, sent: sent.wrapping_add(1) });
        Ok(())
    }
}

impl Sink for KafkaSink {
    async fn last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let last = self.find_last(pod).await;
        self.checked(last)
    }

    async fn publish(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), SinkError> {
        let appended = self.append(envelopes).await;
        self.checked(appended)
    }

    async fn heartbeat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let produced = self.produce_heartbeat(envelope).await;
        self.checked(produced)
    }
}
