//! Which pod holds which block, now.
#![forbid(unsafe_code)]

mod event;

pub use event::{Content, EngineHash, Event, Location, Parent, Stored, Tier};
