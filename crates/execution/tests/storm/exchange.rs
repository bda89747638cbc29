//! What routers tell each other, over links that cut, delay, reorder and repeat: after each tick
//! every router says what has changed, and when a connection is there again, everything.

use crate::router::Router;
use crate::world::{Happening, ROUTERS, World};
use std::time::Duration;
use wornpath_exchange::{
    Expected, FORGOTTEN_AFTER, Heard, Member, Origin, RouterId, Scope, Update,
};
use wornpath_index::Moment;

/// Between two signs of life.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);
/// What clocks that drift, and the time between two ticks, add to a limit.
const SLACK: Duration = Duration::from_millis(250);

/// Between two routers.
pub(crate) struct RouterLink {
    pub(crate) is_cut: bool,
    /// The routers whose whole state the other one has to get, because the connection is new.
    is_new: [bool; ROUTERS],
    /// When each router said something last.
    said: [Moment; ROUTERS],
    /// The lives of routers that have ended, and when.
    dead: Vec<(Origin, Moment)>,
}

impl RouterLink {
    pub(crate) const fn new() -> Self {
        Self {
            is_cut: false,
            is_new: [true; ROUTERS],
            said: [Moment::ZERO; ROUTERS],
            dead: Vec::new(),
        }
    }
}

/// The name of a router's life.
pub(crate) fn origin(router: usize, life: u64) -> Origin {
    Origin { router: RouterId(router as u64), started: life }
}

impl Router {
    fn say(&mut self, now: Moment) -> Option<Update> {
        let now = self.clock(now);
        self.commit_pending();
        self.member.changes(&self.fleet, std::iter::empty(), now)
    }

    pub(crate) fn hear(&mut self, update: Update, now: Moment) {
        let now = self.clock(now);
        let (Heard::Joined(sent) | Heard::Known(sent)) = self.member.hear(update, now) else {
            return;
        };
        for sent in &sent {
            let Self { member, fleet, writer, .. } = self;
            member.expect(fleet, sent, Expected { writer, history: None, now });
        }
        self.member.apply(&self.fleet, now);
    }

    fn forget(&mut self, now: Moment) {
        let now = self.clock(now);
        self.member.forget(now);
        self.member.apply(&self.fleet, now);
    }

    /// Whether what it knows of others' load is what `other` has now.
    fn agrees_with(&self, other: &Self) -> bool {
        let mut pods = self.fleet.pods().iter().zip(other.fleet.pods());
        pods.all(|(ours, theirs)| ours.state().others_load() == theirs.state().own_load())
    }
}

impl World {
    /// Routers say what has changed, and forget who is silent.
    pub(crate) fn exchange(&mut self) {
        for router in 0..ROUTERS {
            self.routers[router].forget(self.now);
            let update = self.routers[router].say(self.now);
            let is_due = self.now.since(self.exchange.said[router]) >= SIGN_OF_LIFE;
            let member: &mut Member = &mut self.routers[router].member;
            let update = update.or_else(|| is_due.then(|| member.sign_of_life()));
            let full = std::mem::take(&mut self.exchange.is_new[router]).then(|| member.full());
            for update in full.into_iter().chain(update) {
                self.tell(router, &update);
            }
        }
        self.assert_no_dead_router_is_known();
    }

    /// An update is on its way to the others. It may come twice, and after later ones.
    fn tell(&mut self, router: usize, update: &Update) {
        self.exchange.said[router] = self.now;
        if self.exchange.is_cut {
            // What is lost is made up for when the connection is there again.
            self.exchange.is_new[router] = true;
            return;
        }
        for to in (0..ROUTERS).filter(|to| *to != router) {
            for _ in 0..1 + self.rng.below(8) / 7 {
                let delay = Duration::from_millis(self.rng.below(60) as u64);
                let update = Box::new(update.clone());
                self.after(delay, Happening::Told { to, life: self.eras[to], update });
            }
        }
    }

    pub(crate) fn told(&mut self, to: usize, life: u64, update: Update) {
        if self.eras[to] != life {
            return;
        }
        // A broken connection loses what is under way on it, and the next one begins with all.
        if self.exchange.is_cut {
            self.exchange.is_new[update.origin.router.0 as usize] = true;
            return;
        }
        self.routers[to].hear(update, self.now);
    }

    /// A router's life has ended. The other one hears it if they are connected.
    pub(crate) fn router_ended(&mut self, router: usize) {
        let dead = origin(router, self.eras[router]);
        self.exchange.dead.push((dead, self.now));
        self.exchange.is_new = [true; ROUTERS];
        if !self.exchange.is_cut {
            for other in (0..ROUTERS).filter(|other| *other != router) {
                let now = self.routers[other].clock(self.now);
                self.routers[other].member.disconnected(dead.router, now);
            }
        }
    }

    fn assert_no_dead_router_is_known(&self) {
        for (dead, ended) in &self.exchange.dead {
            if self.now.since(*ended) < FORGOTTEN_AFTER + SLACK {
                continue;
            }
            for router in &self.routers {
                let is_known = router.member.routers().any(|known| known == *dead);
                assert!(!is_known, "seed {}: {dead:?} has ended long ago", self.seed);
            }
        }
        for router in self.routers.iter().filter(|router| router.member.routers().len() == 0) {
            for pod in router.fleet.pods() {
                let load = pod.state().others_load();
                assert_eq!(load, Default::default(), "seed {}: of nobody", self.seed);
            }
        }
    }

    /// Once nothing is under way between them, routers agree about all load. Not trivially: there is
    /// some.
    pub(crate) fn assert_routers_agree(&mut self) -> bool {
        let mut has_load = false;
        for router in 0..ROUTERS {
            let update = self.routers[router].say(self.now);
            let full = self.routers[router].member.full();
            assert_eq!(full.scope, Scope::Full);
            for to in (0..ROUTERS).filter(|to| *to != router) {
                for update in update.iter().chain([&full]) {
                    self.routers[to].hear(update.clone(), self.now);
                }
            }
        }
        for (number, router) in self.routers.iter().enumerate() {
            for other in (0..ROUTERS).filter(|other| *other != number) {
                let is_same = router.agrees_with(&self.routers[other]);
                assert!(is_same, "seed {}: router {number} of router {other}", self.seed);
            }
            let pods = router.fleet.pods().iter();
            has_load |= pods.map(|pod| pod.state().own_load().requests).sum::<u32>() > 0;
        }
        has_load
    }
}
