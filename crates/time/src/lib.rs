//! Time as an argument: [`Moment`], a point in time that the caller read from its clock, and
//! [`Backoff`], the delay before something that failed is tried again. Nothing here reads a clock.
#![forbid(unsafe_code)]

mod backoff;
mod moment;

pub use backoff::Backoff;
pub use moment::Moment;
