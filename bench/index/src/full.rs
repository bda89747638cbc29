//! One pod whose cache is full: every block that comes evicts another, generation after generation.
//!
//! An engine runs like this for months, with its tables at one size and all of their content
//! replaced again and again. What a block costs then is compared with what it costs in the first
//! generations after the cache became full.

use crate::adapters::{Crtc, Index, KvIndex, Ours};
use crate::log::EventLog;
use crate::results::OURS;
use crate::stats::Spread;
use crate::workload::{chained, local};

/// Blocks of each prompt.
const PROMPT: u64 = 32;
/// Generations with distinct blocks; after these the blocks repeat, long after they were evicted.
const DISTINCT: usize = 16;
/// Generations at each end of the run of which the median counts.
const COMPARED: usize = 7;
/// Maximum of the cost of a block in an old cache divided by that in a young one.
const BAR: f64 = 1.2;

/// Cache sizes just below those at which our tables of aliases grow, and one at which an earlier
/// table, which counted the entries that had passed a bucket, became slow.
const PROMPTS: [u64; 3] = [855, 1_003, 4_620];

/// The events of a full cache.
struct FullCache {
    log: EventLog,
    /// The ends of the first fill and of each generation, as positions in the log.
    ends: Vec<usize>,
}

impl FullCache {
    fn of(prompts: u64) -> Self {
        let mut log = EventLog::default();
        let prompt = |generation: usize, prompt: u64| {
            let id = generation as u64 * prompts + prompt;
            let locals: Vec<u64> = (0..PROMPT).map(|i| local(9, id, i)).collect();
            (chained(&locals), locals)
        };
        for number in 0..prompts {
            let (seqs, locals) = prompt(0, number);
            log.store(0, None, &seqs, &locals);
        }
        let mut ends = vec![log.events.len()];
        for generation in 0..DISTINCT {
            for number in 0..prompts {
                let (mut evicted, _) = prompt(generation, number);
                evicted.reverse();
                log.remove(0, &evicted);
                let (seqs, locals) = prompt((generation + 1) % DISTINCT, number);
                log.store(0, None, &seqs, &locals);
            }
            ends.push(log.events.len());
        }
        Self { log, ends }
    }

    /// CPU nanoseconds per block stored or removed, of each generation.
    fn run<I: Index>(&self, generations: usize) -> Vec<f64> {
        let log = I::log(&self.log);
        let (shared, mut writer) = I::create(1);
        let clock = I::writer_clock(&writer);
        I::apply(&shared, &mut writer, &log, 0..self.ends[0]);
        let mut nanos = Vec::with_capacity(generations);
        for generation in 0..generations {
            let events = self.ends[generation % DISTINCT]..self.ends[generation % DISTINCT + 1];
            let blocks = self.log.blocks_in(events.clone());
            let start = clock.now();
            I::apply(&shared, &mut writer, &log, events);
            nanos.push((clock.now() - start).as_nanos() as f64 / blocks as f64);
        }
        nanos
    }
}

/// Prints what a block costs in a young and in an old full cache, and whether ours meets the bar.
pub(crate) fn table(generations: usize, raw: bool) {
    println!(
        "\n== full cache for {generations} generations: ns CPU per block stored or removed =="
    );
    println!("  blocks               first     20th     last  last/first");
    let mut met = true;
    for prompts in PROMPTS {
        let cache = FullCache::of(prompts);
        let columns = [
            (KvIndex::NAME, cache.run::<KvIndex>(generations)),
            (Crtc::NAME, cache.run::<Crtc>(generations)),
            (Ours::NAME, cache.run::<Ours>(generations)),
        ];
        for (name, nanos) in columns {
            let median = |part: &[f64]| Spread::of(part).map_or(f64::NAN, |spread| spread.median);
            let first = median(&nanos[..COMPARED]);
            let twentieth = median(&nanos[20 - COMPARED / 2..=20 + COMPARED / 2]);
            let last = median(&nanos[nanos.len() - COMPARED..]);
            let ratio = last / first;
            println!(
                "{:>8} {name:>10} {first:>8.0} {twentieth:>8.0} {last:>8.0} {ratio:>10.2}",
                prompts * PROMPT
            );
            if name == OURS {
                met &= ratio <= BAR;
            }
            if raw {
                let all: Vec<String> = nanos.iter().map(|nanos| format!("{nanos:.0}")).collect();
                println!("         {name} every generation: {}", all.join(" "));
            }
        }
    }
    let word = if met { "pass" } else { "MISS" };
    println!("{word}  an old full cache costs at most {BAR} of a young one, per block");
}
