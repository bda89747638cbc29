//! Who is woken by a connection, and for what.
//!
//! hyper wakes whoever drives a connection when its bytes come, and also when a piece of an answer's body was
//! taken out of it. Here both are the same task: it would look at everything a second time for each chunk of
//! a stream. So the two are told apart. Bytes ring a [`IoWaker`], which wakes the task; all else is a [`DriveFlag`]
//! to be driven, which only whoever drives looks at. With neither, there is nothing to drive it for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Rung when a wire can be read or written again.
pub(crate) struct IoWaker {
    rings: AtomicU64,
    listener: Mutex<Waker>,
}

impl Default for IoWaker {
    fn default() -> Self {
        Self { rings: AtomicU64::new(0), listener: Mutex::new(Waker::noop().clone()) }
    }
}

impl IoWaker {
    /// From now on it wakes this task. How often it has been rung: a later ring is heard, or counted.
    pub(crate) fn listen(&self, task: &Waker) -> u64 {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if !listener.will_wake(task) {
            listener.clone_from(task);
        }
        self.rings.load(Ordering::Relaxed)
    }
}

impl Wake for IoWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.fetch_add(1, Ordering::Relaxed);
        listener.wake_by_ref();
    }
}

/// That a connection wants to be driven, for another reason than its bytes.
pub(crate) struct DriveFlag(AtomicBool);

impl Default for DriveFlag {
    /// What was never driven wants to be.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl DriveFlag {
    /// Whether there was one, until now.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_there(&self) -> bool {
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
    fn a_ring_wakes_the_last_listener_and_is_counted_for_the_next() {
        let (bell, tasks) =
            (Arc::new(IoWaker::default()), [(); 2].map(|()| Arc::<Count>::default()));
        let woken = || [0, 1].map(|task: usize| tasks[task].0.load(Ordering::Relaxed));
        let listen = |task: usize| bell.listen(&Waker::from(Arc::clone(&tasks[task])));
        let ring = Waker::from(Arc::clone(&bell));
        ring.wake_by_ref();
        assert_eq!((listen(0), woken()), (1, [0, 0]));
        ring.wake_by_ref();
        assert_eq!((listen(1), woken()), (2, [1, 0]));
        ring.wake();
        assert_eq!((listen(1), woken()), (3, [1, 1]));
    }

    #[test]
    fn a_wish_is_there_until_it_is_taken() {
        let wish = Arc::new(DriveFlag::default());
        assert!(wish.take() && !wish.is_there() && !wish.take());
        Waker::from(Arc::clone(&wish)).wake();
        assert!(wish.is_there() && wish.take() && !wish.is_there());
    }
}
