//! Events in NATS JetStream: one stream, one subject per pod, a message's body an envelope.
//!
//! Each router reads with an ordered consumer from its own cursor. It starts at the stream's end,
//! and fetches earlier messages pod by pod as replays. A cursor on the server would not help: a
//! router that starts has lost its index, not its position.
//!
//! Heartbeats are plain messages to `<stream>-alive.<pod>`, outside the stream.

use super::{
    Broker, BrokerFailure, BrokerFollower, Positions, ReplayedEntry, push_replayed, read,
    read_heartbeat,
};
use crate::login::BrokerLogin;
use crate::message::{Delivery, SourceMessage};
use crate::sink::{BrokerStream, BrokerTransport, KEPT_PER_POD, Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::{Config, LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Event, Subscriber};
use futures_util::StreamExt;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustls::{ClientConfig, RootCertStore};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use wornpath_tls::{ClientTls, client_config, tls_error};

const TIMEOUT: Duration = Duration::from_secs(2);
/// The setting that limits the size of a message.
const CURE: &str = "the server's `max_payload`, or the stream's `max_msg_size`";
const WANTS_TLS: &str = "the server demands TLS, and the URL begins with `nats://`; write `tls://`, \
                         and give `tls` with the `ca` of its certificate";

/// Reads the subjects of some pods.
pub type Nats = BrokerFollower<Subjects>;

/// The subjects of some pods.
pub struct Subjects {
    address: NatsAddress,
    pods: HashMap<String, PodName>,
    positions: HashMap<PodName, Positions<u64>>,
    /// The last message read; unknown before the first connection.
    cursor: Option<u64>,
    /// Creation time of the stream that the cursor is in.
    stream_created: Option<i128>,
    connection: Option<NatsConnection>,
    signals: VecDeque<SourceSignal>,
    replays: VecDeque<QueuedReplay>,
}

/// A server and a stream.
#[derive(Clone)]
struct NatsAddress {
    url: String,
    login: Option<BrokerLogin>,
    stream: String,
    tls: Option<ClientTls>,
}

/// A replay that has not started yet.
#[derive(Clone)]
struct QueuedReplay {
    pod: PodName,
    from: u64,
}

/// A replay that is being read.
struct NatsReplay {
    pod: PodName,
    from: u64,
    messages: Ordered,
}

struct NatsConnection {
    stream: Stream,
    live: Ordered,
    heartbeats: Subscriber,
    replay: Option<NatsReplay>,
    disconnected: mpsc::Receiver<()>,
}

impl BrokerTransport for Nats {
    type Sink = NatsSink;

    fn open(address: &BrokerStream, pods: &[PodName]) -> Result<Self, String> {
        let address = NatsAddress::new(address);
        let name = format!("{}/{}", address.url, address.stream);
        let subjects = Subjects {
            pods: pods.iter().map(|pod| (address.subject(pod), Arc::clone(pod))).collect(),
            address,
            positions: HashMap::new(),
            cursor: None,
            stream_created: None,
            connection: None,
            signals: VecDeque::new(),
            replays: VecDeque::new(),
        };
        Ok(Self::named(name, pods, subjects))
    }

    fn open_sink(address: &BrokerStream) -> Result<NatsSink, String> {
        Ok(NatsSink { address: NatsAddress::new(address), connection: None })
    }
}

impl Broker for Subjects {
    fn signals(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.signals
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        let (context, disconnected) = self.address.connect().await?;
        let stream = self.address.stream(&context).await?;
        let info = stream.cached_info();
        let last = info.state.last_sequence;
        let stream_created = info.created.unix_timestamp_nanos();
        // A wiped broker has a new stream, even if relays have filled it past our cursor by now.
        let is_same =
            self.stream_created.replace(stream_created).is_none_or(|known| known == stream_created);
        let cursor = match self.cursor {
            None => last,
            Some(cursor) if is_same && cursor <= last => cursor,
            Some(_) => {
                self.positions.clear();
                0
            }
        };
        let live = ordered(&stream, cursor.saturating_add(1), String::new()).await?;
        let heartbeats = context.client().subscribe(self.address.heartbeat("*")).await?;
        self.cursor = Some(cursor);
        self.connection =
            Some(NatsConnection { stream, live, heartbeats, replay: None, disconnected });
        let connected =
            |pod: &PodName| SourceSignal::Pod(Arc::clone(pod), SourceMessage::Connected);
        self.signals.extend(self.pods.values().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.replays.clear();
        self.connection.take().is_some()
    }

    /// Starts a replay, or reads a message.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if connection.replay.is_none()
            && let Some(QueuedReplay { pod, from }) = self.replays.front().cloned()
        {
            let known = self.positions.get(&pod).and_then(|positions| positions.before(from));
            let subject = self.address.subject(&pod);
            let replay = ordered(&connection.stream, known.unwrap_or(1), subject.clone()).await?;
            let has_messages =
                connection.stream.get_last_raw_message_by_subject(&subject).await.is_ok();
            self.replays.pop_front();
            if has_messages {
                connection.replay = Some(NatsReplay { pod, from, messages: replay });
            } else {
                self.signals.push_back(SourceSignal::Pod(pod, SourceMessage::ReplayEnd));
            }
            return Ok(());
        }
        let replayed = async {
            match &mut connection.replay {
                Some(replay) => replay.messages.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = connection.disconnected.recv() => Err("connection lost".into()),
            message = connection.live.next() => {
                let message = message.ok_or("the consumer of the stream ended")??;
                self.handle_live(&message)
            }
            message = replayed => {
                let message = message.ok_or("the consumer of a replay ended")??;
                self.handle_replayed(&message)
            }
            message = connection.heartbeats.next() => {
                let message = message.ok_or("the heartbeat subscription ended")?;
                self.handle_heartbeat(&message);
                Ok(())
            }
        }
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        self.replays.retain(|queued| queued.pod != *pod);
        if let Some(connection) = &mut self.connection {
            connection.replay.take_if(|replay| replay.pod == *pod);
        }
        self.replays.push_back(QueuedReplay { pod: Arc::clone(pod), from });
    }
}

impl Subjects {
    fn handle_live(&mut self, message: &jetstream::Message) -> Result<(), BrokerFailure> {
        let position = message.info()?.stream_sequence;
        self.cursor = Some(position);
        let Some(pod) = self.pods.get(message.subject.as_str()) else { return Ok(()) };
        let parsed = read(pod, &message.payload, Delivery::Live);
        self.positions.entry(Arc::clone(pod)).or_default().note(&parsed, position);
        self.signals.push_back(SourceSignal::Pod(Arc::clone(pod), parsed));
        Ok(())
    }

    fn handle_heartbeat(&mut self, message: &async_nats::Message) {
        let token = message.subject.strip_prefix(&self.address.heartbeat(""));
        let subject = token.map(|token| format!("{}.{token}", self.address.stream));
        let Some(pod) = subject.and_then(|subject| self.pods.get(&subject)) else { return };
        let parsed = read_heartbeat(pod, &message.payload);
        self.signals.extend(parsed.map(|parsed| SourceSignal::Pod(Arc::clone(pod), parsed)));
    }

    fn handle_replayed(&mut self, message: &jetstream::Message) -> Result<(), BrokerFailure> {
        let info = message.info()?;
        let pending = info.pending;
        let position = info.stream_sequence;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let Some(NatsReplay { pod, from, .. }) = &connection.replay else { return Ok(()) };
        let positions = self.positions.entry(Arc::clone(pod)).or_default();
        let entry = ReplayedEntry { bytes: &message.payload, position };
        push_replayed(pod, *from, entry, positions, &mut self.signals);
        if pending == 0 {
            self.signals.push_back(SourceSignal::Pod(Arc::clone(pod), SourceMessage::ReplayEnd));
            connection.replay = None;
        }
        Ok(())
    }
}

/// Publishes to a stream, and creates it if needed.
pub struct NatsSink {
    address: NatsAddress,
    connection: Option<NatsPublisher>,
}

/// A connection for publishing.
struct NatsPublisher {
    context: Context,
    stream: Stream,
    disconnected: mpsc::Receiver<()>,
}

impl NatsPublisher {
    /// The largest message that the server accepts.
    fn max_message_bytes(&self) -> usize {
        let stream = self.stream.cached_info().config.max_message_size;
        let stream = usize::try_from(stream).ok().filter(|most| *most > 0);
        stream.unwrap_or(usize::MAX).min(self.context.client().server_info().max_payload)
    }
}

impl NatsSink {
    /// The open connection, or a new one.
    async fn publisher(&mut self) -> Result<NatsPublisher, BrokerFailure> {
        match self.connection.take() {
            Some(publisher) => Ok(publisher),
            None => self.address.publisher().await,
        }
    }

    /// Keeps the connection unless the operation failed.
    fn keep<T>(
        &mut self,
        publisher: NatsPublisher,
        done: Result<T, BrokerFailure>,
    ) -> Result<T, SinkError> {
        self.connection = done.is_ok().then_some(publisher);
        Ok(done?)
    }
}

impl Sink for NatsSink {
    async fn last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let mut publisher = self.publisher().await?;
        let subject = self.address.subject(pod);
        let last = async {
            match publisher.stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => Ok(Some(message.payload.to_vec())),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let last = unless_disconnected(&mut publisher.disconnected, last).await;
        self.keep(publisher, last)
    }

    async fn publish(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), SinkError> {
        let mut publisher = self.publisher().await?;
        let publish =
            self.address.publish(&publisher.context, publisher.max_message_bytes(), envelopes);
        let published = unless_disconnected(&mut publisher.disconnected, publish).await;
        self.keep(publisher, published)
    }

    async fn heartbeat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let mut publisher = self.publisher().await?;
        let mut body = Vec::with_capacity(64);
        envelope.write(&mut body);
        let subject = self.address.heartbeat(&token(envelope.pod));
        let client = publisher.context.client();
        let heartbeat = async { Ok(client.publish(subject, body.into()).await?) };
        let handle_heartbeat = unless_disconnected(&mut publisher.disconnected, heartbeat).await;
        self.keep(publisher, handle_heartbeat)
    }
}

/// Fails as soon as the connection is lost: after a reconnect the server no longer answers the
/// request.
async fn unless_disconnected<T>(
    disconnected: &mut mpsc::Receiver<()>,
    what: impl Future<Output = Result<T, BrokerFailure>>,
) -> Result<T, BrokerFailure> {
    tokio::select! {
        biased;
        _ = disconnected.recv() => Err("connection lost".into()),
        done = what => done,
    }
}

impl NatsAddress {
    fn new(address: &BrokerStream) -> Self {
        let BrokerStream { url, stream, login, tls } = address.clone();
        Self { url, login, stream, tls }
    }

    fn subject(&self, pod: &str) -> String {
        format!("{}.{}", self.stream, token(pod))
    }

    /// The subject of a pod's heartbeats.
    fn heartbeat(&self, token: &str) -> String {
        format!("{}-alive.{token}", self.stream)
    }

    /// Connects without the client's own reconnects: after a lost connection our knowledge of the
    /// stream may be wrong. The receiver gets a message when the connection is lost.
    async fn connect(&self) -> Result<(Context, mpsc::Receiver<()>), BrokerFailure> {
        let (notify, disconnected) = mpsc::channel(1);
        let options = ConnectOptions::new();
        let client = match self.login.clone() {
            None => options,
            Some(BrokerLogin { user: Some(user), password }) => {
                options.user_and_password(user, password)
            }
            Some(BrokerLogin { user: None, password: token }) => options.token(token),
        };
        let client = match &self.tls {
            // Should the server want TLS, the client would trust the system's CAs.
            None => client.tls_client_config(client_config(RootCertStore::empty(), None)?),
            Some(tls) => {
                client.require_tls(true).tls_client_config(ClientConfig::clone(tls.config()))
            }
        };
        let client = client
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .ping_interval(TIMEOUT)
            .max_reconnects(1)
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    let _ = notify.try_send(());
                }
                std::future::ready(())
            })
            .connect(&self.url)
            .await
            .map_err(|error| match tls_error(&error) {
                Some(_) if self.tls.is_none() => WANTS_TLS.into(),
                _ => BrokerFailure::from(error),
            })?;
        let mut context = jetstream::new(client);
        context.set_timeout(TIMEOUT);
        Ok((context, disconnected))
    }

    async fn publisher(&self) -> Result<NatsPublisher, BrokerFailure> {
        let (context, disconnected) = self.connect().await?;
        let stream = self.stream(&context).await?;
        Ok(NatsPublisher { context, stream, disconnected })
    }

    /// Sends all envelopes, then waits for all acknowledgements; stops before one that is too
    /// large.
    async fn publish(
        &self,
        context: &Context,
        most: usize,
        envelopes: &[Envelope<'_>],
    ) -> Result<(), BrokerFailure> {
        let mut sent = Vec::with_capacity(envelopes.len());
        let mut refused = None;
        for (at, envelope) in envelopes.iter().enumerate() {
            let mut body = Vec::with_capacity(envelope.payload.len() + 64);
            envelope.write(&mut body);
            if body.len() > most {
                let sequence = envelope.sequence;
                let bytes = body.len();
                let cure = CURE;
                refused = Some(SinkError::TooLarge { at, sequence, bytes, cure });
                break;
            }
            sent.push(context.publish(self.subject(envelope.pod), body.into()).await?);
        }
        for answer in sent {
            answer.await?;
        }
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    async fn stream(&self, context: &Context) -> Result<Stream, BrokerFailure> {
        let config = Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.stream)],
            max_messages_per_subject: KEPT_PER_POD as i64,
            ..Config::default()
        };
        Ok(context.get_or_create_stream(config).await?)
    }
}

/// What a token of a subject cannot contain.
const SPECIAL: &AsciiSet = &CONTROLS.add(b' ').add(b'.').add(b'*').add(b'>').add(b'%');

/// A pod's name as one token of a subject: special characters are percent-encoded.
fn token(pod: &str) -> String {
    utf8_percent_encode(pod, SPECIAL).to_string()
}

async fn ordered(stream: &Stream, first: u64, subject: String) -> Result<Ordered, BrokerFailure> {
    let config = OrderedConfig {
        filter_subject: subject,
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: first },
        ..OrderedConfig::default()
    };
    Ok(stream.create_consumer(config).await?.messages().await?)
}
