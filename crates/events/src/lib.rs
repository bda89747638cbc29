//! How cache state arrives: engines' event streams, decoded and translated for the index.
//!
//! A message goes through two steps, neither of which does I/O: [`wire`] makes a typed batch of
//! untrusted bytes, and [`Translator`] makes events for the index of that batch. Transports come on
//! top of these and only carry bytes.
#![forbid(unsafe_code)]

mod feed;
mod pod;
mod said;
mod translate;
pub mod wire;
pub mod zmtp;

pub use feed::{Admission, Feed, FeedCounters, Rebuild, Rules, SourceId, State, Status, Step};
pub use pod::{Pod, Serving};
pub use said::{Abilities, Ask, EngineDigest, Epoch, Heading, Said, Via};
pub use translate::{TranslateError, Translated, Translator};
