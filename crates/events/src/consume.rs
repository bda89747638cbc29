//! Brings transports and pods together: the only part of the crate that runs by itself.

use crate::pods::{AttachedPod, EventPods, Source};
use crate::transport::Transport;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;
use wornpath_index::Moment;

/// How often what is due is looked for; small against the second that a pod waits between questions.
const TICK: Duration = Duration::from_millis(50);
/// How soon a consumer that failed is started again.
const RESTART: Duration = Duration::from_millis(50);
/// How long a source that never falls silent goes on before others on its thread have their turn. Left to itself it would
/// take in 128 messages, which may be a quarter of a second.
const TURN: Duration = Duration::from_millis(1);

/// Time since the start, which nobody can set back.
#[derive(Clone, Copy, Debug)]
pub struct EventClock(Instant);

impl EventClock {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.elapsed()
    }
}

/// Does what is due for all pods, for as long as it is polled.
pub async fn keep_time(pods: &EventPods, clock: EventClock) -> Infallible {
    let mut writer = pods.index().writer();
    loop {
        tokio::time::sleep(TICK).await;
        pods.tick(&mut writer, clock.now());
    }
}

/// Feeds the pods, whenever they come, from a transport, for as long as it is polled.
pub async fn consume<T: Transport>(
    transport: T,
    pods: &EventPods,
    clock: EventClock,
) -> Infallible {
    let attached = pods.attach(transport.name(), transport.abilities());
    let _place = FeedKey { pods, voice: Arc::clone(&attached.voice), clock };
    carry(transport, attached, pods, clock).await
}

/// Feeds the pods that are there from transports that `make` makes: if one panics, its pods are unsure, and the
/// next one takes over.
pub async fn supervise<T, M>(mut make: M, pods: &Arc<EventPods>, clock: EventClock) -> Infallible
where
    T: Transport + 'static,
    M: FnMut() -> T,
{
    loop {
        let transport = make();
        let attached = pods.attach_to_present(transport.name(), transport.abilities());
        let place = FeedKey { pods, voice: Arc::clone(&attached.voice), clock };
        until_panic(carry(transport, attached, pods, clock)).await;
        drop(place);
        tokio::time::sleep(RESTART).await;
    }
}

/// Polls it in the caller's own task, so that whoever gave that task a name finds it under that name.
async fn until_panic(work: impl Future<Output = Infallible>) {
    let mut work = Box::pin(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(never)) => match never {},
        // It is dropped and never polled again; the panic itself was logged.
        Err(_) => Poll::Ready(()),
    })
    .await;
}

async fn carry<T: Transport>(
    mut transport: T,
    mut attached: AttachedPod,
    pods: &EventPods,
    clock: EventClock,
) -> Infallible {
    let mut writer = pods.index().writer();
    let mut turn = Instant::now();
    loop {
        tokio::select! {
            Some((pod, ask)) = attached.asks.recv() => transport.ask(&pod, ask),
            heard = transport.next() => pods.hear(&mut writer, &attached, heard, clock.now()),
        }
        if turn.elapsed() >= TURN {
            tokio::task::yield_now().await;
            turn = Instant::now();
        }
    }
}

/// A transport's place, which it leaves however it ends.
struct FeedKey<'a> {
    pods: &'a EventPods,
    voice: Arc<Source>,
    clock: EventClock,
}

impl Drop for FeedKey<'_> {
    fn drop(&mut self) {
        // What panicked could do so again, which would end the process.
        if !std::thread::panicking() {
            self.pods.detach(&mut self.pods.index().writer(), &self.voice, self.clock.now());
        }
    }
}
