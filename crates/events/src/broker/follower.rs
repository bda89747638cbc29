//! The part of a broker transport that is the same for all: reconnecting with backoff, reading,
//! reporting errors.

use crate::message::{Capabilities, Delivery, SourceMessage, SourceQuery};
use crate::transport::{PodName, SourceSignal, Transport};
use std::collections::VecDeque;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use wornpath_time::Backoff;
use wornpath_tls::explain;

const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

pub(super) type BrokerFailure = Box<dyn Error + Send + Sync>;

/// Why a broker failed; for TLS also the cure.
pub(super) fn reason(failure: &BrokerFailure) -> String {
    explain(failure.as_ref()).unwrap_or_else(|| failure.to_string())
}

/// A broker's client.
pub trait Broker: Send {
    /// Signals that were read and not delivered yet.
    fn signals(&mut self) -> &mut VecDeque<SourceSignal>;

    /// Whether there is a connection.
    fn is_connected(&self) -> bool;

    /// Connects, and queues `Connected` for every pod.
    fn connect(&mut self) -> impl Future<Output = Result<(), BrokerFailure>> + Send;

    /// Closes the connection and cancels replays. Returns whether there was one.
    fn disconnect(&mut self) -> bool;

    /// Reads from the connection. Cancel-safe.
    fn advance(&mut self) -> impl Future<Output = Result<(), BrokerFailure>> + Send;

    /// Starts a replay of a pod from a number on, and cancels an earlier one.
    fn replay(&mut self, pod: &PodName, from: u64);
}

/// A transport that reads what a relay has published to a broker.
#[derive(Debug)]
pub struct BrokerFollower<B> {
    name: String,
    pods: Vec<PodName>,
    broker: B,
    connect_at: Instant,
    backoff: Backoff,
    /// The last reason that was reported.
    reported: Option<String>,
}

impl<B: Broker> BrokerFollower<B> {
    pub(super) fn named(name: String, pods: &[PodName], broker: B) -> Self {
        // Random, so that routers that lost the same broker do not all redial it at once.
        let backoff = RECONNECT.with_jitter(RandomState::new().hash_one(&name));
        let connect_at = Instant::now();
        Self { name, pods: pods.to_vec(), broker, connect_at, backoff, reported: None }
    }

    async fn step(&mut self) -> Result<(), BrokerFailure> {
        if self.broker.is_connected() {
            // Only a successful read resets the backoff: a broker may accept connections and fail
            // every read.
            self.broker.advance().await?;
            self.backoff.succeeded();
            self.reported = None;
            return Ok(());
        }
        sleep_until(self.connect_at).await;
        self.broker.connect().await
    }

    /// Reports an error for all pods, unless it is the same as before.
    fn report(&mut self, reason: String) {
        if self.reported.as_ref() == Some(&reason) {
            return;
        }
        for pod in &self.pods {
            let message = SourceMessage::Unreachable(reason.clone());
            self.broker.signals().push_back(SourceSignal::Pod(Arc::clone(pod), message));
        }
        self.reported = Some(reason);
    }
}

impl<B: Broker> Transport for BrokerFollower<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { replay: true, snapshot: false, relayed: true }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(signal) = self.broker.signals().pop_front() {
                return signal;
            }
            if let Err(failure) = self.step().await {
                self.connect_at = Instant::now() + self.backoff.failed();
                let was_connected = self.broker.disconnect();
                self.report(reason(&failure));
                if was_connected {
                    return SourceSignal::AllPods(SourceMessage::Disconnected);
                }
            }
        }
    }

    fn query(&mut self, pod: &PodName, query: SourceQuery) {
        if let SourceQuery::Replay { from } = query {
            // Entries of an earlier replay are no reply to this query.
            self.broker.signals().retain(|signal| !is_replayed(signal, pod));
            self.broker.replay(pod, from);
        }
    }
}

fn is_replayed(signal: &SourceSignal, pod: &PodName) -> bool {
    let SourceSignal::Pod(of, message) = signal else { return false };
    of == pod
        && matches!(
            message,
            SourceMessage::ReplayEnd | SourceMessage::Batch { delivery: Delivery::Replay, .. }
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts connections and fails every read.
    #[derive(Default)]
    struct Unreadable {
        connections: usize,
        is_connected: bool,
        signals: VecDeque<SourceSignal>,
    }

    impl Broker for Unreadable {
        fn signals(&mut self) -> &mut VecDeque<SourceSignal> {
            &mut self.signals
        }

        fn is_connected(&self) -> bool {
            self.is_connected
        }

        async fn connect(&mut self) -> Result<(), BrokerFailure> {
            self.connections += 1;
            self.is_connected = true;
            Ok(())
        }

        fn disconnect(&mut self) -> bool {
            std::mem::take(&mut self.is_connected)
        }

        async fn advance(&mut self) -> Result<(), BrokerFailure> {
            Err("no".into())
        }

        fn replay(&mut self, _: &PodName, _: u64) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_accepts_connections_and_fails_reads_is_retried_with_backoff() {
        let mut follower =
            BrokerFollower::named("unreadable".to_owned(), &[], Unreadable::default());
        let endless = async {
            loop {
                follower.next().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(60), endless).await;
        let connections = follower.broker.connections;
        assert!((20..=36).contains(&connections), "{connections} in a minute");
    }

    #[tokio::test]
    async fn a_new_replay_drops_the_entries_of_the_one_before() {
        let pods: [PodName; 2] = ["a".into(), "b".into()];
        let mut follower = BrokerFollower::named("any".to_owned(), &pods, Unreadable::default());
        for pod in &pods {
            let message = |message| SourceSignal::Pod(Arc::clone(pod), message);
            follower
                .broker
                .signals
                .extend([message(SourceMessage::Alive), message(SourceMessage::ReplayEnd)]);
        }
        follower.query(&pods[0], SourceQuery::Replay { from: 0 });
        let left = follower.broker.signals.iter().filter(|signal| is_replayed(signal, &pods[1]));
        assert_eq!((follower.broker.signals.len(), left.count()), (3, 1));
    }
}
