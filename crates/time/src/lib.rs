//! Time as an argument: [`Moment`], a point in time that the caller read from its clock,
//! [`Backoff`], the delay before something that failed is tried again, and [`TokenBucket`], a rate
//! limit. Nothing here reads a clock.
#![forbid(unsafe_code)]

mod backoff;
mod moment;
mod token_bucket;

pub use backoff::Backoff;
pub use moment::Moment;
pub use token_bucket::TokenBucket;
