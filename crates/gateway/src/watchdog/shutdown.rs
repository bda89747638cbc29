//! Shutdown: signals, and the moment by which the process must have ended.
//!
//! Signals are waited for on a thread of their own, which does nothing else: whichever other thread is stuck, the
//! deadline begins with the signal. The watchdog holds the process to it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use wornpath_config::Drain;
use wornpath_events::EventClock;
use wornpath_index::Moment;

/// What remains to be done once requests have ended or their time is over: the last checkpoint and the last traces.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
const NEVER: u64 = u64::MAX;

/// Comes when the process is told to end, by ctrl-C or by whoever runs it.
///
/// # Errors
/// If signals cannot be listened to.
pub async fn told_to_end() -> std::io::Result<()> {
    Signals::listen()?.next().await;
    Ok(())
}

/// The signals that tell a process to end.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { term: signal(term)?, int: signal(int)? })
    }

    /// Comes once for each time.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// How often the process was told to end, and when it must have.
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
    /// By when the process must have ended, once it was told to.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.deadline.load(Relaxed) {
            NEVER => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// How many signals have come.
    pub(crate) fn signals(&self) -> watch::Receiver<usize> {
        self.signals.subscribe()
    }

    fn signal(&self, now: Moment, drain: Drain) {
        // Also a grace without end has an end at the second signal.
        let is_again = *self.signals.borrow() > 0;
        let before = is_again.then(|| self.deadline().unwrap_or(Moment::MAX));
        let deadline = deadline(before, now, drain);
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(NEVER);
        // First of all: it counts even if nothing else happens any more.
        self.deadline.store(nanos, Relaxed);
        self.signals.send_modify(|count| *count += 1);
    }
}

/// When a process must have ended that is told to now. Whoever asks twice does not want to wait.
fn deadline(before: Option<Moment>, now: Moment, Drain { lame_duck, grace }: Drain) -> Moment {
    let at_once = now.saturating_add(FINISH_WITHIN);
    match before {
        None => at_once.saturating_add(lame_duck).saturating_add(grace),
        Some(before) => before.min(at_once),
    }
}

/// The thread that waits for signals, ended when this is dropped.
pub(crate) struct SignalThread {
    is_over: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

/// Waits for signals from now on. `drain` says how long shutdown may take, when one comes.
///
/// # Errors
/// If the system refuses that.
pub(crate) fn listen(
    clock: EventClock,
    drain: impl Fn() -> Drain + Send + 'static,
) -> std::io::Result<(Arc<Shutdown>, SignalThread)> {
    let (shutdown, is_over) = (Arc::<Shutdown>::default(), Arc::<Notify>::default());
    let event_loop = Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _on = event_loop.enter();
        Signals::listen()?
    };
    let (told, over) = (Arc::clone(&shutdown), Arc::clone(&is_over));
    let wait = async move {
        loop {
            tokio::select! {
                () = signals.next() => told.signal(clock.now(), drain()),
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
            // If it panicked, that was logged.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_deadline_is_the_end_of_the_grace_and_a_second_signal_brings_it_near() {
        let shutdown = Shutdown::default();
        let signals = shutdown.signals();
        let drain = Drain { lame_duck: 3 * S, grace: 30 * S };
        assert_eq!((shutdown.deadline(), *signals.borrow()), (None, 0));
        shutdown.signal(10 * S, drain);
        assert_eq!((shutdown.deadline(), *signals.borrow()), (Some(45 * S), 1));
        shutdown.signal(20 * S, drain);
        assert_eq!((shutdown.deadline(), *signals.borrow()), (Some(22 * S), 2));
        shutdown.signal(21 * S, drain);
        assert_eq!(shutdown.deadline(), Some(22 * S), "and no further signal puts it off");
    }

    #[test]
    fn a_grace_without_end_has_no_deadline() {
        let shutdown = Shutdown::default();
        shutdown.signal(S, Drain { lame_duck: S, grace: Duration::MAX });
        assert_eq!(shutdown.deadline(), None);
        shutdown.signal(S, Drain { lame_duck: S, grace: Duration::MAX });
        assert_eq!(shutdown.deadline(), Some(3 * S));
    }
}
