//! The guarantees of the model: times, tokens, blocks and events, in small cases and at random.

use super::*;
use crate::request::PromptSource;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

fn profile() -> EngineProfile {
    EngineProfile::built_in("8b-h200").unwrap()
}

/// A small engine whose blocks have four tokens.
fn settings(blocks: usize) -> EngineSettings {
    EngineSettings {
        block_size: NonZeroUsize::new(4).unwrap(),
        kv_tokens: Some(4 * blocks),
        tokens: TokenReports::Each,
        ..EngineSettings::default()
    }
}

fn request(id: u64, prompt_tokens: usize, output_tokens: usize, chain: &[u64]) -> SimRequest {
    let chain: Arc<[EngineHash]> = chain.iter().copied().map(EngineHash).collect();
    SimRequest { chain, ..SimRequest::anonymous(RequestId(id), prompt_tokens, output_tokens) }
}

fn run_until_idle(engine: &mut SimEngine) -> Vec<Output> {
    let mut outputs = Vec::new();
    while let Some(time) = engine.next_event_time() {
        engine.advance(time, &mut outputs);
    }
    outputs
}

fn cached_tokens(outputs: &[Output], id: u64) -> usize {
    let admitted = outputs.iter().find_map(|output| match output.outcome {
        SimOutcome::Admitted { request, cached_tokens } if request == RequestId(id) => {
            Some(cached_tokens)
        }
        _ => None,
    });
    admitted.unwrap()
}

fn removed(outputs: &[Output]) -> Vec<u64> {
    let blocks = outputs.iter().filter_map(|output| match &output.outcome {
        SimOutcome::Removed { blocks, tier: Tier::Gpu } => Some(blocks),
        _ => None,
    });
    blocks.flatten().map(|hash| hash.0).collect()
}

#[test]
fn a_prompt_of_8236_tokens_takes_175_milliseconds() {
    let mut engine = SimEngine::new(&profile(), &EngineSettings::default());
    engine.submit(Duration::ZERO, SimRequest::anonymous(RequestId(1), 8_236, 1)).unwrap();
    let milliseconds = run_until_idle(&mut engine).last().unwrap().at.as_secs_f64() * 1e3;
    assert!((milliseconds / 175.0 - 1.0).abs() < 0.03, "{milliseconds}");
}

#[test]
fn a_second_turn_reuses_all_but_its_last_block() {
    let mut engine = SimEngine::new(&profile(), &settings(100));
    let chain: Vec<u64> = (1..=5).collect();
    engine.submit(Duration::ZERO, request(1, 18, 3, &chain)).unwrap();
    assert_eq!(cached_tokens(&run_until_idle(&mut engine), 1), 0);
    // 18 prompt tokens and two of output have vectors: five blocks, of which the fifth by decoding.
    engine.submit(engine.now, request(2, 20, 1, &chain)).unwrap();
    assert_eq!(cached_tokens(&run_until_idle(&mut engine), 2), 16, "the last token is computed");
    engine.submit(engine.now, request(3, 21, 1, &chain)).unwrap();
    assert_eq!(cached_tokens(&run_until_idle(&mut engine), 3), 20);
    assert_eq!(engine.load().hit_tokens, 36);
}

#[test]
fn a_prompts_tail_is_evicted_before_its_head_and_the_older_prompt_before_the_newer() {
    let mut engine = SimEngine::new(&profile(), &settings(4));
    engine.submit(Duration::ZERO, request(1, 8, 1, &[11, 12])).unwrap();
    run_until_idle(&mut engine);
    engine.submit(engine.now, request(2, 8, 1, &[21, 22])).unwrap();
    run_until_idle(&mut engine);
    engine.submit(engine.now, request(3, 12, 1, &[31, 32, 33])).unwrap();
    assert_eq!(removed(&run_until_idle(&mut engine)), [12, 11, 22]);
}

#[test]
fn equal_prompts_in_one_step_are_stored_twice_and_removed_twice() {
    let mut engine = SimEngine::new(&profile(), &settings(4));
    engine.submit(Duration::ZERO, request(1, 8, 1, &[1, 2])).unwrap();
    engine.submit(Duration::ZERO, request(2, 8, 1, &[1, 2])).unwrap();
    let stored = run_until_idle(&mut engine)
        .iter()
        .filter(
            |output| matches!(&output.outcome, SimOutcome::Stored { blocks, .. } if *blocks == (0..2)),
        )
        .count();
    assert_eq!(stored, 2);
    engine.submit(engine.now, request(3, 16, 0, &[3, 4, 5, 6])).unwrap();
    assert_eq!(removed(&run_until_idle(&mut engine)), [2, 1, 2, 1]);
}

#[test]
fn the_request_that_arrived_last_is_preempted_and_still_gets_every_token_once() {
    let mut engine = SimEngine::new(&profile(), &settings(6));
    for id in 1..=2 {
        engine.submit(Duration::ZERO, request(id, 8, 16, &[])).unwrap();
    }
    let outputs = run_until_idle(&mut engine);
    let preempted: Vec<_> =
        outputs.iter().filter(|o| matches!(o.outcome, SimOutcome::Preempted { .. })).collect();
    assert_eq!(preempted.len(), 1);
    assert_eq!(preempted[0].outcome, SimOutcome::Preempted { request: RequestId(2) });
    assert_tokens(&outputs, &HashMap::from([(1, 16), (2, 16)]));
    assert_eq!(engine.load().used_blocks, 0);
}

#[test]
fn no_request_is_preempted_where_whole_requests_must_fit() {
    let admission = EngineAdmission::WholeFits;
    let mut engine = SimEngine::new(&profile(), &EngineSettings { admission, ..settings(6) });
    for id in 1..=2 {
        engine.submit(Duration::ZERO, request(id, 8, 16, &[])).unwrap();
    }
    assert_tokens(&run_until_idle(&mut engine), &HashMap::from([(1, 16), (2, 16)]));
    assert_eq!(engine.load().preemptions, 0);
}

#[test]
fn evicted_blocks_come_back_from_host_memory_at_the_speed_of_the_copy() {
    let mut engine =
        SimEngine::new(&profile(), &EngineSettings { host_tokens: 400, ..settings(5) });
    let chain = [1, 2, 3, 4];
    engine.submit(Duration::ZERO, request(1, 17, 1, &chain)).unwrap();
    run_until_idle(&mut engine);
    engine.submit(engine.now, request(2, 17, 1, &[5, 6, 7, 8])).unwrap();
    run_until_idle(&mut engine);
    let start = engine.now;
    engine.submit(start, request(3, 17, 1, &chain)).unwrap();
    let outputs = run_until_idle(&mut engine);
    assert_eq!(cached_tokens(&outputs, 3), 16);
    let expected = one_token_step(16) + profile().host_time(16) + profile().request_time();
    assert_eq!(outputs.last().unwrap().at - start, expected);
}

/// The time of a step that computes one token after `past` others.
fn one_token_step(past: usize) -> Duration {
    let mut load = crate::StepLoad::default();
    load.add_chunk(past, 1);
    profile().step_cost().of(&load)
}

#[test]
fn blocks_that_host_memory_has_lost_come_back_from_disk_and_are_copied_to_it_again() {
    let tiers = EngineSettings { host_tokens: 8, disk_tokens: 400, ..settings(5) };
    let mut engine = SimEngine::new(&profile(), &tiers);
    let chain: Vec<u64> = (1..=4).collect();
    engine.submit(Duration::ZERO, request(1, 16, 1, &chain)).unwrap();
    engine.submit(Duration::ZERO, request(2, 19, 1, &[11, 12, 13, 14])).unwrap();
    run_until_idle(&mut engine);
    let start = engine.now;
    engine.submit(start, request(3, 17, 1, &chain)).unwrap();
    let outputs = run_until_idle(&mut engine);
    assert_eq!(cached_tokens(&outputs, 3), 16);
    let expected = one_token_step(16) + profile().disk_time(16) + profile().request_time();
    assert_eq!(engine.now - start, expected);
    let on = |wanted: Tier| {
        outputs.iter().any(|output| {
        matches!(&output.outcome, SimOutcome::Stored { blocks, tier, .. } if *tier == wanted && blocks.end == 4)
    })
    };
    assert!(on(Tier::Gpu) && on(Tier::Host) && !on(Tier::Disk), "the disk has them: {outputs:?}");
}

#[test]
fn a_host_tier_smaller_than_a_prompt_reports_its_evictions_in_order() {
    let mut engine = SimEngine::new(&profile(), &EngineSettings { host_tokens: 8, ..settings(8) });
    engine.submit(Duration::ZERO, request(1, 16, 1, &[1, 2, 3, 4])).unwrap();
    let mut host: Vec<u64> = Vec::new();
    for output in run_until_idle(&mut engine) {
        match output.outcome {
            SimOutcome::Stored { chain, blocks, tier: Tier::Host, .. } => {
                host.extend(chain[blocks].iter().map(|hash| hash.0));
            }
            SimOutcome::Removed { blocks, tier: Tier::Host } => {
                host.retain(|hash| !blocks.contains(&EngineHash(*hash)));
            }
            _ => {}
        }
    }
    assert_eq!(host, [3, 4]);
}

#[test]
fn a_transferred_prompt_waits_for_the_network_and_computes_one_token() {
    let mut engine = SimEngine::new(&profile(), &settings(100));
    let sent = SimRequest { source: PromptSource::Transferred, ..request(1, 40, 1, &[]) };
    engine.submit(Duration::ZERO, sent).unwrap();
    let outputs = run_until_idle(&mut engine);
    let expected = profile().request_time() + profile().network_time(39) + one_token_step(39);
    assert_eq!(outputs.last().unwrap().at, expected);
}

#[test]
fn leased_blocks_stay_in_use_until_they_are_fetched_or_the_lease_expires() {
    let mut engine = SimEngine::new(&profile(), &settings(4));
    let lease = Some(Duration::from_secs(30));
    let mut outputs = Vec::new();
    for id in 1..=2 {
        engine.submit(engine.now, SimRequest { lease, ..request(id, 8, 1, &[]) }).unwrap();
        engine.advance(engine.now + Duration::from_secs(1), &mut outputs);
    }
    assert_eq!(engine.load().used_blocks, 4);
    assert!(engine.release_lease(engine.now, RequestId(1)));
    assert!(!engine.release_lease(engine.now, RequestId(1)));
    assert_eq!(engine.load().used_blocks, 2);
    engine.advance(Duration::from_secs(40), &mut outputs);
    assert_eq!(engine.load().used_blocks, 0);
}

#[test]
fn a_waiting_request_is_admitted_when_a_lease_or_a_cancelled_request_frees_its_blocks() {
    fn release(engine: &mut SimEngine, now: Duration, request: RequestId) {
        assert!(engine.release_lease(now, request));
    }
    let ways: [fn(&mut SimEngine, Duration, RequestId); 2] = [SimEngine::cancel, release];
    let ms = Duration::from_millis;
    for frees in ways {
        let mut engine = SimEngine::new(&profile(), &settings(4));
        let lease = Some(Duration::from_secs(3_600));
        engine.submit(ms(0), SimRequest { lease, ..request(1, 12, 1, &[]) }).unwrap();
        engine.submit(ms(0), request(2, 12, 1, &[])).unwrap();
        let mut outputs = Vec::new();
        engine.advance(ms(5_000), &mut outputs);
        assert_eq!(engine.load().waiting, 1, "three of four blocks are leased");
        frees(&mut engine, ms(6_000), RequestId(1));
        assert_eq!(engine.next_event_time(), Some(ms(6_000)));
        outputs = run_until_idle(&mut engine);
        let finished = SimOutcome::Finished { request: RequestId(2) };
        let end = outputs.iter().find(|output| output.outcome == finished).unwrap();
        assert!(end.at > ms(6_000), "{outputs:?}");
    }
}

#[test]
fn a_cleared_cache_is_reported_with_the_next_request_and_never_cleared_while_in_use() {
    let mut engine = SimEngine::new(&profile(), &settings(4));
    engine.submit(Duration::ZERO, request(1, 8, 1, &[1, 2])).unwrap();
    engine.advance(Duration::from_millis(11), &mut Vec::new());
    assert_eq!(engine.clear_cache(), Err(2));
    run_until_idle(&mut engine);
    assert_eq!(engine.clear_cache(), Ok(()));
    assert_eq!(engine.next_event_time(), None);
    engine.submit(engine.now, request(2, 9, 1, &[1, 2])).unwrap();
    let outputs = run_until_idle(&mut engine);
    assert_eq!(outputs[0].outcome, SimOutcome::Cleared);
    assert_eq!(cached_tokens(&outputs, 2), 0);
}

#[test]
fn a_request_that_can_never_be_served_is_refused_with_the_reason() {
    let mut engine = SimEngine::new(&profile(), &settings(4));
    let refusal = engine.submit(Duration::ZERO, request(1, 12, 5, &[])).unwrap_err();
    assert_eq!(refusal, SimRefused::TooLong { tokens: 17, capacity: 16 });
    assert_eq!(engine.submit(Duration::ZERO, request(1, 0, 5, &[])), Err(SimRefused::EmptyPrompt));
}

/// Every request gets its tokens in order, then ends, once.
fn assert_tokens(outputs: &[Output], expected: &HashMap<u64, usize>) {
    let mut next: HashMap<u64, usize> = HashMap::new();
    let mut ended = Vec::new();
    for output in outputs {
        match output.outcome {
            SimOutcome::Token { request, index } => {
                let next = next.entry(request.0).or_default();
                assert_eq!(index, *next, "{request:?}");
                *next += 1;
            }
            SimOutcome::Finished { request } => ended.push(request.0),
            _ => {}
        }
    }
    ended.sort_unstable();
    let mut all: Vec<_> = expected.keys().copied().collect();
    all.sort_unstable();
    assert_eq!(ended, all);
    for (id, tokens) in expected {
        assert_eq!(next.get(id).copied().unwrap_or(0), *tokens, "request {id}");
    }
}

/// The device's cache as the events describe it, and the hits that each admission must then find.
#[derive(Default)]
struct ReportedCache {
    copies: HashMap<EngineHash, usize>,
}

impl ReportedCache {
    fn follow(&mut self, outputs: &[Output], requests: &HashMap<u64, SimRequest>) {
        for output in outputs {
            match &output.outcome {
                SimOutcome::Stored { chain, blocks, tier: Tier::Gpu, .. } => {
                    for hash in &chain[blocks.clone()] {
                        *self.copies.entry(*hash).or_default() += 1;
                    }
                }
                SimOutcome::Removed { blocks, tier: Tier::Gpu } => {
                    for hash in blocks {
                        let copies = self.copies.get_mut(hash).expect("removed, never stored");
                        *copies -= 1;
                        if *copies == 0 {
                            self.copies.remove(hash);
                        }
                    }
                }
                SimOutcome::Admitted { request, cached_tokens } => {
                    let request = &requests[&request.0];
                    let reusable = (request.prompt_tokens - 1) / 4;
                    let held = request.chain.iter().take(reusable);
                    let held = held.take_while(|hash| self.copies.contains_key(hash)).count();
                    assert_eq!(*cached_tokens, 4 * held, "{request:?}");
                }
                _ => {}
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Arrival {
    gap: u64,
    family: u64,
    prompt: usize,
    output: usize,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Served,
    Cancelled,
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let fate = prop_oneof![6 => Just(Fate::Served), 1 => Just(Fate::Cancelled)];
    let arrival = (0..40_u64, 0..4_u64, 1..40_usize, 0..30_usize, fate).prop_map(
        |(gap, family, prompt, output, fate)| Arrival { gap, family, prompt, output, fate },
    );
    proptest::collection::vec(arrival, 1..40)
}

/// Requests of one family share their chain, which goes on into the output.
fn requests_of(arrivals: &[Arrival]) -> HashMap<u64, SimRequest> {
    let request = |(id, arrival): (u64, &Arrival)| {
        let blocks = (arrival.prompt + arrival.output / 2) / 4;
        let chain: Vec<u64> =
            (0..blocks as u64).map(|block| arrival.family * 100 + block).collect();
        (id, request(id, arrival.prompt, arrival.output, &chain))
    };
    (0..).zip(arrivals).map(request).collect()
}

fn drive(
    arrivals: &[Arrival],
    requests: &HashMap<u64, SimRequest>,
    settings: &EngineSettings,
) -> (SimEngine, Vec<Output>) {
    let mut engine = SimEngine::new(&profile(), settings);
    let mut outputs = Vec::new();
    let mut now = Duration::ZERO;
    for (id, arrival) in (0_u64..).zip(arrivals) {
        now += Duration::from_millis(arrival.gap);
        engine.advance(now, &mut outputs);
        engine.submit(now, requests[&id].clone()).unwrap();
        if arrival.fate == Fate::Cancelled {
            engine.advance(now + Duration::from_millis(arrival.gap), &mut outputs);
            now += Duration::from_millis(arrival.gap);
            engine.cancel(now, RequestId(id));
        }
    }
    outputs.extend(run_until_idle(&mut engine));
    (engine, outputs)
}

proptest! {
    #[test]
    fn no_token_or_block_is_lost_and_events_predict_every_hit(arrivals in arrivals(), blocks in 18..60_usize) {
        for admission in [EngineAdmission::PromptFits, EngineAdmission::WholeFits] {
            let settings = EngineSettings { admission, ..settings(blocks) };
            let requests = requests_of(&arrivals);
            let (engine, outputs) = drive(&arrivals, &requests, &settings);
            let served = arrivals.iter().enumerate().filter(|(_, a)| a.fate == Fate::Served);
            let expected = served.map(|(id, arrival)| (id as u64, arrival.output)).collect();
            let kept: Vec<_> = outputs.iter().filter(|output| {
                let (SimOutcome::Token { request, .. } | SimOutcome::Finished { request }) = output.outcome
                    else { return true };
                arrivals[request.0 as usize].fate == Fate::Served
            }).cloned().collect();
            assert_tokens(&kept, &expected);
            let mut reported = ReportedCache::default();
            reported.follow(&outputs, &requests);
            prop_assert_eq!(engine.load().used_blocks, 0);
            prop_assert!(reported.copies.keys().all(|hash| engine.device.find(*hash).is_some()));
            let copies: usize = reported.copies.values().sum();
            prop_assert!(copies <= blocks);
            prop_assert!(outputs.is_sorted_by_key(|output| output.at));
        }
    }

    #[test]
    fn the_same_requests_give_the_same_outputs(arrivals in arrivals()) {
        let requests = requests_of(&arrivals);
        let (_, first) = drive(&arrivals, &requests, &settings(20));
        let (_, second) = drive(&arrivals, &requests, &settings(20));
        prop_assert_eq!(first, second);
    }

    #[test]
    fn an_engine_with_unlimited_cache_finds_everything_it_computed_before(arrivals in arrivals()) {
        let requests = requests_of(&arrivals);
        let settings = EngineSettings { kv_tokens: Some(usize::MAX), ..settings(1) };
        let mut engine = SimEngine::new(&profile(), &settings);
        let mut seen = std::collections::HashSet::new();
        for id in 0..arrivals.len() as u64 {
            let request = &requests[&id];
            let full = request.chain.len().min(request.prompt_tokens / 4);
            let prompt = SimRequest { chain: request.chain[..full].into(), ..request.clone() };
            let reusable = prompt.chain.iter().take((prompt.prompt_tokens - 1) / 4);
            let ideal = 4 * reusable.take_while(|hash| seen.contains(*hash)).count();
            seen.extend(prompt.chain.iter().copied());
            engine.submit(engine.now, prompt).unwrap();
            prop_assert_eq!(cached_tokens(&run_until_idle(&mut engine), id), ideal);
        }
    }
}
