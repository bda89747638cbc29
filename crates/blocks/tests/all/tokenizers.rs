//! Token ids equal those of Hugging Face: golden ids, random texts, and with the token cache.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::model::texts::Random;
use crate::model::{self, Model, QWEN3, TINY};
use serde_json::Value;
use wornpath_blocks::{
    EncodeLimits, EncodeStop, HashKey, SpecialTokens, TokenCache, Tokenizer, TokenizerError,
    TokenizerLibrary,
};

fn encode(tokenizer: &Tokenizer, text: &str, framing: SpecialTokens) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, framing, &mut ids).unwrap();
    ids
}

fn cached(cache: &TokenCache, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    cache.encode(text, SpecialTokens::InText, &mut ids).unwrap();
    ids
}

fn cache(model: &Model, capacity: usize) -> TokenCache {
    TokenCache::new(Arc::clone(&model.tokenizer), &HashKey::DEFAULT, capacity)
}

/// Parts of syllables that normalization joins.
const HANGUL: [&str; 2] = ["\u{11a8}", "가"];

impl Random {
    /// A random mixture of pieces and characters.
    fn text(&mut self, pieces: usize) -> String {
        let mut text = String::new();
        for _ in 0..pieces {
            match self.below(40) {
                0..4 => text.extend(char::from_u32(self.below(0x3000) as u32)),
                4..8 => text.extend(char::from_u32(self.below(0x11_0000) as u32)),
                8 => text.push_str(HANGUL[self.below(HANGUL.len())]),
                _ => text.push_str(self.piece()),
            }
        }
        text
    }
}

#[test]
fn both_test_models_run_on_the_fast_library() {
    for model in model::all() {
        assert_eq!(model.tokenizer.engine(), TokenizerLibrary::Fast, "{}", model.name);
    }
}

#[test]
fn golden_texts_and_prompts_have_golden_ids() {
    let golden: Value = serde_json::from_str(include_str!("../golden/golden.json")).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let mut texts = 0;
    let mut prompts = 0;
    for model in model::all() {
        let expected = &golden["models"][model.name];
        for (text, golden_ids) in
            golden["texts"].as_array().unwrap().iter().zip(expected["ids"].as_array().unwrap())
        {
            let text = text.as_str().unwrap();
            assert_eq!(
                encode(&model.tokenizer, text, SpecialTokens::Added),
                ids(golden_ids),
                "{}: {text:?}",
                model.name
            );
            texts += 1;
        }
        for (name, prompt) in expected["prompts"].as_object().unwrap() {
            let text = prompt["text"].as_str().unwrap();
            assert_eq!(
                encode(&model.tokenizer, text, SpecialTokens::InText),
                ids(&prompt["ids"]),
                "{}: {name}",
                model.name
            );
            prompts += 1;
        }
    }
    assert_eq!((texts, prompts), (342, 44));
}

#[test]
fn the_tiny_model_puts_its_first_token_in_front_of_prompts_only() {
    assert_eq!(encode(&TINY.tokenizer, "", SpecialTokens::Added), [0]);
    assert_eq!(encode(&TINY.tokenizer, "", SpecialTokens::InText), [0_u32; 0]);
    assert_eq!(encode(&QWEN3.tokenizer, "", SpecialTokens::Added), [0_u32; 0]);
}

#[test]
fn random_texts_have_the_ids_of_the_released_library() {
    for model in model::all() {
        for seed in 0..1500 {
            let mut random = Random::new(seed);
            let pieces = 1 + random.below(40);
            let text = random.text(pieces);
            let ids = encode(&model.tokenizer, &text, SpecialTokens::InText);
            assert_eq!(ids, model.reference_ids(&text), "{}, seed {seed}: {text:?}", model.name);
        }
    }
}

/// Conversations that grow, branch and repeat, far longer than a piece, under a capacity that
/// evicts.
#[test]
fn cached_texts_have_the_ids_of_tokenizing_from_scratch() {
    for model in model::all() {
        let cache = cache(model, 400 << 10);
        for seed in 0..16 {
            let mut random = Random::new(1000 + seed);
            let mut text = String::new();
            for turn in 0..10 {
                let pieces = random.below(600);
                text.push_str(&random.text(pieces));
                if random.below(4) == 0 {
                    let cut = text.floor_char_boundary(random.below(text.len() + 1));
                    text.truncate(cut);
                }
                let context = format!("{}, seed {seed}, turn {turn}", model.name);
                assert!(cached(&cache, &text) == model.reference_ids(&text), "{context}");
            }
        }
        let stats = cache.stats();
        assert!(stats.hits > 50 && stats.misses > 50 && stats.evictions > 10, "{stats:?}");
        assert!(stats.bytes <= 400 << 10, "{stats:?}");
    }
}

/// The claim of the split points itself, without the piece sizes of the cache.
#[test]
fn the_ids_of_a_beginning_are_a_prefix_of_the_ids_of_the_whole() {
    let mut kept = 0;
    for model in model::all() {
        for seed in 0..400 {
            let mut random = Random::new(5000 + seed);
            let pieces = 1 + random.below(30);
            let beginning = random.text(pieces);
            let mut ids = Vec::new();
            let limits = EncodeLimits::default();
            let framing = SpecialTokens::InText;
            model.tokenizer.encode_beginning(&beginning, framing, limits, &mut ids).unwrap();
            kept += ids.len();
            for _ in 0..8 {
                let whole = beginning.clone() + &random.text(3);
                let reference = model.reference_ids(&whole);
                assert!(
                    reference.starts_with(&ids),
                    "{}, seed {seed}: {beginning:?} in {whole:?}",
                    model.name
                );
            }
        }
    }
    assert!(kept > 5000, "{kept}");
}

#[test]
fn long_text_without_added_tokens_is_cached_too() {
    for model in model::all() {
        let cache = cache(model, 16 << 20);
        let text = "All work and no play makes Jack a dull boy, 12 times a day.\n".repeat(9000);
        let reference = model.reference_ids(&text);
        assert!(cached(&cache, &text) == reference);
        let cold = cache.stats();
        assert!(cached(&cache, &text) == reference);
        let warm = cache.stats();
        assert_eq!(warm.misses, cold.misses, "{warm:?}");
        assert!(warm.hits > 30, "{warm:?}");
        let unbroken = "ab1".repeat(40_000);
        assert!(
            encode(&model.tokenizer, &unbroken, SpecialTokens::InText)
                == model.reference_ids(&unbroken)
        );
    }
}

#[test]
fn the_yield_hook_runs_between_the_pieces_of_a_long_text() {
    thread_local!(static CALLS: Cell<usize> = const { Cell::new(0) });
    let line =
        |number: usize| format!("Work and play, told in a line that is like no other: {number}\n");
    let text: String = (0..6000).map(line).collect();
    for model in model::all() {
        let cache = cache(model, 16 << 20);
        cached(&cache, &text[..text.len() / 2]);
        wornpath_blocks::set_yield_hook(|| {
            CALLS.set(CALLS.get() + 1);
            ControlFlow::Continue(())
        });
        cached(&cache, &text);
        // Cached pieces call no hook.
        let new_pieces = text.len() / 2 / (24 << 10);
        let calls = CALLS.replace(0);
        assert!((new_pieces..4 * new_pieces).contains(&calls), "{}: {calls}", model.name);
        wornpath_blocks::set_yield_hook(|| ControlFlow::Continue(()));
        cached(&cache, &text.replace("play", "plays"));
        assert_eq!(CALLS.get(), 0);
    }
}

/// Encodes within limits: the ids, or why it was stopped and how many ids there were by then.
fn within(
    cache: &TokenCache,
    text: &str,
    limits: EncodeLimits,
) -> Result<Vec<u32>, (EncodeStop, usize)> {
    let mut ids = Vec::new();
    match cache.encode_within(text, SpecialTokens::InText, limits, &mut ids) {
        Ok(()) => Ok(ids),
        Err(TokenizerError::Stopped { why, .. }) => Err((why, ids.len())),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_text_of_more_tokens_than_the_limit_is_not_tokenized_to_its_end() {
    let text = "All work and no play makes Jack a dull boy, 12 times a day.\n".repeat(9000);
    for model in model::all() {
        let reference = model.reference_ids(&text);
        let limits = |tokens| EncodeLimits { tokens, ..EncodeLimits::default() };
        let cache = cache(model, 16 << 20);
        for cached in ["none", "the beginning", "all"] {
            let (why, count) = within(&cache, &text, limits(50_000)).unwrap_err();
            assert_eq!(why, EncodeStop::TooManyTokens(50_000), "{}, cached: {cached}", model.name);
            assert!((50_000..80_000).contains(&count), "{}, cached: {cached}: {count}", model.name);
            if cached == "the beginning" {
                assert!(within(&cache, &text, limits(reference.len())).unwrap() == reference);
            }
        }
        let few = within(&cache, &text, limits(100));
        assert_eq!(few, Err((EncodeStop::TooManyTokens(100), 0)), "its bytes alone tell");
    }
}

#[test]
fn a_part_without_a_split_point_is_tokenized_only_up_to_the_limit() {
    let limits = EncodeLimits { unsplit_bytes: 64 << 10, ..EncodeLimits::default() };
    for model in model::all() {
        let cache = cache(model, 16 << 20);
        let short = "ab1".repeat(20_000);
        assert!(within(&cache, &short, limits).unwrap() == model.reference_ids(&short));
        let long = format!("{}{}", "Some words first. ".repeat(9000), "ab1".repeat(22_000));
        let (why, _) = within(&cache, &long, limits).unwrap_err();
        assert_eq!(why, EncodeStop::NoSplitPoint(64 << 10), "{}", model.name);
        assert!(
            within(&cache, &long, EncodeLimits::default()).unwrap() == model.reference_ids(&long)
        );
    }
}

#[test]
fn texts_whose_only_split_points_are_far_apart_have_the_ids_of_the_released_library() {
    let cache = cache(&QWEN3, 16 << 20);
    let mut text = String::new();
    for length in [100, 300, 5_000, 6_000, 12_000, 30_000, 11_000, 400] {
        text.push_str(&"ab1".repeat(length));
        text.push_str("<|im_end|>");
        assert!(cached(&cache, &text) == QWEN3.reference_ids(&text), "{length}");
    }
    text.push_str(&"ab1".repeat(20_000));
    text.push_str(" and words again ");
    assert!(cached(&cache, &text) == QWEN3.reference_ids(&text));
}

#[test]
fn the_yield_hook_can_stop_a_long_text() {
    thread_local!(static LEFT: Cell<usize> = const { Cell::new(0) });
    let text = "All work and no play makes Jack a dull boy, 12 times a day.\n".repeat(9000);
    wornpath_blocks::set_yield_hook(|| {
        LEFT.set(LEFT.get().saturating_sub(1));
        if LEFT.get() == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    LEFT.set(4);
    let stopped = within(&cache(&QWEN3, 16 << 20), &text, EncodeLimits::default());
    let (why, count) = stopped.unwrap_err();
    assert_eq!(why, EncodeStop::Interrupted);
    assert!((1..text.len() / 8).contains(&count), "{count}");
    wornpath_blocks::set_yield_hook(|| ControlFlow::Continue(()));
}

#[test]
fn an_invalid_file_is_rejected_with_its_name_and_the_cause() {
    let error = |json: &str| {
        Tokenizer::from_json("m/tokenizer.json", json.as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(error("{]"), "m/tokenizer.json: not JSON: key must be a string at line 1 column 2");
    assert_eq!(error("{}"), "m/tokenizer.json: invalid tokenizer: Model missing.");
    assert_eq!(
        error(r#"{"model": {"type": "Sorcery"}}"#),
        "m/tokenizer.json: invalid tokenizer: unknown model type `Sorcery`; supported: BPE, Unigram, WordLevel, WordPiece"
    );
}
