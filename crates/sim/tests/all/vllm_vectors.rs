//! vLLM block hashes equal the hashes of Python's own pickle and CBOR, for every kind of block.

use serde_json::Value;
use wornpath_sim::vllm_hash::{ExtraKey, VllmAlgorithm, VllmHasher};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Parses a key in the format of `../golden/vllm_vectors.py`. Leaks its strings.
fn key(value: &Value) -> ExtraKey<'static> {
    match value {
        Value::String(text) => ExtraKey::Text(text.clone().leak()),
        Value::Number(number) => ExtraKey::Int(number.as_i64().unwrap()),
        Value::Array(items) => ExtraKey::Tuple(items.iter().map(key).collect::<Vec<_>>().leak()),
        Value::Object(map) => match map.get("bytes") {
            Some(hex) => ExtraKey::Bytes(bytes(hex.as_str().unwrap()).leak()),
            None => {
                let times = map["times"].as_u64().unwrap() as usize;
                ExtraKey::Text(map["repeat"].as_str().unwrap().repeat(times).leak())
            }
        },
        other => panic!("no key: {other}"),
    }
}

#[test]
fn blocks_and_seeds_hash_as_python_does() {
    let vectors: Vec<Value> =
        serde_json::from_str(include_str!("../golden/vllm_vectors.json")).unwrap();
    let mut seeds = 0;
    let mut blocks = 0;
    for vector in &vectors {
        let name = vector["algorithm"].as_str().unwrap();
        let algorithm: VllmAlgorithm = name.parse().unwrap();
        for (seed, expected) in vector["seeds"].as_object().unwrap() {
            let hasher = VllmHasher::new(algorithm, seed);
            assert_eq!(
                hex(hasher.none_hash().as_bytes()),
                expected.as_str().unwrap(),
                "{name} {seed}"
            );
            seeds += 1;
        }
        let hasher = VllmHasher::new(algorithm, wornpath_sim::vllm_hash::DEFAULT_SEED);
        for block in vector["blocks"].as_array().unwrap() {
            let [start, step, count] = [0, 1, 2].map(|i| block["tokens"][i].as_u64().unwrap());
            let tokens: Vec<u32> = (0..count).map(|i| (start + i * step) as u32).collect();
            let extra: Vec<_> = block["extra"].as_array().into_iter().flatten().map(key).collect();
            let hash = hasher.block(&hasher.none_hash(), &tokens, &extra);
            let case = format!("{name} {} {}", block["tokens"], block["extra"]);
            assert_eq!(hex(hash.as_bytes()), block["hash"].as_str().unwrap(), "{case}");
            blocks += 1;
        }
    }
    assert_eq!((seeds, blocks), (24, 144));
}

#[test]
fn an_unknown_algorithm_is_refused_by_name() {
    let error = "md5".parse::<VllmAlgorithm>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown hash algorithm `md5`; vLLM knows `sha256`, `sha256_cbor`, `xxhash` and `xxhash_cbor`"
    );
}
