//! Cache events: engines' event streams, decoded and translated for the index.
//!
//! Bytes become events in two steps without I/O: [`wire`] decodes untrusted bytes into a typed
//! batch, and a [`Translator`] turns the batch into events for the index. A [`Feed`] decides for
//! each pod, without I/O too, what to do with a batch and which batches are missing; a [`PodFeed`]
//! executes that on the index.
//!
//! A [`Transport`] delivers messages of engines: [`ZeroMq`] from the engines themselves, [`Push`]
//! over HTTP, Redis Streams, NATS JetStream and Kafka behind the features of their names.
//! [`TRANSPORTS`] lists them. [`consume`] connects a transport with the [`EventPods`], [`relay`]
//! connects one with a broker.
#![forbid(unsafe_code)]

mod approximate;
mod block_id;
#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
mod broker;
pub mod checkpoint;
mod consume;
mod feed;
mod login;
mod message;
mod pod;
mod pods;
mod push;
mod registry;
mod relay;
mod sink;
mod translate;
mod transport;
pub mod wire;
mod zeromq;
pub mod zmtp;

pub use approximate::{
    ApproximateCache, ApproximateCaches, ApproximateSize, CacheChange, SentPrompt,
};
pub use block_id::{BlockIdScheme, BlockIdentity};
#[cfg(feature = "kafka")]
pub use broker::{Kafka, KafkaSink};
#[cfg(feature = "nats")]
pub use broker::{Nats, NatsSink};
#[cfg(feature = "redis")]
pub use broker::{RedisSink, RedisStreams};
pub use consume::{Clock, consume, run_timers, supervise};
pub use feed::{
    BatchAdmission, Feed, FeedCounters, FeedRules, FeedState, FeedStatus, FeedStep, Rebuild,
    ResumePoint, Resumed, SourceId,
};
pub use login::{BrokerLogin, UrlUser, has_password};
pub use message::{
    BatchId, Capabilities, Delivery, EngineDigest, Epoch, SourceHeartbeat, SourceMessage,
    SourceQuery,
};
pub use pod::{PodFeed, ServedModel};
pub use pods::SourceError;
pub use pods::{AttachedSource, EventPods, PodStatus};
#[cfg(feature = "grpc")]
pub use push::message as grpc;
pub use push::{
    PodTokens, Push, PushAccess, PushAccessError, PushError, PushService, PushedReport, TokenDigest,
};
pub use registry::{
    BrokerTask, RelayTask, SOURCE_KINDS, TRANSPORTS, TransportKind, TransportOrigin,
};
pub use relay::{RelayEvent, relay};
pub use sink::{BrokerStream, BrokerTransport, Sink, SinkError};
pub use translate::{TranslateError, Translated, Translator};
pub use transport::{PodName, SourceSignal, Transport};
pub use zeromq::{DialPolicy, EventSourcesError, ZeroMq, ZmqAddress, ZmqAddressError};
