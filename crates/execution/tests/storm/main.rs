//! Fault injection in virtual time: two routers made of the real parts, four engines, a broker, and
//! all faults at once: crashes, restarts at the same address, hangs, partitions, loss, duplication,
//! delay, reordering, a broker that stops and comes back empty, routers that restart, clocks that
//! drift, and routers that do not reach each other. The invariants hold during the storm, and the index is exact once it is over.
//!
//! Every world runs from a seed: `WORNPATH_SEED=7` runs that one alone, `WORNPATH_SEEDS=5000` runs
//! as many.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]
#![allow(clippy::print_stdout, reason = "how requests ended is worth knowing")]

mod engine;
mod exchange;
mod faults;
mod link;
mod news;
mod router;
mod world;

use engine::Prompt;
use faults::Wiped;
use link::Kind;
use router::{BuiltInProfile, End};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;
use world::{PODS, ROUTERS, World};
use wornpath_routing::BreakerState;

const SECOND: Duration = Duration::from_secs(1);
const STORM: u32 = 12;

/// Worlds of one run, by default.
const SEEDS: u64 = 300;

const PROFILES: [BuiltInProfile; 2] = [
    BuiltInProfile {
        name: "cache-aware",
        text: include_str!("../../../../profiles/cache-aware.yaml"),
    },
    BuiltInProfile {
        name: "cache-affinity",
        text: include_str!("../../../../profiles/cache-affinity.yaml"),
    },
];

fn seeds(by_default: u64) -> Range<u64> {
    let read = |name| std::env::var(name).ok().and_then(|value: String| value.parse().ok());
    match (read("WORNPATH_SEED"), read("WORNPATH_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(by_default),
    }
}

fn below(world: &mut World, end: u64) -> u64 {
    world.rng.below(end as usize) as u64
}

fn millis(world: &mut World, range: Range<u64>) -> Duration {
    Duration::from_millis(range.start + below(world, range.end - range.start))
}

/// One of a few long prefixes, and an end that is nearly always new.
fn prompt(world: &mut World) -> Prompt {
    let family = below(world, 8) as u32 + 1;
    let shared = 2 + below(world, 14) as u32;
    let mut blocks: Prompt = (0..shared).map(|at| family * 1000 + at).collect();
    for _ in 0..below(world, 4) {
        blocks.push(100_000 + below(world, 1_000_000) as u32);
    }
    blocks
}

/// Clients send requests for a while, and some disconnect.
fn traffic(world: &mut World, lasts: Duration) {
    let mut at = Duration::ZERO;
    while at < lasts {
        let router = below(world, ROUTERS as u64) as usize;
        let prompt = prompt(world);
        let request = world.ask(router, prompt, at);
        if below(world, 30) == 0 {
            let patience = millis(world, 0..200);
            world.leave(request, at + patience);
        }
        at += millis(world, 1..25);
    }
}

/// Injects one fault.
fn fault(world: &mut World) {
    let router = below(world, ROUTERS as u64) as usize;
    let pod = below(world, PODS as u64) as usize;
    match below(world, 15) {
        0..=2 => {
            let down = millis(world, 1..2500);
            world.crash(pod, down);
        }
        3 => {
            let lasts = millis(world, 100..4000);
            world.trouble(pod, None, lasts);
        }
        4 => {
            let slowness = 2 + below(world, 20) as u32;
            let lasts = millis(world, 100..4000);
            world.trouble(pod, Some(slowness), lasts);
        }
        5 => world.links[router][pod].is_data_cut ^= true,
        6 => world.links[router][pod].is_event_cut ^= true,
        7 => {
            let trouble = below(world, 40);
            world.links.iter_mut().for_each(|links| links[pod].trouble = trouble);
        }
        8 => {
            let slowest = millis(world, 1..800);
            world.links[router][pod].slowest = slowest;
        }
        9 => world.reset_cache(pod),
        10 => world.set_broker(false, Wiped::No),
        11 => world.set_broker(false, Wiped::Yes),
        12 => world.set_broker(true, Wiped::No),
        13 => world.exchange.is_cut ^= true,
        _ => {
            if below(world, 4) == 0 {
                world.restart_router(router);
            }
        }
    }
}

/// A world after its storm and six seconds without faults.
fn weathered(seed: u64, profile: BuiltInProfile) -> World {
    let mut world = World::new(seed, profile);
    for _ in 0..STORM * 4 {
        traffic(&mut world, SECOND / 4);
        if below(&mut world, 2) == 0 {
            fault(&mut world);
        }
        world.pass(SECOND / 4);
    }
    world.heal();
    traffic(&mut world, SECOND);
    // Requests are under way.
    world.pass(SECOND - SECOND / 20);
    world.agreed_under_load = world.assert_routers_agree();
    world.pass(SECOND * 5);
    world
}

fn assert_exact(world: &World, when: &str) {
    for (number, router) in world.routers.iter().enumerate() {
        for (pod, (listener, _)) in router.listeners.iter().enumerate() {
            let ours = router.index.digest(listener.id()).unwrap();
            let theirs = world.engines[pod].digest();
            assert_eq!(
                ours.tiers,
                theirs.tiers,
                "seed {}, {when}: router {number} of pod {pod} ({:?}): {:?}",
                world.seed,
                world.kinds[pod],
                listener.status(router.clock(world.now)),
            );
        }
    }
}

/// A router queries a pod at most once per second, by its own clock.
fn assert_paced(world: &World) {
    for ((router, pod), asked) in &world.questions {
        for pair in asked.windows(2) {
            let pause = pair[1] - pair[0];
            assert!(
                pause >= SECOND,
                "seed {}: router {router} asked about pod {pod} again after {pause:?}",
                world.seed
            );
        }
    }
}

fn tally(world: &World) -> BTreeMap<&'static str, usize> {
    let mut tally = BTreeMap::new();
    for end in world.ends.values() {
        let name = match end {
            End::Whole => "whole",
            End::Broken => "cut with an error",
            End::Exhausted => "exhausted",
            End::Rejected => "rejected",
            End::Left => "disconnected",
        };
        *tally.entry(name).or_default() += 1;
    }
    tally
}

/// How the requests of a storm ended. Fails if it has left anything behind.
fn survive(seed: u64) -> BTreeMap<&'static str, usize> {
    let profile = PROFILES[(seed % PROFILES.len() as u64) as usize];
    let mut world = weathered(seed, profile);
    assert_exact(&world, "six seconds after the storm");
    assert_paced(&world);
    for router in &world.routers {
        router.assert_idle(seed);
        let states: Vec<_> = router.breakers.iter().map(|breaker| breaker.state()).collect();
        assert!(!states.contains(&BreakerState::Open), "seed {seed}: {states:?}");
    }
    let mut ends = tally(&world);
    ends.insert("batches of former epochs", world.outdated);
    ends.insert("routers agreed under load", usize::from(world.agreed_under_load));
    assert_calm(&mut world);
    ends
}

#[test]
fn after_any_storm_the_index_is_exact_and_nothing_is_left_of_ended_requests() {
    let seeds = Mutex::new(seeds(SEEDS));
    let all = Mutex::new(BTreeMap::<&str, usize>::new());
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let next = || seeds.lock().unwrap().next();
                while let Some(seed) = next() {
                    for (name, count) in survive(seed) {
                        *all.lock().unwrap().entry(name).or_default() += count;
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!("{all:?}");
    assert!(all["routers agreed under load"] > 0, "no world had any load then");
}

/// Without faults every request succeeds, and the predicted blocks are those that the engine holds.
fn assert_calm(world: &mut World) {
    let seed = world.seed;
    // Speculative inserts that were never confirmed have expired by then.
    world.pass(SECOND * 60);
    for _ in 0..20 {
        for router in 0..ROUTERS {
            let prompt = prompt(world);
            let predicted = world.routers[router].predicted(&prompt);
            let held: Vec<_> = world.engines.iter().map(|engine| engine.held(&prompt)).collect();
            assert_eq!(
                predicted,
                held,
                "seed {seed}: router {router} {:?} {:?}",
                world.kinds,
                world.routers[router].listeners[3].0.status(world.routers[router].clock(world.now))
            );
            let request = world.ask(router, prompt, Duration::ZERO);
            world.pass(SECOND);
            assert_eq!(world.ends.get(&request), Some(&End::Whole), "seed {seed}");
            let (predicted, actual) = world.predictions[&request];
            assert_eq!(predicted, actual, "seed {seed}: router {router}");
        }
    }
    assert_exact(world, "without faults");
    let breakers = world.routers.iter().flat_map(|router| &router.breakers);
    let closed = breakers.filter(|breaker| breaker.state() == BreakerState::Closed).count();
    assert_eq!(closed, ROUTERS * PODS, "seed {seed}");
}

#[test]
fn the_same_seed_gives_the_same_storm() {
    for seed in seeds(6) {
        let [one, other] = [(); 2].map(|()| weathered(seed, PROFILES[0]));
        assert_eq!((one.trace, one.ends.len()), (other.trace, other.ends.len()), "seed {seed}");
        assert_ne!(one.trace, weathered(seed + 1000, PROFILES[0]).trace, "seed {seed}");
    }
}

#[test]
fn every_class_of_sources_is_among_the_seeds() {
    let kinds: Vec<_> = seeds(SEEDS).flat_map(|seed| World::new(seed, PROFILES[0]).kinds).collect();
    for kind in Kind::ALL {
        assert!(kinds.len() < 16 || kinds.contains(&kind), "{kind:?}");
    }
}
