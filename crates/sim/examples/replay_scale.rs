//! Measures the time of a large replay: `cargo run --profile dist -p wornpath-sim --example replay_scale
//! -- PROFILE [PODS] [REQUESTS]` generates traffic that keeps the engines about 60% busy and
//! replays it once.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example reports and stops at once"
)]

use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{
    ProfileText, ReplayFleet, Summary, Trace, TraceStart, TraceTurn, replay,
};

/// Prompts of 2 to 20 blocks after one of 20,000 shared prefixes of 8, popular ones more often.
fn traffic(requests: usize, pods: usize) -> Trace {
    let mut rng = Rng::new(11);
    // One engine computes about 30,000 tokens a second, and half of a prompt is cached.
    let gap = Duration::from_millis(600).div_f64(pods as f64);
    let turn = |number: usize| {
        let prefix = (20_000.0 * rng.unit().powi(3)) as u64;
        let own = 2 + rng.below(19) as u64;
        let blocks: Vec<u64> = (0..8)
            .map(|block| prefix * 8 + block)
            .chain((0..own).map(|block| 1_000_000 + number as u64 * 32 + block))
            .collect();
        TraceTurn {
            start: TraceStart::At(gap.mul_f64(number as f64 + rng.unit())),
            prompt_tokens: 512 * blocks.len() - rng.below(512),
            output_tokens: 1 + rng.below(400),
            blocks: blocks.into(),
            session: None,
            tenant: None,
        }
    };
    Trace { block_size: NonZeroUsize::new(512).unwrap(), turns: (0..requests).map(turn).collect() }
}

#[allow(clippy::disallowed_methods, reason = "an example measures real time")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().expect("the path of a routing profile");
    let number =
        |at: usize, default: usize| arguments.get(at).map_or(default, |n| n.parse().unwrap());
    let pods = number(1, 256);
    let requests = number(2, 1_000_000);
    let yaml = std::fs::read_to_string(path).unwrap();
    let trace = traffic(requests, pods);
    let fleet = ReplayFleet::new(EngineProfile::built_in("8b-h200").unwrap(), pods, 1);
    let start = std::time::Instant::now();
    let records = replay(&trace, ProfileText { name: path, yaml: &yaml }, &fleet).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let micros = seconds * 1e6 / requests as f64;
    println!(
        "{path}: {requests} requests, {pods} pods: {seconds:.1} s, {micros:.1} us per request"
    );
    println!("{:?}", Summary::of(&trace, &records, 0));
}
