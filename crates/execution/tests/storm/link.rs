//! How a pod's events come to one router: straight from an engine of ours, straight from a stock
//! engine, or through a broker that a relay fills. Each loses, repeats, delays and breaks in its
//! own way.

use std::time::Duration;
use wornpath_events::Capabilities;
use wornpath_index::Moment;
use wornpath_routing::Rng;

/// A class of sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Epochs, replay, snapshots and a digest every second, over a link without any order.
    Ours,
    /// No epochs, no snapshots, no digests; in order, and what finds a queue full is lost.
    Stock,
    /// A relay's epochs, in order, replayed by the broker.
    Broker,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Ours, Self::Stock, Self::Broker];

    pub(crate) const fn abilities(self) -> Capabilities {
        Capabilities { replay: true, snapshot: matches!(self, Self::Ours), relayed: false }
    }

    pub(crate) const fn tells_epochs(self) -> bool {
        !matches!(self, Self::Stock)
    }
}

const LATEST_COPY: Duration = Duration::from_secs(4);

/// Between one engine and one router.
pub(crate) struct Link {
    /// Calls are dropped without an error.
    pub(crate) is_data_cut: bool,
    /// Events do not pass.
    pub(crate) is_event_cut: bool,
    /// Percent of batches that are lost and, where the kind allows it, come twice.
    pub(crate) trouble: u64,
    /// The longest that a batch is under way.
    pub(crate) slowest: Duration,
    /// What was sent over an earlier connection never arrives.
    pub(crate) connection: u64,
    pub(crate) is_connected: bool,
    last_arrival: Moment,
    last_answer: Moment,
}

impl Link {
    pub(crate) const CALM: Duration = Duration::from_millis(3);

    pub(crate) const fn new() -> Self {
        Self {
            is_data_cut: false,
            is_event_cut: false,
            trouble: 0,
            slowest: Self::CALM,
            connection: 0,
            is_connected: false,
            last_arrival: Moment::ZERO,
            last_answer: Moment::ZERO,
        }
    }

    /// All that was wrong with it is over.
    pub(crate) const fn heal(&mut self) {
        self.is_data_cut = false;
        self.is_event_cut = false;
        self.trouble = 0;
        self.slowest = Self::CALM;
    }

    /// When the copies of a live batch arrive that is sent now.
    pub(crate) fn arrivals(&mut self, kind: Kind, now: Moment, rng: &mut Rng) -> Vec<Moment> {
        let chance = |rng: &mut Rng, percent| (rng.below(100) as u64) < percent;
        let is_lossy = kind != Kind::Broker;
        if self.is_event_cut || (is_lossy && chance(rng, self.trouble)) {
            return Vec::new();
        }
        let mut arrivals = vec![self.arrival(kind, now, rng)];
        if kind == Kind::Ours && chance(rng, self.trouble) {
            // So late that it may come in another life of its engine.
            arrivals.push(self.arrival(kind, now, rng) + LATEST_COPY.mul_f64(rng.unit()));
        }
        arrivals
    }

    fn arrival(&mut self, kind: Kind, now: Moment, rng: &mut Rng) -> Moment {
        let at = now + Duration::from_micros(200) + self.slowest.mul_f64(rng.unit());
        if kind == Kind::Ours {
            return at;
        }
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }

    /// When a part of an answer arrives: answers come whole and in order.
    pub(crate) fn answer(&mut self, kind: Kind, now: Moment, rng: &mut Rng) -> Moment {
        let at = self.arrival(kind, now, rng);
        self.last_answer = self.last_answer.max(at);
        self.last_answer
    }
}
