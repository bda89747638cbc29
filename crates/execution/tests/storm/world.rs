//! Routers, engines, a broker, and everything between them, in virtual time from one seed.

use crate::engine::{Engine, Prompt};
use crate::exchange::{RouterLink, origin};
use crate::link::{Kind, Link};
use crate::router::{BuiltInProfile, End, Life, Router, Send, Then};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;
use wornpath_events::{SourceMessage, SourceQuery};
use wornpath_exchange::Update;
use wornpath_execution::CallOutcome;
use wornpath_index::Moment;
use wornpath_routing::Rng;

pub(crate) const ROUTERS: usize = 2;
pub(crate) const PODS: usize = 4;

const TICK: Duration = Duration::from_millis(50);
pub(crate) const DIGEST_EVERY: Duration = Duration::from_secs(1);
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(2);
const REST_WITHIN: Duration = Duration::from_secs(2);

/// Something that will happen.
pub(crate) enum Happening {
    Asked { router: usize, request: u64 },
    Reached { call: u64 },
    FirstByte { call: u64 },
    Answered { call: u64 },
    Failed { call: u64, outcome: CallOutcome },
    TimedOut { call: u64, before_first_byte: bool },
    Left { router: usize, request: u64 },
    Probed { router: usize, life: u64, pod: usize, outcome: CallOutcome },
    Said { router: usize, pod: usize, connection: u64, said: Box<SourceMessage> },
    Questioned { router: usize, pod: usize, connection: u64, ask: SourceQuery },
    Back { pod: usize, life: u64 },
    Recovered { pod: usize, life: u64 },
    Told { to: usize, life: u64, update: Box<Update> },
    Tick,
    Digest,
}

/// A call that is under way.
pub(crate) struct Call {
    pub(crate) router: usize,
    /// The router's life when it made the call.
    pub(crate) era: u64,
    pub(crate) sent: Send,
    pub(crate) prompt: Prompt,
    /// The engine's life that took it.
    pub(crate) life: Option<u64>,
    pub(crate) has_begun: bool,
}

/// Keeps what relays publish, until it is wiped.
pub(crate) struct Broker {
    pub(crate) is_up: bool,
    /// For each pod: the life whose batches it has, and the first number that it has not.
    pub(crate) has: [(u64, u64); PODS],
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: Moment,
    pub(crate) rng: Rng,
    pub(crate) routers: Vec<Router>,
    pub(crate) eras: [u64; ROUTERS],
    pub(crate) engines: Vec<Engine>,
    pub(crate) kinds: [Kind; PODS],
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) exchange: RouterLink,
    /// Whether routers had load when they were last found to agree.
    pub(crate) agreed_under_load: bool,
    pub(crate) profile: BuiltInProfile,
    pub(crate) broker: Broker,
    pub(crate) agenda: BinaryHeap<Reverse<(Moment, u64)>>,
    pub(crate) happenings: BTreeMap<u64, Happening>,
    pub(crate) planned: u64,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) requests: BTreeMap<u64, (usize, Prompt)>,
    pub(crate) next_request: u64,
    pub(crate) ends: BTreeMap<u64, End>,
    /// For each answered request, the blocks that were predicted and those that were there.
    pub(crate) predictions: BTreeMap<u64, (usize, usize)>,
    /// When each router asked about each pod.
    pub(crate) questions: BTreeMap<(usize, usize), Vec<Moment>>,
    /// Batches of lives that were over.
    pub(crate) outdated: usize,
    /// A sum of all that happened.
    pub(crate) trace: u64,
}

impl World {
    pub(crate) fn new(seed: u64, profile: BuiltInProfile) -> Self {
        let mut rng = Rng::new(seed ^ 0x5707_2A11);
        let kinds = [(); PODS].map(|()| Kind::ALL[rng.below(Kind::ALL.len())]);
        let routers = (0..ROUTERS).map(|router| {
            let life = Life { origin: origin(router, 0), seed: rng.bits(), began: Moment::ZERO };
            Router::new(profile, &kinds, life)
        });
        let mut world = Self {
            seed,
            now: Moment::ZERO,
            routers: routers.collect(),
            rng: Rng::new(seed),
            eras: [0; ROUTERS],
            engines: (0..PODS).map(|_| Engine::new()).collect(),
            kinds,
            links: (0..ROUTERS).map(|_| (0..PODS).map(|_| Link::new()).collect()).collect(),
            exchange: RouterLink::new(),
            agreed_under_load: false,
            profile,
            broker: Broker { is_up: true, has: [(0, 0); PODS] },
            agenda: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            planned: 0,
            calls: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            ends: BTreeMap::new(),
            predictions: BTreeMap::new(),
            questions: BTreeMap::new(),
            outdated: 0,
            trace: 0,
        };
        world.at(Moment::at(TICK), Happening::Tick);
        world.at(Moment::at(DIGEST_EVERY), Happening::Digest);
        world.connect();
        world
    }

    pub(crate) fn at(&mut self, at: Moment, happening: Happening) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned)));
        self.happenings.insert(self.planned, happening);
    }

    pub(crate) fn after(&mut self, delay: Duration, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    /// Lets everything happen that happens within `duration`.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(Reverse((at, number))) = self.agenda.peek().copied()
            && at <= end
        {
            self.agenda.pop();
            self.now = at;
            let happening = self.happenings.remove(&number).unwrap();
            self.happen(happening);
            self.listen();
        }
        self.now = end;
    }

    /// A client asks a router after some time, and may leave before it is answered.
    pub(crate) fn ask(&mut self, router: usize, prompt: Prompt, delay: Duration) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, (router, prompt));
        self.after(delay, Happening::Asked { router, request });
        request
    }

    pub(crate) fn leave(&mut self, request: u64, delay: Duration) {
        let router = self.requests[&request].0;
        self.after(delay, Happening::Left { router, request });
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Asked { router, request } => {
                let prompt = self.requests[&request].1.clone();
                let then = self.routers[router].request(request, &prompt, self.now);
                self.then(router, then);
            }
            Happening::Left { router, request } => {
                let then = self.routers[router].disconnected(request);
                self.then(router, then);
            }
            Happening::Reached { call } => self.reached(call),
            Happening::FirstByte { call } => self.first_byte(call),
            Happening::Answered { call } => self.answered(call),
            Happening::Failed { call, outcome } => self.failed(call, outcome),
            Happening::TimedOut { call, before_first_byte } => {
                let is_due = |call: &Call| !(before_first_byte && call.has_begun);
                if self.calls.get(&call).is_some_and(is_due) {
                    self.failed(call, CallOutcome::Failed);
                }
            }
            Happening::Probed { router, life, pod, outcome } => {
                if self.eras[router] == life {
                    self.routers[router].probed(pod, outcome, self.now);
                }
            }
            Happening::Said { router, pod, connection, said } => {
                if self.links[router][pod].connection == connection {
                    self.handle_message(router, pod, *said);
                }
            }
            Happening::Questioned { router, pod, connection, ask } => {
                let link = &self.links[router][pod];
                if link.connection == connection && link.is_connected && !link.is_event_cut {
                    self.reply(router, pod, ask);
                }
            }
            Happening::Back { pod, life } => {
                if self.engines[pod].life == life {
                    self.engines[pod].is_up = true;
                }
            }
            Happening::Recovered { pod, life } => {
                let engine = &mut self.engines[pod];
                if engine.life == life {
                    (engine.hangs, engine.slowness) = (false, 1);
                }
            }
            Happening::Told { to, life, update } => self.told(to, life, *update),
            Happening::Tick => self.tick(),
            Happening::Digest => self.digests(),
        }
    }

    pub(crate) fn then(&mut self, router: usize, then: Option<Then>) {
        match then {
            None => {}
            Some(Then::End(request, end)) => {
                self.trace = Rng::new(self.trace ^ request << 8 ^ end as u64).bits();
                self.trace ^= self.now.since_zero().as_nanos() as u64;
                let before = self.ends.insert(request, end);
                assert!(before.is_none(), "seed {}: {request} ended twice", self.seed);
            }
            Some(Then::Send(sent)) => {
                let prompt = self.requests[&sent.request].1.clone();
                let era = self.eras[router];
                let call = Call { router, era, sent, prompt, life: None, has_begun: false };
                let number = self.planned;
                self.calls.insert(number, call);
                let delay = self.delay();
                self.after(delay, Happening::Reached { call: number });
                let timed_out = Happening::TimedOut { call: number, before_first_byte: true };
                self.after(FIRST_BYTE_WITHIN, timed_out);
            }
        }
    }

    pub(crate) fn delay(&mut self) -> Duration {
        Duration::from_micros(100 + self.rng.below(1500) as u64)
    }

    /// A call comes to the engine's address.
    fn reached(&mut self, number: u64) {
        let delay = self.delay();
        let Some(call) = self.calls.get_mut(&number) else { return };
        let router = call.router;
        let pod = call.sent.pod;
        if self.links[router][pod].is_data_cut {
            return;
        }
        let engine = &mut self.engines[pod];
        if !engine.is_up {
            return self
                .after(delay, Happening::Failed { call: number, outcome: CallOutcome::Gone });
        }
        call.life = Some(engine.life);
        if engine.hangs {
            return;
        }
        let first = engine.admit(&call.prompt, self.now);
        self.at(first, Happening::FirstByte { call: number });
    }

    /// The engine has computed a prompt. What it says of its cache is on its way before the answer
    /// is.
    fn first_byte(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let router = call.router;
        let Send { pod, request, .. } = call.sent;
        let engine = &mut self.engines[pod];
        if call.life != Some(engine.life) || engine.hangs {
            return;
        }
        self.predictions.insert(request, (call.sent.predicted, engine.held(&call.prompt)));
        let batch = engine.compute(&call.prompt);
        if let Some(batch) = batch {
            self.publish(pod, batch);
        }
        if self.links[router][pod].is_data_cut || !self.is_awaited(number) {
            return;
        }
        self.calls.get_mut(&number).unwrap().has_begun = true;
        self.routers[router].first_byte(request, self.now);
        let rest = Duration::from_millis(5 + self.rng.below(150) as u64);
        self.after(rest, Happening::Answered { call: number });
        let timed_out = Happening::TimedOut { call: number, before_first_byte: false };
        self.after(REST_WITHIN, timed_out);
    }

    fn answered(&mut self, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let router = call.router;
        let Send { pod, request, .. } = call.sent;
        let engine = &self.engines[pod];
        let is_lost = self.links[router][pod].is_data_cut || engine.hangs;
        if call.life != Some(engine.life) || is_lost || !self.is_awaited(number) {
            return;
        }
        self.calls.remove(&number);
        let then = self.routers[router].answered(request, pod, self.now);
        self.then(router, Some(then));
    }

    /// Whether the router that made a call still waits for it.
    fn is_awaited(&self, call: u64) -> bool {
        self.calls.get(&call).is_some_and(|call| {
            self.eras[call.router] == call.era
                && self.routers[call.router].is_ongoing(call.sent.request)
        })
    }

    fn failed(&mut self, number: u64, outcome: CallOutcome) {
        if !self.is_awaited(number) {
            self.calls.remove(&number);
            return;
        }
        let Some(call) = self.calls.remove(&number) else { return };
        let Send { request, pod, .. } = call.sent;
        let then = self.routers[call.router].failed(request, pod, outcome, self.now);
        self.then(call.router, then);
    }

    fn tick(&mut self) {
        self.after(TICK, Happening::Tick);
        self.connect();
        self.exchange();
        for router in 0..ROUTERS {
            for pod in self.routers[router].tick(self.now) {
                let delay = self.delay();
                let engine = &self.engines[pod];
                let is_silent = engine.hangs || self.links[router][pod].is_data_cut;
                let (delay, outcome) = match (is_silent, engine.is_up) {
                    (true, _) => (FIRST_BYTE_WITHIN, CallOutcome::Failed),
                    (false, true) => (delay, CallOutcome::Good),
                    (false, false) => (delay, CallOutcome::Gone),
                };
                let life = self.eras[router];
                self.after(delay, Happening::Probed { router, life, pod, outcome });
            }
            for then in self.routers[router].poll(self.now) {
                self.then(router, Some(then));
            }
        }
    }
}
