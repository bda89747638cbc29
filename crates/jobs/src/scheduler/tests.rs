//! Runs that are scheduled by hand.

use super::*;
use std::num::NonZeroUsize;
use wornpath_blocks::BlockHash;
use wornpath_planner::{Job, PlannerRates, Queue, Speeds};

const SECOND: Duration = Duration::from_secs(1);

fn scheduler(chains: &[[u64; 2]], pods: usize) -> Scheduler {
    let mut queue = Queue::new(NonZeroUsize::new(4).unwrap());
    for chain in chains {
        let chain = chain.map(BlockHash);
        let job = Job { chain: &chain, prompt_tokens: 9, output_tokens: 4, identity: None };
        queue.push(&job).unwrap();
    }
    let plan = Plan::new(&queue, &Speeds::equal(pods).unwrap(), &PlannerRates::flat(1.0, 1.0));
    Scheduler::new(plan, vec![Window::new(8, 1_000); pods], RetryPolicy::default())
}

fn all(scheduler: &mut Scheduler, now: Duration) -> Vec<SchedulerOrder> {
    std::iter::from_fn(|| scheduler.next(now)).collect()
}

#[test]
fn requests_that_share_a_prefix_wait_until_it_is_computed() {
    let mut scheduler = scheduler(&[[1, 2], [1, 3], [1, 4]], 1);
    let first = all(&mut scheduler, SECOND);
    assert_eq!((first.len(), first[0].is_awaited), (1, true));
    scheduler.prefilled(first[0].job);
    let rest = all(&mut scheduler, SECOND);
    assert_eq!(rest.len(), 2);
    assert!(rest.iter().all(|order| !order.is_awaited));
}

#[test]
fn a_request_that_always_fails_ends_after_its_attempts() {
    let mut scheduler = scheduler(&[[1, 2]], 1);
    let mut now = Duration::ZERO;
    let mut sent = 0;
    let fate = loop {
        now += SECOND;
        if scheduler.gone().next().is_some() {
            scheduler.back(0, 1.0);
        }
        let Some(order) = scheduler.next(now) else { continue };
        sent += 1;
        match scheduler.ended(order, ReplyMeaning::Failed, now) {
            LineFate::Again => {}
            fate => break fate,
        }
    };
    assert_eq!((fate, sent, scheduler.unsettled()), (LineFate::Publish, 5, 0));
}

#[test]
fn the_work_of_a_lost_pod_goes_to_the_others_and_its_late_responses_are_stale() {
    let chains: Vec<_> = (0..8).map(|number| [number * 2, number * 2 + 1]).collect();
    let mut scheduler = scheduler(&chains, 2);
    let sent = all(&mut scheduler, SECOND);
    let (gone, here): (Vec<SchedulerOrder>, Vec<SchedulerOrder>) =
        sent.into_iter().partition(|order| order.pod == 0);
    assert!(!gone.is_empty() && !here.is_empty());
    assert_eq!(scheduler.ended(gone[0], ReplyMeaning::Gone, SECOND), LineFate::Again);
    assert_eq!(scheduler.gone().collect::<Vec<_>>(), [0]);
    assert_eq!(scheduler.ended(gone[1], ReplyMeaning::Answered, SECOND), LineFate::Stale);
    for order in here {
        assert_eq!(scheduler.ended(order, ReplyMeaning::Answered, SECOND), LineFate::Publish);
    }
    let again = all(&mut scheduler, SECOND);
    assert_eq!(again.len(), gone.len(), "all of it, once");
    assert!(again.iter().all(|order| order.pod == 1));
    scheduler.back(0, 1.0);
    assert_eq!(
        scheduler.ended(gone[2], ReplyMeaning::Answered, SECOND),
        LineFate::Stale,
        "still not"
    );
}

#[test]
fn a_pod_that_joins_takes_work_over_once_it_may_have_requests() {
    let chains: Vec<_> = (0..64).map(|number| [number * 2, number * 2 + 1]).collect();
    let mut scheduler = scheduler(&chains, 1);
    assert_eq!(all(&mut scheduler, SECOND).len(), 8);
    scheduler.join();
    assert_eq!(scheduler.next(SECOND), None, "it may belong to clients");
    scheduler.hold_below(1, 5);
    let more = all(&mut scheduler, SECOND);
    assert_eq!(more.len(), 5);
    assert!(more.iter().all(|order| order.pod == 1));
    assert_eq!((scheduler.pods(), scheduler.steals()), (2, 1));
}

#[test]
fn a_busy_engine_rests_and_costs_no_attempt() {
    let chains: Vec<_> = (0..32).map(|number| [number * 2, number * 2 + 1]).collect();
    let mut scheduler = scheduler(&chains, 1);
    let sent = all(&mut scheduler, SECOND);
    assert_eq!(sent.len(), 8);
    for order in &sent {
        let busy = ReplyMeaning::Busy(Some(2 * SECOND));
        assert_eq!(scheduler.ended(*order, busy, SECOND), LineFate::Again);
    }
    assert_eq!(scheduler.next(2 * SECOND), None);
    assert_eq!(scheduler.wakeup(2 * SECOND), Some(3 * SECOND));
    assert_eq!(
        all(&mut scheduler, 3 * SECOND).len(),
        4,
        "half as many: the refusals came together"
    );
    scheduler.hold_below(0, 0);
    assert_eq!(scheduler.next(4 * SECOND), None, "online traffic wants all of it");
}
