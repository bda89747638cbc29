//! How long each part of a call may take, watched by one timer.
//!
//! A stream has a deadline that moves with every chunk. Moving a timer for each of them would cost more
//! than the chunk: so a chunk only notes the time, and when the timer rings it looks whether it rang for
//! something, and sleeps on if not.

use crate::failure::CallError;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long the parts of a call may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Until a connection stands.
    pub connect: Duration,
    /// From sending the request to the first byte of the answer's body.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub between_bytes: Duration,
    /// The whole call.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_byte: Duration::from_secs(120),
            between_bytes: Duration::from_secs(60),
            total: Duration::from_secs(3600),
        }
    }
}

/// Watches one call.
#[derive(Debug)]
pub(crate) struct TimeoutWatch {
    timer: Pin<Box<Sleep>>,
    timeouts: Timeouts,
    end: Instant,
    /// When something was last heard; none before the first byte.
    heard: Option<Instant>,
    /// Whether the engine was waited for since then.
    is_awaited: bool,
    /// Whether the timer is set for what comes after the first byte.
    is_under_way: bool,
    started: Instant,
    /// Whom the timer will wake.
    wakes: Option<Waker>,
}

impl TimeoutWatch {
    pub(crate) fn start(timeouts: Timeouts) -> Self {
        let started = Instant::now();
        let end = started + timeouts.total;
        let first = (started + timeouts.first_byte).min(end);
        let timer = Box::pin(sleep_until(first));
        Self {
            timer,
            timeouts,
            end,
            heard: None,
            is_awaited: false,
            is_under_way: false,
            started,
            wakes: None,
        }
    }

    /// Something was heard, now; too late if the whole call has taken too long. Where nobody waited for
    /// the engine, it was there before, and whoever reads was slow.
    pub(crate) fn heard(&mut self) -> Result<Instant, CallError> {
        let now = *self.heard.insert(Instant::now());
        let was_awaited = std::mem::replace(&mut self.is_awaited, false);
        let total = self.timeouts.total;
        match (now < self.end, was_awaited) {
            (true, _) => Ok(now),
            (false, true) => Err(CallError::TooLong(total)),
            (false, false) => Err(CallError::Untaken(total)),
        }
    }

    /// Ready when the call has taken too long. Called only while something is waited for.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<CallError> {
        self.is_awaited = true;
        if let (Some(heard), false) = (self.heard, self.is_under_way) {
            // Until now the timer was set for the first byte, which may take far longer than the others.
            self.is_under_way = true;
            self.timer.as_mut().reset((heard + self.timeouts.between_bytes).min(self.end));
            self.wakes = None;
        }
        // To poll a timer costs more than to see that it has not rung, and whom it will wake.
        if !self.timer.is_elapsed()
            && self.wakes.as_ref().is_some_and(|it| it.will_wake(context.waker()))
        {
            return Poll::Pending;
        }
        loop {
            if self.timer.as_mut().poll(context).is_pending() {
                self.wakes = Some(context.waker().clone());
                return Poll::Pending;
            }
            let Timeouts { first_byte, between_bytes, total, .. } = self.timeouts;
            let (due, error) = match self.heard {
                None => (self.started + first_byte, CallError::NoFirstByte(first_byte)),
                Some(heard) => (heard + between_bytes, CallError::Stalled(between_bytes)),
            };
            let now = self.timer.deadline();
            if now >= self.end {
                return Poll::Ready(CallError::TooLong(total));
            }
            if now >= due {
                return Poll::Ready(error);
            }
            self.timer.as_mut().reset(due.min(self.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const TIMEOUTS: Timeouts = Timeouts {
        connect: Duration::from_secs(1),
        first_byte: Duration::from_secs(10),
        between_bytes: Duration::from_secs(3),
        total: Duration::from_secs(20),
    };

    async fn rings(watch: &mut TimeoutWatch) -> (Duration, CallError) {
        let error = poll_fn(|context| watch.poll(context)).await;
        (watch.started.elapsed(), error)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_has_its_own_time() {
        let (after, error) = rings(&mut TimeoutWatch::start(TIMEOUTS)).await;
        assert!(matches!(error, CallError::NoFirstByte(_)), "{error}");
        assert_eq!(after.as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn each_piece_moves_the_deadline_until_the_whole_call_is_too_long() {
        let mut watch = TimeoutWatch::start(TIMEOUTS);
        for _ in 0..4 {
            let ring = tokio::time::timeout(Duration::from_secs(2), rings(&mut watch));
            assert!(ring.await.is_err());
            watch.heard().unwrap();
        }
        // The timer was set for the first byte at 10 s and must not ring before 8 s + 3 s.
        let (after, error) = rings(&mut watch).await;
        assert!(matches!(error, CallError::Stalled(_)), "{error}");
        assert_eq!(after.as_secs(), 11);

        let mut stalled = TimeoutWatch::start(TIMEOUTS);
        stalled.heard().unwrap();
        let (after, error) = rings(&mut stalled).await;
        assert!(matches!(error, CallError::Stalled(_)), "{error}");
        assert_eq!(after.as_secs(), 3, "and not when the first byte would have been due");

        let mut watch =
            TimeoutWatch::start(Timeouts { between_bytes: Duration::from_secs(60), ..TIMEOUTS });
        watch.heard().unwrap();
        let (after, error) = rings(&mut watch).await;
        assert!(matches!(error, CallError::TooLong(_)), "{error}");
        assert_eq!(after.as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_too_late_is_the_engines_fault_only_if_it_was_waited_for() {
        for is_awaited in [true, false] {
            let mut watch = TimeoutWatch::start(TIMEOUTS);
            let begun = tokio::time::timeout(Duration::from_secs(2), rings(&mut watch)).await;
            assert!(begun.is_err() && watch.heard().is_ok());
            if is_awaited {
                poll_fn(|context| Poll::Ready(watch.poll(context).is_pending())).await;
            }
            tokio::time::sleep(Duration::from_secs(18)).await;
            let error = watch.heard().unwrap_err();
            assert_eq!(matches!(error, CallError::TooLong(_)), is_awaited, "{error}");
            assert_eq!(matches!(error, CallError::Untaken(_)), !is_awaited, "{error}");
        }
    }
}
