//! The cost of a turn of a long chat, with and without the token cache.
//!
//! A chat grows over 20 turns to about 32k tokens under the Qwen3 tokenizer. The figures are
//! medians of thread CPU time over many chats of different words, measured interleaved:
//!
//! - `whole`: tokenizing the 20th prompt from scratch, by the library's own call and by ours;
//! - `20th turn`: the same prompt with a cache that has seen the 19 before it;
//! - `first turn`: a prompt that is new to the cache, compared with tokenizing it plainly.
//!
//! One cache serves all chats and is full most of the time, so evictions are part of the cost.
//!
//! `cargo bench -p wornpath-blocks --bench tokenization`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people at a terminal")]

use std::{fmt::Write, io::Read, sync::Arc};

use wornpath_blocks::{HashKey, SpecialTokens, TokenCache, Tokenizer};

const TURNS: usize = 20;
const CHATS: u64 = 61;
/// About the size of five chats, so that the cache is full and evicts during most of the run.
const CAPACITY: usize = 2 << 20;

fn main() {
    let json = qwen3();
    let tokenizer = Arc::new(Tokenizer::from_json("qwen3/tokenizer.json", &json).unwrap());
    let library = fastokens::Tokenizer::from_json(serde_json::from_slice(&json).unwrap()).unwrap();
    let mut rows = Rows::default();
    let cache = TokenCache::new(Arc::clone(&tokenizer), &HashKey::DEFAULT, CAPACITY);
    for seed in 0..CHATS {
        measure(&cache, &library, &chat(seed), &mut rows);
    }
    println!(
        "engine {:?}, {CHATS} chats of {TURNS} turns, medians of thread CPU time",
        tokenizer.engine()
    );
    println!("tokens in the 20th prompt        {:>9}", median(&mut rows.tokens));
    let library = rows.print("whole, the library's own call", |row| row.library);
    let whole = rows.print("whole, ours without cache", |row| row.whole);
    let last = rows.print("20th turn, with cache", |row| row.last);
    let again = rows.print("20th turn once more", |row| row.again);
    let first = rows.print("first turn, new to the cache", |row| row.first);
    let plain = rows.print("first turn, without cache", |row| row.plain);
    let one = rows.print("whole, new to the cache", |row| row.cold);
    println!(
        "20th turn / whole                {:>9.3}   (bar: at most 0.1)",
        last / whole.min(library)
    );
    println!("20th turn once more / whole      {:>9.3}", again / whole.min(library));
    println!("first turn / plain               {:>9.3}   (bar: at most 1.1)", first / plain);
    println!("whole, new to cache / plain      {:>9.3}   (bar: at most 1.1)", one / whole);
    println!("the same / the library's own call{:>9.3}", one / library);
    println!("{:?}", cache.stats());
}

struct Row {
    library: f64,
    whole: f64,
    last: f64,
    again: f64,
    first: f64,
    plain: f64,
    cold: f64,
}

#[derive(Default)]
struct Rows {
    tokens: Vec<f64>,
    times: Vec<Row>,
}

impl Rows {
    fn print(&self, name: &str, column: impl Fn(&Row) -> f64) -> f64 {
        let mut values: Vec<f64> = self.times.iter().map(column).collect();
        let middle = median(&mut values);
        println!("{name:<32} {:>9.1} µs", middle * 1e6);
        middle
    }
}

fn measure(
    cache: &TokenCache,
    library: &fastokens::Tokenizer,
    prompts: &[String],
    rows: &mut Rows,
) {
    let tokenizer = cache.tokenizer();
    let first_prompt = &prompts[0];
    let last_prompt = &prompts[TURNS - 1];
    let mut ids = Vec::with_capacity(1 << 16);
    let mut plainly = |text: &str| {
        ids.clear();
        timed(|| tokenizer.encode(text, SpecialTokens::InText, &mut ids).unwrap())
    };
    let mut out = Vec::with_capacity(1 << 16);
    let mut remembering = |text: &str| {
        out.clear();
        timed(|| cache.encode(text, SpecialTokens::InText, &mut out).unwrap())
    };
    // The library has seen the words, as in a server that has run for a while; the cache has not.
    plainly(last_prompt);
    let plain = plainly(first_prompt);
    let first = remembering(first_prompt);
    for prompt in &prompts[1..TURNS - 1] {
        remembering(prompt);
    }
    let last = remembering(last_prompt);
    let again = remembering(last_prompt);
    // A prompt of the same length that the cache has not seen.
    let other: String = last_prompt.replace(" the ", " tha ");
    plainly(&other);
    let cold = remembering(&other);
    let whole = plainly(&other);
    let own = timed(|| drop(std::hint::black_box(library.encode(&other).unwrap())));
    assert_eq!(ids, out);
    rows.tokens.push(ids.len() as f64);
    rows.times.push(Row { library: own, whole, last, again, first, plain, cold });
}

/// The prompts of a chat, each one the beginning of the next.
fn chat(seed: u64) -> Vec<String> {
    const WORDS: &str = "the of and to in is that for it as was with be by on not he his but at are this have from or \
        had an they which one you were all her she there would their we him been has when who will no more if out so up \
        said what its about than into them can only other time new some could these two may first then do any like my \
        now over such our man me even most made after also did many off before must well back through years much where \
        your way down should because long each just state those people too mr how little good world make very year still \
        see work life being under never day same another know while last might great old come since against go came right \
        used take three router cache prefix block tokens latency pod engine prompt hash memory benchmark";
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % bound
    };
    let mut prompts = Vec::new();
    let mut text = String::from("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n");
    for turn in 0..TURNS {
        let mut message = String::new();
        for i in 0..900 {
            match next(40) {
                0 => write!(message, " {}", next(100_000)).unwrap(),
                1 => message.push_str(".\n\n"),
                2 => message.push_str(" `fn take(&self) -> Option<u64> {\n    self.next()\n}`\n"),
                3 => write!(message, " {}{}", words[next(words.len())], words[next(words.len())])
                    .unwrap(),
                4 => message.push_str(" 東京タワー、"),
                _ => write!(message, " {}", words[next(words.len())]).unwrap(),
            }
            if i % 12 == 11 {
                message.push(',');
            }
        }
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        write!(text, "<|im_start|>{role}\n{message}<|im_end|>\n").unwrap();
        prompts.push(format!("{text}<|im_start|>assistant\n"));
    }
    prompts
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = thread_cpu_seconds();
    work();
    thread_cpu_seconds() - start
}

fn thread_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn qwen3() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/qwen3/tokenizer.json.gz");
    let packed = std::fs::read(path).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    bytes
}
