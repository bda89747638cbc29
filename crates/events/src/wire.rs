//! How engines write cache events: the frames of a message and its msgpack payload.
//!
//! vLLM and SGLang publish over ZeroMQ what their block pools do. A message becomes a typed [`WireBatch`]
//! in two steps, [`Message::parse`] and [`decode`], without I/O and without trust: any bytes give a
//! batch or an error that names the field. What a batch means for the index is the
//! [`Translator`](crate::Translator)'s question; here tokens, extra keys and groups stay as they came.
//!
//! ```
//! use wornpath_events::wire::{Batch, Dialect, Event, HashForm, Layout, Limits, decode, encode};
//!
//! let mut sent = Batch::default();
//! sent.push(Event::Cleared);
//! let mut payload = Vec::new();
//! let dialect = Dialect { layout: Layout::Maps, hashes: HashForm::Unsigned };
//! encode(&sent, dialect, &mut payload);
//!
//! let mut received = Batch::default();
//! decode(&payload, &Limits::default(), &mut received)?;
//! assert!(received.events().eq([Event::Cleared]));
//! # Ok::<(), wornpath_events::wire::DecodeError>(())
//! ```

mod batch;
mod capture;
mod decode;
mod encode;
mod envelope;
mod error;
mod extra;
mod fields;
mod frames;
mod limits;
mod msgpack;
mod pack;

pub use batch::{DecodeNotice, WireBatch, WireEvent, WireRemoved, WireStored};
pub use capture::records;
pub use decode::decode;
pub use encode::{HashForm, WireDialect, WireLayout, encode};
pub use envelope::Envelope;
pub use error::DecodeError;
pub use extra::{ExtraKeysBuffer, WireExtraKey, WireExtraKeys};
pub(crate) use fields::tier_by_name;
pub use frames::WireMessage;
pub use limits::WireLimits;
