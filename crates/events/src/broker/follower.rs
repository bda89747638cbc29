//! Following a broker: connecting again and again, with a pause that grows, and reading on in between.

use crate::message::{Capabilities, Delivery, SourceMessage, SourceQuery};
use crate::transport::{PodName, SourceSignal, Transport};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(super) type BrokerFailure = Box<dyn Error + Send + Sync>;

/// A broker's own way of doing what all of them do.
pub trait Broker: Send {
    /// What was heard and not taken yet.
    fn heard(&mut self) -> &mut VecDeque<SourceSignal>;

    /// Whether there is a connection.
    fn is_connected(&self) -> bool;

    /// Connects, and says so of every pod.
    fn connect(&mut self) -> impl Future<Output = Result<(), BrokerFailure>> + Send;

    /// Gives the connection up, and what was to be read over it. Whether there was one.
    fn disconnect(&mut self) -> bool;

    /// Reads something over the connection. Dropping the future before its end loses nothing.
    fn advance(&mut self) -> impl Future<Output = Result<(), BrokerFailure>> + Send;

    /// Begins a replay of a pod from a number on, in the place of one that is under way.
    fn replay(&mut self, pod: &PodName, from: u64);
}

/// A transport that reads what a relay has published to a broker.
#[derive(Debug)]
pub struct BrokerFollower<B> {
    name: String,
    pods: Vec<PodName>,
    broker: B,
    backoff: BrokerBackoff,
    /// Why it cannot be reached, as it was said.
    told: Option<String>,
}

impl<B: Broker> BrokerFollower<B> {
    pub(super) fn named(name: String, pods: &[PodName], broker: B) -> Self {
        Self { name, pods: pods.to_vec(), broker, backoff: BrokerBackoff::new(), told: None }
    }

    async fn step(&mut self) -> Result<(), BrokerFailure> {
        if self.broker.is_connected() {
            // A broker that lets itself be connected to and then cannot be read is not back.
            self.broker.advance().await?;
            self.backoff.succeeded();
            self.told = None;
            return Ok(());
        }
        self.backoff.wait().await;
        self.broker.connect().await
    }

    /// Says of all pods why it cannot be reached, if that is new.
    fn tell(&mut self, reason: String) {
        if self.told.as_ref() == Some(&reason) {
            return;
        }
        for pod in &self.pods {
            let said = SourceMessage::Unreachable(reason.clone());
            self.broker.heard().push_back(SourceSignal::Of(Arc::clone(pod), said));
        }
        self.told = Some(reason);
    }
}

impl<B: Broker> Transport for BrokerFollower<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn abilities(&self) -> Capabilities {
        Capabilities { replay: true, snapshot: false, relayed: true }
    }

    async fn next(&mut self) -> SourceSignal {
        loop {
            if let Some(heard) = self.broker.heard().pop_front() {
                return heard;
            }
            if let Err(failure) = self.step().await {
                self.backoff.failed();
                let was_connected = self.broker.disconnect();
                self.tell(failure.to_string());
                if was_connected {
                    return SourceSignal::OfAll(SourceMessage::Disconnected);
                }
            }
        }
    }

    fn ask(&mut self, pod: &PodName, ask: SourceQuery) {
        if let SourceQuery::Replay { from } = ask {
            // What is left of an earlier replay is no answer to this question.
            self.broker.heard().retain(|heard| !is_replayed(heard, pod));
            self.broker.replay(pod, from);
        }
    }
}

fn is_replayed(heard: &SourceSignal, pod: &PodName) -> bool {
    let SourceSignal::Of(of, said) = heard else { return false };
    of == pod
        && matches!(
            said,
            SourceMessage::ReplayEnd | SourceMessage::Batch { via: Delivery::Replay, .. }
        )
}

/// When to connect next: the pause doubles while it fails, and differs between routers.
#[derive(Debug)]
struct BrokerBackoff {
    at: Instant,
    pause: Duration,
}

impl BrokerBackoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(2);

    fn new() -> Self {
        Self { at: Instant::now(), pause: Self::FIRST }
    }

    async fn wait(&self) {
        tokio::time::sleep_until(self.at).await;
    }

    fn succeeded(&mut self) {
        self.pause = Self::FIRST;
    }

    /// The address of a value is random enough to keep routers apart.
    fn failed(&mut self) {
        let jitter = (std::ptr::from_ref(self).addr() >> 4) as u32 % 256;
        self.at = Instant::now() + self.pause + self.pause * jitter / 1024;
        self.pause = (self.pause * 2).min(Self::LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Can be connected to and not be read.
    #[derive(Default)]
    struct Unreadable {
        connections: usize,
        is_connected: bool,
        heard: VecDeque<SourceSignal>,
    }

    impl Broker for Unreadable {
        fn heard(&mut self) -> &mut VecDeque<SourceSignal> {
            &mut self.heard
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
    async fn a_broker_that_cannot_be_read_is_connected_to_less_and_less() {
        let mut following =
            BrokerFollower::named("unreadable".to_owned(), &[], Unreadable::default());
        let endless = async {
            loop {
                following.next().await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(60), endless).await;
        let connections = following.broker.connections;
        assert!((20..=36).contains(&connections), "{connections} in a minute");
    }

    #[tokio::test]
    async fn what_is_left_of_an_earlier_replay_answers_nothing() {
        let pods: [PodName; 2] = ["a".into(), "b".into()];
        let mut following = BrokerFollower::named("any".to_owned(), &pods, Unreadable::default());
        for pod in &pods {
            let said = |said| SourceSignal::Of(Arc::clone(pod), said);
            following
                .broker
                .heard
                .extend([said(SourceMessage::Alive), said(SourceMessage::ReplayEnd)]);
        }
        following.ask(&pods[0], SourceQuery::Replay { from: 0 });
        let left = following.broker.heard.iter().filter(|heard| is_replayed(heard, &pods[1]));
        assert_eq!((following.broker.heard.len(), left.count()), (3, 1));
    }
}
