//! Deadlines that may be a few milliseconds late, and cost no system call to set.
//!
//! A timer that is due before all others of its thread makes the event loop turn once more, by a
//! system call, although the loop's own thread sets it. So every thread that executes plans has a
//! periodic tick, which is usually due first, and deadlines that tolerate it are moved to the next
//! tick.

use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

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
        tokio::time::sleep_until(next).await;
    }
}

/// When `time` will have passed, or the tick after that if it is near.
pub(crate) fn after(time: Duration) -> Instant {
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

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_moves_to_the_next_tick_and_no_further() {
        let start = Instant::now();
        assert_eq!(after(3 * MS), start + 3 * MS, "no tick, no delay");
        tokio::spawn(run_coarse_timer());
        tokio::task::yield_now().await;
        let next = NEXT.get().expect("a tick is due");
        assert_eq!(next, start + TICK, "the thread was used before");
        for ms in 0..=8 {
            assert_eq!(after(ms * MS), next);
        }
        assert_eq!(after(9 * MS), start + 9 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_thread_ticks_rarely_and_deadlines_are_exact_meanwhile() {
        let start = Instant::now();
        tokio::spawn(run_coarse_timer());
        tokio::task::yield_now().await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK));
        assert_eq!(after(3 * MS), start + 3 * MS);
        tokio::time::sleep(IDLE_TICK + MS).await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK + TICK), "it was used");
        tokio::time::sleep(TICK).await;
        assert_eq!(NEXT.get(), Some(start + IDLE_TICK + TICK + IDLE_TICK), "it was not");
    }
}
