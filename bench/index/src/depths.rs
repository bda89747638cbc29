//! One document that many pods hold to different depths: the worst case for a search.

use crate::adapters::{Crtc, Index, KvIndex, Ours, Reader};
use crate::clock::CpuClock;
use crate::log::{EventLog, MOST_BLOCKS};
use crate::profile::profiled_phase;
use crate::results::OURS;
use crate::rounds::is_column;
use crate::stats::Spread;
use crate::workload::{QuerySet, Random, chained, local};

/// Blocks of the document.
const BLOCKS: usize = 512;
/// Queries per measurement.
const PASSES: usize = 2_000;
/// Ours divided by the better peer is at most this.
const BAR: f64 = 1.0;

/// The document on a number of pods.
struct ManyDepths {
    log: EventLog,
    queries: QuerySet,
    depths: Vec<u32>,
}

impl ManyDepths {
    fn of(pods: usize) -> Self {
        let locals: Vec<u64> = (0..BLOCKS as u64).map(|i| local(6, 0, i)).collect();
        let seqs = chained(&locals);
        let mut random = Random::from_seed(pods as u64);
        let depths: Vec<u32> = (0..pods).map(|_| 1 + random.below(BLOCKS as u64) as u32).collect();
        let mut log = EventLog::default();
        for (pod, depth) in depths.iter().enumerate() {
            for start in (0..*depth as usize).step_by(MOST_BLOCKS) {
                let blocks = start..(*depth as usize).min(start + MOST_BLOCKS);
                let parent = start.checked_sub(1).map(|before| seqs[before]);
                log.store(pod as u32, parent, &seqs[blocks.clone()], &locals[blocks]);
            }
        }
        Self { log, queries: QuerySet { blocks: BLOCKS, locals, seqs }, depths }
    }

    /// CPU nanoseconds per query, once per round.
    fn run<I: Index>(&self, rounds: usize, failures: &mut Vec<String>) -> Vec<f64> {
        let log = I::log(&self.log);
        let queries = I::queries(&self.queries);
        let (shared, mut writer) = I::create(self.depths.len());
        I::apply(&shared, &mut writer, &log, 0..self.log.events.len());
        let mut reader = I::reader(&shared);
        let mut depths = vec![0; self.depths.len()];
        (0..rounds)
            .map(|_| {
                let start = CpuClock::CALLER.now();
                profiled_phase(&mut || {
                    for _ in 0..PASSES {
                        reader.lookup(&queries, 0);
                        std::hint::black_box(&mut reader);
                    }
                });
                let nanos = (CpuClock::CALLER.now() - start).as_nanos() as f64 / PASSES as f64;
                reader.depths(&mut depths);
                if depths != self.depths {
                    let pods = depths.len();
                    failures.push(format!("many depths on {pods} pods: wrong for {}", I::NAME));
                }
                nanos
            })
            .collect()
    }
}

/// Prints what a query costs, and whether ours meets the bar. Wrong answers go to `failures`.
pub(crate) fn table(rounds: usize, only: Option<&str>, failures: &mut Vec<String>) {
    println!("\n== one document of {BLOCKS} blocks at many depths: ns CPU per query ==");
    for pods in [64, 256, 1_000] {
        let many = ManyDepths::of(pods);
        let mut distinct = many.depths.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut run = |name: &str, run: fn(&ManyDepths, usize, &mut Vec<String>) -> Vec<f64>| {
            let is_chosen = only.is_none_or(|only| is_column(name, only));
            let nanos = if is_chosen { run(&many, rounds, failures) } else { Vec::new() };
            Spread::of(&nanos).map_or(f64::NAN, |spread| spread.median)
        };
        let kv_index = run(KvIndex::NAME, ManyDepths::run::<KvIndex>);
        let crtc = run(Crtc::NAME, ManyDepths::run::<Crtc>);
        let ours = run(OURS, ManyDepths::run::<Ours>);
        let ratio = ours / kv_index.min(crtc);
        let word = if ratio <= BAR { "pass" } else { "MISS" };
        println!(
            "{word}  {pods:>5} pods, {:>3} depths: kv-index {kv_index:.0}, CRTC {crtc:.0}, {OURS} {ours:.0}, \
             ours / better peer {ratio:.2} <= {BAR}",
            distinct.len()
        );
    }
}
