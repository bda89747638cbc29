//! Prompts of all kinds have the tokens that engines make of them.
//!
//! `tests/prompts` asks the engines' own code; its answers are in `tests/golden`, as a count and a
//! digest of the tokens. A request that an engine refuses has none. A request that the router cannot
//! read must say so: a wrong prompt is the one thing that it may not have.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wornpath_blocks::chat::{ChatTemplate, TokenizerConfig};
use wornpath_blocks::{EngineRules, Tokenizer};
use wornpath_gateway::Api;
use wornpath_gateway::fuzzing::client_body;
use wornpath_routing::{TextTokenizer, Tokenize, TokenizeError};

/// How the router reads the requests of one file.
#[derive(Default, Debug)]
struct Tally {
    equal: usize,
    unpredicted: Vec<String>,
    wrong: Vec<String>,
    /// Requests that engines refuse, whatever the router makes of them.
    refused: usize,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// The tokenizer of a golden file, with its template.
fn tokenizer(model: &str) -> TextTokenizer {
    let models = folder("../blocks/tests/models");
    let (folder_of, template) = match model {
        "parts" | "strings" => ("tiny-llama", Some(model)),
        other => (other, None),
    };
    let models = models.join(folder_of);
    let vocabulary = std::fs::read(models.join("tokenizer.json")).unwrap_or_else(|_| {
        let packed = std::fs::File::open(models.join("tokenizer.json.gz")).unwrap();
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed), &mut plain).unwrap();
        plain
    });
    let config = std::fs::read(models.join("tokenizer_config.json")).unwrap();
    let config = TokenizerConfig::from_json("config", &config).unwrap();
    let template = match template {
        Some(name) => {
            let path = folder(&format!("tests/golden/{name}.jinja"));
            let source = std::fs::read_to_string(path).unwrap();
            ChatTemplate::from_jinja(name, &source, &config).unwrap()
        }
        None => ChatTemplate::from_config(&config).unwrap(),
    };
    TextTokenizer::new(Tokenizer::from_json("tokenizer", &vocabulary).unwrap(), Some(template))
}

fn digest(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn compare(engine: EngineRules, model: &str) -> Tally {
    let name = match engine {
        EngineRules::Vllm => "vllm",
        EngineRules::Sglang => "sglang",
    };
    let requests = json(&folder("tests/golden/requests.json"));
    let expected = json(&folder(&format!("tests/golden/{name}-{model}.json")));
    let tokenizer = tokenizer(model);
    let mut tally = Tally::default();
    for request in requests.as_array().unwrap() {
        let [name, path, body] = ["name", "path", "body"].map(|field| &request[field]);
        let name = format!("{}: {}", path.as_str().unwrap(), name.as_str().unwrap());
        let golden = &expected["prompts"][request["name"].as_str().unwrap()];
        if golden.is_null() {
            tally.refused += 1;
            continue;
        }
        let body = body.as_str().unwrap().to_owned().into();
        let read = client_body(Api::at(path.as_str().unwrap()), &body);
        let (_, mut request) = read.unwrap_or_else(|| panic!("{name}: refused"));
        request.reading.engine = Some(engine);
        // A time at which the templates of the golden files print what they printed then.
        request.wall = expected["wall"].as_u64().unwrap();
        let mut tokens = Vec::new();
        match tokenizer.tokenize(&request, &mut tokens) {
            Ok(()) if golden[0] == tokens.len() && golden[1] == digest(&tokens) => tally.equal += 1,
            Ok(()) => tally.wrong.push(format!("{name}: {} tokens, not {golden}", tokens.len())),
            Err(TokenizeError::NotTokenized(error)) => panic!("{name}: {error}"),
            Err(error) => tally.unpredicted.push(format!("{name}: {error}")),
        }
    }
    tally
}

fn all(engine: EngineRules) -> BTreeMap<&'static str, Tally> {
    let models = ["qwen3", "tiny-llama", "strings", "parts"];
    models.into_iter().map(|model| (model, compare(engine, model))).collect()
}

/// Panics if a prompt is wrong, or if fewer are right than when the golden files were made.
#[expect(clippy::print_stdout, reason = "nextest shows it if the test fails")]
fn check(engine: EngineRules, least: usize) {
    let tallies = all(engine);
    let mut equal = 0;
    for (model, tally) in &tallies {
        let Tally { equal: own, unpredicted, wrong, refused } = tally;
        println!(
            "{engine:?} {model}: {own} equal, {} unpredicted, {refused} refused",
            unpredicted.len()
        );
        println!("  unpredicted: {unpredicted:#?}");
        println!("  wrong: {wrong:#?}");
        equal += own;
    }
    assert!(tallies.values().all(|tally| tally.wrong.is_empty()), "wrong prompts");
    assert!(equal >= least, "{equal} of at least {least} are equal");
}

#[test]
fn every_prompt_has_the_tokens_of_vllm_or_none() {
    check(EngineRules::Vllm, 1171);
}

#[test]
fn every_prompt_has_the_tokens_of_sglang_or_none() {
    check(EngineRules::Sglang, 824);
}
