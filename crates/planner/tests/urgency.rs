//! Deadlines: which of the requests that share prefixes come first.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use proptest::prelude::*;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::Duration;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_planner::{Job, JobId, Plan, PlannerRates, Queue, Speeds};

const BLOCK: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const RATES: PlannerRates = PlannerRates::flat(1.0, 2.0);

type Deadline = Option<Duration>;

const fn due(milliseconds: u64) -> Deadline {
    Some(Duration::from_millis(milliseconds))
}

const PATIENT: Deadline = None;

fn push(queue: &mut Queue, deadline: Deadline, contents: &[u64]) -> JobId {
    let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
    let chain: Vec<_> = BlockHash(9).chain(&contents).collect();
    let prompt_tokens = chain.len() * BLOCK.get() + 1;
    queue.set_deadline(deadline);
    queue.push(&Job { chain: &chain, prompt_tokens, output_tokens: 3, identity: None }).unwrap()
}

/// Questions about a document of so many blocks.
fn document(
    queue: &mut Queue,
    deadline: Deadline,
    document: u64,
    blocks: u64,
    questions: Range<u64>,
) {
    for question in questions {
        let mut contents: Vec<_> = (0..blocks).map(|block| document << 20 | block).collect();
        contents.push(1 << 40 | document << 20 | question);
        push(queue, deadline, &contents);
    }
}

fn plan(queue: &Queue, pods: usize) -> Plan {
    Plan::new(queue, &Speeds::equal(pods).unwrap(), &RATES)
}

#[test]
fn what_fits_before_the_first_deadline_is_one_class_in_the_order_of_prefixes() {
    let mut queue = Queue::new(BLOCK);
    document(&mut queue, due(10_000), 1, 20, 0..5);
    document(&mut queue, PATIENT, 1, 20, 1000..1005);
    let plan = plan(&queue, 1);
    assert_eq!(plan.classes().len(), 1);
    assert_eq!(plan.planned_tokens(), plan.least_tokens());
    assert!(!plan.classes()[0].is_late());
}

#[test]
fn patient_requests_join_the_urgent_ones_that_share_their_prefix_and_the_others_wait() {
    let mut queue = Queue::new(BLOCK);
    for number in 0..4 {
        document(&mut queue, due(4_000), number, 100, 0..2);
    }
    // Two patient requests for each of these documents, and for others.
    for number in 0..40 {
        document(&mut queue, PATIENT, number, 100, 1000..1002);
    }
    let plan = plan(&queue, 1);
    let classes = plan.classes();
    assert_eq!((classes.len(), classes[0].stops.len()), (2, 16));
    assert!(!classes[0].is_late(), "{classes:?}");
    assert_eq!(plan.planned_tokens(), plan.least_tokens(), "no document is computed twice");
    let position =
        |job: u32| plan.route().stops().iter().position(|stop| stop.job == JobId(job)).unwrap();
    assert!((0..8).all(|urgent| position(urgent) < 16), "all that is due");
    assert!((8..16).all(|patient| position(patient) < 16), "and what shares its documents");
}

#[test]
fn patient_requests_that_would_make_others_late_wait_although_they_share() {
    let mut queue = Queue::new(BLOCK);
    document(&mut queue, due(1_200), 1, 100, 0..2);
    document(&mut queue, PATIENT, 1, 100, 1000..1400);
    let plan = plan(&queue, 1);
    let classes = plan.classes();
    assert_eq!(classes[0].stops.len(), 2);
    assert!(!classes[0].is_late());
    assert_eq!(plan.planned_tokens() - plan.least_tokens(), 400, "the document, once more");
}

#[test]
fn a_class_that_cannot_be_in_time_says_so_and_takes_no_others() {
    let mut queue = Queue::new(BLOCK);
    document(&mut queue, due(100), 1, 100, 0..2);
    document(&mut queue, PATIENT, 1, 100, 1000..1002);
    let plan = plan(&queue, 1);
    assert!(plan.classes()[0].is_late());
    assert_eq!(plan.classes()[0].stops, 0..2);
}

#[test]
fn urgent_requests_come_first_among_those_that_share_their_prefix() {
    let mut queue = Queue::new(BLOCK);
    document(&mut queue, PATIENT, 1, 10, 1000..1006);
    document(&mut queue, due(100_000), 1, 10, 0..3);
    let plan = plan(&queue, 1);
    let first: Vec<_> = plan.jobs_of(0).take(3).map(|job| job.0).collect();
    assert!(first.iter().all(|job| *job >= 6), "{first:?}");
}

fn shapes() -> impl Strategy<Value = Vec<(Vec<u64>, Option<u64>)>> {
    let contents = prop::collection::vec(0_u64..3, 0..6);
    let deadline = prop::option::of(1_u64..400);
    prop::collection::vec((contents, deadline), 1..50)
}

proptest! {
    #[test]
    fn a_plan_with_deadlines_has_every_request_once(
        shapes in shapes(),
        pods in 1_usize..4,
    ) {
        let mut queue = Queue::new(BLOCK);
        for (contents, deadline) in &shapes {
            push(&mut queue, deadline.map(Duration::from_millis), contents);
        }
        let plan = plan(&queue, pods);
        let mut jobs: Vec<_> = plan.route().stops().iter().map(|stop| stop.job.0).collect();
        jobs.sort_unstable();
        prop_assert_eq!(jobs, (0..shapes.len() as u32).collect::<Vec<_>>());
        // Classes follow each other, and what is due by the deadline of a class is not in a later one.
        let mut end = 0;
        for class in plan.classes() {
            prop_assert_eq!(class.stops.start, end);
            end = class.stops.end;
            for stop in &plan.route().stops()[end..] {
                let own = queue.deadline(stop.job);
                prop_assert!(class.deadline.is_none_or(|limit| own.is_none_or(|own| own > limit)));
            }
        }
        prop_assert_eq!(end, shapes.len());
        // What each segment shares with the stop before it is what the chains share.
        for segment in plan.segments() {
            let stops = &plan.route().stops()[segment.stops.clone()];
            for pair in stops.windows(2) {
                let shared = queue.shared_blocks(pair[0].job, pair[1].job);
                prop_assert_eq!(pair[1].shared as usize, shared);
            }
        }
    }
}
