//! Deadlines that may be a little late, and cost nothing to set.
//!
//! A timer that is due before all others of its thread makes the event loop turn once more, by a system call, although
//! the loop's own thread sets it. So every thread that carries out plans has a beat, which is usually due first, and
//! deadlines that allow for it are put off to the next one.

use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Between two beats while somebody uses them: the most that a deadline is put off.
const BEAT: Duration = Duration::from_millis(8);
/// Between two beats while nobody does. Deadlines of requests' heads and answers are later than that.
const REST: Duration = Duration::from_secs(1);

thread_local! {
    /// When this thread beats next.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether somebody has set a deadline since it last did.
    static IS_USED: Cell<bool> = const { Cell::new(false) };
}

/// Beats for ever: to be spawned once on every thread that carries out plans.
pub async fn beat() {
    loop {
        let next = Instant::now() + if IS_USED.take() { BEAT } else { REST };
        NEXT.set(Some(next));
        tokio::time::sleep_until(next).await;
    }
}

/// When `time` will have passed, or the beat after that if it is near.
pub(crate) fn after(time: Duration) -> Instant {
    IS_USED.set(true);
    let exact = Instant::now() + time;
    match NEXT.get() {
        Some(next) if exact < next && next - exact <= BEAT => next,
        _ => exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_put_off_to_the_next_beat_and_no_further() {
        let start = Instant::now();
        assert_eq!(after(3 * MS), start + 3 * MS, "no beat, no delay");
        tokio::spawn(beat());
        tokio::task::yield_now().await;
        let next = NEXT.get().expect("a beat is due");
        assert_eq!(next, start + BEAT, "the thread was used before");
        for ms in 0..=8 {
            assert_eq!(after(ms * MS), next);
        }
        assert_eq!(after(9 * MS), start + 9 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_nobody_uses_rests_and_deadlines_are_kept_to_meanwhile() {
        let start = Instant::now();
        tokio::spawn(beat());
        tokio::task::yield_now().await;
        assert_eq!(NEXT.get(), Some(start + REST));
        assert_eq!(after(3 * MS), start + 3 * MS);
        tokio::time::sleep(REST + MS).await;
        assert_eq!(NEXT.get(), Some(start + REST + BEAT), "it was used");
        tokio::time::sleep(BEAT).await;
        assert_eq!(NEXT.get(), Some(start + REST + BEAT + REST), "it was not");
    }
}
