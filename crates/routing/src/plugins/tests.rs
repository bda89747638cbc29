//! Tests of plugins in a whole profile, where the index, the selector and the picker take part.

use std::sync::Arc;
use std::time::Duration;
use wornpath_index::Moment;

use wornpath_blocks::HashKey;
use wornpath_index::Tier;

use super::harness::Harness;
use crate::fleet::{BreakerState, EventTrust, Health, Reservation};
use crate::models::{Models, Tokenize, TokenizeError, Untokenized};
use crate::plan::Outcome;
use crate::plugin::Registry;
use crate::request::{Prompt, Request};
use crate::rng::Rng;
use crate::slot::{BlockHashes, Tokens};
use crate::stage::Stage;
use crate::testing::TestBench;

const PROMPT: [u32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Makes one token of every character, and refuses digits.
struct CharTokenizer;

impl Tokenize for CharTokenizer {
    fn tokenize(&self, request: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        let Prompt::Text(text) = &request.prompt else { return Err(TokenizeError::NoTemplate) };
        if text.contains(|letter: char| letter.is_ascii_digit()) {
            return Err(TokenizeError::NotTokenized("a digit".to_owned()));
        }
        tokens.extend(text.chars().map(u32::from));
        Ok(())
    }
}

#[test]
fn tokenize_copies_token_ids_and_uses_the_models_tokenizer_for_text() {
    let mut harness = Harness::of(1);
    let tokens = |harness: &Harness| harness.prepared::<Tokens>(&["tokenize"]);
    harness.request.prompt = Prompt::Tokens(vec![7, 8]);
    assert_eq!(tokens(&harness).unwrap(), Some(Tokens(vec![7, 8])));
    harness.request.prompt = Prompt::Text("ab".to_owned());
    assert_eq!(tokens(&harness).unwrap_err().status, 500, "no tokenizer");
    let models = Models::new(HashKey::DEFAULT);
    let models = models.with("m", 2.try_into().unwrap(), Some(Arc::new(CharTokenizer)));
    harness.models = Arc::new(models);
    assert_eq!(tokens(&harness).unwrap(), Some(Tokens(vec![97, 98])));
    harness.request.prompt = Prompt::Text("a1".to_owned());
    assert_eq!(tokens(&harness).unwrap(), None, "the engine decides whether it accepts that");
    harness.request.model.base = "other".into();
    assert_eq!(tokens(&harness).unwrap_err().status, 404);
}

/// Stops in the middle of every text.
struct StoppingTokenizer;

impl Tokenize for StoppingTokenizer {
    fn tokenize(&self, _: &Request, tokens: &mut Vec<u32>) -> Result<(), TokenizeError> {
        tokens.extend_from_slice(&PROMPT);
        Err(TokenizeError::Stopped(Untokenized::TooLong))
    }
}

#[test]
fn a_prompt_whose_tokenization_is_stopped_has_neither_tokens_nor_blocks() {
    let mut harness = Harness::of(1);
    let models = Models::new(HashKey::DEFAULT);
    let models = models.with("m", 2.try_into().unwrap(), Some(Arc::new(StoppingTokenizer)));
    harness.models = Arc::new(models);
    harness.request.prompt = Prompt::Text("sixteen letters!".to_owned());
    assert_eq!(harness.prepared::<Tokens>(&["tokenize"]).unwrap(), None);
    for prepare in [["tokenize", "block_hash"], ["tokenize", "text_blocks"]] {
        let blocks = harness.prepared::<BlockHashes>(&prepare).unwrap();
        assert!(blocks.is_none(), "the first tokens would predict a part of the prompt");
    }
}

#[test]
fn cache_affinity_is_the_share_of_the_prompt_that_a_pod_holds() {
    let mut bench = TestBench::with_pods(3);
    bench.cache(0, &PROMPT[..8], Tier::Gpu);
    bench.cache(1, &PROMPT, Tier::Host);
    let request = TestBench::request(&PROMPT);
    let scores = bench.scores("tokenize, block_hash", "cache_affinity", request.clone());
    assert_eq!(scores, [0.5, 1.0, 0.0]);
    let tiers = "cache_affinity: {tiers: {host: 0.25}}";
    let scores = bench.scores("tokenize, block_hash", tiers, request);
    assert_eq!(scores, [0.5, 0.25, 0.0]);
}

#[test]
fn a_pod_whose_tiers_are_not_looked_up_gains_nothing() {
    let tiers = "cache_affinity: {tiers: {host: 0.25}}";
    let request = TestBench::request(&PROMPT);
    let mut bench = TestBench::with_pods(11);
    for at in 0..10 {
        bench.cache(at, &PROMPT, Tier::Host);
    }
    bench.cache(10, &PROMPT[..8], Tier::Gpu);
    let scores = bench.scores("tokenize, block_hash", tiers, request.clone());
    assert_eq!(scores[..10], [0.25; 10], "more than `best`, and all on the host");
    assert_eq!(scores[10..], [0.5], "it holds less, on a better tier");

    let mut bench = TestBench::with_pods(9);
    for at in 0..8 {
        bench.cache(at, &PROMPT, Tier::Gpu);
    }
    bench.cache(8, &PROMPT[..8], Tier::Gpu);
    let scores = bench.scores("tokenize, block_hash", tiers, request);
    assert_eq!(scores[..8], [1.0; 8]);
    assert_eq!(
        scores[8..],
        [0.125],
        "it cannot be the best, so its blocks get the lowest tier weight"
    );
}

#[test]
fn cache_affinity_falls_when_events_are_missing_or_stale() {
    let mut bench = TestBench::with_pods(4);
    for at in 0..4 {
        bench.cache(at, &PROMPT, Tier::Gpu);
    }
    bench.now = Moment::from_secs(100);
    bench.pod(0).state().set_trust(EventTrust::Unsure);
    bench.pod(1).state().set_freshness(0.6);
    bench.pod(2).state().set_freshness(0.0);
    // The event rules have already turned silence into freshness; the scorer ignores it.
    bench.pod(3).state().heard_at(Moment::from_secs(10));
    let request = TestBench::request(&PROMPT);
    let scores = bench.scores("tokenize, block_hash", "cache_affinity", request);
    assert_eq!(scores, [0.5, 0.5, 0.0, 1.0]);
}

#[test]
fn least_load_compares_with_the_busiest_candidate() {
    let mut bench = TestBench::with_pods(3);
    let _two = [0, 0].map(|_| Reservation::new(bench.pod(0).state(), 100, 100));
    let _one = Reservation::new(bench.pod(1).state(), 100, 100);
    assert_eq!(bench.scores("", "least_load", TestBench::request(&[])), [0.0, 0.5, 1.0]);
    assert_eq!(
        bench.scores("", "least_load: {of: decode_tokens}", TestBench::request(&[])),
        [1.0, 1.0, 1.0]
    );
}

#[test]
fn healthy_drops_pods_that_cannot_serve_and_gives_the_reason() {
    let mut bench = TestBench::with_pods(6);
    bench.pod(0).state().set_health(Health::Down);
    bench.pod(1).state().set_health(Health::Draining);
    bench.pod(2).state().set_breaker(BreakerState::Open);
    bench.pod(3).state().set_breaker(BreakerState::HalfOpen);
    bench.pod(4).state().set_breaker(BreakerState::Resting);
    let kept = bench.kept("healthy", TestBench::request(&[]));
    let dropped = |why: &str| Err(why.to_owned());
    assert_eq!(kept[..3], [dropped("down"), dropped("draining"), dropped("breaker open")]);
    assert_eq!(
        kept[3..],
        [Ok(()), dropped("backing off: the engine reported that it is busy"), Ok(())]
    );
    let _probe = Reservation::new(bench.pod(3).state(), 1, 1);
    assert!(bench.kept("healthy", TestBench::request(&[]))[3].is_err(), "one probe at a time");
}

#[test]
fn healthy_keeps_pods_that_are_avoided_only_if_no_other_pod_serves_the_model() {
    let mut bench = TestBench::with_pods(4);
    bench.pod(0).state().set_health(Health::Down);
    bench.pod(1).state().set_breaker(BreakerState::Avoided);
    bench.pod(2).state().set_breaker(BreakerState::Avoided);
    let kept = |bench: &mut TestBench| {
        bench.kept("healthy", TestBench::request(&[])).iter().map(Result::is_ok).collect::<Vec<_>>()
    };
    assert_eq!(kept(&mut bench), [false, false, false, true]);
    bench.pod(3).state().set_breaker(BreakerState::Resting);
    assert_eq!(kept(&mut bench), [false, true, true, false]);
}

#[test]
fn a_fleet_that_is_down_is_rejected_with_503() {
    let mut bench = TestBench::with_pods(1);
    bench.pod(0).state().set_health(Health::Down);
    let profile = bench.profile("filter: [healthy]\npick: max_score\n");
    match bench.decide(&profile, TestBench::request(&[])) {
        Outcome::Reject(rejection) => assert_eq!(rejection.status, 503),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fleet_that_backs_off_is_rejected_with_429_and_the_shortest_remaining_backoff() {
    let mut bench = TestBench::with_pods(3);
    bench.now = Moment::from_secs(5);
    bench.pod(0).state().set_health(Health::Down);
    for (at, until) in [(1, 15), (2, 12)] {
        bench.pod(at).state().set_rest(Moment::from_secs(until));
        bench.pod(at).state().set_breaker(BreakerState::Resting);
    }
    let profile = bench.profile("filter: [healthy]\npick: max_score\n");
    match bench.decide(&profile, TestBench::request(&[])) {
        Outcome::Reject(rejection) => {
            assert_eq!(rejection.status, 429);
            assert_eq!(rejection.retry_after, Some(Duration::from_secs(7)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn candidates_with_equal_totals_are_picked_evenly() {
    let mut bench = TestBench::with_pods(4);
    let profile = bench.profile("pick: max_score\n");
    let mut counts = [0; 4];
    for _ in 0..4_000 {
        counts[bench.chosen(&profile, TestBench::request(&[]))] += 1;
    }
    assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
}

#[test]
fn the_profile_or_the_request_sets_how_many_first_tokens_are_hashed() {
    let mut bench = TestBench::with_pods(1);
    bench.cache(0, &PROMPT[..4], Tier::Gpu);
    let prepare = "tokenize, {block_hash: {first_tokens: 4}}";
    let mut request = TestBench::request(&PROMPT);
    assert_eq!(bench.scores(prepare, "cache_affinity", request.clone()), [1.0]);
    request.fields.insert("prefix_len".to_owned(), 8.into());
    assert_eq!(bench.scores(prepare, "cache_affinity", request), [0.5]);
}

#[test]
fn a_first_tokens_length_is_rounded_down_to_whole_blocks_but_at_least_to_one() {
    let mut bench = TestBench::with_pods(1);
    bench.cache(0, &PROMPT[..4], Tier::Gpu);
    for (length, score) in [(1, 1.0), (3, 1.0), (5, 1.0), (7, 1.0), (8, 0.5), (11, 0.5)] {
        let mut request = TestBench::request(&PROMPT);
        request.fields.insert("prefix_len".to_owned(), length.into());
        let prepare = "tokenize, {block_hash: {first_tokens: 4}}";
        assert_eq!(bench.scores(prepare, "cache_affinity", request), [score], "{length}");
    }
}

#[test]
fn a_first_tokens_length_beyond_the_prompt_hashes_the_whole_prompt() {
    let mut bench = TestBench::with_pods(1);
    bench.cache(0, &PROMPT[..8], Tier::Gpu);
    let mut request = TestBench::request(&PROMPT[..14]);
    let prepare = format!("tokenize, {{block_hash: {{first_tokens: {}}}}}", u64::MAX);
    assert_eq!(bench.scores(&prepare, "cache_affinity", request.clone()), [2.0 / 3.0]);
    request.fields.insert("prefix_len".to_owned(), u64::MAX.into());
    let prepare = "tokenize, {block_hash: {first_tokens: 4}}";
    assert_eq!(bench.scores(prepare, "cache_affinity", request), [2.0 / 3.0]);
}

#[test]
fn every_picker_that_ignores_scores_says_so_and_no_other_does() {
    let registry = Registry::shipped();
    let example = |name| registry.find(Stage::Prepare, name).unwrap().example;
    let prepare = ["tokenize", "block_hash", "session_key", "hash_key", "plan_hint"].map(example);
    let pickers = registry.plugins().iter().filter(|plugin| plugin.stage() == Stage::Pick);
    for picker in pickers {
        let mut harness = Harness::of(4).prompt(&PROMPT);
        harness.request.fields.insert("user".to_owned(), "u".into());
        // A picker of its own for every pick: some count.
        let pick = |totals: [f64; 4], seed| {
            let run = harness.run(&prepare, Stage::Pick, picker.example);
            let totals: Vec<_> = totals.into_iter().enumerate().collect();
            run.pick(&totals, &mut Rng::new(seed)).0
        };
        let reads = (0..64)
            .any(|seed| pick([0.0, 0.1, 0.2, 0.9], seed) != pick([0.9, 0.2, 0.1, 0.0], seed));
        let ignores = harness.run(&prepare, Stage::Pick, picker.example).ignores_scores();
        assert_eq!(ignores, !reads, "`{}`", picker.name);
    }
}
