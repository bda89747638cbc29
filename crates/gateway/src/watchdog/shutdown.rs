//! Shutdown: signals, and the deadline by which the process must have ended.
//!
//! A dedicated thread waits for signals: whichever other thread is stuck, the deadline starts with
//! the signal. The watchdog enforces it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use wornpath_config::Drain;
use wornpath_events::Clock;
use wornpath_index::Moment;

/// Time for the work after draining: the last checkpoint and the last traces.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
const NEVER: u64 = u64::MAX;

/// Completes at the first SIGTERM or SIGINT.
///
/// # Errors
/// If the signal handlers cannot be installed.
pub async fn shutdown_signal() -> std::io::Result<()> {
    Signals::listen()?.next().await;
    Ok(())
}

/// The signals that request a shutdown.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Completes once per signal.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// The state of a shutdown: signals received, and the deadline.
pub(crate) struct Shutdown {
    /// Nanoseconds since the start.
    deadline: AtomicU64,
    signals: watch::Sender<usize>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { deadline: AtomicU64::new(NEVER), signals: watch::Sender::new(0) }
    }
}

impl Shutdown {
    /// By when the process must have ended; none before the first signal, or if the grace is
    /// unlimited.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.deadline.load(Relaxed) {
            NEVER => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    /// The number of signals received.
    pub(crate) fn signals(&self) -> watch::Receiver<usize> {
        self.signals.subscribe()
    }

    fn signal(&self, now: Moment, drain: Drain) {
        // The second signal sets a deadline even if the grace is unlimited.
        let is_again = *self.signals.borrow() > 0;
        let before = is_again.then(|| self.deadline().unwrap_or(Moment::MAX));
        let deadline = deadline(before, now, drain);
        let nanos = u64::try_from(deadline.since_zero().as_nanos()).unwrap_or(NEVER);
        // Stored first: the watchdog enforces it even if all other threads are stuck.
        self.deadline.store(nanos, Relaxed);
        self.signals.send_modify(|count| *count += 1);
    }
}

/// The deadline after a signal at `now`. A second signal cuts the drain short.
fn deadline(before: Option<Moment>, now: Moment, Drain { lame_duck, grace, .. }: Drain) -> Moment {
    let at_once = now.saturating_add(FINISH_TIMEOUT);
    match before {
        None => at_once.saturating_add(lame_duck).saturating_add(grace),
        Some(before) => before.min(at_once),
    }
}

/// The thread that waits for signals, stopped when this is dropped.
pub(crate) struct SignalThread {
    is_over: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to wait for signals. `drain` is read when one arrives.
///
/// # Errors
/// If the thread cannot be spawned or the signal handlers cannot be installed.
pub(crate) fn listen(
    clock: Clock,
    drain: impl Fn() -> Drain + Send + 'static,
) -> std::io::Result<(Arc<Shutdown>, SignalThread)> {
    let shutdown = Arc::<Shutdown>::default();
    let is_over = Arc::<Notify>::default();
    let event_loop = Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _on = event_loop.enter();
        Signals::listen()?
    };
    let signalled = Arc::clone(&shutdown);
    let over = Arc::clone(&is_over);
    let wait = async move {
        loop {
            tokio::select! {
                () = signals.next() => signalled.signal(clock.now(), drain()),
                () = over.notified() => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let thread = thread.spawn(move || event_loop.block_on(wait))?;
    Ok((shutdown, SignalThread { is_over, thread: Some(thread) }))
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.is_over.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was logged by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_deadline_is_the_end_of_the_grace_and_a_second_signal_shortens_it() {
        let shutdown = Shutdown::default();
        let signals = shutdown.signals();
        let drain = Drain { lame_duck: 3 * S, grace: 30 * S, move_after: None };
        assert_eq!((shutdown.deadline(), *signals.borrow()), (None, 0));
        shutdown.signal(Moment::from_secs(10), drain);
        assert_eq!((shutdown.deadline(), *signals.borrow()), (Some(Moment::from_secs(45)), 1));
        shutdown.signal(Moment::from_secs(20), drain);
        assert_eq!((shutdown.deadline(), *signals.borrow()), (Some(Moment::from_secs(22)), 2));
        shutdown.signal(Moment::from_secs(21), drain);
        assert_eq!(
            shutdown.deadline(),
            Some(Moment::from_secs(22)),
            "further signals do not extend it"
        );
    }

    #[test]
    fn an_unlimited_grace_has_no_deadline_until_the_second_signal() {
        let shutdown = Shutdown::default();
        shutdown.signal(
            Moment::from_secs(1),
            Drain { lame_duck: S, grace: Duration::MAX, move_after: None },
        );
        assert_eq!(shutdown.deadline(), None);
        shutdown.signal(
            Moment::from_secs(1),
            Drain { lame_duck: S, grace: Duration::MAX, move_after: None },
        );
        assert_eq!(shutdown.deadline(), Some(Moment::from_secs(3)));
    }
}
