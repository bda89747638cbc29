//! Random interleavings of many threads, on the index as it is shipped: all shards, real tables.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test --release -p wornpath-index --test shuttle`.
//! `WORNPATH_SCHEDULES` sets how many schedules each test tries with each scheduler. A failing test
//! prints its seed; `SHUTTLE_RANDOM_SEED` overrides it.
//!
//! Shuttle runs one thread at a time and switches only inside the index, so the tests can keep beside
//! it what must be true ([`Watch`]): for every pod and block, whether the pod may hold it and whether
//! it surely does. A query is then held to what was so at some moment of it, block by block.
#![cfg(shuttle)]

#[path = "shuttle/speaker.rs"]
mod speaker;
#[path = "shuttle/watch.rs"]
mod watch;

use std::env;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};
use wornpath_index::{Answer, Applied, Event, Moment, PodId, Snapshot, Swept, Tier, Writer};

use speaker::{Manner, Speaker, random_below};
use watch::{BRANCH, MAIN, World, chained, names};

/// Preemptions at chosen places that the second scheduler tries.
const PREEMPTIONS: usize = 4;

/// Tries a test under random schedules, and under schedules with few but well-placed preemptions.
fn explore(seed: u64, share: usize, test: fn()) {
    let schedules =
        env::var("WORNPATH_SCHEDULES").map_or(400, |number| number.parse().expect("a number"));
    let schedules = (schedules / share).max(1);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        config.failure_persistence = FailurePersistence::None;
        config
    };
    eprintln!("seed {seed}, {schedules} random schedules");
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config()).run(test);
    eprintln!("seed {seed}, {schedules} schedules with {PREEMPTIONS} preemptions");
    let few = PctScheduler::new_from_seed(seed, PREEMPTIONS, schedules);
    Runner::new(few, config()).run(test);
}

#[test]
fn every_answer_was_true_block_by_block_while_pods_speak_leave_and_return() {
    explore(1, 4, || {
        let world = Arc::new(World::new());
        let mut settled = Speaker::new(&world, Manner::Chained);
        settled.store(&MAIN[..30]);
        let silent = Speaker::new(&world, Manner::Chained);
        let manners = [Manner::Chained, Manner::Chained, Manner::Native, Manner::Expecting];
        let threads: Vec<_> = manners
            .into_iter()
            .map(|manner| {
                let mut speaker = Speaker::new(&world, manner);
                speaker.store(&MAIN[..20]);
                thread::spawn(move || {
                    for _ in 0..4 {
                        speaker.do_something();
                    }
                    speaker
                })
            })
            .collect();
        let sweeping = thread::spawn({
            let mut writer = world.index.writer();
            move || {
                for moment in 0..6 {
                    writer.sweep(7);
                    writer.expire(Moment::from_secs(moment));
                }
            }
        });
        let mut reader = world.index.reader();
        for _ in 0..6 {
            let path = if random_below(2) == 0 { MAIN } else { BRANCH };
            world.ask(&mut reader, path);
        }
        let mut speakers = vec![settled, silent];
        speakers.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        sweeping.join().unwrap();
        for speaker in &mut speakers {
            speaker.settle();
        }
        for path in [MAIN, BRANCH] {
            let answer = world.ask(&mut reader, path);
            for speaker in &speakers {
                assert_eq!(answer.depth(speaker.slot()), speaker.depth(path), "at the end");
            }
        }
        speakers.iter_mut().for_each(Speaker::leave);
        world.end();
    });
}

#[test]
fn a_hole_from_before_the_query_is_not_bridged_while_what_follows_it_goes() {
    explore(2, 1, || {
        let world = Arc::new(World::new());
        let mut speaker = Speaker::new(&world, Manner::Chained);
        speaker.store(MAIN);
        speaker.remove(&MAIN[19..20]);
        let mut reader = world.index.reader();
        let leaving = thread::spawn(move || {
            if random_below(2) == 0 { speaker.clear() } else { speaker.remove(&MAIN[20..]) }
        });
        world.ask(&mut reader, MAIN);
        leaving.join().unwrap();
    });
}

#[test]
fn blocks_without_known_prefixes_that_come_and_go_during_a_query_bridge_no_hole() {
    explore(3, 1, || {
        let world = Arc::new(World::new());
        let mut speaker = Speaker::new(&world, Manner::Native);
        let mut reader = world.index.reader();
        let passing = thread::spawn(move || {
            let (before, after) = (&MAIN[..19], &MAIN[20..]);
            for nodes in [before, after] {
                speaker.store(nodes);
            }
            for nodes in [after, before] {
                speaker.remove(nodes);
            }
        });
        world.ask(&mut reader, MAIN);
        world.ask(&mut reader, MAIN);
        passing.join().unwrap();
    });
}

/// What happens to the pod that two sources speak for, batch by batch.
fn send(writer: &mut Writer, pod: PodId, number: u64) -> usize {
    let removed = |nodes| {
        let blocks = names(pod.slot(), nodes);
        move |writer: &mut Writer| {
            let event = Event::Removed { tier: Tier::Gpu, blocks: &blocks };
            writer.apply(pod, Some(number), &[event])
        }
    };
    let stored = |writer: &mut Writer, nodes| {
        chained(pod.slot(), nodes, |stored| {
            writer.apply(pod, Some(number), &[Event::Stored(stored)])
        })
    };
    let applied = match number {
        0 => stored(writer, &MAIN[..10]),
        1 => stored(writer, &MAIN[..5]),
        2 => removed(&MAIN[5..10])(writer),
        3 => stored(writer, &MAIN[5..20]),
        4 => removed(&MAIN[..5])(writer),
        _ => removed(&MAIN[15..20])(writer),
    };
    match applied.expect("the pod stays") {
        Applied::Now { caught_up } => 1 + caught_up,
        Applied::Before | Applied::Early { .. } => 0,
        Applied::Dropped { .. } => panic!("there is room for six batches"),
    }
}

#[test]
fn two_sources_with_the_same_numbers_count_every_batch_once() {
    explore(4, 2, || {
        let world = Arc::new(World::new());
        let pod = world.index.add_pod().unwrap();
        world.index.writer().start_at(pod, 0).unwrap();
        let orders = [[0, 1, 2, 3, 4, 5], [1, 0, 3, 5, 2, 4]];
        let threads = orders.map(|order| {
            let mut writer = world.index.writer();
            thread::spawn(move || -> usize {
                order.into_iter().map(|number| send(&mut writer, pod, number)).sum()
            })
        });
        let mut reader = world.index.reader();
        let mut answer = Answer::default();
        for _ in 0..4 {
            reader.lookup(&world.chain(MAIN), &mut answer);
            assert!(answer.depth(pod.slot()) <= 20, "no batch stores more");
        }
        let applied: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(applied, 6);
        reader.lookup(&world.chain(MAIN), &mut answer);
        assert_eq!(answer.depth(pod.slot()), 15);
        let stats = world.index.pod_stats(pod).unwrap();
        assert_eq!((stats.blocks, stats.early, stats.counters.unknown_removals), (15, 0, 0));
        assert!(world.index.remove_pod(pod));
        world.end();
    });
}

#[test]
fn a_snapshot_among_the_batches_leads_to_the_same_state() {
    explore(5, 2, || {
        let world = Arc::new(World::new());
        let pod = world.index.add_pod().unwrap();
        world.index.writer().start_at(pod, 0).unwrap();
        let numbered = thread::spawn({
            let mut writer = world.index.writer();
            move || (0..6).for_each(|number| drop(send(&mut writer, pod, number)))
        });
        let mut writer = world.index.writer();
        // The state after batch 2: two copies of the first five blocks.
        chained(pod.slot(), &MAIN[..5], |stored| {
            let snapshot = Snapshot { sequence: Some(2), stored: &[stored, stored] };
            writer.apply_snapshot(pod, snapshot).unwrap();
        });
        for number in 3..6 {
            send(&mut writer, pod, number);
        }
        numbered.join().unwrap();
        let mut answer = Answer::default();
        world.index.reader().lookup(&world.chain(MAIN), &mut answer);
        assert_eq!(answer.depth(pod.slot()), 15);
        assert_eq!(world.index.digest(pod).unwrap().last_sequence, Some(5));
        assert!(world.index.remove_pod(pod));
        assert_eq!(writer.sweep(2), Swept::Partly);
        world.end();
    });
}
