//! Which requests decode together, on an engine that reads a shared prefix once.
#![allow(clippy::unwrap_used, reason = "a panic is how a test says no")]

use std::num::NonZeroUsize;
use wornpath_blocks::BlockHash;
use wornpath_planner::{
    CascadeRates, DecodeBatch, DecodeRates, Job, JobId, Plan, PlanRun, PlannerRates, Queue,
    RunCapacity, Speeds,
};

const BLOCK: usize = 16;

/// An 8B model on one H200, as measured.
const DECODE: DecodeRates = DecodeRates {
    step: 4.898,
    per_sequence: 0.012_48,
    per_context_token: 3.048e-5,
    per_longest_token: 0.000_368_6,
    cascade: Some(CascadeRates {
        step: 1.668,
        per_shared_token: 1.946e-5,
        least_sequences: 8,
        least_tokens: 256,
    }),
    max_sequences: 256,
    kv_tokens: 845_000,
};

fn rates(decode: DecodeRates) -> PlannerRates {
    PlannerRates {
        per_prefill_token: 0.024,
        per_pair: 1.55e-6,
        per_cached_token: 0.0009,
        per_output_token: decode.per_sequence + decode.step / 256.0,
        per_context_token: decode.per_context_token,
        decode_rates: Some(decode),
    }
}

/// A document and the questions about it.
#[derive(Clone, Copy)]
struct Document {
    tokens: usize,
    questions: usize,
    output_tokens: usize,
}

fn queue_of(documents: &[Document]) -> Queue {
    let mut queue = Queue::new(NonZeroUsize::new(BLOCK).unwrap());
    for (number, document) in documents.iter().enumerate() {
        let blocks = document.tokens / BLOCK;
        for question in 0..document.questions {
            let mut chain: Vec<_> =
                (0..blocks).map(|block| BlockHash((number << 20 | block) as u64 + 1)).collect();
            chain.push(BlockHash(1 << 60 | (number << 20 | question) as u64));
            let job = Job {
                chain: &chain,
                prompt_tokens: chain.len() * BLOCK + 1,
                output_tokens: document.output_tokens,
                identity: None,
            };
            queue.push(&job).unwrap();
        }
    }
    queue
}

fn plan(documents: &[Document], decode: DecodeRates) -> Plan {
    Plan::new(&queue_of(documents), &Speeds::equal(1).unwrap(), &rates(decode))
}

const LONG: Document = Document { tokens: 18_000, questions: 30, output_tokens: 60 };
const SHORT: Document = Document { tokens: 2_000, questions: 30, output_tokens: 60 };
const LONE: Document = Document { tokens: 160, questions: 1, output_tokens: 60 };

#[test]
fn questions_about_long_documents_decode_apart_and_those_about_short_ones_do_not() {
    let plan = plan(&[LONG, LONG, LONG], DECODE);
    let found: Vec<_> =
        plan.decode_groups().iter().map(|it| (it.stops.clone(), it.shared_tokens)).collect();
    assert_eq!(found, [(0..30, 18_000), (30..60, 18_000), (60..90, 18_000)]);
    let few = Document { questions: 7, ..LONG };
    let small = Document { tokens: 3_000, ..LONG };
    for other in [few, small] {
        assert_eq!(self::plan(&[other, LONE], DECODE).decode_groups(), []);
    }
}

#[test]
fn without_cascade_attention_nothing_decodes_apart() {
    let engine = DecodeRates { cascade: None, ..DECODE };
    assert_eq!(plan(&[LONG, LONG], engine).decode_groups(), []);
}

#[test]
fn the_times_of_the_engine_decide_and_not_the_length_of_the_prefix() {
    let apart = |cascade_step: f64| {
        let cascade = DECODE.cascade.map(|cascade| CascadeRates { step: cascade_step, ..cascade });
        plan(&[LONG, LONG], DecodeRates { cascade, ..DECODE }).decode_groups().len()
    };
    assert_eq!((apart(1.668), apart(40.0)), (2, 0));
}

#[test]
fn requests_that_decode_apart_come_before_those_among_others() {
    let plan = plan(&[LONE, LONG, LONE, LONG, LONE, SHORT], DECODE);
    let stops: Vec<_> = plan.decode_groups().iter().map(|group| group.stops.clone()).collect();
    assert_eq!(stops, [0..30, 30..60]);
}

#[test]
fn a_nested_group_is_chosen_by_what_saves_the_most() {
    // Two sets of questions about the same document, each with instructions of its own.
    let mut queue = Queue::new(NonZeroUsize::new(BLOCK).unwrap());
    for number in 0..60_u64 {
        let mut chain: Vec<_> = (1..1_125).map(BlockHash).collect();
        chain.extend((0..4).map(|block| BlockHash(1 << 40 | (number % 2) << 8 | block)));
        let prompt_tokens = chain.len() * BLOCK + 20;
        queue
            .push(&Job { chain: &chain, prompt_tokens, output_tokens: 60, identity: None })
            .unwrap();
    }
    let plan = Plan::new(&queue, &Speeds::equal(1).unwrap(), &rates(DECODE));
    let stops: Vec<_> = plan.decode_groups().iter().map(|group| group.stops.clone()).collect();
    assert_eq!(
        (stops.len(), &stops[0]),
        (1, &(0..60)),
        "64 more tokens are not worth twice the steps"
    );
}

/// Claims all that the pod may get, each with its prompt computed at once.
fn claim_all(run: &mut PlanRun) -> Vec<JobId> {
    let capacity = RunCapacity { requests: 256, prefill_tokens: 1 << 20 };
    std::iter::from_fn(|| {
        let job = run.claim(0, capacity)?;
        run.prefilled(job);
        Some(job)
    })
    .collect()
}

#[test]
fn the_next_group_starts_when_few_of_the_former_are_left_and_its_followers_when_none_is() {
    let mut run = PlanRun::new(plan(&[LONG, LONG], DECODE));
    let mut first = claim_all(&mut run);
    assert_eq!(first.len(), 30);
    let mut leads = Vec::new();
    let mut remaining = 0;
    while let Some(job) = first.pop() {
        run.finished(job, 0);
        leads.extend(claim_all(&mut run));
        if leads.len() == 1 && remaining == 0 {
            remaining = first.len();
        }
        assert!(leads.len() <= 1 || first.is_empty(), "{} beside {}", leads.len(), first.len());
    }
    // Seven sequences cannot use cascade attention, so nothing is lost beside them.
    assert_eq!((leads.len(), remaining), (30, 7));
}

#[test]
fn short_requests_do_not_join_a_group_and_are_not_joined_by_one() {
    let mut kinds = vec![LONG];
    kinds.extend((0..40).map(|_| LONE));
    let mut run = PlanRun::new(plan(&kinds, DECODE));
    let first = claim_all(&mut run);
    assert_eq!(first.len(), 30, "the group has the pod for itself");
    for job in first {
        run.finished(job, 0);
    }
    assert_eq!(claim_all(&mut run).len(), 40);
}

#[test]
fn a_batch_beside_another_shares_nothing_with_it() {
    let batch = DecodeBatch {
        sequences: 30,
        context_tokens: 30 * 18_050,
        longest_context: 18_050,
        shared_tokens: 18_000,
    };
    assert!(DECODE.read(&batch).is_cascade && DECODE.read(&batch).tokens == 18_000 + 30 * 50);
    let both = batch.beside(batch);
    assert!(!DECODE.read(&both).is_cascade && DECODE.read(&both).tokens == 60 * 18_050);
    assert!(!DECODE.gains_together(batch, batch));
    assert!(DECODE.gains_together(batch.at_most(3), batch.at_most(3)));
    assert_eq!(batch.beside(DecodeBatch::default()), batch);
}
