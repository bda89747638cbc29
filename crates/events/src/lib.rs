//! How cache state arrives: engines' event streams, decoded and translated for the index.
//!
//! Bytes become events in two steps, neither of which does I/O: [`wire`] makes a typed batch of untrusted
//! bytes, and [`Translator`] makes events for the index of that batch. What to do with a batch, and what is
//! missing, a [`Feed`] decides for each pod, without I/O too; a [`Pod`] carries that out on the index.
//!
//! Whatever carries events implements [`Transport`]: [`ZeroMq`] straight from engines, [`Push`] over HTTP,
//! Redis Streams, NATS JetStream and Kafka behind the features of their names. [`consume`] brings a transport and
//! the [`Pods`] together, [`relay`] a transport and a broker.
#![forbid(unsafe_code)]

#[cfg(any(feature = "redis", feature = "nats", feature = "kafka"))]
mod broker;
pub mod checkpoint;
mod consume;
mod feed;
mod guess;
mod login;
mod pod;
mod pods;
mod push;
mod relay;
mod said;
mod translate;
mod transport;
mod trouble;
pub mod wire;
mod zeromq;
pub mod zmtp;

#[cfg(feature = "kafka")]
pub use broker::{Kafka, KafkaSink};
#[cfg(feature = "nats")]
pub use broker::{Nats, NatsSink};
#[cfg(feature = "redis")]
pub use broker::{RedisSink, RedisStreams};
pub use consume::{Clock, consume, keep_time, supervise};
pub use feed::{
    Admission, Feed, FeedCounters, Memo, Rebuild, Recalled, Rules, SourceId, State, Status, Step,
};
pub use guess::{Change, Guessed, Guesses, History, Sent};
pub use login::without_login;
pub use pod::{Pod, Serving};
pub use pods::{Attached, PodStatus, Pods};
#[cfg(feature = "grpc")]
pub use push::message as grpc;
pub use push::{Access, AccessError, Guests, Push, PushError, PushService, Pushed, TokenDigest};
pub use relay::{RelayNews, Sink, SinkError, relay};
pub use said::{Abilities, Ask, Beat, EngineDigest, Epoch, Heading, Said, Via};
pub use translate::{Names, TranslateError, Translated, Translator};
pub use transport::{Heard, PodName, Transport};
pub use trouble::Trouble;
pub use zeromq::{AddressError, Judge, ListedError, ZeroMq, ZmqAddress};
