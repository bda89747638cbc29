//! The fuzz targets on stable: the committed corpus, and seeded mutations of each of its files.
//!
//! `WORNPATH_FUZZ_MUTATIONS` sets how many mutations each file gets (default 100).

use crate::TARGETS;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const SEED: u64 = 0x5EED_F022;

#[test]
fn no_target_panics_on_the_corpus_or_its_mutations() {
    let mutations = std::env::var("WORNPATH_FUZZ_MUTATIONS")
        .map_or(100, |count| count.parse().expect("a number of mutations"));
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "corpus/{name} is empty; run `cargo run` in fuzz/");
        let mut random = SEED;
        for (file, seed) in &corpus {
            check(target, seed, || format!("{name}: corpus file {file}"));
            for round in 0..mutations {
                let (_, other) = &corpus[next(&mut random) as usize % corpus.len()];
                let bytes = mutate(seed, other, &mut random);
                check(target, &bytes, || {
                    format!("{name}: {file}, seed {SEED:#x}, round {round}: {bytes:02x?}")
                });
            }
        }
    }
}

fn check(target: &fn(&[u8]), bytes: &[u8], what: impl Fn() -> String) {
    if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
        panic!("{}", what());
    }
}

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let Ok(entries) = fs::read_dir(&folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("a readable folder");
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).expect("a readable corpus file"))
        })
        .collect();
    files.sort();
    files
}

/// One to eight damages: a byte set, a bit flipped, bytes dropped, added, cut off or spliced in
/// from another file of the corpus.
fn mutate(seed: &[u8], other: &[u8], random: &mut u64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=next(random) % 8 {
        if bytes.is_empty() {
            break;
        }
        let at = next(random) as usize % bytes.len();
        match next(random) % 7 {
            0 | 1 => bytes[at] = next(random) as u8,
            2 => bytes[at] ^= 1 << (next(random) % 8),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, next(random) as u8),
            5 => bytes.truncate(at),
            _ => {
                let from = next(random) as usize % (other.len() + 1);
                let length = (next(random) as usize % 64).min(other.len() - from);
                bytes.splice(at..at, other[from..from + length].iter().copied());
            }
        }
    }
    bytes
}

/// Splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
