//! Every block that a real vLLM 0.32 published with its tokens has the hash that we compute.

use std::{collections::HashMap, fs, num::NonZeroUsize, path::PathBuf};

use rmpv::Value;
use wornpath_sim::vllm_hash::{
    DEFAULT_SEED, ExtraKey, ExtraKeys, VllmAlgorithm, VllmHash, VllmHasher,
};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../events/tests/fixtures/vllm-0.32")
}

/// The hasher of a stream's engine, from the options in the stream's name.
fn hasher(stream: &str) -> VllmHasher {
    let (algorithm, seed) = match stream {
        "serve_sha256_cbor" | "serve_sha256_cbor.replay0" | "stress_gpu" | "stress_offload" => {
            ("sha256_cbor", None)
        }
        "pd_nixl_P" | "offload_cpu_selfdesc0" | "offload_cpu_selfdesc1" => ("sha256", None),
        "pd_nixl_D" => ("xxhash_cbor", Some("42")),
        inproc => {
            let (algorithm, rest) =
                inproc.strip_prefix("inproc_").unwrap().split_once("_seed").unwrap();
            let seed = rest.split('_').next().unwrap();
            (algorithm, (seed != "None").then_some(seed))
        }
    };
    let algorithm: VllmAlgorithm = algorithm.parse().unwrap();
    if seed.is_none() && matches!(algorithm, VllmAlgorithm::Xxhash | VllmAlgorithm::XxhashCbor) {
        return VllmHasher::with_none_hash(algorithm, recorded_none_hash(stream));
    }
    VllmHasher::new(algorithm, seed.unwrap_or(DEFAULT_SEED))
}

/// The hash of a random seed, which the capture recorded.
fn recorded_none_hash(stream: &str) -> VllmHash {
    let json = fs::read(fixtures().join(format!("{stream}.json"))).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let hex = json["none_hash_hex"].as_str().unwrap();
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    }
    VllmHash::Xxh3(bytes)
}

/// The stored events of a stream; a record is a frame count, then frames with their length.
fn stored(mut bytes: &[u8]) -> Vec<Value> {
    fn number(bytes: &mut &[u8]) -> usize {
        let (head, rest) = bytes.split_first_chunk::<4>().unwrap();
        *bytes = rest;
        u32::from_be_bytes(*head) as usize
    }
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let mut payload: &[u8] = &[];
        for _ in 0..number(&mut bytes) {
            let length = number(&mut bytes);
            (payload, bytes) = bytes.split_at(length);
        }
        if payload.is_empty() {
            continue;
        }
        let batch = rmpv::decode::read_value(&mut payload).unwrap();
        events.extend(batch[1].as_array().unwrap().iter().cloned());
    }
    events.retain(|event| event["type"].as_str() == Some("BlockStored"));
    events
}

fn as_published(hash: VllmHash, like: &Value) -> Value {
    if like.is_bin() { Value::Binary(hash.as_bytes().to_vec()) } else { hash.truncated().into() }
}

#[derive(Default, PartialEq, Debug)]
struct Tally {
    verified: usize,
    wrong: usize,
    /// Published without tokens: offloaded blocks, which have only a hash.
    without_tokens: usize,
    unresolved: usize,
}

/// Parents may be published after their children, so events wait until their parent is known.
fn verify(hasher: &VllmHasher, mut waiting: Vec<Value>) -> Tally {
    let mut tally = Tally::default();
    waiting.retain(|event| {
        let has_tokens = !event["token_ids"].as_array().unwrap().is_empty();
        if !has_tokens {
            tally.without_tokens += event["block_hashes"].as_array().unwrap().len();
        }
        has_tokens
    });
    let mut full_width: HashMap<String, VllmHash> = HashMap::new();
    loop {
        let before = waiting.len();
        waiting.retain(|event| {
            let parent = &event["parent_block_hash"];
            let parent = if parent.is_nil() {
                hasher.none_hash()
            } else if let Some(known) = full_width.get(&parent.to_string()) {
                *known
            } else {
                return true;
            };
            verify_event(hasher, event, parent, &mut full_width, &mut tally);
            false
        });
        if waiting.len() == before {
            tally.unresolved = waiting.len();
            return tally;
        }
    }
}

fn tokens(event: &Value) -> Vec<u32> {
    let ids = event["token_ids"].as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn verify_event(
    hasher: &VllmHasher,
    event: &Value,
    mut parent: VllmHash,
    full_width: &mut HashMap<String, VllmHash>,
    tally: &mut Tally,
) {
    let tokens = tokens(event);
    let block_size = event["block_size"].as_u64().unwrap() as usize;
    for (i, published) in event["block_hashes"].as_array().unwrap().iter().enumerate() {
        let salt = event["extra_keys"].as_array().and_then(|keys| keys[i].as_array()?[0].as_str());
        let tagged = salt.map(|salt| [ExtraKey::Text("cache_salt"), ExtraKey::Text(salt)]);
        let keys: Vec<_> = tagged.iter().map(|pair| ExtraKey::Tuple(pair)).collect();
        parent = hasher.block(&parent, &tokens[i * block_size..(i + 1) * block_size], &keys);
        if as_published(parent, published) == *published {
            tally.verified += 1;
        } else {
            tally.wrong += 1;
        }
        full_width.insert(published.to_string(), parent);
    }
}

#[test]
fn every_fixture_is_reproduced() {
    let mut streams: Vec<_> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    streams.sort();
    let mut verified = 0;
    let mut without_tokens = 0;
    for path in &streams {
        let stream = path.file_name().unwrap().to_str().unwrap().strip_suffix(".bin").unwrap();
        let tally = verify(&hasher(stream), stored(&fs::read(path).unwrap()));
        println!("{stream}: {tally:?}");
        assert_eq!((tally.wrong, tally.unresolved), (0, 0), "{stream}: {tally:?}");
        assert!(tally.verified > 0, "{stream}: {tally:?}");
        verified += tally.verified;
        without_tokens += tally.without_tokens;
    }
    assert_eq!((streams.len(), verified, without_tokens), (18, 2406, 115));
}

#[test]
fn a_whole_salted_prompt_gives_the_published_hashes() {
    let stream = "inproc_sha256_seedNone_bytes_bs32";
    let events = stored(&fs::read(fixtures().join(format!("{stream}.bin"))).unwrap());
    let salted: Vec<_> = events
        .iter()
        .filter(|event| event["extra_keys"].as_array().is_some_and(|keys| !keys[0].is_nil()))
        .collect();
    assert!(!salted.is_empty());
    for event in salted {
        let salt = event["extra_keys"][0][0].as_str().unwrap();
        let tokens = tokens(event);
        let pair = [ExtraKey::Text("cache_salt"), ExtraKey::Text(salt)];
        let keys = ExtraKeys { every_block: &[], first_block: &[ExtraKey::Tuple(&pair)] };
        let mut hashes = Vec::new();
        let size = NonZeroUsize::new(32).unwrap();
        hasher(stream).hash_tokens(&tokens, size, keys, &mut hashes);
        let published = event["block_hashes"].as_array().unwrap();
        assert!(!published.is_empty());
        let computed: Vec<_> =
            hashes.iter().zip(published).map(|(h, a)| as_published(*h, a)).collect();
        assert_eq!(&computed, published);
    }
}
