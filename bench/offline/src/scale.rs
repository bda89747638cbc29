//! A million requests of 64 blocks, planned in a process of its own so that its memory is measured
//! alone.

use anyhow::Context;
use std::num::NonZeroUsize;
use std::time::Instant;
use wornpath_blocks::{BlockHash, ContentHash};
use wornpath_planner::{Job, Plan, PlannerRates, Queue, Speeds};
use wornpath_routing::Rng;

const REQUESTS: usize = 1_000_000;
const BLOCKS: usize = 64;
const BLOCK: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// Where a path may branch, and into how many.
const BRANCHES: [(usize, usize); 5] = [(0, 20), (8, 10), (24, 10), (40, 10), (56, 4)];

/// Runs [`plan_a_million`] in another process: seconds and mebibytes.
pub(crate) fn measure() -> anyhow::Result<(f64, f64)> {
    let output = std::process::Command::new(std::env::current_exe()?).arg("--scale").output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    let mut next =
        || words.next().context("the planning process printed nothing")?.context("no number");
    Ok((next()?, next()?))
}

/// Generates the queue, plans it, and prints the seconds of planning and the peak in mebibytes.
pub(crate) fn plan_a_million() -> anyhow::Result<()> {
    let queue = queue()?;
    let start = Instant::now();
    let plan = Plan::new(&queue, &Speeds::equal(8)?, &PlannerRates::flat(0.016, 0.06));
    let seconds = start.elapsed().as_secs_f64();
    anyhow::ensure!(plan.route().stops().len() == REQUESTS, "requests were lost");
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kibibytes: f64 = peak.trim().trim_end_matches("kB").trim().parse()?;
    println!("{seconds} {}", kibibytes / 1_024.0);
    Ok(())
}

/// Paths through a tree of five branchings, each with a last block of its own, in random order.
fn queue() -> anyhow::Result<Queue> {
    let mut rng = Rng::new(42);
    let mut queue = Queue::new(BLOCK);
    queue.reserve(REQUESTS, REQUESTS * BLOCKS);
    let mut contents = vec![ContentHash(0); BLOCKS];
    for number in 0..REQUESTS {
        let mut branch = 0;
        for (block, content) in contents.iter_mut().enumerate() {
            if let Some((_, ways)) = BRANCHES.iter().find(|(at, _)| *at == block) {
                branch = branch * 64 + rng.below(*ways) as u64 + 1;
            }
            *content = ContentHash(Rng::new(branch << 8 | block as u64).bits());
        }
        contents[BLOCKS - 1] = ContentHash(Rng::new(number as u64).bits());
        let chain: Vec<_> = BlockHash(1).chain(&contents).collect();
        queue.push(&Job {
            chain: &chain,
            prompt_tokens: BLOCKS * BLOCK.get() + 5,
            output_tokens: 1 + rng.below(200),
            identity: None,
        })?;
    }
    Ok(queue)
}
