//! Properties of every plan and every run, checked on random forests.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

mod lru;

use lru::computed_tokens;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_planner::{
    Cohorts, DedupKey, Forest, Job, JobId, JobOutcome, Plan, PlanRun, PlannerRates, PromptGroups,
    Queue, RunCapacity, SortedPart, Speeds, match_pods,
};

const BLOCK: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const RATES: PlannerRates = PlannerRates::flat(1.0, 2.0);

/// A request: the contents of its blocks, from a small alphabet; the tokens behind the last block;
/// and its output tokens.
type Shape = (Vec<u64>, usize, usize);

fn shapes(most: usize) -> impl Strategy<Value = Vec<Shape>> {
    let shape = (prop::collection::vec(0_u64..3, 0..6), 0_usize..4, 0_usize..12);
    prop::collection::vec(shape, 1..most)
}

fn push(queue: &mut Queue, (contents, tail, output): &Shape) {
    let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
    let chain: Vec<_> = BlockHash(9).chain(&contents).collect();
    let prompt_tokens = (chain.len() * BLOCK.get() + tail).max(1);
    let job = Job { chain: &chain, prompt_tokens, output_tokens: *output, identity: None };
    queue.push(&job).unwrap();
}

fn queue_of(shapes: &[Shape]) -> Queue {
    let mut queue = Queue::new(BLOCK);
    shapes.iter().for_each(|shape| push(&mut queue, shape));
    queue
}

/// A sorted part kept in memory.
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

    /// Tries all orders of up to six requests, each with an exact LRU cache just large enough for
    /// the longest prompt.
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
            let one = last(&mut plan.jobs_of(pair[0].pod));
            let other = last(&mut plan.jobs_of(pair[1].pod));
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
    fn the_order_of_the_input_does_not_matter(shapes in shapes(40), rotation in 0_usize..40) {
        let mut reordered = shapes.clone();
        reordered.rotate_left(rotation % shapes.len());
        reordered.reverse();
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
        prop_assert_eq!(described(&shapes), described(&reordered));
    }

    /// The parts have any size; some requests are not wanted any more, and some are equal to
    /// others.
    #[test]
    fn a_forest_merged_from_parts_is_that_of_the_whole(
        shapes in shapes(60),
        size in 1_usize..20,
        left_out in 2_u32..9,
        identities in 1_u128..40,
    ) {
        let mut whole = Queue::new(BLOCK);
        let mut long = Queue::new(BLOCK);
        let mut parts = Vec::new();
        for (number, (contents, tail, output)) in shapes.iter().enumerate() {
            let contents: Vec<_> = contents.iter().copied().map(ContentHash).collect();
            let chain: Vec<_> = BlockHash(9).chain(&contents).collect();
            let prompt_tokens = (chain.len() * BLOCK.get() + tail).max(1);
            // Requests with equal identities need not have equal chains: the planner trusts the
            // identity.
            let identity = (number % 2 == 0).then_some(DedupKey(number as u128 % identities));
            let job = Job { chain: &chain, prompt_tokens, output_tokens: *output, identity };
            whole.push(&job).unwrap();
            long.push(&job).unwrap();
            if number % size == size - 1 || number + 1 == shapes.len() {
                let jobs: Vec<_> = long.jobs_with_chains().collect();
                let sorted = Forest::with_copies(&long, jobs);
                let chains = sorted.order().iter().map(|job| (*job, long.chain(*job).to_vec()));
                parts.push(InMemory(chains.collect::<Vec<_>>().into_iter()));
                long.drop_chains();
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

    /// Claims, answers, failures, lost and joining pods in any order: no request lost, none
    /// computed twice.
    #[test]
    fn a_run_settles_every_request_once_whatever_fails(
        shapes in shapes(40),
        steps in prop::collection::vec((0_u8..9, 0_usize..1_000), 0..200),
    ) {
        let queue = queue_of(&shapes);
        let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(3).unwrap(), &RATES));
        let capacity = RunCapacity { requests: 4, prefill_tokens: 60 };
        let mut alive = vec![true; 3];
        let mut on = Vec::new();
        let mut done = BTreeSet::new();
        for (action, number) in steps {
            let pod = number % alive.len();
            match action {
                0..=3 => on.extend(run.claim(pod, capacity).map(|job| (job, pod))),
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
                _ => {}
            }
            prop_assert_eq!(run.unsettled(), shapes.len() - done.len());
        }
        run.add_pod(1.0);
        alive.push(true);
        let mut idle = 0;
        while run.unsettled() > 0 {
            for pod in 0..alive.len() {
                on.extend(run.claim(pod, capacity).map(|job| (job, pod)));
            }
            match on.pop() {
                Some((job, pod)) => {
                    idle = 0;
                    prop_assert_eq!(run.finished(job, pod), JobOutcome::First);
                    prop_assert!(done.insert(job));
                }
                None => idle += 1,
            }
            prop_assert!(idle < 3, "{} requests never settle", run.unsettled());
        }
        prop_assert_eq!(done.len(), shapes.len());
    }

    /// Compares with a count of every batch of neighbours, block by block.
    #[test]
    fn cohorts_read_as_many_tokens_as_a_naive_count(
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
        let mut read = 0;
        let mut read_shared = 0;
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
        prop_assert!(cohorts.cascade_share < 1e-9, "no two requests share 256 tokens");
    }
}

#[test]
fn requests_with_equal_identities_are_computed_once() {
    let mut queue = Queue::new(BLOCK);
    let chain = [BlockHash(5)];
    let job =
        Job { chain: &chain, prompt_tokens: 6, output_tokens: 3, identity: Some(DedupKey(1)) };
    queue.push(&job).unwrap();
    queue.push(&Job { identity: None, ..job }).unwrap();
    queue.push(&job).unwrap();
    let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES);
    assert_eq!(plan.copies(), [(JobId(2), JobId(0))], "the first one is computed");
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
fn tenants_share_prefixes_exactly_when_their_roots_are_equal() {
    let mut queue = Queue::new(BLOCK);
    let contents = [ContentHash(1), ContentHash(2)];
    for root in [3, 3, 4] {
        let chain: Vec<_> = BlockHash(root).chain(&contents).collect();
        let job = Job { chain: &chain, prompt_tokens: 9, output_tokens: 1, identity: None };
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
    let capacity = RunCapacity { requests: 8, prefill_tokens: 1_000 };
    let first = run.claim(0, capacity).unwrap();
    assert_eq!(run.claim(0, capacity), None, "its prefix is being computed");
    run.prefilled(first);
    assert_eq!(std::iter::from_fn(|| run.claim(0, capacity)).count(), 5);
}

#[test]
fn an_idle_pod_steals_the_far_end_of_the_longest_queue() {
    let shapes: Vec<Shape> = (0..100).map(|n| (vec![n], 0, 10)).collect();
    let queue = queue_of(&shapes);
    let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(2).unwrap(), &RATES));
    let capacity = RunCapacity { requests: 1, prefill_tokens: 1_000 };
    let mut first = 0;
    // The second pod answers nothing until the first has finished all it can steal.
    while let Some(job) = run.claim(0, capacity) {
        first += 1;
        assert_eq!(run.finished(job, 0), JobOutcome::First);
    }
    assert!(run.steals() > 0 && first > 90, "{first} by the first pod, {} steals", run.steals());
}

fn each_order(jobs: &mut Vec<JobId>, fixed: usize, visit: &mut impl FnMut(&[JobId])) {
    if fixed == jobs.len() {
        return visit(jobs);
    }
    for at in fixed..jobs.len() {
        jobs.swap(fixed, at);
        each_order(jobs, fixed + 1, visit);
        jobs.swap(fixed, at);
    }
}

/// Questions about documents of 100 blocks, on a pod whose cache holds 1,000 tokens.
fn small_cache() -> PlanRun {
    let mut queue = Queue::new(BLOCK);
    for document in 0..4_u64 {
        for question in 0..3_u64 {
            let contents: Vec<_> =
                (0..100).map(|block| document << 20 | block).chain([1 << 40 | question]).collect();
            push(&mut queue, &(contents, 1, 4));
        }
    }
    let mut run = PlanRun::new(Plan::new(&queue, &Speeds::equal(1).unwrap(), &RATES));
    run.set_kv_tokens(0, 1_000);
    run
}

#[test]
fn no_prefix_is_computed_that_the_cache_cannot_hold_beside_those_that_are_needed() {
    let mut run = small_cache();
    let capacity = RunCapacity { requests: 100, prefill_tokens: 1 << 20 };
    let claim = |run: &mut PlanRun| {
        let jobs: Vec<_> = std::iter::from_fn(|| {
            let job = run.claim(0, capacity)?;
            run.prefilled(job);
            Some(job)
        })
        .collect();
        jobs
    };
    // A document and its three questions need 427 tokens.
    let first = claim(&mut run);
    assert_eq!((first.len(), run.resident_tokens(0)), (6, 2 * 427));
    // The document stays until the last question about it has its answer.
    for (job, resident) in first[..2].iter().zip([2 * 427 - 9, 2 * 427 - 18]) {
        run.finished(*job, 0);
        assert_eq!(run.resident_tokens(0), resident);
        assert_eq!(claim(&mut run), []);
    }
    run.finished(first[2], 0);
    assert_eq!(run.resident_tokens(0), 427);
    assert_eq!(claim(&mut run).len(), 3);
}

#[test]
fn a_request_that_no_cache_can_hold_is_sent_alone() {
    let mut run = small_cache();
    run.set_kv_tokens(0, 10);
    let capacity = RunCapacity { requests: 100, prefill_tokens: 1 << 20 };
    let job = run.claim(0, capacity).unwrap();
    run.prefilled(job);
    assert_eq!(run.claim(0, capacity), None);
    run.finished(job, 0);
    assert!(run.claim(0, capacity).is_some());
}
