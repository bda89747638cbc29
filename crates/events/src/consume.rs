//! Runs transports: the only part of the crate that loops by itself.

use crate::pods::{AttachedSource, EventPods, Source};
use crate::transport::Transport;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use wornpath_index::Moment;

/// How often due work is looked for; short against the second between two queries of a pod.
const TICK: Duration = Duration::from_millis(50);
/// Delay before a transport that panicked is replaced.
const RESTART_DELAY: Duration = Duration::from_millis(50);
/// How long a busy source may keep its thread before other tasks run. Tokio's own budget of 128
/// messages may last a quarter of a second.
const YIELD_EVERY: Duration = Duration::from_millis(1);

/// Monotonic time since the start.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::at(self.0.elapsed())
    }
}

/// Runs the timers of all pods: timeouts, queries, retries.
pub async fn run_timers(pods: &EventPods, clock: Clock) -> Infallible {
    let mut writer = pods.index().writer();
    loop {
        tokio::time::sleep(TICK).await;
        pods.tick(&mut writer, clock.now());
    }
}

/// Feeds all pods, those added later too, from a transport.
pub async fn consume<T: Transport>(transport: T, pods: &EventPods, clock: Clock) -> Infallible {
    let attached = pods.attach(transport.name(), transport.capabilities());
    let _guard = DetachGuard { pods, source: Arc::clone(&attached.source), clock };
    run(transport, attached, pods, clock).await
}

/// Feeds the pods that exist now from transports that `make` makes. If a transport panics, it is
/// detached, which makes its pods uncertain, and the next one takes over.
pub async fn supervise<T, M>(mut make: M, pods: &Arc<EventPods>, clock: Clock) -> Infallible
where
    T: Transport + 'static,
    M: FnMut() -> T,
{
    loop {
        let transport = make();
        let attached = pods.attach_to_existing(transport.name(), transport.capabilities());
        let guard = DetachGuard { pods, source: Arc::clone(&attached.source), clock };
        until_panic(run(transport, attached, pods, clock)).await;
        drop(guard);
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Polls the work in the caller's own task, so that the panic is logged under that task's name.
async fn until_panic(work: impl Future<Output = Infallible>) {
    let mut work = Box::pin(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(never)) => match never {},
        // The work is dropped and never polled again; the panic hook has logged the panic.
        Err(_) => Poll::Ready(()),
    })
    .await;
}

async fn run<T: Transport>(
    mut transport: T,
    mut attached: AttachedSource,
    pods: &EventPods,
    clock: Clock,
) -> Infallible {
    let mut writer = pods.index().writer();
    let mut last_yield = Instant::now();
    loop {
        tokio::select! {
            Some((pod, query)) = attached.queries.recv() => transport.query(&pod, query),
            signal = transport.next() => pods.handle(&mut writer, &attached, signal, clock.now()),
        }
        if last_yield.elapsed() >= YIELD_EVERY {
            tokio::task::yield_now().await;
            last_yield = Instant::now();
        }
    }
}

/// Detaches a source from its pods however its transport ends.
struct DetachGuard<'a> {
    pods: &'a EventPods,
    source: Arc<Source>,
    clock: Clock,
}

impl Drop for DetachGuard<'_> {
    fn drop(&mut self) {
        // A second panic during unwinding would abort the process.
        if !std::thread::panicking() {
            self.pods.detach(&mut self.pods.index().writer(), &self.source, self.clock.now());
        }
    }
}
