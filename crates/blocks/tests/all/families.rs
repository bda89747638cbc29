//! Model families: each with its own rule of splitting text, and, where the files are there, with
//! its real tokenizer and template.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use wornpath_blocks::chat::{ChatTemplate, ContentForm, Conversation, TokenizerConfig};
use wornpath_blocks::{
    EncodeLimits, HashKey, SpecialTokens, TokenCache, Tokenizer, TokenizerLibrary,
};

use crate::model;
use crate::model::texts::Random;

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

fn isolated(rule: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": false})
}

/// A splitter by these rules, one after the other, whose pieces become bytes.
fn splitter(mut rules: Vec<Value>) -> Value {
    rules.push(json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    }));
    json!({"type": "Sequence", "pretokenizers": rules})
}

/// The families' splitters, with the vocabulary of a test model.
fn families() -> Vec<(&'static str, Vec<u8>)> {
    let kept = json!({"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Removed", "invert": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let splitters = [
        ("Qwen 3.5", splitter(vec![isolated(QWEN35)])),
        ("Llama 3", splitter(vec![isolated(CL100K)])),
        ("gpt-oss", splitter(vec![isolated(O200K)])),
        ("gpt-oss, what matches is kept", splitter(vec![kept])),
        ("Mistral", splitter(vec![isolated(TEKKEN)])),
        ("DeepSeek", splitter(DEEPSEEK.into_iter().map(isolated).collect())),
        ("Command R", json!({"type": "Sequence", "pretokenizers": [digits, bytes]})),
    ];
    let vocabulary: Value = serde_json::from_slice(&model::json("qwen3")).unwrap();
    let of = |(name, splitter)| {
        let mut json = vocabulary.clone();
        json["pre_tokenizer"] = splitter;
        json["normalizer"] = Value::Null;
        (name, json.to_string().into_bytes())
    };
    splitters.into_iter().map(of).collect()
}

/// A tokenizer, and Hugging Face's library with the same file.
struct Pair {
    ours: Arc<Tokenizer>,
    reference: tokenizers::Tokenizer,
}

impl Pair {
    fn of(name: &str, json: &[u8]) -> Result<Self, String> {
        let ours = Tokenizer::from_json(name, json).map_err(|error| error.to_string())?;
        let reference =
            tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        Ok(Self { ours: Arc::new(ours), reference })
    }

    fn reference_ids(&self, text: &str) -> Vec<u32> {
        self.reference.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    /// Compares texts; returns how many, and in how many tokens.
    fn compare(&self, name: &str, seeds: u64) -> [usize; 2] {
        let mut tokens = 0;
        let texts = (0..seeds).map(text).chain(PROSE.iter().map(|&text| text.to_owned()));
        let mut count = 0;
        for text in texts {
            let mut ids = Vec::new();
            self.ours.encode(&text, SpecialTokens::InText, &mut ids).unwrap();
            assert_eq!(ids, self.reference_ids(&text), "{name}: {text:?}");
            tokens += ids.len();
            count += 1;
        }
        [count, tokens]
    }

    /// Compares the pieces of long texts with the whole; returns how many pieces were reused.
    fn compare_pieces(&self, name: &str, seeds: u64, turns: usize) -> u64 {
        let cache = TokenCache::new(Arc::clone(&self.ours), &HashKey::DEFAULT, 16 << 20);
        for seed in 0..seeds {
            let mut random = Random::new(7000 + seed);
            let mut long = String::new();
            for turn in 0..turns {
                // Prose between odd characters, as a conversation has it, and some without an end.
                for _ in 0..40 {
                    long.push_str(PROSE[random.below(PROSE.len())]);
                    if random.below(3) == 0 {
                        long.push_str(&text(random.below(1 << 20) as u64));
                    }
                }
                let mut ids = Vec::new();
                cache.encode(&long, SpecialTokens::InText, &mut ids).unwrap();
                assert!(ids == self.reference_ids(&long), "{name}, seed {seed}, turn {turn}");
            }
            let beginning = &long[..long.floor_char_boundary(random.below(long.len()))];
            let mut ids = Vec::new();
            let limits = EncodeLimits::default();
            self.ours.encode_beginning(beginning, SpecialTokens::InText, limits, &mut ids).unwrap();
            assert!(self.reference_ids(&long).starts_with(&ids), "{name}, seed {seed}: beginning");
        }
        cache.stats().hits
    }
}

/// Ordinary text of several kinds.
const PROSE: &[&str] = &[
    "All work and no play makes Jack a dull boy, 12 times a day.\n",
    "The quick brown fox\njumps over the lazy dog; it's 3.14159 or so, isn't it? ",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # done\n\n\n",
    "Der Straßenverkehr stört, sagte sie. Près de l'école, où ça? ",
    "Привет, мир! Как дела сегодня у всех вас? ",
    "日本語のテキストです。 中文文本，標點！ 한국어 텍스트 입니다. ",
    "| a | b |\n|---|---|\n| 1 | 22,333 |\n\n",
    "camelCaseWord snake_case_word SCREAMING CASE kebab-case 0x1F 1e-9\n",
    "https://example.org/a/b?c=d&e=f#g and then some more words\n",
];

/// A random text, hard for tokenizers.
fn text(seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut text = String::new();
    for _ in 0..1 + random.below(30) {
        text.push_str(random.piece());
    }
    text
}

#[test]
fn every_familys_pieces_have_the_tokens_of_the_whole_text() {
    for (name, json) in families() {
        let pair = Pair::of(name, &json).unwrap();
        pair.compare(name, 20);
        let hits = pair.compare_pieces(name, 1, 3);
        assert!(hits > 3, "{name}: {hits} pieces reused");
    }
}

/// A model's files, as engines load them.
struct Family {
    name: String,
    folder: PathBuf,
}

/// The families in the folder that the environment names, which is no part of the repository.
fn real_families() -> Vec<Family> {
    let folder = std::env::var("WORNPATH_TOKENIZERS").expect("WORNPATH_TOKENIZERS is not set");
    let mut families: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|folder| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            Family { name, folder }
        })
        .collect();
    families.sort_by(|a, b| a.name.cmp(&b.name));
    families
}

/// The form of content that a family's template expects, or why there is none.
fn template(folder: &Path) -> Result<&'static str, String> {
    let config = std::fs::read(folder.join("tokenizer_config.json")).unwrap_or(b"{}".to_vec());
    let config = TokenizerConfig::from_json("c", &config).map_err(|error| error.to_string())?;
    let template = match std::fs::read_to_string(folder.join("chat_template.jinja")) {
        Ok(source) => ChatTemplate::from_jinja("t", &source, &config),
        Err(_) => ChatTemplate::from_config(&config),
    };
    let template = template.map_err(|error| error.to_string())?;
    let messages = [json!({"role": "user", "content": "a"})];
    template.render(&Conversation::new(&messages)).map_err(|error| error.to_string())?;
    Ok(if template.form() == ContentForm::Parts { "parts" } else { "text" })
}

/// What the router makes of the real files of model families, one line each.
#[test]
#[ignore = "needs a folder of tokenizers: WORNPATH_TOKENIZERS"]
fn real_tokenizers_agree_with_hugging_face_by_family() {
    for Family { name, folder } in real_families() {
        let Ok(json) = std::fs::read(folder.join("tokenizer.json")) else {
            println!("{name}: by text: no tokenizer.json");
            continue;
        };
        let pair = match Pair::of(&name, &json) {
            Ok(pair) => pair,
            Err(error) => {
                println!("{name}: by text: {error}");
                continue;
            }
        };
        let [texts, tokens] = pair.compare(&name, 1500);
        let reused = pair.compare_pieces(&name, 4, 6);
        let library = match pair.ours.engine() {
            TokenizerLibrary::Fast => "fastokens",
            TokenizerLibrary::Released => "tokenizers",
        };
        let template = match template(&folder) {
            Ok(form) => format!("template of {form}"),
            Err(error) => format!("no template ({error})"),
        };
        println!(
            "{name}: {texts} texts, {tokens} tokens equal, {reused} pieces reused, {library}, {template}"
        );
    }
}
