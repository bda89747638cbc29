//! Faults in virtual time: whatever the link and the engine do, the index comes to hold exactly
//! what the engine holds, within its bound, and asks no more than once a second. Every world runs
//! from a seed; `WORNPATH_SEED=7` runs that one alone, `WORNPATH_SEEDS=1000` runs as many.

mod checkpoint;
mod world;

use std::ops::Range;
use std::time::Duration;
use world::{Faults, World};
use wornpath_events::{Capabilities, FeedState};

const SECOND: Duration = Duration::from_secs(1);

/// An engine of ours, over a bad link: all that can go wrong with batches does.
const BAD_LINK: Faults = Faults {
    lost: 1,
    doubled: 5,
    reordered: 32,
    epochs: true,
    capabilities: Capabilities { replay: true, snapshot: true, relayed: false },
    refuses_replay: false,
    ring: 10_000,
    digest_every: Some(SECOND),
};

/// A stock engine: no epochs, no snapshot, no digest; what TCP carries is in order, and what finds
/// the queue full is lost.
const STOCK: Faults = Faults {
    lost: 1,
    doubled: 0,
    reordered: 0,
    epochs: false,
    capabilities: Capabilities { replay: true, snapshot: false, relayed: false },
    refuses_replay: false,
    ring: 10_000,
    digest_every: None,
};

fn seeds() -> Range<u64> {
    let read = |name| std::env::var(name).ok().and_then(|value: String| value.parse().ok());
    let seeds = match (read("WORNPATH_SEED"), read("WORNPATH_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(24),
    };
    eprintln!("seeds {seeds:?}");
    seeds
}

/// Works, restarts, works, loses its tail and falls silent; exact two seconds later, and ever
/// after.
fn survive(faults: Faults) {
    for seed in seeds() {
        let mut world = World::new(seed, faults);
        world.work(SECOND * 4);
        world.idle(SECOND * 2);
        world.assert_exact("two seconds after work", seed);
        world.restart();
        world.work(SECOND * 3);
        world.restart();
        world.work(SECOND / 2);
        world.lose_the_tail(3);
        world.idle(SECOND * 2);
        world.assert_exact("two seconds after the last batch, which was lost", seed);
        world.work(SECOND * 3);
        world.idle(SECOND * 2);
        world.assert_exact("two seconds after going on", seed);
        world.idle(SECOND * 60);
        world.assert_exact("after a silent minute", seed);
        world.assert_paced(seed);
    }
}

#[test]
fn an_engine_with_replay_snapshot_and_digest_is_exact_within_two_seconds() {
    survive(BAD_LINK);
}

#[test]
fn an_engine_that_cannot_replay_is_exact_within_two_seconds() {
    survive(Faults {
        capabilities: Capabilities { replay: false, snapshot: true, relayed: false },
        ..BAD_LINK
    });
}

#[test]
fn an_engine_that_refuses_replays_is_exact_within_two_seconds() {
    survive(Faults { refuses_replay: true, ..BAD_LINK });
}

#[test]
fn an_engine_whose_ring_is_too_short_is_exact_within_two_seconds() {
    survive(Faults { ring: 5, ..BAD_LINK });
}

#[test]
fn a_stock_engine_is_exact_within_two_seconds() {
    survive(STOCK);
}

#[test]
fn an_engine_that_restarted_while_disconnected_is_detected() {
    for seed in seeds() {
        let mut world = World::new(seed, Faults { lost: 0, ..STOCK });
        world.work(SECOND);
        world.restart_disconnected();
        world.work(SECOND / 10);
        world.idle(SECOND * 2);
        world.assert_exact("after a restart that came as far as before", seed);
        assert_eq!(world.status().counters.restarts, 1, "seed {seed}");
    }
}

#[test]
fn a_wrong_state_is_repaired_by_one_snapshot_while_the_engine_works() {
    for seed in seeds() {
        let mut world = World::new(seed, Faults { lost: 0, doubled: 0, reordered: 0, ..BAD_LINK });
        world.work(SECOND * 2);
        let before = world.status().counters.snapshots;
        world.corrupt();
        world.work(SECOND * 4);
        world.idle(SECOND / 20);
        world.assert_exact("while it went on", seed);
        assert_eq!(world.status().counters.snapshots - before, 1, "seed {seed}");
    }
}

#[test]
fn total_loss_for_half_a_minute_heals_within_a_digest_and_a_second() {
    let all = Capabilities { replay: true, snapshot: true, relayed: false };
    for (capabilities, interval) in [
        (all, 1),
        (Capabilities { replay: false, snapshot: true, relayed: false }, 1),
        (all, 3),
        (all, 5),
    ] {
        let digest_every = Some(SECOND * interval);
        for seed in seeds() {
            let mut world = World::new(seed, Faults { capabilities, digest_every, ..BAD_LINK });
            world.work(SECOND * 3);
            world.cut = true;
            world.work(SECOND * 30);
            assert!(!world.is_exact(), "seed {seed}: the cut had no effect");
            world.cut = false;
            world.idle(SECOND * (interval + 1));
            world.assert_exact("a digest and a second after the cut", seed);
            world.assert_paced(seed);
        }
    }
}

#[test]
fn a_stock_engine_that_was_cut_off_for_half_a_minute_is_exact_within_two_seconds() {
    for seed in seeds() {
        let mut world = World::new(seed, STOCK);
        world.work(SECOND * 3);
        world.cut = true;
        world.work(SECOND * 30);
        assert!(!world.is_exact(), "seed {seed}: the cut had no effect");
        world.cut = false;
        world.reconnect();
        world.idle(SECOND * 2);
        world.assert_exact("two seconds after the cut", seed);
        world.assert_paced(seed);
    }
}

#[test]
fn a_source_without_queries_gives_no_block_that_the_engine_does_not_hold() {
    let capabilities = Capabilities::default();
    let deaf = Faults { lost: 0, capabilities, ..STOCK };
    for seed in seeds() {
        let mut world = World::new(seed, deaf);
        world.work(SECOND * 2);
        world.assert_exact("without any loss", seed);
        world.restart();
        world.work(SECOND * 2);
        world.assert_exact("after a restart", seed);
        world.lose_the_tail(1);
        world.work(SECOND / 5);
        world.idle(SECOND);
        let (ours, theirs) = world.counts();
        assert_eq!(world.status().state, FeedState::Partial, "seed {seed}");
        assert!(ours <= theirs, "seed {seed}: {ours} blocks in the index, {theirs} in the engine");
        assert_eq!(world.status().counters.rebuilds, 1, "seed {seed}");
    }
}

#[test]
fn a_lossy_source_without_queries_gives_no_phantom_block_within_two_seconds() {
    let deaf = Faults { capabilities: Capabilities::default(), ..STOCK };
    let mut looked = 0;
    for seed in seeds() {
        let mut world = World::new(seed, deaf);
        world.work(SECOND * 4);
        world.restart();
        world.work(SECOND * 4);
        world.idle(SECOND * 2);
        if let Some(phantoms) = world.phantoms() {
            assert_eq!(phantoms, 0, "seed {seed}: {:?}", world.status());
            looked += 1;
        }
        let rebuilds = world.status().counters.rebuilds;
        assert!(rebuilds > 0 && rebuilds <= 10, "seed {seed}: {rebuilds} in ten seconds");
    }
    assert!(looked > 0, "blocks waited for their prefix under every seed");
}

#[test]
fn confidence_decreases_with_silence() {
    let mut world = World::new(1, Faults { lost: 0, ..BAD_LINK });
    world.work(SECOND);
    world.idle(SECOND);
    assert_eq!((world.status().state, world.status().confidence), (FeedState::Live, 1.0));
    world.cut = true;
    world.idle(SECOND * 45);
    let status = world.status();
    assert_eq!(status.state, FeedState::Stale);
    assert!((0.2..0.8).contains(&status.confidence), "{}", status.confidence);
    world.idle(SECOND * 30);
    assert_eq!(world.status().confidence, 0.0);
    world.cut = false;
    world.idle(SECOND * 2);
    assert_eq!((world.status().state, world.status().confidence), (FeedState::Live, 1.0));
}
