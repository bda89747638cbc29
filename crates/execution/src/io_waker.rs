//! Who wakes the task that drives a connection, and for what.
//!
//! hyper wakes the driver of a connection when its socket is ready, and again when a piece of the
//! response body was read. Here one task does both, so it would poll everything twice for each
//! chunk of a stream. The two causes are therefore kept apart: socket readiness goes to an
//! [`IoWaker`], which wakes the task; all else only sets a [`DriveFlag`], which the task looks at
//! when it runs anyway. With neither, there is nothing to drive the connection for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Wakes the registered task when the socket is ready, and counts the wakeups.
pub(crate) struct IoWaker {
    wakeups: AtomicU64,
    task: Mutex<Waker>,
}

impl Default for IoWaker {
    fn default() -> Self {
        Self { wakeups: AtomicU64::new(0), task: Mutex::new(Waker::noop().clone()) }
    }
}

impl IoWaker {
    /// Registers the task to wake, and returns the number of wakeups so far: a later one wakes the
    /// task.
    pub(crate) fn register(&self, waker: &Waker) -> u64 {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
        self.wakeups.load(Ordering::Relaxed)
    }
}

impl Wake for IoWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        self.wakeups.fetch_add(1, Ordering::Relaxed);
        task.wake_by_ref();
    }
}

/// Set while a connection needs to be driven for another reason than its socket.
pub(crate) struct DriveFlag(AtomicBool);

impl Default for DriveFlag {
    /// A new connection needs to be driven.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl DriveFlag {
    /// Clears the flag, and returns whether it was set.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for DriveFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wakeup_goes_to_the_task_registered_last_and_is_counted() {
        let io_waker = Arc::new(IoWaker::default());
        let tasks = [(); 2].map(|()| Arc::<Count>::default());
        let woken = || [0, 1].map(|task: usize| tasks[task].0.load(Ordering::Relaxed));
        let register = |task: usize| io_waker.register(&Waker::from(Arc::clone(&tasks[task])));
        let socket = Waker::from(Arc::clone(&io_waker));
        socket.wake_by_ref();
        assert_eq!((register(0), woken()), (1, [0, 0]));
        socket.wake_by_ref();
        assert_eq!((register(1), woken()), (2, [1, 0]));
        socket.wake();
        assert_eq!((register(1), woken()), (3, [1, 1]));
    }

    #[test]
    fn a_drive_flag_is_set_until_it_is_taken() {
        let flag = Arc::new(DriveFlag::default());
        assert!(flag.take() && !flag.is_set() && !flag.take());
        Waker::from(Arc::clone(&flag)).wake();
        assert!(flag.is_set() && flag.take() && !flag.is_set());
    }
}
