//! Watchdog: detects stuck threads, restarts background tasks that panicked, and enforces the
//! shutdown deadline.
//!
//! A stuck thread cannot report itself, and every thread that waits for one of its locks is stuck
//! soon after. So every thread that serves clients, applies events, tokenizes or runs background
//! tasks has a heartbeat ([`heartbeat`]), and one plain thread without an event loop checks all of
//! them ([`stall`]). It takes no lock and does not log itself: a thread blocked on writing its log
//! line holds a lock too. A stall makes `/health` and `/ready` fail and suppresses the ping to the
//! service manager ([`systemd`]), which then restarts the process. The watchdog itself ends the
//! process only after a shutdown signal, when the deadline has passed ([`shutdown`]).
//!
//! Limit: a deadlock between tasks on a live event loop is not detected.

pub mod heartbeat;
pub mod shutdown;
pub(crate) mod stall;
pub(crate) mod systemd;

pub use stall::TaskName;

use heartbeat::{Threads, named};
use shutdown::Shutdown;
use stall::{HeartbeatReading, Stall, StallChange, StallDetector};
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;
use systemd::ServiceManager;
use tokio::runtime::Handle;
use wornpath_events::Clock;

/// Time between two checks of all heartbeats.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// At the shutdown deadline, threads without a beat for this long are logged as suspects.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// How long the exit waits for its last log line.
const LOG_TIMEOUT: Duration = Duration::from_millis(250);
/// Capacity of the queue of log lines.
const MAX_REPORTS: usize = 256;
/// Exit status of a process that missed its shutdown deadline: EX_SOFTWARE.
const EXIT_DEADLINE_PASSED: i32 = 70;

/// How soon a task that panicked is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(50);

/// Runs the background task that `start` makes of `shared`, and restarts it if it panics.
///
/// Nothing awaits such a task, so a panic would go unnoticed: pods would never come back, or files
/// never be read again. The panic itself is logged by the panic hook.
pub fn supervise<S, F>(
    runtime: &Handle,
    task: &'static str,
    shared: &Arc<S>,
    start: impl Fn(Arc<S>) -> F + Send + 'static,
) where
    S: Send + Sync + 'static,
    F: Future<Output: Send> + Send + 'static,
{
    let shared = Arc::clone(shared);
    runtime.spawn(async move {
        loop {
            match tokio::spawn(named(task, start(Arc::clone(&shared)))).await {
                Err(error) if error.is_panic() => {
                    tracing::error!(task, "task panicked; restarting");
                    tokio::time::sleep(RESTART_DELAY).await;
                }
                _ => return,
            }
        }
    });
}

/// A line for the log thread.
enum WatchdogReport {
    Change(StallChange),
    /// The process exits.
    Exit {
        suspects: Vec<Stall>,
        /// Confirms that the line was written.
        logged: SyncSender<()>,
    },
}

/// The watchdog thread, stopped when this is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to watch all threads and the shutdown deadline.
    ///
    /// # Errors
    /// If a thread cannot be spawned.
    pub(crate) fn start(
        threads: Arc<Threads>,
        clock: Clock,
        shutdown: Arc<Shutdown>,
    ) -> std::io::Result<Self> {
        let (reports, to_log) = sync_channel(MAX_REPORTS);
        // Ends with the channel; never joined, since a write to the log may block for ever.
        Builder::new().name("watchdog-log".to_owned()).spawn(move || log(&to_log))?;
        let is_over = Arc::<AtomicBool>::default();
        let mut watch = WatchdogHandle {
            threads,
            clock,
            shutdown,
            service_manager: ServiceManager::from_environment(),
            detector: StallDetector::default(),
            reports,
            is_over: Arc::clone(&is_over),
        };
        let thread = Builder::new().name("watchdog".to_owned()).spawn(move || watch.run())?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was logged by the panic hook.
            let _ = thread.join();
        }
    }
}

struct WatchdogHandle {
    threads: Arc<Threads>,
    clock: Clock,
    shutdown: Arc<Shutdown>,
    service_manager: ServiceManager,
    detector: StallDetector,
    reports: SyncSender<WatchdogReport>,
    is_over: Arc<AtomicBool>,
}

impl WatchdogHandle {
    fn run(&mut self) {
        while !self.is_over.load(Relaxed) {
            self.check();
            let left = self.shutdown.deadline().map(|at| at.since(self.clock.now()));
            if left == Some(Duration::ZERO) {
                self.exit();
            }
            park_timeout(left.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL));
        }
    }

    fn check(&mut self) {
        let all = self.threads.all();
        let readings: Vec<HeartbeatReading<'_>> =
            all.iter().map(|heartbeat| heartbeat.read()).collect();
        let changes = self.detector.check(self.clock.now(), &readings);
        let stuck = self.detector.stuck();
        for (heartbeat, reading) in all.iter().zip(&readings) {
            heartbeat.set_stuck(stuck.iter().any(|stall| stall.thread == reading.thread));
        }
        if stuck.is_empty() {
            self.service_manager.notify("WATCHDOG=1");
        }
        let new = changes.iter().filter(|change| matches!(change, StallChange::Stuck(_))).count();
        self.threads.set_stuck(stuck, new);
        for change in changes {
            // A full log queue must not block the watchdog.
            let _ = self.reports.try_send(WatchdogReport::Change(change));
        }
    }

    /// Logs the suspects and ends the process, which missed its deadline.
    fn exit(&self) -> ! {
        let (logged, is_logged) = sync_channel(1);
        let suspects = self.detector.stalled(SUSPECT_AFTER);
        let report = WatchdogReport::Exit { suspects, logged };
        if self.reports.try_send(report).is_ok() {
            let _ = is_logged.recv_timeout(LOG_TIMEOUT);
        }
        std::process::exit(EXIT_DEADLINE_PASSED)
    }
}

/// Writes the watchdog's log lines, on a thread of its own.
fn log(reports: &Receiver<WatchdogReport>) {
    const EXITING: &str = "shutdown deadline passed; exiting";
    for report in reports {
        match report {
            WatchdogReport::Change(StallChange::Stuck(Stall { thread, task, stuck_for })) => {
                tracing::error!(%thread, task = task.to_string(), ?stuck_for, "thread stuck");
            }
            WatchdogReport::Change(StallChange::Recovered(Stall { thread, task, stuck_for })) => {
                tracing::warn!(%thread, task = task.to_string(), ?stuck_for, "thread recovered");
            }
            WatchdogReport::Exit { suspects, logged } => {
                for Stall { thread, task, stuck_for } in &suspects {
                    tracing::error!(%thread, task = task.to_string(), ?stuck_for, "{EXITING}");
                }
                if suspects.is_empty() {
                    tracing::error!("{EXITING}");
                }
                // The watchdog may have timed out.
                let _ = logged.send(());
            }
        }
    }
}

impl Threads {
    /// The body of a failing `/health`, if a thread is stuck.
    pub(crate) fn why_unhealthy(&self) -> Option<String> {
        let stuck = self.stuck();
        let mut why = String::new();
        for Stall { thread, task, stuck_for } in &*stuck {
            let seconds = stuck_for.as_secs_f64();
            let _ = writeln!(why, "thread stuck: {thread}, task `{task}`, for {seconds:.1} s");
        }
        (!why.is_empty()).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_restarted_and_one_that_returns_is_not() {
        let shared = Arc::<(AtomicUsize, Notify)>::default();
        supervise(&Handle::current(), "a test", &shared, |shared| async move {
            assert!(shared.0.fetch_add(1, Relaxed) >= 2, "on purpose");
            shared.1.notify_one();
        });
        shared.1.notified().await;
        tokio::time::sleep(10 * RESTART_DELAY).await;
        assert_eq!(shared.0.load(Relaxed), 3);
    }
}
