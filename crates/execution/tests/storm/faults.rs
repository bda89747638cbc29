//! What goes wrong, and that it is over.

use crate::exchange::origin;
use crate::link::{Kind, Link};
use crate::router::{End, Life, Router, Then};
use crate::world::{Happening, PODS, ROUTERS, World};
use std::time::Duration;
use wornpath_execution::CallOutcome;

/// Whether a broker loses what it kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wiped {
    Yes,
    No,
}

impl World {
    /// An engine's process ends, and is started again after a while.
    pub(crate) fn crash(&mut self, pod: usize, back_after: Duration) {
        self.engines[pod].crash();
        let life = self.engines[pod].life;
        let cut_off =
            self.calls.iter().filter(|(_, call)| call.sent.pod == pod && call.life.is_some());
        let cut_off: Vec<_> = cut_off.map(|(number, call)| (*number, call.router)).collect();
        for (call, router) in cut_off {
            // Who cannot hear that the connection broke finds out by its timeouts.
            if !self.links[router][pod].is_data_cut {
                let delay = self.delay();
                self.after(delay, Happening::Failed { call, outcome: CallOutcome::Lost });
            }
        }
        // Connections break with it, even if it is back at once.
        for router in 0..ROUTERS {
            if self.kinds[pod] != Kind::Broker && self.links[router][pod].is_connected {
                self.set_connected(router, pod, false);
            }
        }
        self.after(back_after, Happening::Back { pod, life });
    }

    /// An engine works slowly or not at all, for a while.
    pub(crate) fn trouble(&mut self, pod: usize, slowness: Option<u32>, lasts: Duration) {
        let engine = &mut self.engines[pod];
        match slowness {
            Some(slowness) => engine.slowness = slowness,
            None => engine.hangs = true,
        }
        let life = engine.life;
        self.after(lasts, Happening::Recovered { pod, life });
    }

    /// An engine is told to forget its cache.
    pub(crate) fn reset_cache(&mut self, pod: usize) {
        if self.engines[pod].is_up {
            let batch = self.engines[pod].reset();
            self.publish(pod, batch);
        }
    }

    /// A router's process ends and another one takes its place; its clients' connections break.
    pub(crate) fn restart_router(&mut self, router: usize) {
        let ended =
            self.requests.keys().filter(|request| self.routers[router].is_ongoing(**request));
        let ended: Vec<_> = ended.copied().collect();
        for request in ended {
            self.then(router, Some(Then::End(request, End::Left)));
        }
        self.router_ended(router);
        self.eras[router] += 1;
        let origin = origin(router, self.eras[router]);
        let life = Life { origin, seed: self.rng.bits(), began: self.now };
        self.routers[router] = Router::new(self.profile, &self.kinds, life);
        self.questions.retain(|(asked_by, _), _| *asked_by != router);
        for link in &mut self.links[router] {
            link.is_connected = false;
            link.connection += 1;
        }
    }

    /// The broker ends, with or without what it kept, or is back.
    pub(crate) fn set_broker(&mut self, is_up: bool, wiped: Wiped) {
        self.broker.is_up = is_up;
        if wiped == Wiped::Yes {
            self.broker.has = [(0, 0); PODS];
        }
    }

    /// Nothing is wrong any more.
    pub(crate) fn heal(&mut self) {
        self.broker.is_up = true;
        self.exchange.is_cut = false;
        self.links.iter_mut().flatten().for_each(Link::heal);
        for engine in &mut self.engines {
            engine.is_up = true;
            (engine.hangs, engine.slowness) = (false, 1);
        }
    }
}
