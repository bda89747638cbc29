//! Watchdog: notices a thread that is stuck, and ends the process if shutdown takes too long.
//!
//! A stuck thread cannot say so itself, and whatever waits for one of its locks is stuck soon after. So every thread
//! that serves clients, takes events in, tokenizes or runs background tasks has a heartbeat ([`heartbeat`]), and one
//! plain thread without an event loop looks at all of them ([`stall`]). It takes no lock and does not log itself: a
//! thread that cannot write its log line holds a lock too. What it finds makes `/health` and `/ready` fail and keeps
//! back the supervisor's ping ([`systemd`]), so that the supervisor restarts the process. Ending it is the supervisor's
//! part, until it has asked for that: then the watchdog holds the process to its deadline ([`shutdown`]).
//!
//! Limit: a thread that moves but makes no progress, as one whose tasks wait for each other, is not found.

pub mod heartbeat;
pub mod shutdown;
pub(crate) mod stall;
pub mod supervise;
pub(crate) mod systemd;
pub mod task;

use heartbeat::Threads;
use shutdown::Shutdown;
use stall::{HeartbeatReading, Stall, StallChange, StallDetector};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;
use systemd::Supervisor;
use wornpath_events::EventClock;

/// Between two looks at all heartbeats.
const LOOK: Duration = Duration::from_millis(500);
/// A thread that has stood still for so long when the process must end is named as a reason.
const SUSPICIOUS: Duration = Duration::from_secs(1);
/// How long the end of the process waits for its last log line.
const LOGGED_WITHIN: Duration = Duration::from_millis(250);
/// Log lines that wait to be written.
const MOST_REPORTS: usize = 256;
/// The exit status of a process that did not end by its deadline: EX_SOFTWARE.
const EXIT_DEADLINE_PASSED: i32 = 70;

/// What is logged.
enum WatchdogReport {
    Change(StallChange),
    /// The process exits, by fault of these threads as far as is known; and where to say that this was logged.
    Exit(Vec<Stall>, SyncSender<()>),
}

/// The thread that watches all others, ended when this is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches all threads, and holds the process to the deadline of its shutdown.
    ///
    /// # Errors
    /// If the system refuses threads.
    pub(crate) fn start(
        threads: Arc<Threads>,
        clock: EventClock,
        shutdown: Arc<Shutdown>,
    ) -> std::io::Result<Self> {
        let (reports, to_log) = sync_channel(MOST_REPORTS);
        // Ends with the other side of the channel; not waited for, since writing the log may never end.
        Builder::new().name("watchdog-log".to_owned()).spawn(move || log(&to_log))?;
        let is_over = Arc::<AtomicBool>::default();
        let mut watch = WatchdogHandle {
            threads,
            clock,
            shutdown,
            supervisor: Supervisor::from_environment(),
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
            // It panics never, and if it did, the panic was logged.
            let _ = thread.join();
        }
    }
}

struct WatchdogHandle {
    threads: Arc<Threads>,
    clock: EventClock,
    shutdown: Arc<Shutdown>,
    supervisor: Supervisor,
    detector: StallDetector,
    reports: SyncSender<WatchdogReport>,
    is_over: Arc<AtomicBool>,
}

impl WatchdogHandle {
    fn run(&mut self) {
        while !self.is_over.load(Relaxed) {
            self.look();
            let left = self.shutdown.deadline().map(|at| at.saturating_sub(self.clock.now()));
            if left == Some(Duration::ZERO) {
                self.exit();
            }
            park_timeout(left.unwrap_or(LOOK).min(LOOK));
        }
    }

    fn look(&mut self) {
        let all = self.threads.all();
        let readings: Vec<HeartbeatReading<'_>> =
            all.iter().map(|heartbeat| heartbeat.read()).collect();
        let changes = self.detector.look(self.clock.now(), &readings);
        let stuck = self.detector.stuck();
        for (heartbeat, reading) in all.iter().zip(&readings) {
            heartbeat.set_stuck(stuck.iter().any(|stall| stall.thread == reading.thread));
        }
        if stuck.is_empty() {
            self.supervisor.notify("WATCHDOG=1");
        }
        let new = changes.iter().filter(|change| matches!(change, StallChange::Stuck(_))).count();
        self.threads.set_stuck(stuck, new);
        for change in changes {
            // A log that takes no more lines must not stop the watchdog.
            let _ = self.reports.try_send(WatchdogReport::Change(change));
        }
    }

    /// The process has not ended by its deadline.
    fn exit(&self) -> ! {
        let (logged, is_logged) = sync_channel(1);
        let report = WatchdogReport::Exit(self.detector.still(SUSPICIOUS), logged);
        if self.reports.try_send(report).is_ok() {
            let _ = is_logged.recv_timeout(LOGGED_WITHIN);
        }
        std::process::exit(EXIT_DEADLINE_PASSED)
    }
}

/// Writes log lines for the watchdog.
fn log(reports: &Receiver<WatchdogReport>) {
    const EXITING: &str = "shutdown deadline passed; exiting";
    for report in reports {
        match report {
            WatchdogReport::Change(StallChange::Stuck(Stall { thread, task, stuck_for })) => {
                tracing::error!(%thread, task = task.to_string(), ?stuck_for, "thread stuck");
            }
            WatchdogReport::Change(StallChange::Moves(Stall { thread, task, stuck_for })) => {
                tracing::warn!(%thread, task = task.to_string(), ?stuck_for, "thread recovered");
            }
            WatchdogReport::Exit(suspects, logged) => {
                for Stall { thread, task, stuck_for } in &suspects {
                    tracing::error!(%thread, task = task.to_string(), ?stuck_for, "{EXITING}");
                }
                if suspects.is_empty() {
                    tracing::error!("{EXITING}");
                }
                // The watchdog may have stopped waiting.
                let _ = logged.send(());
            }
        }
    }
}

impl Threads {
    /// Why the process is not healthy, if it is not.
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
