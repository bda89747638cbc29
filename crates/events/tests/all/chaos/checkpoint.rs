//! A router that restarts with a checkpoint: the state counts once the engine has confirmed it, and
//! never if the engine has restarted.

use super::world::{Faults, World};
use super::{BAD_LINK, SECOND, STOCK, seeds};
use wornpath_events::{Capabilities, FeedState, Resumed};

/// Batches that the engine publishes while no router is connected.
const MEANWHILE: usize = 40;

/// Restores a checkpoint after the engine went on.
fn warm(faults: Faults) {
    for seed in seeds() {
        let mut world = World::new(seed, faults);
        world.work(SECOND * 3);
        world.idle(SECOND * 2);
        let record = world.checkpoint();
        world.lose_the_tail(MEANWHILE);
        world.start_again(&record);
        let (ours, _) = world.counts();
        assert!(ours > 0, "seed {seed}: the state was restored");
        assert_eq!(world.status().freshness, 0.0, "seed {seed}: and it does not count yet");
        world.connect();
        world.idle(SECOND / 10);
        world.assert_exact("a tenth of a second after connecting", seed);
        let status = world.status();
        assert_eq!(status.resumed, Some(Resumed::Confirmed), "seed {seed}");
        assert_eq!((status.freshness, status.confidence), (1.0, 1.0), "seed {seed}");
        assert_eq!(status.counters.batches, MEANWHILE as u64, "seed {seed}: only what was new");
        world.work(SECOND);
        world.idle(SECOND * 2);
        world.assert_exact("after going on", seed);
    }
}

#[test]
fn a_checkpoint_of_a_stock_engine_is_warm_at_once_and_exact() {
    warm(STOCK);
}

#[test]
fn a_checkpoint_of_an_engine_with_epochs_is_warm_at_once_and_exact() {
    warm(BAD_LINK);
}

#[test]
fn a_digest_confirms_a_checkpoint_without_a_query() {
    for seed in seeds() {
        let capabilities = Capabilities { replay: false, snapshot: true, relayed: false };
        let mut world = World::new(seed, Faults { lost: 0, capabilities, ..BAD_LINK });
        world.work(SECOND * 2);
        world.idle(SECOND * 2);
        let record = world.checkpoint();
        world.start_again(&record);
        world.idle(SECOND * 2);
        world.assert_exact("after a digest", seed);
        assert_eq!(world.status().resumed, Some(Resumed::Confirmed), "seed {seed}");
        assert_eq!(world.status().counters.snapshots, 0, "seed {seed}");
    }
}

#[test]
fn a_checkpoint_of_an_engine_that_restarted_meanwhile_never_counts() {
    for faults in [STOCK, BAD_LINK, Faults { ring: 5, lost: 0, ..STOCK }] {
        for seed in seeds() {
            let mut world = World::new(seed, faults);
            world.work(SECOND * 2);
            world.idle(SECOND * 2);
            let record = world.checkpoint();
            // The restarted engine publishes as many batches as before, so that the numbers do not
            // show the restart.
            let batches = world.engine.batches.len();
            world.engine.restart();
            world.lose_the_tail(batches + MEANWHILE);
            world.start_again(&record);
            world.connect();
            for _ in 0..200 {
                world.idle(SECOND / 100);
                let status = world.status();
                let counts = status.freshness > 0.0;
                assert!(!counts || world.phantoms().unwrap_or(0) == 0, "seed {seed}: {status:?}");
            }
            assert_eq!(world.status().resumed, Some(Resumed::Dropped), "seed {seed}");
            if faults.ring > 5 {
                world.assert_exact("two seconds later", seed);
            }
        }
    }
}

#[test]
fn a_checkpoint_that_no_source_confirms_is_dropped() {
    let deaf = Faults { lost: 0, capabilities: Capabilities::default(), ..STOCK };
    let mut world = World::new(1, deaf);
    world.work(SECOND);
    let record = world.checkpoint();
    world.start_again(&record);
    world.connect();
    world.idle(SECOND);
    assert_eq!((world.status().resumed, world.counts().0), (Some(Resumed::Dropped), 0));

    let mut world = World::new(1, STOCK);
    world.work(SECOND);
    world.idle(SECOND * 2);
    let record = world.checkpoint();
    world.start_again(&record);
    world.idle(SECOND * 31);
    assert_eq!((world.status().resumed, world.counts().0), (Some(Resumed::Dropped), 0));
    assert_eq!(world.status().state, FeedState::Waiting);
    world.connect();
    world.idle(SECOND * 2);
    world.assert_exact("when the engine came at last", 1);
}

#[test]
fn a_checkpoint_of_other_blocks_is_dropped() {
    let mut world = World::new(1, STOCK);
    world.work(SECOND);
    world.idle(SECOND * 2);
    let record = world.checkpoint();
    let mut larger = record.clone();
    larger.identity.block_size *= 2;
    let mut damaged = record;
    damaged.blocks[1].engine = damaged.blocks[0].engine;
    for record in [larger, damaged] {
        world.start_again(&record);
        assert_eq!((world.status().resumed, world.counts().0), (Some(Resumed::Dropped), 0));
    }
}
