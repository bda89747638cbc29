//! Events in Kafka: one topic, a pod's records in one of its partitions, a record's value an envelope.
//!
//! A pod's partition follows from its name, so its batches stay in order. Each router reads every partition that
//! has a pod of its own, from a cursor of its own, without consumer groups: all routers need all events. How long
//! a broker keeps records is the topic's own setting; what it dropped is a gap like any other.
//!
//! Beats are records of a topic of their own, `<topic>-alive`, which relays empty as they go and routers read from its
//! end only.

use super::{Broker, BrokerFailure, BrokerFollower, Positions, read, read_beat, take_replayed};
use crate::message::{Delivery, SourceMessage};
use crate::relay::{Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use rskafka::BackoffConfig;
use rskafka::chrono::{DateTime, Utc};
use rskafka::client::error::{Error as KafkaError, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a broker holds a fetch that finds nothing.
const HOLD: Duration = Duration::from_millis(250);
/// Bytes that are appended at a time; brokers refuse more than a million unless told otherwise.
const PRODUCED_BYTES: usize = 512 << 10;
const AT_ONCE: std::ops::Range<i32> = 1..4 << 20;
const CURE: &str = "the topic's `max.message.bytes`";
/// Partitions of a topic that a relay makes.
const PARTITIONS: i32 = 8;
/// Fetches that wait to be taken in.
const MOST_FETCHED: usize = 16;
/// Stands for the partition of beats among what was fetched.
const BEATS: i32 = -1;
/// How soon a topic of beats that cannot be read is looked for again.
const BEATS_AGAIN: Duration = Duration::from_secs(5);
/// After so many beats those before are deleted.
const BEATS_KEPT: u32 = 64;

/// Reads the partitions of some pods.
pub type Kafka = BrokerFollower<Partitions>;

/// The partitions of some pods.
pub struct Partitions {
    place: PartitionOffset,
    pods: Vec<KafkaSource>,
    /// Where each partition is read on; unknown before the first connection.
    cursors: BTreeMap<i32, Cursor>,
    link: Option<KafkaLink>,
    heard: VecDeque<SourceSignal>,
    replays: VecDeque<KafkaReplay>,
}

struct KafkaSource {
    pod: PodName,
    marks: Positions<i64>,
}

/// A place in a partition, and the record before it, by which it is known again: a topic that was wiped and filled
/// beyond the place has another one there. Kafka's own identity of a topic is in no answer that the client reads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cursor {
    next: i64,
    before: Option<u64>,
}

/// Where the brokers are, and what the topic is called.
#[derive(Clone)]
struct PartitionOffset {
    brokers: Vec<String>,
    topic: String,
}

struct KafkaLink {
    /// All partitions, for replays.
    replays: Vec<Arc<PartitionClient>>,
    fetched: mpsc::Receiver<Result<(i32, Vec<RecordAndOffset>), BrokerFailure>>,
    /// Ends with the link.
    _readers: JoinSet<()>,
}

/// A replay that is being read, piece by piece.
struct KafkaReplay {
    source: usize,
    /// The number asked from.
    from: u64,
    /// A place before which nothing of it is, if one is known.
    known: Option<i64>,
    /// The next record to read, and the end as it was when reading began.
    range: Option<(i64, i64)>,
}

impl Kafka {
    /// For pods whose events are in `topic` at `host:port` addresses, with commas between them.
    #[must_use]
    pub fn new(brokers: &str, topic: &str, pods: &[PodName]) -> Self {
        let source =
            |pod: &PodName| KafkaSource { pod: Arc::clone(pod), marks: Positions::default() };
        let partitions = Partitions {
            place: PartitionOffset::new(brokers, topic),
            pods: pods.iter().map(source).collect(),
            cursors: BTreeMap::new(),
            link: None,
            heard: VecDeque::new(),
            replays: VecDeque::new(),
        };
        Self::named(format!("kafka://{brokers}/{topic}"), pods, partitions)
    }
}

impl Broker for Partitions {
    fn heard(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.heard
    }

    fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        self.link = Some(self.open().await?);
        let connected = |source: &KafkaSource| {
            SourceSignal::Of(Arc::clone(&source.pod), SourceMessage::Connected)
        };
        self.heard.extend(self.pods.iter().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.replays.clear();
        self.link.take().is_some()
    }

    /// Reads a piece of a replay, or takes in what readers have fetched.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        if !self.replays.is_empty() {
            return self.read_replay().await;
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        let fetched = link.fetched.recv().await.ok_or("all readers have ended")?;
        let (partition, records) = fetched?;
        if partition == BEATS {
            for record in records {
                let Some(source) = self.of(&record) else { continue };
                let said = read_beat(&source.pod, value(&record));
                let heard = said.map(|said| SourceSignal::Of(Arc::clone(&source.pod), said));
                self.heard.extend(heard);
            }
            return Ok(());
        }
        if let Some(last) = records.last() {
            self.cursors.insert(partition, Cursor::after(last));
        }
        for record in records {
            if let Some(source) = self.of(&record) {
                let said = read(&source.pod, value(&record), Delivery::Live);
                source.marks.note(&said, record.offset);
                let heard = SourceSignal::Of(Arc::clone(&source.pod), said);
                self.heard.push_back(heard);
            }
        }
        Ok(())
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        let Some(source) = self.pods.iter().position(|source| source.pod == *pod) else { return };
        let known = self.pods[source].marks.before(from);
        self.replays.retain(|replaying| replaying.source != source);
        self.replays.push_back(KafkaReplay { source, from, known, range: None });
    }
}

impl Partitions {
    async fn open(&mut self) -> Result<KafkaLink, BrokerFailure> {
        let replays = self.place.partitions(&self.place.client().await?).await?;
        let (sender, fetched) = mpsc::channel(MOST_FETCHED);
        let mut readers = JoinSet::new();
        let count = replays.len();
        let wanted: BTreeSet<_> =
            self.pods.iter().map(|source| partition_of(&source.pod, count)).collect();
        for partition in wanted {
            // A broker answers what came over one connection in turn, and a fetch that finds nothing takes its time.
            // So each reader has a connection of its own, and replays wait for none of them.
            let number = replays[partition].partition();
            let client = self.place.client().await?;
            let client = Arc::new(self.place.partition(&client, number).await?);
            let cursor = self.find(&client).await?;
            readers.spawn(follow(client, cursor.next, sender.clone()));
        }
        readers.spawn(follow_beats(self.place.beats(), sender));
        Ok(KafkaLink { replays, fetched, _readers: readers })
    }

    /// Where to read a partition on: at its end when it is new, and from its beginning if our place is no more what it
    /// was. Then nothing else that we know of places holds either.
    async fn find(&mut self, client: &PartitionClient) -> Result<Cursor, BrokerFailure> {
        let earliest = in_time(client.get_offset(OffsetAt::Earliest)).await?;
        let latest = in_time(client.get_offset(OffsetAt::Latest)).await?;
        let known = self.cursors.get(&client.partition()).copied();
        let mut cursor = Cursor { next: known.map_or(latest, |known| known.next), before: None };
        if (earliest..latest).contains(&(cursor.next - 1)) {
            let (records, _) = in_time(client.fetch_records(cursor.next - 1, AT_ONCE, 1)).await?;
            let found = records.first().map(Cursor::after);
            cursor = found.filter(|found| found.next == cursor.next).unwrap_or(cursor);
        }
        let is_there = (earliest..=latest).contains(&cursor.next);
        if known.is_some_and(|known| !is_there || known != cursor) {
            cursor = Cursor { next: earliest, before: None };
            self.pods.iter_mut().for_each(|source| source.marks = Positions::default());
        }
        self.cursors.insert(client.partition(), cursor);
        Ok(cursor)
    }

    /// Whose record it is, if it is one of ours.
    fn of(&mut self, record: &RecordAndOffset) -> Option<&mut KafkaSource> {
        let key = record.record.key.as_deref()?;
        self.pods.iter_mut().find(|source| source.pod.as_bytes() == key)
    }

    async fn read_replay(&mut self) -> Result<(), BrokerFailure> {
        let (Some(link), Some(replaying)) = (&self.link, self.replays.front_mut()) else {
            return Ok(());
        };
        let source = &mut self.pods[replaying.source];
        let client = &link.replays[partition_of(&source.pod, link.replays.len())];
        let (next, end) = match replaying.range {
            Some(range) => range,
            None => {
                let earliest = in_time(client.get_offset(OffsetAt::Earliest)).await?;
                let latest = in_time(client.get_offset(OffsetAt::Latest)).await?;
                // A place before the earliest was trimmed, one after the latest is of a broker that was wiped.
                let known = replaying.known.filter(|known| (earliest..=latest).contains(known));
                (known.unwrap_or(earliest), latest)
            }
        };
        let mut records = Vec::new();
        if next < end {
            records = in_time(client.fetch_records(next, AT_ONCE, 1)).await?.0;
        }
        for record in &records {
            if record.record.key.as_deref() == Some(source.pod.as_bytes()) {
                let (read, from) = ((value(record), record.offset), replaying.from);
                take_replayed(&source.pod, read, (from, &mut source.marks), &mut self.heard);
            }
        }
        // Where nothing comes of a piece, nothing more is to be had.
        let read_to = records.last().map_or(end, |record| record.offset + 1);
        replaying.range = Some((read_to, end));
        if read_to >= end {
            self.heard
                .push_back(SourceSignal::Of(Arc::clone(&source.pod), SourceMessage::ReplayEnd));
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

/// Reads a partition on and on; ends when nobody listens or a fetch fails, also because the place is gone.
async fn follow(
    client: Arc<PartitionClient>,
    mut cursor: i64,
    to: mpsc::Sender<Result<(i32, Vec<RecordAndOffset>), BrokerFailure>>,
) {
    loop {
        let fetched =
            timeout(ANSWER_WITHIN, client.fetch_records(cursor, AT_ONCE, HOLD.as_millis() as i32));
        let news = match fetched.await {
            Err(_) => Err("a fetch took too long".into()),
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
        let news = news.map(|records| (client.partition(), records));
        if to.send(news).await.is_err() || is_over {
            return;
        }
    }
}

/// Reads beats from now on. A topic of them that is not there yet may come.
async fn follow_beats(
    place: PartitionOffset,
    to: mpsc::Sender<Result<(i32, Vec<RecordAndOffset>), BrokerFailure>>,
) {
    while !to.is_closed() {
        // Why it ended does not matter: silence says the same.
        let _ = read_beats(&place, &to).await;
        tokio::time::sleep(BEATS_AGAIN).await;
    }
}

async fn read_beats(
    place: &PartitionOffset,
    to: &mpsc::Sender<Result<(i32, Vec<RecordAndOffset>), BrokerFailure>>,
) -> Result<(), BrokerFailure> {
    let client = place.client().await?;
    let client = place.partitions(&client).await?.swap_remove(0);
    let mut next = in_time(client.get_offset(OffsetAt::Latest)).await?;
    loop {
        let hold = HOLD.as_millis() as i32;
        let (records, _) = in_time(client.fetch_records(next, AT_ONCE, hold)).await?;
        let Some(last) = records.last() else { continue };
        next = last.offset + 1;
        to.send(Ok((BEATS, records))).await?;
    }
}

/// Publishes into a topic.
pub struct KafkaSink {
    place: PartitionOffset,
    partitions: Option<Vec<Arc<PartitionClient>>>,
    /// The last record of a pod as it was found, and the partition's end then. While that end is not before it, and
    /// nothing was appended, it is still there.
    found: Option<(i64, Option<Vec<u8>>)>,
    /// Where beats go, and how many went there.
    beats: Option<(Arc<PartitionClient>, u32)>,
}

impl KafkaSink {
    /// For `topic` at `host:port` addresses, with commas between them. A topic that is not there is made.
    #[must_use]
    pub fn new(brokers: &str, topic: &str) -> Self {
        Self {
            place: PartitionOffset::new(brokers, topic),
            partitions: None,
            found: None,
            beats: None,
        }
    }

    async fn partition(&mut self, pod: &str) -> Result<&PartitionClient, BrokerFailure> {
        let partitions = match &mut self.partitions {
            Some(partitions) => partitions,
            none => none.insert(self.place.made(PARTITIONS).await?),
        };
        Ok(&partitions[partition_of(pod, partitions.len())])
    }

    /// The last record of a pod: read backwards in growing pieces, since pods share partitions.
    async fn find_last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, BrokerFailure> {
        let found = self.found.take();
        let client = self.partition(pod).await?;
        let earliest = in_time(client.get_offset(OffsetAt::Earliest)).await?;
        let latest = in_time(client.get_offset(OffsetAt::Latest)).await?;
        if let Some((end, last)) = found.filter(|(end, _)| *end <= latest) {
            self.found = Some((end, last.clone()));
            return Ok(last);
        }
        let mut back = 64;
        loop {
            let start = (latest - back).max(earliest);
            let (mut next, mut last) = (start, None);
            while next < latest {
                let (records, _) = in_time(client.fetch_records(next, AT_ONCE, 1)).await?;
                let Some(end) = records.last().map(|record| record.offset + 1) else { break };
                let own =
                    |one: &&RecordAndOffset| one.record.key.as_deref() == Some(pod.as_bytes());
                last = records.iter().rfind(own).map(|one| value(one).to_vec()).or(last);
                next = end;
            }
            if last.is_some() || start <= earliest {
                self.found = Some((latest, last.clone()));
                return Ok(last);
            }
            back *= 8;
        }
    }

    /// Appends records of one pod, as many at once as brokers take by default.
    async fn append(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), BrokerFailure> {
        self.found = None;
        let (mut records, mut bytes) = (Vec::new(), 0);
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
                let produced = in_time(client.produce(some, Compression::NoCompression)).await;
                if is_alone && produced.as_ref().is_err_and(is_too_large) {
                    let (sequence, cure) = (envelope.sequence, CURE);
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
    /// After an error, everything is connected anew.
    fn checked<T>(&mut self, done: Result<T, BrokerFailure>) -> Result<T, SinkError> {
        done.map_err(|error| {
            (self.partitions, self.found, self.beats) = (None, None, None);
            error.into()
        })
    }

    async fn produce_beat(&mut self, envelope: Envelope<'_>) -> Result<(), BrokerFailure> {
        let (client, count) = match self.beats.take() {
            Some(beats) => beats,
            None => (self.place.beats().made(1).await?.swap_remove(0), 0),
        };
        let mut entry = Vec::with_capacity(64);
        envelope.write(&mut entry);
        let beat = vec![record(envelope.pod, entry)];
        let offsets = in_time(client.produce(beat, Compression::NoCompression)).await?;
        if let Some(offset) = offsets.first().filter(|_| count % BEATS_KEPT == BEATS_KEPT - 1) {
            // A broker that does not let us delete them drops them by their age.
            let _ = in_time(client.delete_records(*offset, ANSWER_WITHIN.as_millis() as i32)).await;
        }
        self.beats = Some((client, count.wrapping_add(1)));
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

    async fn beat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let produced = self.produce_beat(envelope).await;
        self.checked(produced)
    }
}

impl PartitionOffset {
    fn new(brokers: &str, topic: &str) -> Self {
        let brokers = brokers.split(',').map(str::to_owned).collect();
        Self { brokers, topic: topic.to_owned() }
    }

    /// Where relays say that they are there.
    fn beats(&self) -> Self {
        Self { topic: format!("{}-alive", self.topic), ..self.clone() }
    }

    async fn client(&self) -> Result<Client, BrokerFailure> {
        // Who fails is tried again from the start, since the brokers may be others by then.
        let patience = BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            deadline: Some(ANSWER_WITHIN),
            ..BackoffConfig::default()
        };
        let builder = ClientBuilder::new(self.brokers.clone()).backoff_config(patience);
        in_time(builder.build()).await
    }

    /// The topic's partitions, in order.
    async fn partitions(
        &self,
        client: &Client,
    ) -> Result<Vec<Arc<PartitionClient>>, BrokerFailure> {
        let topics = in_time(client.list_topics()).await?;
        let topic = topics.into_iter().find(|topic| topic.name == self.topic);
        let numbers = topic.map(|topic| topic.partitions).unwrap_or_default();
        if numbers.is_empty() {
            return Err(format!("there is no topic `{}`; does a relay fill it?", self.topic).into());
        }
        let mut partitions = Vec::new();
        for number in numbers {
            partitions.push(Arc::new(self.partition(client, number).await?));
        }
        Ok(partitions)
    }

    async fn partition(
        &self,
        client: &Client,
        number: i32,
    ) -> Result<PartitionClient, BrokerFailure> {
        let handling = UnknownTopicHandling::Error;
        in_time(client.partition_client(self.topic.clone(), number, handling)).await
    }

    /// The same, after making the topic if it is not there.
    async fn made(&self, partitions: i32) -> Result<Vec<Arc<PartitionClient>>, BrokerFailure> {
        let client = self.client().await?;
        if let Ok(partitions) = self.partitions(&client).await {
            return Ok(partitions);
        }
        let controller = client.controller_client()?;
        let answer_within = ANSWER_WITHIN.as_millis() as i32;
        // Another relay may be quicker; then it is there.
        let _ = in_time(controller.create_topic(&self.topic, partitions, 1, answer_within)).await;
        self.partitions(&client).await
    }
}

fn is_too_large(failure: &BrokerFailure) -> bool {
    let too_large = [ProtocolError::MessageTooLarge, ProtocolError::RecordListTooLarge];
    matches!(
        failure.downcast_ref(),
        Some(KafkaError::ServerError { protocol_error, .. }) if too_large.contains(protocol_error)
    )
}

/// Relays and routers must agree on it.
fn partition_of(pod: &str, partitions: usize) -> usize {
    (xxh3_64(pod.as_bytes()) % partitions.max(1) as u64) as usize
}

fn record(pod: &str, entry: Vec<u8>) -> Record {
    let key = Some(pod.as_bytes().to_vec());
    Record { key, value: Some(entry), headers: BTreeMap::new(), timestamp: now() }
}

/// The envelope in a record; a record without one is malformed as any other bytes are.
fn value(record: &RecordAndOffset) -> &[u8] {
    record.record.value.as_deref().unwrap_or_default()
}

async fn in_time<T>(
    answer: impl Future<Output = Result<T, KafkaError>>,
) -> Result<T, BrokerFailure> {
    Ok(timeout(ANSWER_WITHIN, answer).await??)
}

/// Brokers drop records by their age.
#[allow(clippy::disallowed_methods, reason = "nothing is decided by it here")]
fn now() -> DateTime<Utc> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    DateTime::from_timestamp_millis(since.as_millis() as i64).unwrap_or_default()
}
