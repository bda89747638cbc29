//! The wire format of engines' cache events: the frames of a message and its msgpack payload.
//!
//! vLLM and SGLang publish the changes of their block pools over ZeroMQ. A message becomes a typed
//! [`WireBatch`] in two steps, [`WireMessage::parse`] and [`decode`], without I/O and without
//! trust: any bytes give a batch or an error that names the field. Tokens, extra keys and groups
//! stay as they were sent; the [`Translator`](crate::Translator) interprets them.
//!
//! ```
//! use wornpath_events::wire::{HashForm, WireBatch, WireDialect, WireEvent, WireLayout};
//! use wornpath_events::wire::{WireLimits, decode, encode};
//!
//! let mut sent = WireBatch::default();
//! sent.push(WireEvent::Cleared);
//! let mut payload = Vec::new();
//! let dialect = WireDialect { layout: WireLayout::Maps, hashes: HashForm::Unsigned };
//! encode(&sent, dialect, &mut payload);
//!
//! let mut received = WireBatch::default();
//! decode(&payload, &WireLimits::default(), &mut received)?;
//! assert!(received.events().eq([WireEvent::Cleared]));
//! # Ok::<(), wornpath_events::wire::DecodeError>(())
//! ```

mod batch;
mod decode;
mod encode;
mod envelope;
mod error;
mod extra;
mod fields;
mod frames;
mod msgpack;
mod pack;

pub use batch::{GroupAttention, WireBatch, WireEvent, WireRemoved, WireStored};

pub use decode::{WireLimits, decode};
pub use encode::{HashForm, WireDialect, WireLayout, encode};
pub use envelope::Envelope;
pub use error::DecodeError;
pub use extra::{ExtraKeysBuffer, WireExtraKey, WireExtraKeys};
pub(crate) use fields::tier_by_name;
pub use frames::{WireMessage, records};
