//! What every plan keeps to, on forests that nobody would write by hand.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod lru;

use lru::computed_tokens;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_planner::{
    Cohorts, DedupKey, Forest, Job, JobId, JobOutcome, Plan, PlanRun, PlannerRates, PromptGroups,
    Queue, Residency, RunCapacity, SortedPart, Speeds, match_pods,
};

const BLOCK: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const RATES: PlannerRates = PlannerRates::flat(1.0, 2.0);

/// A request as contents of blocks from a small alphabet, a tail behind the last block, and an output.
type Shape = (Vec<u64>, usize, usize);

fn shapes(most: usize) -> impl Strategy<Value = Vec<Shape>> {
    let shape = (prop::collection::vec(0_u64..3, 0..6), 0_usize..4, 0_usize..12);
    prop::collection::vec(shape, 1..most)
}

fn push(queue: &mut Queue, (contents, tail, output): &Shape, deadline: Option<Duration>) {
    let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
    let chain: Vec<_> = BlockHash(9).chain(&contents).collect();
    let prompt_tokens = (chain.len() * BLOCK.get() + tail).max(1);
    let job =
        Job { chain: &chain, prompt_tokens, output_tokens: *output, deadline, identity: None };
    queue.push(&job).unwrap();
}

fn queue_of(shapes: &[Shape]) -> Queue {
    let mut queue = Queue::new(BLOCK);
    shapes.iter().for_each(|shape| push(&mut queue, shape, None));
    queue
}

/// A sorted part that is nowhere else.
struct InMemory(std::vec::IntoIter<(JobId, Vec<BlockHash>)>);

impl SortedPart for InMemory {
    type Error = std::convert::Infallible;

    fn next(&mut self, chain: &mut Vec<BlockHash>) -> Result<Option<JobId>, Self::Error> {
        Ok(self.0.next().map(|(job, own)| {
            *chain = own;
            job
        }))
    }
}

/// Blocks that the largest request needs.
fn longest_path(queue: &Queue) -> usize {
    queue.jobs().map(|job| queue.prompt_tokens(job).div_ceil(BLOCK.get())).max().unwrap()
}

fn all_jobs(plan: &Plan) -> Vec<u32> {
    let mut jobs: Vec<_> = plan.route().stops().iter().map(|stop| stop.job.0).collect();
    jobs.extend(plan.copies().iter().map(|(copy, _)| copy.0));
    jobs.sort_unstable();
    jobs
}

proptest! {
    #[test]
    fn a_plan_is_a_permutation_of_its_input(shapes in shapes(60), pods in 1_usize..6) {
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(pods).unwrap(), &RATES);
        prop_assert_eq!(all_jobs(&plan), (0..shapes.len() as u32).collect::<Vec<_>>());
        let by_pod: usize = (0..pods).map(|pod| plan.jobs_of(pod).count()).sum();
        prop_assert_eq!(by_pod, shapes.len());
    }

    /// All orders of up to six requests, each through an exact LRU cache that just holds the longest.
    #[test]
    fn on_one_pod_no_order_computes_less(shapes in shapes(7)) {
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES);
        let capacity = longest_path(&queue);
        let planned: Vec<_> = plan.jobs_of(0).collect();
        let ours = computed_tokens(&queue, &planned, capacity);
        let mut best = u64::MAX;
        each_order(&mut queue.jobs().collect(), 0, &mut |order| {
            best = best.min(computed_tokens(&queue, order, capacity));
        });
        prop_assert_eq!(ours, best);
        prop_assert_eq!(ours, plan.least_tokens());
    }

    #[test]
    fn computed_prefill_is_the_least_possible_and_what_the_cuts_share(
        shapes in shapes(60),
        pods in 1_usize..6,
    ) {
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(pods).unwrap(), &RATES);
        let capacity = longest_path(&queue);
        let computed: u64 = (0..pods)
            .map(|pod| computed_tokens(&queue, &plan.jobs_of(pod).collect::<Vec<_>>(), capacity))
            .sum();
        prop_assert_eq!(computed, plan.planned_tokens());
        let segments = plan.segments();
        let ends = segments.windows(2).map(|pair| {
            let last = |jobs: &mut dyn Iterator<Item = JobId>| jobs.collect::<Vec<_>>();
            let (one, other) = (last(&mut plan.jobs_of(pair[0].pod)), last(&mut plan.jobs_of(pair[1].pod)));
            let shared = |a: &JobId| other.iter().map(|b| queue.shared_blocks(*a, *b)).max().unwrap();
            one.iter().map(shared).max().unwrap() * BLOCK.get()
        });
        prop_assert!(computed <= plan.least_tokens() + ends.sum::<usize>() as u64);
    }

    #[test]
    fn no_pod_has_more_than_its_due_by_more_than_the_leeway_and_a_request(
        shapes in shapes(80),
        speeds in prop::collection::vec(1_u8..4, 1..6),
    ) {
        let queue = queue_of(&shapes);
        let speeds = Speeds::new(speeds.into_iter().map(f64::from).collect()).unwrap();
        let plan = Plan::new(&queue, &speeds, &RATES);
        let forest = Forest::of(&queue);
        let pairs = forest.order().iter().zip(forest.shared());
        let work: f64 = pairs.map(|(job, shared)| RATES.request(&queue, *job, *shared as usize)).sum();
        let largest = queue.jobs().map(|job| RATES.request(&queue, job, 0)).fold(0.0, f64::max);
        let whole_speed: f64 = speeds.all().iter().sum();
        for segment in plan.segments() {
            let due = work * speeds.all()[segment.pod] / whole_speed;
            let leeway = 2.0 * 0.02 * work / speeds.pods() as f64;
            let cost = plan.route().cost(segment.stops.clone());
            prop_assert!(cost <= due + leeway + 2.0 * largest + 1e-6, "{} of {}", cost, due);
        }
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(shapes in shapes(40), turn in 0_usize..40) {
        let mut turned = shapes.clone();
        turned.rotate_left(turn % shapes.len());
        turned.reverse();
        let described = |shapes: &[Shape]| {
            let queue = queue_of(shapes);
            let plan = Plan::new(&queue, &Speeds::equal(3).unwrap(), &RATES);
            let pods = (0..3).map(|pod| {
                let content = |job| {
                    let tokens = (queue.prompt_tokens(job), queue.output_tokens(job));
                    (queue.chain(job).to_vec(), tokens)
                };
                plan.jobs_of(pod).map(content).collect::<Vec<_>>()
            });
            (pods.collect::<Vec<_>>(), plan.least_tokens(), plan.finish())
        };
        prop_assert_eq!(described(&shapes), described(&turned));
    }

    /// Sorted in parts of any size, of which some requests are not wanted any more, some of them the same as others.
    #[test]
    fn a_forest_merged_from_parts_is_that_of_the_whole(
        shapes in shapes(60),
        size in 1_usize..20,
        left_out in 2_u32..9,
        identities in 1_u128..40,
    ) {
        let (mut whole, mut long, mut parts) = (Queue::new(BLOCK), Queue::new(BLOCK), Vec::new());
        for (number, (contents, tail, output)) in shapes.iter().enumerate() {
            let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
            let chain: Vec<_> = BlockHash(9).chain(&contents).collect();
            let prompt_tokens = (chain.len() * BLOCK.get() + tail).max(1);
            // Equal ones need not have equal chains here: whoever asks for copies gets them.
            let identity = (number % 2 == 0).then_some(DedupKey(number as u128 % identities));
            let job = Job { chain: &chain, prompt_tokens, output_tokens: *output, deadline: None, identity };
            whole.push(&job).unwrap();
            long.push(&job).unwrap();
            if number % size == size - 1 || number + 1 == shapes.len() {
                let jobs: Vec<_> = long.jobs_with_chains().collect();
                let sorted = Forest::with_copies(&long, jobs);
                let chains = sorted.order().iter().map(|job| (*job, long.chain(*job).to_vec()));
                parts.push(InMemory(chains.collect::<Vec<_>>().into_iter()));
                long.let_chains_go();
            }
        }
        let wanted = |job: JobId| !job.0.is_multiple_of(left_out);
        let merged = Forest::merge(&long, parts, wanted).unwrap();
        let expected = Forest::of_jobs(&whole, whole.jobs().filter(|job| wanted(*job)).collect());
        prop_assert_eq!(&merged, &expected);
        let speeds = Speeds::equal(3).unwrap();
        let plan = |queue: &Queue, forest: Forest| Plan::of_forest(queue, forest, &speeds, &RATES);
        prop_assert_eq!(plan(&long, merged), plan(&whole, expected));
    }

    #[test]
    fn deadlines_are_not_knowingly_broken(
        shapes in shapes(40),
        deadlines in prop::collection::vec(prop::option::of(1_u64..4), 40),
        pods in 1_usize..4,
    ) {
        let unit = Duration::from_millis(400);
        let mut queue = Queue::new(BLOCK);
        for (shape, deadline) in shapes.iter().zip(&deadlines) {
            push(&mut queue, shape, deadline.map(|units| unit * units as u32));
        }
        let plan = Plan::new(&queue, &Speeds::equal(pods).unwrap(), &RATES);
        prop_assert_eq!(all_jobs(&plan).len(), shapes.len());
        let mut before = None;
        for class in plan.classes() {
            for stop in &plan.route().stops()[class.stops.clone()] {
                // Nobody is in a class that is due later than they are.
                let own = queue.deadline(stop.job);
                prop_assert!(own.is_none() || class.deadline.is_some_and(|class| Some(class) <= own));
            }
            let due = class.deadline.unwrap_or(Duration::MAX);
            prop_assert!(before.is_none_or(|before| before < due), "most urgent first");
            before = Some(due);
        }
        // Expected ends are those of the segments in turn.
        let mut ends = vec![0.0; pods];
        for segment in plan.segments() {
            ends[segment.pod] += plan.route().cost(segment.stops.clone());
            let finish = plan.classes()[segment.class].finish.as_secs_f64() * 1e3;
            prop_assert!(ends[segment.pod] <= finish + 1e-3, "{} after {finish}", ends[segment.pod]);
        }
    }

    /// Claims, answers, failures, losses, joins and new plans in any order: nothing lost, nothing twice.
    #[test]
    fn a_run_settles_every_request_once_whatever_happens(
        shapes in shapes(40),
        steps in prop::collection::vec((0_u8..10, 0_usize..1_000), 0..200),
    ) {
        let queue = queue_of(&shapes);
        let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(3).unwrap(), &RATES));
        let room = RunCapacity { requests: 4, prefill_tokens: 60 };
        let (mut alive, mut on, mut done) = (vec![true; 3], Vec::new(), BTreeSet::new());
        for (action, number) in steps {
            let pod = number % alive.len();
            match action {
                0..=3 => on.extend(run.claim(pod, room).map(|job| (job, pod))),
                4 if !on.is_empty() => run.prefilled(on[number % on.len()].0),
                5 | 6 if !on.is_empty() => {
                    let (job, pod) = on.swap_remove(number % on.len());
                    prop_assert_eq!(run.finished(job, pod), JobOutcome::First);
                    prop_assert_eq!(run.finished(job, pod), JobOutcome::Stale);
                    prop_assert!(done.insert(job));
                }
                7 if !on.is_empty() => {
                    let (job, pod) = on.swap_remove(number % on.len());
                    prop_assert_eq!(run.failed(job, pod), JobOutcome::First);
                }
                8 if alive[pod] => {
                    run.lost(pod);
                    alive[pod] = false;
                    on.retain(|(_, other)| *other != pod);
                }
                9 => {
                    let forest = Forest::of_jobs(&queue, run.unclaimed());
                    let speeds = Speeds::equal(alive.len()).unwrap();
                    run.replan(Plan::of_forest(&queue, forest, &speeds, &RATES)).unwrap();
                }
                _ => {}
            }
            prop_assert_eq!(run.unsettled(), shapes.len() - done.len());
        }
        run.joined(1.0);
        alive.push(true);
        let mut idle = 0;
        while run.unsettled() > 0 {
            for pod in 0..alive.len() {
                on.extend(run.claim(pod, room).map(|job| (job, pod)));
            }
            match on.pop() {
                Some((job, pod)) => {
                    idle = 0;
                    prop_assert_eq!(run.finished(job, pod), JobOutcome::First);
                    prop_assert!(done.insert(job));
                }
                None => idle += 1,
            }
            prop_assert!(idle < 3, "{} requests are stuck", run.unsettled());
        }
        prop_assert_eq!(done.len(), shapes.len());
    }

    /// Each batch of neighbours counted block by block.
    #[test]
    fn what_decoding_together_reads_is_what_counting_says(
        shapes in shapes(40),
        pods in 1_usize..3,
        sequences in 1_usize..9,
        kv_tokens in 1_usize..200,
    ) {
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(pods).unwrap(), &RATES);
        let prompts = |jobs: &[JobId]| jobs.iter().map(|job| queue.prompt_tokens(*job)).sum::<usize>();
        let unique = |jobs: &[JobId]| {
            let blocks: BTreeSet<_> = jobs.iter().flat_map(|job| queue.chain(*job)).collect();
            let in_blocks: usize = jobs.iter().map(|job| queue.chain(*job).len()).sum();
            prompts(jobs) + blocks.len() * BLOCK.get() - in_blocks * BLOCK.get()
        };
        let (mut read, mut read_shared) = (0, 0);
        for pod in 0..pods {
            let jobs: Vec<_> = plan.jobs_of(pod).collect();
            for last in 0..jobs.len() {
                let fits = |first: &usize| {
                    let batch = &jobs[*first..=last];
                    batch.len() == 1 || batch.len() <= sequences && unique(batch) <= kv_tokens
                };
                let first = (0..=last).find(fits).unwrap();
                read += prompts(&jobs[first..=last]);
                read_shared += unique(&jobs[first..=last]);
            }
        }
        let cohorts = Cohorts::of(&queue, &plan, sequences, kv_tokens);
        let per_batch = |tokens: usize| tokens as f64 / shapes.len() as f64;
        prop_assert!((cohorts.tokens_read - per_batch(read)).abs() < 1e-6);
        prop_assert!((cohorts.tokens_read_shared - per_batch(read_shared)).abs() < 1e-6);
        prop_assert!(cohorts.cascade_share < 1e-9, "nobody shares 256 tokens");
    }

    #[test]
    fn a_prefix_is_released_when_the_last_that_needs_it_is_done(shapes in shapes(40)) {
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES);
        let mut residency = Residency::of(&queue, &plan);
        let groups = residency.groups().all().len();
        let mut released = 0;
        for stop in plan.route().stops() {
            let gone = residency.finished(stop.job);
            prop_assert!(gone.iter().all(|released| released.blocks > 0));
            released += gone.len();
            prop_assert!(residency.finished(stop.job).is_empty());
        }
        prop_assert_eq!(released, groups);
    }
}

#[test]
fn identical_requests_are_computed_once_if_they_say_so() {
    let mut queue = Queue::new(BLOCK);
    let chain = [BlockHash(5)];
    let job = Job {
        chain: &chain,
        prompt_tokens: 6,
        output_tokens: 3,
        deadline: None,
        identity: Some(DedupKey(1)),
    };
    queue.push(&job).unwrap();
    queue.push(&Job { identity: None, ..job }).unwrap();
    let deadline = Some(Duration::from_secs(1));
    queue.push(&Job { deadline, ..job }).unwrap();
    let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES);
    assert_eq!(plan.copies(), [(JobId(0), JobId(2))], "the urgent one is computed");
    assert_eq!(all_jobs(&plan), [0, 1, 2]);
}

#[test]
fn cascade_attention_is_possible_where_eight_share_256_tokens() {
    let share_of = |shared: u64| {
        let shapes: Vec<Shape> =
            (0..10).map(|n| ((0..shared).chain([1_000 + n]).collect(), 1, 4)).collect();
        let queue = queue_of(&shapes);
        let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES);
        Cohorts::of(&queue, &plan, 16, 1 << 20).cascade_share
    };
    assert!((share_of(64) - 0.3).abs() < 1e-9, "from the eighth of ten on");
    assert!(share_of(63) < 1e-9, "252 tokens are too few");
}

#[test]
fn owners_share_prefixes_exactly_when_their_roots_are_the_same() {
    let mut queue = Queue::new(BLOCK);
    let contents = [ContentHash(1), ContentHash(2)];
    for root in [3, 3, 4] {
        let chain: Vec<_> = BlockHash(root).chain(&contents).collect();
        let job = Job {
            chain: &chain,
            prompt_tokens: 9,
            output_tokens: 1,
            deadline: None,
            identity: None,
        };
        queue.push(&job).unwrap();
    }
    let forest = Forest::of(&queue);
    assert_eq!(PromptGroups::of(forest.shared().iter().copied()).all().len(), 1);
    assert_eq!(forest.least_tokens(&queue), 9 + 1 + 9);
}

#[test]
fn segments_go_to_the_pods_that_hold_their_prefixes() {
    let shapes: Vec<Shape> = (0..12).map(|n| (vec![n / 4, 7, 7, n], 1, 4)).collect();
    let queue = queue_of(&shapes);
    let mut plan = Plan::new(&queue, &Speeds::equal(3).unwrap(), &RATES);
    let wanted: Vec<_> = (0..3).map(|pod| plan.jobs_of((pod + 1) % 3).next().unwrap()).collect();
    let saved = match_pods(&mut plan, &queue, |chain, depths| {
        for (pod, job) in wanted.iter().enumerate() {
            depths[pod] = chain.iter().zip(queue.chain(*job)).take_while(|(a, b)| a == b).count();
        }
    });
    assert_eq!(saved, 3 * 4 * 4, "all four blocks of a request on each of three pods");
    for (pod, job) in wanted.iter().enumerate() {
        assert!(plan.jobs_of(pod).any(|other| other == *job));
    }
}

#[test]
fn followers_wait_for_the_prefix_that_is_being_computed() {
    let shapes: Vec<Shape> = (0..6).map(|n| (vec![5, 5, 5, n], 0, 4)).collect();
    let queue = queue_of(&shapes);
    let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES));
    let room = RunCapacity { requests: 8, prefill_tokens: 1_000 };
    let first = run.claim(0, room).unwrap();
    assert_eq!(run.claim(0, room), None, "its prefix is under way");
    run.prefilled(first);
    assert_eq!(std::iter::from_fn(|| run.claim(0, room)).count(), 5);
}

#[test]
fn an_idle_pod_takes_the_far_end_of_the_longest_queue() {
    let shapes: Vec<Shape> = (0..100).map(|n| (vec![n], 0, 10)).collect();
    let queue = queue_of(&shapes);
    let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(2).unwrap(), &RATES));
    let room = RunCapacity { requests: 1, prefill_tokens: 1_000 };
    let mut first = 0;
    // The second pod answers nothing until the first has done all it can get.
    while let Some(job) = run.claim(0, room) {
        first += 1;
        assert_eq!(run.finished(job, 0), JobOutcome::First);
    }
    assert!(run.thefts() > 0 && first > 90, "{first} by the first pod, {} thefts", run.thefts());
}

fn each_order(jobs: &mut Vec<JobId>, fixed: usize, visit: &mut impl FnMut(&[JobId])) {
    if fixed == jobs.len() {
        return visit(jobs);
    }
    for place in fixed..jobs.len() {
        jobs.swap(fixed, place);
        each_order(jobs, fixed + 1, visit);
        jobs.swap(fixed, place);
    }
}
