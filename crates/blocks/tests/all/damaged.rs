//! Damaged files and templates give an error or a value, never a panic.

use crate::model::{self, texts::Random};
use serde_json::{Value, json};
use wornpath_blocks::{
    SpecialTokens, Tokenizer,
    chat::{ChatTemplate, Conversation, TokenizerConfig},
};

fn damage(bytes: &[u8], random: &mut Random, alphabet: &[u8]) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for _ in 0..1 + random.below(6) {
        let at = random.below(damaged.len());
        match random.below(3) {
            0 => damaged[at] = alphabet[random.below(alphabet.len())],
            1 => damaged.insert(at, alphabet[random.below(alphabet.len())]),
            _ => {
                let end = (at + random.below(30)).min(damaged.len());
                damaged.drain(at..end);
            }
        }
    }
    damaged
}

#[test]
fn a_damaged_config_is_rejected_or_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/qwen3/tokenizer_config.json");
    let config = std::fs::read(path).unwrap();
    let mut read = 0;
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let damaged = damage(&config, &mut random, b"{}[]\",:0n\\\xff");
        read += usize::from(TokenizerConfig::from_json("damaged", &damaged).is_ok());
    }
    assert!(read > 0 && read < 2000, "{read}");
}

#[test]
fn a_damaged_template_is_rejected_or_renders_or_fails_with_an_error() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/qwen3/tokenizer_config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let source = config["chat_template"].as_str().unwrap();
    let messages = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "assistant", "content": "y", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
        json!({"role": "tool", "content": [{"type": "text", "text": "z"}]}),
        json!(7),
    ];
    let tools = [json!({"function": {"name": "f"}}), json!(null)];
    let mut outcomes = [0; 3];
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let damaged = damage(source.as_bytes(), &mut random, b"{}%-[]()'.|:0=+ ");
        let damaged = String::from_utf8_lossy(&damaged);
        let messages = &messages[..random.below(5)];
        let conversation = Conversation { tools: Some(&tools), ..Conversation::new(messages) };
        match ChatTemplate::from_jinja("damaged", &damaged, &TokenizerConfig::empty()) {
            Err(_) => outcomes[0] += 1,
            Ok(template) => match template.render(&conversation) {
                Err(_) => outcomes[1] += 1,
                Ok(_) => outcomes[2] += 1,
            },
        }
    }
    assert!(outcomes.iter().all(|&count| count > 20), "{outcomes:?}");
}

/// A random value inside `value`, mostly not in the vocabulary.
fn random_value<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let size = match value {
        Value::Array(items) => items.len().min(30),
        Value::Object(map) => map.len().min(30),
        _ => 0,
    };
    if size == 0 || random.below(6) == 0 {
        return value;
    }
    let next = match value {
        Value::Array(items) => &mut items[random.below(size)],
        Value::Object(map) => map.values_mut().nth(random.below(size)).unwrap(),
        _ => unreachable!("only lists and maps have a size"),
    };
    random_value(next, random)
}

#[test]
fn a_damaged_tokenizer_is_rejected_or_used() {
    let json: Value = serde_json::from_slice(&model::json("tiny-llama")).unwrap();
    let mut used = 0;
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let mut damaged = json.clone();
        let wrong = [
            json!(null),
            json!(true),
            json!(-1),
            json!(4_000_000_000_u32),
            json!(""),
            json!([]),
            json!({}),
        ];
        *random_value(&mut damaged, &mut random) = wrong[random.below(wrong.len())].clone();
        if let Ok(tokenizer) = Tokenizer::from_json("damaged", damaged.to_string().as_bytes()) {
            let _ =
                tokenizer.encode("Hello <|im_end|> world", SpecialTokens::Added, &mut Vec::new());
            used += 1;
        }
    }
    assert!(used > 10 && used < 75, "{used}");
}

#[test]
fn a_template_on_which_the_template_engine_panics_is_rejected() {
    let config = TokenizerConfig::empty();
    for source in ["{% for one in messages[::-1] %}{{ one.role }}{% endfor %}", "{{ ''[::-1] }}"] {
        let template = ChatTemplate::from_jinja("odd", source, &config).unwrap();
        let error = template.render(&Conversation::new(&[])).unwrap_err().to_string();
        assert!(error.contains("the template engine panicked"), "{source}: {error}");
    }
}
