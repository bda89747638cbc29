//! How cache state arrives: engines' event streams, decoded and translated for the index.
//!
//! A message goes through two steps, neither of which does I/O: [`wire`] makes a typed batch of
//! untrusted bytes, and [`Translator`] makes events for the index of that batch. Transports come on
//! top of these and only carry bytes.
#![forbid(unsafe_code)]

#[cfg(any(feature = "redis", feature = "nats"))]
mod broker;
mod consume;
mod feed;
mod pod;
mod pods;
mod push;
mod relay;
mod said;
mod translate;
mod transport;
pub mod wire;
mod zeromq;
pub mod zmtp;

#[cfg(feature = "nats")]
pub use broker::{Nats, NatsSink};
#[cfg(feature = "redis")]
pub use broker::{RedisSink, RedisStreams};
pub use consume::{Clock, consume, keep_time, supervise};
pub use feed::{Admission, Feed, FeedCounters, Rebuild, Rules, SourceId, State, Status, Step};
pub use pod::{Pod, Serving};
pub use pods::{Attached, PodStatus, Pods};
pub use push::{Access, AccessError, Push, PushError, PushService};
pub use relay::{Sink, SinkError, relay};
pub use said::{Abilities, Ask, EngineDigest, Epoch, Heading, Said, Via};
pub use translate::{Names, TranslateError, Translated, Translator};
pub use transport::{Heard, PodName, Transport};
pub use zeromq::{AddressError, ZeroMq, ZmqAddress};
