//! The delivery of cache events to routers, and the queries of routers.

use crate::link::Kind;
use crate::router::Router;
use crate::world::{DIGEST_EVERY, Happening, PODS, ROUTERS, World};
use std::time::Duration;
use wornpath_events::{BatchId, Delivery, SourceMessage, SourceQuery};

/// The longest time that a query or its reply takes.
const ANSWER: Duration = Duration::from_millis(20);

impl World {
    /// Connects and disconnects the event sources by the state of their links.
    pub(crate) fn connect(&mut self) {
        self.relay();
        for router in 0..ROUTERS {
            for pod in 0..PODS {
                let link = &self.links[router][pod];
                let can = !link.is_event_cut
                    && match self.kinds[pod] {
                        Kind::Broker => self.broker.is_up,
                        Kind::Ours | Kind::Stock => self.engines[pod].is_up,
                    };
                if can != link.is_connected {
                    self.set_connected(router, pod, can);
                }
            }
        }
    }

    pub(crate) fn set_connected(&mut self, router: usize, pod: usize, is_connected: bool) {
        let link = &mut self.links[router][pod];
        link.is_connected = is_connected;
        // The batches of this kind of source need no connection.
        if self.kinds[pod] != Kind::Ours {
            link.connection += 1;
        }
        self.handle_message(
            router,
            pod,
            if is_connected { SourceMessage::Connected } else { SourceMessage::Disconnected },
        );
    }

    /// An engine publishes a batch to all routers.
    pub(crate) fn publish(&mut self, pod: usize, sequence: u64) {
        if self.kinds[pod] == Kind::Broker {
            return self.relay();
        }
        for router in 0..ROUTERS {
            self.deliver(router, pod, sequence);
        }
    }

    /// The relays forward batches to the broker, if it is up.
    pub(crate) fn relay(&mut self) {
        if !self.broker.is_up {
            return;
        }
        for pod in self.of_kind(Kind::Broker) {
            let engine = &self.engines[pod];
            let (life, next) = self.broker.has[pod];
            let from = if life == engine.life { next } else { 0 };
            let kept = engine.kept_from(from);
            self.broker.has[pod] = (engine.life, kept.end);
            for sequence in kept {
                (0..ROUTERS).for_each(|router| self.deliver(router, pod, sequence));
            }
        }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = usize> + use<> {
        let kinds = self.kinds;
        (0..PODS).filter(move |pod| kinds[*pod] == kind)
    }

    fn deliver(&mut self, router: usize, pod: usize, sequence: u64) {
        let link = &mut self.links[router][pod];
        if self.kinds[pod] != Kind::Ours && !link.is_connected {
            return;
        }
        let connection = link.connection;
        for at in link.arrivals(self.kinds[pod], self.now, &mut self.rng) {
            let said = Box::new(self.batch(pod, sequence, Delivery::Live));
            self.at(at, Happening::Said { router, pod, connection, said });
        }
    }

    fn batch(&self, pod: usize, sequence: u64, delivery: Delivery) -> SourceMessage {
        let (id, batch) = self.engines[pod].batch(sequence);
        SourceMessage::Batch { id: self.travelling(pod, id), delivery, batch: Box::new(batch) }
    }

    fn travelling(&self, pod: usize, id: BatchId) -> BatchId {
        BatchId { epoch: id.epoch.filter(|_| self.kinds[pod].tells_epochs()), ..id }
    }

    pub(crate) fn digests(&mut self) {
        self.after(DIGEST_EVERY, Happening::Digest);
        for pod in self.of_kind(Kind::Ours) {
            for router in 0..ROUTERS {
                if self.engines[pod].is_up && !self.links[router][pod].is_event_cut {
                    let said = SourceMessage::Digest(self.engines[pod].digest());
                    self.answer(router, pod, said);
                }
            }
        }
    }

    /// Sends a message to one router, which is neither lost nor duplicated.
    fn answer(&mut self, router: usize, pod: usize, said: SourceMessage) {
        let link = &mut self.links[router][pod];
        let connection = link.connection;
        let at = link.answer(self.kinds[pod], self.now, &mut self.rng);
        let said = Box::new(said);
        self.at(at, Happening::Said { router, pod, connection, said });
    }

    /// A router handles a message. Batches of a former epoch have no effect once a later one is
    /// known.
    pub(crate) fn handle_message(&mut self, router: usize, pod: usize, said: SourceMessage) {
        let clock = self.routers[router].clock(self.now);
        let Router { listeners, writer, index, .. } = &mut self.routers[router];
        let (listener, source) = &mut listeners[pod];
        let known = listener.status(clock).epoch;
        let is_outdated = matches!(&said, SourceMessage::Batch { id, .. } if id.epoch.is_some() && id.epoch < known);
        let before = is_outdated.then(|| index.digest(listener.id()).unwrap());
        listener.handle(writer, *source, said, clock).unwrap();
        if let Some(before) = before {
            self.outdated += 1;
            let after = index.digest(listener.id()).unwrap();
            assert_eq!(before.tiers, after.tiers, "seed {}: an old life of pod {pod}", self.seed);
        }
    }

    /// Every feed does its due work, and sends its queries.
    pub(crate) fn listen(&mut self) {
        for router in 0..ROUTERS {
            let clock = self.routers[router].clock(self.now);
            for pod in 0..PODS {
                while let Some((_, ask)) = self.routers[router].question(pod, clock) {
                    self.questions.entry((router, pod)).or_default().push(clock);
                    let connection = self.links[router][pod].connection;
                    let delay = ANSWER.mul_f64(self.rng.unit());
                    self.after(delay, Happening::Questioned { router, pod, connection, ask });
                }
            }
        }
    }

    /// An engine, or the broker, replies to a query.
    pub(crate) fn reply(&mut self, router: usize, pod: usize, ask: SourceQuery) {
        let engine = &self.engines[pod];
        match (ask, self.kinds[pod]) {
            (SourceQuery::Snapshot | SourceQuery::SnapshotWithTokens, Kind::Ours)
                if engine.is_up =>
            {
                let (id, batch) = engine.snapshot();
                let id = self.travelling(pod, id);
                let batch = Box::new(batch);
                self.answer(router, pod, SourceMessage::Snapshot { id, batch });
            }
            (SourceQuery::Snapshot | SourceQuery::SnapshotWithTokens, _) => {
                self.answer(router, pod, SourceMessage::Refused);
            }
            (SourceQuery::Replay { from }, kind) => {
                let (life, next) = self.broker.has[pod];
                let mut kept = engine.kept_from(from);
                if kind == Kind::Broker {
                    kept.end = if life == engine.life { kept.end.min(next) } else { kept.start };
                } else if !engine.is_up {
                    return;
                }
                for sequence in kept {
                    self.answer(router, pod, self.batch(pod, sequence, Delivery::Replay));
                }
                self.answer(router, pod, SourceMessage::ReplayEnd);
            }
        }
    }
}
