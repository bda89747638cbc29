//! How cache state arrives: engines' event streams, decoded and translated for the index.
//!
//! Bytes become events in two steps, neither of which does I/O: [`wire`] makes a typed batch of untrusted
//! bytes, and [`Translator`] makes events for the index of that batch. What to do with a batch, and what is
//! missing, a [`Feed`] decides for each pod, without I/O too; a [`PodFeed`] carries that out on the index.
//!
//! Whatever carries events implements [`Transport`]: [`ZeroMq`] straight from engines, [`Push`] over HTTP,
//! Redis Streams, NATS JetStream and Kafka behind the features of their names. [`consume`] brings a transport and
//! the [`EventPods`] together, [`relay`] a transport and a broker.
#![forbid(unsafe_code)]

mod approximate;
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
mod relay;
mod source_error;
mod translate;
mod transport;
pub mod wire;
mod zeromq;
pub mod zmtp;

pub use approximate::{
    ApproximateCache, ApproximateCaches, ApproximateSize, CacheChange, SentPrompt,
};
#[cfg(feature = "kafka")]
pub use broker::{Kafka, KafkaSink};
#[cfg(feature = "nats")]
pub use broker::{Nats, NatsSink};
#[cfg(feature = "redis")]
pub use broker::{RedisSink, RedisStreams};
pub use consume::{EventClock, consume, keep_time, supervise};
pub use feed::{
    BatchAdmission, Feed, FeedCounters, FeedRules, FeedState, FeedStatus, FeedStep, Rebuild,
    ResumePoint, Resumed, SourceId,
};
pub use login::without_login;
pub use message::{
    BatchId, Capabilities, Delivery, EngineDigest, Epoch, SourceHeartbeat, SourceMessage,
    SourceQuery,
};
pub use pod::{PodFeed, ServedModel};
pub use pods::{AttachedPod, EventPods, PodStatus};
#[cfg(feature = "grpc")]
pub use push::message as grpc;
pub use push::{
    PodTokens, Push, PushAccess, PushAccessError, PushError, PushService, PushedMessage,
    TokenDigest,
};
pub use relay::{RelayEvent, Sink, SinkError, relay};
pub use source_error::SourceError;
pub use translate::{BlockIdScheme, TranslateError, Translated, Translator};
pub use transport::{PodName, SourceSignal, Transport};
pub use zeromq::{DialPolicy, EventSourcesError, ZeroMq, ZmqAddress, ZmqAddressError};
