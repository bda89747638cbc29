//! The timeouts of a call, watched by one timer, and deadlines that may be a little late.
//!
//! A stream has a deadline that moves with every chunk. Moving a timer for each of them would cost
//! more than the chunk. So a chunk only notes the time; when the timer fires, it compares, and is
//! set again if the deadline has moved.
//!
//! A timer that is due before all others of its thread makes the event loop turn once more, by a
//! system call, although the loop's own thread sets it. So every thread that executes plans has a
//! coarse timer, a periodic tick, which is usually due first. A deadline that may be a few
//! milliseconds late is moved to the next tick, and costs no system call to set.

use crate::failure::CallError;
use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The timeouts of a call's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Until the connection is open, TLS included.
    pub connect: Duration,
    /// From sending the request to the first byte of the response body.
    pub first_byte: Duration,
    /// Between two chunks of the response body.
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

/// Watches the timeouts of one call.
#[derive(Debug)]
pub(crate) struct TimeoutWatch {
    timer: Pin<Box<Sleep>>,
    timeouts: Timeouts,
    end: Instant,
    /// When the last chunk came; none before the first byte.
    last_chunk: Option<Instant>,
    /// Whether the task has waited for the engine since then.
    is_awaited: bool,
    /// Whether the timer is set for the chunks after the first byte.
    is_streaming: bool,
    started: Instant,
    /// The task that the timer will wake.
    registered: Option<Waker>,
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
            last_chunk: None,
            is_awaited: false,
            is_streaming: false,
            started,
            registered: None,
        }
    }

    /// A chunk came. Past the total timeout, the client is to blame if the task has not waited for
    /// the engine since the last chunk: then this one was there before, and the client read slowly.
    pub(crate) fn chunk(&mut self) -> Result<Instant, CallError> {
        let now = *self.last_chunk.insert(Instant::now());
        let was_awaited = std::mem::replace(&mut self.is_awaited, false);
        let total = self.timeouts.total;
        match (now < self.end, was_awaited) {
            (true, _) => Ok(now),
            (false, true) => Err(CallError::TotalTimeout(total)),
            (false, false) => Err(CallError::ClientTooSlow(total)),
        }
    }

    /// Ready when a timeout has passed. Called only while the task waits for the engine.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<CallError> {
        self.is_awaited = true;
        if let Some(last_chunk) = self.last_chunk
            && !self.is_streaming
        {
            // Until now the timer was set for the first byte, whose timeout may be far longer.
            self.is_streaming = true;
            self.timer.as_mut().reset((last_chunk + self.timeouts.between_bytes).min(self.end));
            self.registered = None;
        }
        // Polling a timer costs more than to see that it has not fired and will wake this task.
        if !self.timer.is_elapsed()
            && self.registered.as_ref().is_some_and(|it| it.will_wake(context.waker()))
        {
            return Poll::Pending;
        }
        loop {
            if self.timer.as_mut().poll(context).is_pending() {
                self.registered = Some(context.waker().clone());
                return Poll::Pending;
            }
            let Timeouts { first_byte, between_bytes, total, .. } = self.timeouts;
            let (due, error) = match self.last_chunk {
                None => (self.started + first_byte, CallError::FirstByteTimeout(first_byte)),
                Some(last_chunk) => (last_chunk + between_bytes, CallError::Stalled(between_bytes)),
            };
            let now = self.timer.deadline();
            if now >= self.end {
                return Poll::Ready(CallError::TotalTimeout(total));
            }
            if now >= due {
                return Poll::Ready(error);
            }
            self.timer.as_mut().reset(due.min(self.end));
        }
    }
}

/// The period of the tick while it is in use, and the most that a deadline is late.
const TICK: Duration = Duration::from_millis(8);
/// The period while no deadline is set. Timeouts of request heads and responses are longer than
/// that.
const IDLE_TICK: Duration = Duration::from_secs(1);

thread_local! {
    /// When this thread ticks next.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether a deadline was set since the last tick.
    static IS_USED: Cell<bool> = const { Cell::new(false) };
}

/// Ticks for ever: spawn it once on every thread that executes plans.
pub async fn run_coarse_timer() {
    loop {
        let next = Instant::now() + if IS_USED.take() { TICK } else { IDLE_TICK };
        NEXT.set(Some(next));
        sleep_until(next).await;
    }
}

/// When `time` will have passed, or the tick after that if it is near.
pub(crate) fn coarse_deadline(time: Duration) -> Instant {
    IS_USED.set(true);
    let exact = Instant::now() + time;
    match NEXT.get() {
        Some(next) if exact < next && next - exact <= TICK => next,
        _ => exact,
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

    async fn fires(watch: &mut TimeoutWatch) -> (Duration, CallError) {
        let error = poll_fn(|context| watch.poll(context)).await;
        (watch.started.elapsed(), error)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_has_its_own_timeout() {
        let (after, error) = fires(&mut TimeoutWatch::start(TIMEOUTS)).await;
        assert!(matches!(error, CallError::FirstByteTimeout(_)), "{error}");
        assert_eq!(after.as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn each_chunk_moves_the_deadline_up_to_the_total_timeout() {
        let mut watch = TimeoutWatch::start(TIMEOUTS);
        for _ in 0..4 {
            let fired = tokio::time::timeout(Duration::from_secs(2), fires(&mut watch));
            assert!(fired.await.is_err());
            watch.chunk().unwrap();
        }
        // The timer was set for the first byte at 10 s and must not fire before 8 s + 3 s.
        let (after, error) = fires(&mut watch).await;
        assert!(matches!(error, CallError::Stalled(_)), "{error}");
        assert_eq!(after.as_secs(), 11);

        let mut stalled = TimeoutWatch::start(TIMEOUTS);
        stalled.chunk().unwrap();
        let (after, error) = fires(&mut stalled).await;
        assert!(matches!(error, CallError::Stalled(_)), "{error}");
        assert_eq!(after.as_secs(), 3, "and not when the first byte would have been due");

        let mut watch =
            TimeoutWatch::start(Timeouts { between_bytes: Duration::from_secs(60), ..TIMEOUTS });
        watch.chunk().unwrap();
        let (after, error) = fires(&mut watch).await;
        assert!(matches!(error, CallError::TotalTimeout(_)), "{error}");
        assert_eq!(after.as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_chunk_is_the_engines_fault_only_if_the_task_waited_for_it() {
        for is_awaited in [true, false] {
            let mut watch = TimeoutWatch::start(TIMEOUTS);
            let begun = tokio::time::timeout(Duration::from_secs(2), fires(&mut watch)).await;
            assert!(begun.is_err() && watch.chunk().is_ok());
            if is_awaited {
                poll_fn(|context| Poll::Ready(watch.poll(context).is_pending())).await;
            }
            tokio::time::sleep(Duration::from_secs(18)).await;
            let error = watch.chunk().unwrap_err();
            assert_eq!(matches!(error, CallError::TotalTimeout(_)), is_awaited, "{error}");
            assert_eq!(matches!(error, CallError::ClientTooSlow(_)), !is_awaited, "{error}");
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_moves_to_the_next_tick_and_no_further() {
        let start = Instant::now();
        assert_eq!(coarse_deadline(3 * MS), start + 3 * MS, "no tick, no delay");
        tokio::spawn(run_coarse_timer());
        tokio::task::yield_now().await;
        let next = NEXT.get().expect("a tick is due");
        assert_eq!(next, start + TICK, "the thread was used before");
        for ms in 0..=8 {
            assert_eq!(coarse_deadline(ms * MS), next);
        }
        assert_eq!(coarse_deadline(9 * MS), start + 9 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_thread_ticks_rarely_and_deadlines_are_exact_meanwhile() {
        let start = Instant::now();
        tokio::spawn(run_coarse_timer());
        tokio::task::yield_now().await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK));
        assert_eq!(coarse_deadline(3 * MS), start + 3 * MS);
        tokio::time::sleep(IDLE_TICK + MS).await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK + TICK), "it was used");
        tokio::time::sleep(TICK).await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK + TICK + IDLE_TICK), "it was not");
    }
}
