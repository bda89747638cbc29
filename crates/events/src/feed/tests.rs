//! Single decisions; `tests/all/chaos` combines them.

use super::*;
use crate::message::{EngineDigest, SourceHeartbeat, SourceQuery};
use std::time::Duration;
use wornpath_index::{BlockDigest, PodDigest, SnapshotApplied};

const NOW: Moment = Moment::from_secs(100);
const REPLAY: Capabilities = Capabilities { replay: true, snapshot: false, relayed: false };
const SNAPSHOT: Capabilities = Capabilities { replay: false, snapshot: true, relayed: false };
const RELAYED: Capabilities = Capabilities { replay: true, snapshot: false, relayed: true };

fn feed(capabilities: Capabilities) -> (Feed, SourceId) {
    let mut feed = Feed::new(FeedRules::default());
    let source = feed.add_source(capabilities);
    feed.connected(source, NOW);
    (feed, source)
}

fn batch_id(sequence: u64, fingerprint: u64) -> BatchId {
    BatchId { epoch: None, sequence: Some(sequence), fingerprint: Some(fingerprint) }
}

fn of_epoch(epoch: u64, sequence: u64) -> BatchId {
    BatchId { epoch: Some(Epoch(epoch)), ..batch_id(sequence, epoch << 32 | sequence) }
}

fn unread(sequence: u64) -> BatchId {
    BatchId { sequence: Some(sequence), ..BatchId::default() }
}

/// Admits a batch and reports the outcome that an index would have: applied if it is next, else
/// early.
fn take(feed: &mut Feed, source: SourceId, id: BatchId, delivery: Delivery) -> BatchAdmission {
    let admission = feed.admit(source, id, delivery, NOW);
    if matches!(admission, BatchAdmission::Apply | BatchAdmission::RebuildAndApply(_)) {
        let outcome = match id.sequence {
            Some(sequence) if sequence > feed.next => Applied::Early { expected: feed.next },
            _ => Applied::Now { caught_up: 0 },
        };
        feed.applied(id, outcome, 1, NOW);
    }
    admission
}

fn query(feed: &mut Feed, now: Moment) -> Option<SourceQuery> {
    match feed.tick(now)? {
        FeedStep::Query(_, query) => Some(query),
        FeedStep::Rebuild(rebuild) => panic!("{rebuild:?} instead of a query"),
    }
}

/// A feed that has applied batches 0 to 9 of a stock engine.
fn running() -> (Feed, SourceId) {
    let (mut feed, source) = feed(REPLAY);
    assert_eq!(query(&mut feed, NOW), Some(SourceQuery::Replay { from: 0 }));
    assert_eq!(feed.replay_ended(source, NOW), None);
    for sequence in 0..10 {
        assert_eq!(
            take(&mut feed, source, batch_id(sequence, sequence), Delivery::Live),
            BatchAdmission::Apply
        );
    }
    assert_eq!(feed.status(NOW).state, FeedState::Live);
    (feed, source)
}

#[test]
fn a_batch_is_applied_once_and_one_of_an_earlier_epoch_never() {
    let (mut feed, source) = feed(SNAPSHOT);
    assert_eq!(take(&mut feed, source, of_epoch(5, 0), Delivery::Live), BatchAdmission::Apply);
    assert_eq!(take(&mut feed, source, of_epoch(5, 0), Delivery::Live), BatchAdmission::Skip);
    assert_eq!(
        take(&mut feed, source, of_epoch(6, 0), Delivery::Live),
        BatchAdmission::RebuildAndApply(Rebuild::FROM_START)
    );
    assert_eq!(take(&mut feed, source, of_epoch(5, 1), Delivery::Live), BatchAdmission::Skip);
    let counters = feed.status(NOW).counters;
    assert_eq!((counters.repeated, counters.outdated, counters.restarts), (1, 1, 1));
}

#[test]
fn another_batch_under_a_known_number_is_a_restart() {
    let (mut feed, source) = running();
    assert_eq!(take(&mut feed, source, batch_id(9, 9), Delivery::Live), BatchAdmission::Skip);
    assert_eq!(
        take(&mut feed, source, batch_id(0, 77), Delivery::Live),
        BatchAdmission::RebuildAndApply(Rebuild::FROM_START)
    );
    assert_eq!(feed.status(NOW).last_sequence, Some(0));
}

#[test]
fn after_a_lost_connection_live_batches_are_held_until_the_last_batch_is_replayed() {
    let (mut feed, source) = running();
    assert_eq!(feed.disconnected(source), None);
    feed.connected(source, NOW);
    assert_eq!(take(&mut feed, source, batch_id(10, 10), Delivery::Live), BatchAdmission::Hold);
    let later = NOW + Duration::from_secs(1);
    assert_eq!(query(&mut feed, later), Some(SourceQuery::Replay { from: 9 }));
    assert_eq!(take(&mut feed, source, batch_id(9, 9), Delivery::Replay), BatchAdmission::Skip);
    assert!(feed.holds());
    assert_eq!(feed.replay_ended(source, later), None);
    assert!(!feed.holds());
}

#[test]
fn after_a_lost_connection_a_replay_without_the_last_batch_is_a_restart() {
    let later = NOW + Duration::from_secs(1);
    let (mut feed, source) = running();
    feed.disconnected(source);
    feed.connected(source, NOW);
    assert_eq!(query(&mut feed, later), Some(SourceQuery::Replay { from: 9 }));
    assert_eq!(
        take(&mut feed, source, batch_id(9, 77), Delivery::Replay),
        BatchAdmission::RebuildAndApply(Rebuild::FROM_START)
    );

    let (mut feed, source) = running();
    feed.disconnected(source);
    feed.connected(source, NOW);
    assert_eq!(query(&mut feed, later), Some(SourceQuery::Replay { from: 9 }));
    assert_eq!(feed.replay_ended(source, later), Some(Rebuild::FROM_START));
}

#[test]
fn a_gap_that_closes_within_the_grace_period_causes_no_query() {
    let (mut feed, source) = running();
    take(&mut feed, source, batch_id(11, 11), Delivery::Live);
    assert_eq!((feed.status(NOW).state, feed.status(NOW).lag), (FeedState::Unsure, 2));
    assert_eq!(feed.tick(NOW), None);
    feed.admit(source, batch_id(10, 10), Delivery::Live, NOW);
    feed.applied(batch_id(10, 10), Applied::Now { caught_up: 1 }, 1, NOW);
    assert_eq!((feed.status(NOW).state, feed.status(NOW).lag), (FeedState::Live, 0));
    // What had come early is remembered too.
    assert_eq!(take(&mut feed, source, batch_id(11, 11), Delivery::Live), BatchAdmission::Skip);
}

#[test]
fn unanswered_replays_are_retried_with_backoff_and_then_given_up() {
    let (mut feed, source) = running();
    take(&mut feed, source, batch_id(11, 11), Delivery::Live);
    let mut asked = Vec::new();
    let mut now = NOW;
    let rebuild = loop {
        now += Duration::from_millis(100);
        // The engine goes on, so it could answer.
        feed.admit(source, batch_id(11, 11), Delivery::Live, now);
        match feed.tick(now) {
            Some(FeedStep::Query(..)) => asked.push(now),
            Some(FeedStep::Rebuild(rebuild)) => break rebuild,
            None => {}
        }
    };
    let pauses: Vec<_> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(pauses, [2, 4]);
    assert_eq!(rebuild, Rebuild::From(11));
    feed.caught_up(1, now);
    assert_eq!(feed.status(now).state, FeedState::Partial);
}

#[test]
fn a_digest_ahead_is_a_lost_tail_and_one_that_differs_is_repaired_by_a_snapshot() {
    let (mut feed, source) = feed(SNAPSHOT);
    take(&mut feed, source, of_epoch(1, 0), Delivery::Live);
    let mut engine =
        EngineDigest { epoch: Some(Epoch(1)), sequence: Some(3), ..Default::default() };
    let ours = PodDigest { last_sequence: Some(0), ..PodDigest::default() };
    feed.digest(&engine, &ours, NOW);
    assert_eq!(feed.status(NOW).lag, 3);
    engine.sequence = Some(0);
    engine.tiers[0] = BlockDigest { count: 2, xor: 5 };
    feed.digest(&engine, &ours, NOW);
    assert_eq!((feed.status(NOW).missing, feed.status(NOW).phantom), (2, 0));
    assert_eq!(query(&mut feed, NOW), Some(SourceQuery::Snapshot));
    assert_eq!(take(&mut feed, source, of_epoch(1, 1), Delivery::Live), BatchAdmission::Hold);
    assert_eq!(feed.admit_snapshot(of_epoch(1, 3), NOW), BatchAdmission::Apply);
    feed.snapshot_applied(of_epoch(1, 3), SnapshotApplied::default(), NOW);
    assert_eq!(feed.status(NOW).state, FeedState::Live);
    assert_eq!(feed.admit_snapshot(of_epoch(1, 2), NOW), BatchAdmission::Skip, "an old snapshot");
}

#[test]
fn snapshots_that_do_not_repair_a_difference_are_requested_with_backoff() {
    let (mut feed, source) = feed(SNAPSHOT);
    let mut engine =
        EngineDigest { epoch: Some(Epoch(1)), sequence: Some(0), ..Default::default() };
    engine.tiers[0].add(9);
    take(&mut feed, source, of_epoch(1, 0), Delivery::Live);
    let mut snapshots = 0;
    for second in 0..60 {
        let now = NOW + Duration::from_secs(second);
        feed.digest(&engine, &PodDigest::default(), now);
        if query(&mut feed, now).is_some() {
            snapshots += 1;
            feed.admit_snapshot(of_epoch(1, 0), now);
            feed.snapshot_applied(of_epoch(1, 0), SnapshotApplied::default(), now);
        }
    }
    assert!((4..=8).contains(&snapshots), "{snapshots} in a minute");
}

#[test]
fn too_many_malformed_batches_quarantine_a_pod_for_a_while() {
    let (mut feed, source) = running();
    let most = FeedRules::default().max_malformed;
    for _ in 0..most {
        assert_eq!(feed.malformed(BatchId::default(), "bad".to_owned(), NOW), None);
    }
    assert_eq!(
        feed.malformed(BatchId::default(), "worse".to_owned(), NOW),
        Some(Rebuild::FROM_START)
    );
    let status = feed.status(NOW);
    assert_eq!((status.state, status.confidence), (FeedState::Quarantined, 0.0));
    assert_eq!(status.last_malformed.as_deref(), Some("worse"));
    assert_eq!(take(&mut feed, source, batch_id(10, 10), Delivery::Live), BatchAdmission::Skip);
    let after = NOW + FeedRules::default().quarantine;
    assert_eq!(query(&mut feed, after), Some(SourceQuery::Replay { from: 0 }));
}

#[test]
fn a_reset_ends_the_quarantine_and_fetches_everything_again() {
    let (mut feed, source) = running();
    for _ in 0..=FeedRules::default().max_malformed {
        feed.malformed(BatchId::default(), "another block size".to_owned(), NOW);
    }
    assert_eq!(feed.status(NOW).state, FeedState::Quarantined);
    assert_eq!(feed.reset(), Rebuild::FROM_START);
    let status = feed.status(NOW);
    assert_ne!(status.state, FeedState::Quarantined);
    assert_eq!(status.last_malformed, None);
    assert_eq!(take(&mut feed, source, batch_id(0, 0), Delivery::Live), BatchAdmission::Apply);
}

#[test]
fn unnumbered_batches_are_skipped_once_a_source_numbers_them() {
    let (mut feed, source) = feed(SNAPSHOT);
    let unnumbered = BatchId::default();
    assert_eq!(take(&mut feed, source, unnumbered, Delivery::Live), BatchAdmission::Apply);
    assert_eq!(take(&mut feed, source, unnumbered, Delivery::Live), BatchAdmission::Apply);
    take(&mut feed, source, of_epoch(1, 0), Delivery::Live);
    assert_eq!(take(&mut feed, source, unnumbered, Delivery::Live), BatchAdmission::Skip);
    assert_eq!(feed.status(NOW).counters.unnumbered, 1);
}

#[test]
fn an_unrequested_replay_has_no_effect() {
    let (mut feed, source) = running();
    assert_eq!(take(&mut feed, source, batch_id(10, 10), Delivery::Replay), BatchAdmission::Skip);
    assert_eq!(feed.replay_ended(source, NOW), None);
    assert_eq!(feed.status(NOW).last_sequence, Some(9));
}

#[test]
fn a_disconnected_source_gets_no_query() {
    let (mut feed, source) = running();
    take(&mut feed, source, batch_id(20, 20), Delivery::Live);
    feed.disconnected(source);
    assert_eq!(feed.next_tick(), None);
    assert_eq!(feed.tick(NOW + Duration::from_secs(60)), None);
}

#[test]
fn a_batch_that_stays_undecodable_in_a_replay_is_skipped() {
    let (mut feed, source) = running();
    assert_eq!(feed.malformed(unread(10), "bad".to_owned(), NOW), None);
    take(&mut feed, source, batch_id(11, 11), Delivery::Live);
    let later = NOW + Duration::from_secs(1);
    assert_eq!(query(&mut feed, later), Some(SourceQuery::Replay { from: 9 }));
    take(&mut feed, source, batch_id(9, 9), Delivery::Replay);
    assert_eq!(feed.malformed(unread(10), "still bad".to_owned(), later), None);
    take(&mut feed, source, batch_id(11, 11), Delivery::Replay);
    assert_eq!(feed.replay_ended(source, later), None);
    let last = later + Duration::from_secs(1);
    assert_eq!(feed.tick(last), Some(FeedStep::Rebuild(Rebuild::From(11))));
    feed.caught_up(1, last);
    let status = feed.status(last);
    assert_eq!((status.state, status.last_sequence), (FeedState::Partial, Some(11)));
}

#[test]
fn an_undecodable_batch_of_an_earlier_epoch_is_not_missing() {
    let (mut feed, source) = feed(Capabilities { replay: true, ..Capabilities::default() });
    feed.connected(source, NOW);
    take(&mut feed, source, of_epoch(5, 0), Delivery::Live);
    assert_eq!(feed.malformed(of_epoch(4, 70), "bad".to_owned(), NOW), None);
    let status = feed.status(NOW);
    assert_eq!((status.lag, status.counters.malformed, status.counters.outdated), (0, 0, 1));
    assert_eq!(feed.malformed(of_epoch(5, 7), "bad".to_owned(), NOW), None);
    assert_eq!((feed.status(NOW).lag, feed.status(NOW).counters.gaps), (7, 1));
}

#[test]
fn the_newest_batch_is_skipped_too_if_it_stays_undecodable() {
    let (mut feed, source) = running();
    assert_eq!(feed.malformed(unread(10), "bad".to_owned(), NOW), None);
    let mut now = NOW + Duration::from_secs(1);
    assert_eq!(query(&mut feed, now), Some(SourceQuery::Replay { from: 9 }));
    take(&mut feed, source, batch_id(9, 9), Delivery::Replay);
    assert_eq!(feed.malformed(unread(10), "still bad".to_owned(), now), None);
    assert_eq!(feed.replay_ended(source, now), None);
    assert_eq!(feed.status(now).state, FeedState::Unsure);
    now += Duration::from_secs(1);
    assert_eq!(feed.tick(now), Some(FeedStep::Rebuild(Rebuild::From(11))));
    for _ in 0..60 {
        now += FeedRules::default().probe_after;
        assert_eq!(query(&mut feed, now), Some(SourceQuery::Replay { from: 10 }));
        assert_eq!(feed.malformed(unread(10), "still bad".to_owned(), now), None);
        assert_eq!(feed.replay_ended(source, now), None);
        let status = feed.status(now);
        assert_eq!((status.state, status.last_sequence), (FeedState::Partial, Some(10)));
        assert_eq!((status.counters.gaps, status.counters.malformed), (1, 2));
    }
    assert_eq!(take(&mut feed, source, batch_id(11, 11), Delivery::Live), BatchAdmission::Apply);
    assert_eq!(feed.status(NOW).state, FeedState::Partial);
}

#[test]
fn an_undecodable_batch_does_not_verify_the_epoch() {
    let (mut feed, source) = running();
    feed.disconnected(source);
    feed.connected(source, NOW);
    let later = NOW + Duration::from_secs(1);
    assert_eq!(query(&mut feed, later), Some(SourceQuery::Replay { from: 9 }));
    assert_eq!(feed.malformed(unread(9), "bad".to_owned(), later), None);
    assert_eq!(feed.replay_ended(source, later), Some(Rebuild::FROM_START));
}

/// A feed that has applied batches 0 to 9 of epoch 5 from a broker.
fn relayed() -> (Feed, SourceId) {
    let (mut feed, source) = feed(RELAYED);
    assert_eq!(query(&mut feed, NOW), Some(SourceQuery::Replay { from: 0 }));
    assert_eq!(feed.replay_ended(source, NOW), None);
    for sequence in 0..10 {
        take(&mut feed, source, of_epoch(5, sequence), Delivery::Live);
    }
    assert_eq!(feed.status(NOW).state, FeedState::Live);
    (feed, source)
}

fn beat(epoch: u64, next: u64) -> SourceHeartbeat {
    SourceHeartbeat { epoch: Some(Epoch(epoch)), next }
}

/// Answers every question until `end` with the last batch that a broker has.
fn repeat_the_last(feed: &mut Feed, source: SourceId, end: Moment) {
    let mut now = NOW;
    while now < end {
        now += Duration::from_millis(500);
        if let Some(SourceQuery::Replay { from }) = query(feed, now) {
            assert_eq!(from, 9);
            assert_eq!(
                feed.admit(source, of_epoch(5, 9), Delivery::Replay, now),
                BatchAdmission::Skip
            );
            assert_eq!(feed.replay_ended(source, now), None);
        }
    }
}

#[test]
fn replies_of_a_broker_do_not_keep_a_pod_fresh() {
    let (mut feed, source) = relayed();
    let later = NOW + FeedRules::default().stale_after * 2;
    repeat_the_last(&mut feed, source, later);
    feed.disconnected(source);
    feed.connected(source, later);
    let status = feed.status(later);
    assert_eq!((status.state, status.freshness), (FeedState::Stale, 0.0));
    assert_eq!(status.age, Some(later - NOW));
}

#[test]
fn heartbeats_keep_an_idle_pod_fresh_and_reveal_a_lost_tail() {
    let (mut feed, _) = relayed();
    let later = NOW + FeedRules::default().stale_after * 2;
    assert_eq!(feed.heartbeat(beat(5, 10), later), None);
    assert_eq!((feed.status(later).state, feed.status(later).lag), (FeedState::Live, 0));
    assert_eq!(feed.heartbeat(beat(5, 12), later), None);
    assert_eq!((feed.status(later).state, feed.status(later).lag), (FeedState::Unsure, 2));
    // An engine that restarted and has said nothing yet holds nothing.
    assert_eq!(feed.heartbeat(beat(6, 0), later), Some(Rebuild::FROM_START));
    assert_eq!(feed.status(later).last_sequence, None);
    assert_eq!(feed.heartbeat(beat(5, 10), later), None);
    assert_eq!(feed.status(later).counters.outdated, 1);
}

#[test]
fn messages_of_an_earlier_epoch_do_not_keep_a_pod_fresh() {
    for capabilities in [RELAYED, SNAPSHOT] {
        let (mut feed, source) = feed(capabilities);
        take(&mut feed, source, of_epoch(5, 0), Delivery::Live);
        let later = NOW + Duration::from_secs(20);
        // Who posts is connected anew with every post.
        feed.connected(source, later);
        assert_eq!(feed.admit(source, of_epoch(4, 1), Delivery::Live, later), BatchAdmission::Skip);
        assert_eq!(feed.admit_snapshot(of_epoch(4, 1), later), BatchAdmission::Skip);
        let digest = EngineDigest { epoch: Some(Epoch(4)), ..Default::default() };
        assert_eq!(feed.digest(&digest, &PodDigest::default(), later), None);
        assert_eq!(
            (feed.started(Epoch(4), later), feed.heartbeat(beat(4, 9), later)),
            (None, None)
        );
        assert_eq!(feed.status(later).age, Some(later - NOW));
    }
}

#[test]
fn an_earlier_epoch_replaces_the_current_one_that_is_silent_for_too_long() {
    let (mut feed, source) = relayed();
    let stale_after = FeedRules::default().stale_after;
    let second = Duration::from_secs(1);
    assert_eq!(feed.heartbeat(beat(4, 3), NOW + second), None);
    assert_eq!(feed.heartbeat(beat(5, 10), NOW + second * 2), None, "the known one speaks again");
    assert_eq!(feed.heartbeat(beat(4, 3), NOW + stale_after), None);
    assert_eq!(feed.heartbeat(beat(3, 3), NOW + stale_after * 2), None, "an even earlier one");
    let now = NOW + stale_after * 2 + second;
    assert_eq!(feed.heartbeat(beat(4, 3), now), Some(Rebuild::FROM_START));
    assert_eq!((feed.status(now).epoch, feed.status(now).lag), (Some(Epoch(4)), 3));
    // What the broker still has of the one that fell silent changes nothing; a word of its own
    // does.
    assert_eq!(query(&mut feed, now + second), Some(SourceQuery::Replay { from: 0 }));
    assert_eq!(take(&mut feed, source, of_epoch(5, 0), Delivery::Replay), BatchAdmission::Skip);
    assert_eq!(take(&mut feed, source, of_epoch(4, 0), Delivery::Replay), BatchAdmission::Apply);
    assert_eq!(feed.heartbeat(beat(5, 10), now + second), Some(Rebuild::FROM_START));
}

#[test]
fn a_wiped_broker_does_not_clear_the_state() {
    let (mut feed, source) = relayed();
    let mut now = NOW;
    for _ in 0..5 {
        now += Duration::from_secs(2);
        assert_eq!(query(&mut feed, now), Some(SourceQuery::Replay { from: 9 }));
        assert_eq!(feed.replay_ended(source, now), None);
        assert_eq!(feed.status(now).last_sequence, Some(9));
    }
    assert_eq!((feed.status(now).state, feed.status(now).counters.restarts), (FeedState::Live, 0));
    assert_eq!(take(&mut feed, source, of_epoch(5, 10), Delivery::Live), BatchAdmission::Apply);
    // What was missed is still missing, and asked for until it is there again.
    feed.heartbeat(beat(5, 12), now);
    for _ in 0..5 {
        now += Duration::from_secs(2);
        assert_eq!(query(&mut feed, now), Some(SourceQuery::Replay { from: 10 }));
        assert_eq!(feed.replay_ended(source, now), None);
        assert_eq!(feed.status(now).state, FeedState::Unsure);
    }
    now += Duration::from_secs(2);
    assert_eq!(query(&mut feed, now), Some(SourceQuery::Replay { from: 10 }));
    take(&mut feed, source, of_epoch(5, 10), Delivery::Replay);
    take(&mut feed, source, of_epoch(5, 11), Delivery::Replay);
    assert_eq!(feed.replay_ended(source, now), None);
    assert_eq!(feed.status(NOW).state, FeedState::Live);
}

/// The states of a feed whose epoch and sequence numbers end at `top`.
fn states_up_to(top: u64, capabilities: Capabilities) -> Vec<FeedState> {
    let (mut feed, source) = feed(capabilities);
    let mut states = Vec::new();
    for sequence in [top - 1, top, top, 0, top] {
        take(&mut feed, source, of_epoch(top, sequence), Delivery::Live);
        feed.heartbeat(beat(top, top), NOW);
        feed.malformed(unread(top), "bad".to_owned(), NOW);
        let digest = EngineDigest { sequence: Some(top), ..Default::default() };
        feed.digest(&digest, &PodDigest::default(), NOW);
        states.push(feed.status(NOW).state);
    }
    for second in 0..60 {
        let now = NOW + Duration::from_secs(second);
        if let Some(FeedStep::Query(..)) = feed.tick(now) {
            take(&mut feed, source, of_epoch(top, top), Delivery::Replay);
            feed.replay_ended(source, now);
            feed.admit_snapshot(of_epoch(top, top), now);
            let applied = SnapshotApplied { caught_up: 1, ..SnapshotApplied::default() };
            feed.snapshot_applied(of_epoch(top, top), applied, now);
        }
        states.push(feed.status(now).state);
    }
    states
}

#[test]
fn the_highest_sequence_numbers_do_not_overflow() {
    for capabilities in [REPLAY, SNAPSHOT, RELAYED, Capabilities::default()] {
        let ordinary = states_up_to(1_000, capabilities);
        assert_eq!(states_up_to(u64::MAX - 1, capabilities), ordinary);
        // No number follows the last one: the feed never wraps, and never claims to know more.
        for (last, ordinary) in states_up_to(u64::MAX, capabilities).iter().zip(&ordinary) {
            assert!(last == ordinary || *last != FeedState::Live, "{last:?}, not {ordinary:?}");
        }
    }
}

#[test]
fn a_snapshot_of_unknown_hashes_leaves_the_pod_partial_and_asks_for_their_tokens() {
    let (mut feed, source) = feed(SNAPSHOT);
    assert_eq!(query(&mut feed, NOW), Some(SourceQuery::Snapshot));
    let unnamed = SnapshotApplied { unnamed: 5, missing: 5, caught_up: 0 };
    let id = BatchId::default();
    assert_eq!(feed.admit_snapshot(id, NOW), BatchAdmission::Apply);
    feed.snapshot_applied(id, unnamed, NOW);
    let status = feed.status(NOW);
    assert_eq!((status.state, status.unnamed), (FeedState::Partial, 5));
    // A source that never answers is asked less and less often, and its batches are not held.
    let mut asked = Vec::new();
    for second in 0..130 {
        let now = NOW + Duration::from_secs(second);
        if let Some(query) = query(&mut feed, now) {
            assert_eq!(query, SourceQuery::SnapshotWithTokens);
            asked.push(second);
        }
        assert!(!feed.holds());
        assert_eq!(take(&mut feed, source, id, Delivery::Live), BatchAdmission::Apply);
        assert_eq!(feed.status(NOW).state, FeedState::Partial);
    }
    assert_eq!(asked, [1, 3, 7, 15, 31, 61, 91, 121]);
    assert_eq!(feed.admit_snapshot(id, NOW), BatchAdmission::Apply);
    feed.snapshot_applied(id, SnapshotApplied::default(), NOW);
    let status = feed.status(NOW);
    assert_eq!((status.state, status.unnamed), (FeedState::Live, 0));
    assert_eq!(query(&mut feed, NOW + Duration::from_secs(999)), None);
}

#[test]
fn blocks_beyond_a_limit_leave_the_pod_partial_and_are_not_asked_for() {
    let (mut feed, _) = feed(SNAPSHOT);
    assert_eq!(query(&mut feed, NOW), Some(SourceQuery::Snapshot));
    assert_eq!(feed.admit_snapshot(BatchId::default(), NOW), BatchAdmission::Apply);
    let refused = SnapshotApplied { unnamed: 0, missing: 7, caught_up: 0 };
    feed.snapshot_applied(BatchId::default(), refused, NOW);
    assert_eq!(feed.status(NOW).state, FeedState::Partial);
    assert_eq!(query(&mut feed, NOW + Duration::from_secs(999)), None);
}
