//! Which tokenizer library is fastest among those that give exactly the ids of the released one?
//!
//! Reads a `tokenizer.json` (plain or `.gz`) and text files, checks every library on random texts
//! against the released `tokenizers`, then times each on the same distinct texts, interleaved, by
//! process CPU time (so that a library gains nothing by spreading over cores).
//!
//! `tokenizers-bench TOKENIZER_JSON TEXT_FILE...`

mod texts;

use std::{env, error::Error, fs, io::Read};

type Encode = Box<dyn Fn(&str) -> Result<Vec<u32>, String>>;

const ROUNDS: usize = 5;
const CHUNK_BYTES: usize = 32 * 1024;
const RANDOM_TEXTS: u64 = 4000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [tokenizer, files @ ..] = args.as_slice() else {
        return Err("usage: tokenizers-bench TOKENIZER_JSON TEXT_FILE...".into());
    };
    let json = read_json(tokenizer)?;
    let libraries = load_all(&json);
    let mut corpus = String::new();
    for file in files {
        corpus.push_str(&fs::read_to_string(file)?);
    }
    let chunks = texts::chunks(&corpus, CHUNK_BYTES);
    let reference = &libraries[0].1;
    let tokens: usize = chunks.iter().map(|c| reference(c).map_or(0, |ids| ids.len())).sum();
    println!(
        "tokenizer {tokenizer}: {} texts, {} bytes, {tokens} tokens",
        chunks.len(),
        corpus.len()
    );
    println!(
        "{:<28} {:>12} {:>12} {:>18}",
        "library", "first tok/s", "median tok/s", "texts that differ"
    );

    let mut cpu = vec![Vec::new(); libraries.len()];
    for _ in 0..ROUNDS {
        for (timing, (_, encode)) in cpu.iter_mut().zip(&libraries) {
            let start = cpu_seconds();
            for chunk in &chunks {
                std::hint::black_box(encode(chunk).ok());
            }
            timing.push(cpu_seconds() - start);
        }
    }
    for (timing, (name, encode)) in cpu.iter_mut().zip(&libraries) {
        let first = timing[0];
        timing.sort_by(f64::total_cmp);
        let median = timing[timing.len() / 2];
        let differ = differences(reference, encode, &chunks);
        println!(
            "{name:<28} {:>12.0} {:>12.0} {:>18}",
            tokens as f64 / first,
            tokens as f64 / median,
            differ
        );
    }
    Ok(())
}

fn read_json(path: &str) -> Result<String, Box<dyn Error>> {
    let bytes = fs::read(path)?;
    let mut json = String::new();
    if path.ends_with(".gz") {
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut json)?;
    } else {
        json = String::from_utf8(bytes)?;
    }
    Ok(json)
}

fn load_all(json: &str) -> Vec<(&'static str, Encode)> {
    let mut all: Vec<(&'static str, Encode)> = Vec::new();
    let t: tokenizers::Tokenizer = json.parse().expect("the reference loads");
    all.push((
        "tokenizers 0.23.2 fancy",
        Box::new(move |s| {
            t.encode_fast(s, false).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
        }),
    ));
    match json.parse::<tokenizers_onig::Tokenizer>() {
        Ok(t) => all.push((
            "tokenizers 0.22.2 onig",
            Box::new(move |s| {
                t.encode_fast(s, false).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
            }),
        )),
        Err(e) => println!("tokenizers 0.22.2 onig: {e}"),
    }
    match load_rc(json) {
        Ok(encode) => all.push(("tokenizers 1.0.0-rc.3", encode)),
        Err(e) => println!("tokenizers 1.0.0-rc.3: {e}"),
    }
    match serde_json::from_str(json)
        .map_err(|e| e.to_string())
        .and_then(|v| fastokens::Tokenizer::from_json(v).map_err(|e| e.to_string()))
    {
        Ok(t) => {
            all.push(("fastokens 0.3.5", Box::new(move |s| t.encode(s).map_err(|e| e.to_string()))))
        }
        Err(e) => println!("fastokens 0.3.5: {e}"),
    }
    match kitoken::Kitoken::from_tokenizers_slice(json.as_bytes()) {
        Ok(t) => all.push((
            "kitoken 0.11.1",
            Box::new(move |s| t.encode(s, true).map_err(|e| e.to_string())),
        )),
        Err(e) => println!("kitoken 0.11.1: {e}"),
    }
    all
}

fn load_rc(json: &str) -> Result<Encode, String> {
    let canonical = tokenizers_rc::canonicalize_str(json).map_err(|e| e.to_string())?;
    let t = tokenizers_rc::from_json(&canonical).map_err(|e| e.to_string())?;
    let options =
        tokenizers_rc::pipeline::EncodeOptions { add_special_tokens: false, ..Default::default() };
    Ok(Box::new(move |s| {
        let mut out = Vec::new();
        t.encode_into(s, &options, &mut out).map_err(|e| e.to_string())?;
        Ok(out.iter().map(|token| token.id()).collect())
    }))
}

fn differences(reference: &Encode, encode: &Encode, chunks: &[String]) -> String {
    let mut differ = 0;
    let mut example = String::new();
    let random = (0..RANDOM_TEXTS).map(texts::random);
    for text in chunks.iter().cloned().chain(random) {
        if encode(&text) != reference(&text) {
            differ += 1;
            if example.is_empty() || text.len() < example.len() {
                example = text;
            }
        }
    }
    let total = chunks.len() as u64 + RANDOM_TEXTS;
    if differ == 0 {
        format!("0 of {total}")
    } else {
        format!("{differ} of {total}, e.g. {example:?}")
    }
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
