//! The pace of a body: how long the gateway waits for its next bytes.
//!
//! The body of a request is short, so all of it has one timeout. An uploaded file may be long, so
//! each piece has one. Both must keep the minimum rate ([`MinRate`]), except for a grace period.

use crate::proxy::min_rate::{MIN_RATE, MinRate};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use wornpath_index::Moment;

/// What a timeout is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyTimeout {
    /// For all of a body.
    Whole(Duration),
    /// For each piece of it.
    Piece(Duration),
}

/// Why no more bytes of a body arrive.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PaceError {
    /// The timeout passed.
    #[error("timeout reading the body: not complete after {0:?}")]
    Timeout(Duration),
    /// The client sends, but less than the minimum rate.
    #[error(
        "body too slow: less than {MIN_RATE} bytes per second for longer than {0:?} \
         (`limits.body_grace`)"
    )]
    TooSlow(Duration),
    /// The client disconnected, or its framing is invalid.
    #[error("connection closed before the end of the body: {0}")]
    Closed(String),
}

/// A body that is being received.
#[derive(Debug)]
pub struct BodyPace {
    timeout: BodyTimeout,
    grace: Duration,
    started: Instant,
    rate: MinRate,
    /// Bytes of the last piece. They count when the next one is due, which saves reading the clock.
    arrived: usize,
}

impl BodyPace {
    /// A body that begins now, and may be below the minimum rate for `grace`.
    #[must_use]
    pub fn start(timeout: BodyTimeout, grace: Duration) -> Self {
        let rate = MinRate::start(Moment::ZERO, grace);
        Self { timeout, grace, started: Instant::now(), rate, arrived: 0 }
    }

    /// The next bytes; none after the last.
    ///
    /// # Errors
    /// If they do not arrive in time, or the connection closes.
    pub async fn next<B>(&mut self, body: &mut B) -> Result<Option<Bytes>, PaceError>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin,
    {
        loop {
            let elapsed = self.started.elapsed();
            let now = Moment::at(elapsed);
            self.rate.received(now, std::mem::take(&mut self.arrived));
            let left = match self.timeout {
                BodyTimeout::Whole(time) => time.saturating_sub(elapsed),
                BodyTimeout::Piece(time) => time,
            };
            let left_by_rate = self.rate.left(now);
            let frame = timeout(left.min(left_by_rate), body.frame()).await;
            let frame = frame.map_err(|_| match self.timeout {
                _ if left_by_rate < left => PaceError::TooSlow(self.grace),
                BodyTimeout::Whole(time) | BodyTimeout::Piece(time) => PaceError::Timeout(time),
            })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| PaceError::Closed(error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                self.arrived = data.len();
                return Ok(Some(data));
            }
        }
    }

    /// The gateway did not read for a while: that time is not the client's.
    pub fn resume(&mut self) {
        self.rate = MinRate::start(Moment::at(self.started.elapsed()), self.grace);
    }
}
