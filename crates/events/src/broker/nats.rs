//! Events in NATS JetStream: one stream, one subject per pod, a message's body an envelope.
//!
//! Each router reads with an ordered consumer from its own cursor; at its start that is the stream's end,
//! and what came before is fetched pod by pod as replays. A cursor kept by the server would not help: a
//! router that starts has lost its index, not its place.
//!
//! Beats are plain messages to `<stream>-alive.<pod>`, outside the stream.

use super::{Broker, BrokerFailure, BrokerFollower, Positions, read, read_beat, take_replayed};
use crate::login::{Login, split};
use crate::message::{Delivery, SourceMessage};
use crate::relay::{KEPT_PER_POD, Sink, SinkError};
use crate::transport::{PodName, SourceSignal};
use crate::wire::Envelope;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::{Config, LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Event, Subscriber};
use futures_util::StreamExt;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const CURE: &str = "the server's `max_payload`, or the stream's `max_msg_size`";

/// Reads the subjects of some pods.
pub type Nats = BrokerFollower<Subjects>;

/// The subjects of some pods.
pub struct Subjects {
    place: StreamPosition,
    pods: HashMap<String, PodName>,
    marks: HashMap<PodName, Positions<u64>>,
    /// The last message read; unknown before the first connection.
    cursor: Option<u64>,
    /// When the stream was made in which that was.
    born: Option<i128>,
    link: Option<NatsLink>,
    heard: VecDeque<SourceSignal>,
    asked: VecDeque<(PodName, u64)>,
}

/// Where a server is, and what the stream is called.
#[derive(Clone)]
struct StreamPosition {
    url: String,
    login: Option<Login>,
    stream: String,
}

struct NatsLink {
    stream: Stream,
    live: Ordered,
    beats: Subscriber,
    replay: Option<(PodName, u64, Ordered)>,
    broken: mpsc::Receiver<()>,
}

impl Nats {
    /// For pods whose events are in `stream` at a `nats://` address.
    #[must_use]
    pub fn new(url: &str, stream: &str, pods: &[PodName]) -> Self {
        let place = StreamPosition::new(url, stream);
        let name = format!("{}/{stream}", place.url);
        let subjects = Subjects {
            pods: pods.iter().map(|pod| (place.subject(pod), Arc::clone(pod))).collect(),
            place,
            marks: HashMap::new(),
            cursor: None,
            born: None,
            link: None,
            heard: VecDeque::new(),
            asked: VecDeque::new(),
        };
        Self::named(name, pods, subjects)
    }
}

impl Broker for Subjects {
    fn heard(&mut self) -> &mut VecDeque<SourceSignal> {
        &mut self.heard
    }

    fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    async fn connect(&mut self) -> Result<(), BrokerFailure> {
        let (context, broken) = self.place.connect().await?;
        let stream = self.place.stream(&context).await?;
        let info = stream.cached_info();
        let (last, born) = (info.state.last_sequence, info.created.unix_timestamp_nanos());
        // A broker that was wiped has another stream, even if relays have filled it beyond our place by now.
        let is_same = self.born.replace(born).is_none_or(|known| known == born);
        let cursor = match self.cursor {
            None => last,
            Some(cursor) if is_same && cursor <= last => cursor,
            Some(_) => {
                self.marks.clear();
                0
            }
        };
        let live = ordered(&stream, cursor.saturating_add(1), String::new()).await?;
        let beats = context.client().subscribe(self.place.beat("*")).await?;
        self.cursor = Some(cursor);
        self.link = Some(NatsLink { stream, live, beats, replay: None, broken });
        let connected = |pod: &PodName| SourceSignal::Of(Arc::clone(pod), SourceMessage::Connected);
        self.heard.extend(self.pods.values().map(connected));
        Ok(())
    }

    fn disconnect(&mut self) -> bool {
        self.asked.clear();
        self.link.take().is_some()
    }

    /// Begins a replay, or takes a message.
    async fn advance(&mut self) -> Result<(), BrokerFailure> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if link.replay.is_none()
            && let Some((pod, from)) = self.asked.front().cloned()
        {
            let known = self.marks.get(&pod).and_then(|marks| marks.before(from));
            let subject = self.place.subject(&pod);
            let replay = ordered(&link.stream, known.unwrap_or(1), subject.clone()).await?;
            let waiting = link.stream.get_last_raw_message_by_subject(&subject).await.is_ok();
            self.asked.pop_front();
            if waiting {
                link.replay = Some((pod, from, replay));
            } else {
                self.heard.push_back(SourceSignal::Of(pod, SourceMessage::ReplayEnd));
            }
            return Ok(());
        }
        let replayed = async {
            match &mut link.replay {
                Some((_, _, replay)) => replay.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = link.broken.recv() => Err("the connection was lost".into()),
            message = link.live.next() => {
                let message = message.ok_or("the stream ended")??;
                self.arrived(&message)
            }
            message = replayed => {
                let message = message.ok_or("the replay ended")??;
                self.replayed(&message)
            }
            message = link.beats.next() => {
                let message = message.ok_or("the beats ended")?;
                self.beaten(&message);
                Ok(())
            }
        }
    }

    fn replay(&mut self, pod: &PodName, from: u64) {
        self.asked.retain(|(other, _)| other != pod);
        if let Some(link) = &mut self.link {
            link.replay.take_if(|(other, _, _)| other == pod);
        }
        self.asked.push_back((Arc::clone(pod), from));
    }
}

impl Subjects {
    fn arrived(&mut self, message: &jetstream::Message) -> Result<(), BrokerFailure> {
        let position = message.info()?.stream_sequence;
        self.cursor = Some(position);
        let Some(pod) = self.pods.get(message.subject.as_str()) else { return Ok(()) };
        let said = read(pod, &message.payload, Delivery::Live);
        self.marks.entry(Arc::clone(pod)).or_default().note(&said, position);
        self.heard.push_back(SourceSignal::Of(Arc::clone(pod), said));
        Ok(())
    }

    fn beaten(&mut self, message: &async_nats::Message) {
        let token = message.subject.strip_prefix(&self.place.beat(""));
        let subject = token.map(|token| format!("{}.{token}", self.place.stream));
        let Some(pod) = subject.and_then(|subject| self.pods.get(&subject)) else { return };
        let said = read_beat(pod, &message.payload);
        self.heard.extend(said.map(|said| SourceSignal::Of(Arc::clone(pod), said)));
    }

    fn replayed(&mut self, message: &jetstream::Message) -> Result<(), BrokerFailure> {
        let info = message.info()?;
        let (pending, position) = (info.pending, info.stream_sequence);
        let Some(link) = &mut self.link else { return Ok(()) };
        let Some((pod, from, _)) = &link.replay else { return Ok(()) };
        let marks = self.marks.entry(Arc::clone(pod)).or_default();
        take_replayed(pod, (&message.payload, position), (*from, marks), &mut self.heard);
        if pending == 0 {
            self.heard.push_back(SourceSignal::Of(Arc::clone(pod), SourceMessage::ReplayEnd));
            link.replay = None;
        }
        Ok(())
    }
}

/// Publishes into a stream, which it makes if it is not there.
pub struct NatsSink {
    place: StreamPosition,
    link: Option<NatsOutput>,
}

/// A connection to publish over.
struct NatsOutput {
    context: Context,
    stream: Stream,
    broken: mpsc::Receiver<()>,
}

impl NatsOutput {
    /// The largest message that the server takes.
    fn most_bytes(&self) -> usize {
        let stream = self.stream.cached_info().config.max_message_size;
        let stream = usize::try_from(stream).ok().filter(|most| *most > 0);
        stream.unwrap_or(usize::MAX).min(self.context.client().server_info().max_payload)
    }
}

impl NatsSink {
    /// For `stream` at a `nats://` address.
    #[must_use]
    pub fn new(url: &str, stream: &str) -> Self {
        Self { place: StreamPosition::new(url, stream), link: None }
    }

    /// The connection, which is made if there is none.
    async fn outlet(&mut self) -> Result<NatsOutput, BrokerFailure> {
        match self.link.take() {
            Some(outlet) => Ok(outlet),
            None => self.place.outlet().await,
        }
    }

    /// Keeps the connection if what was done over it went well.
    fn keep<T>(
        &mut self,
        outlet: NatsOutput,
        done: Result<T, BrokerFailure>,
    ) -> Result<T, SinkError> {
        self.link = done.is_ok().then_some(outlet);
        Ok(done?)
    }
}

impl Sink for NatsSink {
    async fn last(&mut self, pod: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let mut outlet = self.outlet().await?;
        let subject = self.place.subject(pod);
        let last = async {
            match outlet.stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => Ok(Some(message.payload.to_vec())),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let last = unbroken(&mut outlet.broken, last).await;
        self.keep(outlet, last)
    }

    async fn publish(&mut self, envelopes: &[Envelope<'_>]) -> Result<(), SinkError> {
        let mut outlet = self.outlet().await?;
        let publish = self.place.publish(&outlet.context, outlet.most_bytes(), envelopes);
        let published = unbroken(&mut outlet.broken, publish).await;
        self.keep(outlet, published)
    }

    async fn beat(&mut self, envelope: Envelope<'_>) -> Result<(), SinkError> {
        let mut outlet = self.outlet().await?;
        let mut body = Vec::with_capacity(64);
        envelope.write(&mut body);
        let subject = self.place.beat(&token(envelope.pod));
        let client = outlet.context.client();
        let beat = async { Ok(client.publish(subject, body.into()).await?) };
        let beaten = unbroken(&mut outlet.broken, beat).await;
        self.keep(outlet, beaten)
    }
}

/// A broker that is back at once is not the one that was asked: it will not answer.
async fn unbroken<T>(
    broken: &mut mpsc::Receiver<()>,
    what: impl Future<Output = Result<T, BrokerFailure>>,
) -> Result<T, BrokerFailure> {
    tokio::select! {
        biased;
        _ = broken.recv() => Err("the connection was lost".into()),
        done = what => done,
    }
}

impl StreamPosition {
    fn new(url: &str, stream: &str) -> Self {
        let (url, login) = split(url);
        Self { url, login, stream: stream.to_owned() }
    }

    fn subject(&self, pod: &str) -> String {
        format!("{}.{}", self.stream, token(pod))
    }

    /// Where a pod's relay says that it is there.
    fn beat(&self, token: &str) -> String {
        format!("{}-alive.{token}", self.stream)
    }

    /// Connects once. A connection that breaks is told, and not mended behind our back: what we know of
    /// the stream may be wrong by then.
    async fn connect(&self) -> Result<(Context, mpsc::Receiver<()>), BrokerFailure> {
        let (tell, broken) = mpsc::channel(1);
        let options = ConnectOptions::new();
        let client = match self.login.clone() {
            None => options,
            Some(Login::User(user, password)) => options.user_and_password(user, password),
            Some(Login::Token(token)) => options.token(token),
        };
        let client = client
            .connection_timeout(ANSWER_WITHIN)
            .request_timeout(Some(ANSWER_WITHIN))
            .ping_interval(ANSWER_WITHIN)
            .max_reconnects(1)
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    let _ = tell.try_send(());
                }
                std::future::ready(())
            })
            .connect(&self.url)
            .await?;
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER_WITHIN);
        Ok((context, broken))
    }

    async fn outlet(&self) -> Result<NatsOutput, BrokerFailure> {
        let (context, broken) = self.connect().await?;
        let stream = self.stream(&context).await?;
        Ok(NatsOutput { context, stream, broken })
    }

    /// Sends all and then waits for all answers; ends before one that the server would not take.
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
                let (sequence, bytes, cure) = (envelope.sequence, body.len(), CURE);
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

/// A pod's name as one token of a subject: what has a meaning there is written as its code.
fn token(pod: &str) -> String {
    let mut token = String::with_capacity(pod.len());
    for byte in pod.bytes() {
        match byte {
            b'.' | b'*' | b'>' | b'%' | 0..=b' ' | 0x7F.. => {
                token.push_str(&format!("%{byte:02X}"));
            }
            plain => token.push(char::from(plain)),
        }
    }
    token
}

async fn ordered(stream: &Stream, first: u64, subject: String) -> Result<Ordered, BrokerFailure> {
    let config = OrderedConfig {
        filter_subject: subject,
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: first },
        ..OrderedConfig::default()
    };
    Ok(stream.create_consumer(config).await?.messages().await?)
}
