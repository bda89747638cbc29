//! Memory of the gateway while every prompt is new.

use std::rc::Rc;
use std::time::Duration;

use crate::contestant::Contestant;
use crate::load::{Window, measure};
use crate::process_tree;
use crate::prompts::{Delivery, Prompts, Shared};

const CONNECTIONS: usize = 32;
/// Number of memory readings.
const READINGS: usize = 10;

/// Bytes after each tenth of the prompts.
pub(crate) struct Growth {
    pub(crate) prompts: u64,
    pub(crate) bytes: Vec<u64>,
}

impl Growth {
    /// The largest reading of the last half divided by that of the first.
    pub(crate) fn ratio(&self) -> f64 {
        let (first, last) = self.bytes.split_at(self.bytes.len() / 2);
        let largest = |half: &[u64]| half.iter().copied().max().unwrap_or(0) as f64;
        largest(last) / largest(first)
    }
}

/// Sends `prompts` prompts that share nothing and reads the memory ten times.
pub(crate) async fn measure_growth(
    contestant: &Contestant,
    prompts: u64,
) -> anyhow::Result<Growth> {
    let Some(process) = &contestant.process else {
        return Ok(Growth { prompts: 0, bytes: Vec::new() });
    };
    let unique = Rc::new(Prompts::new(1024, Shared::Nothing, Delivery::Whole));
    let step = Window { warm: Duration::ZERO, measured: Duration::from_millis(200) };
    // Request numbers that no other part of the run uses.
    let start = 1 << 40;
    let mut next = start;
    let mut bytes = Vec::new();
    for reading in 1..=READINGS as u64 {
        while next < start + prompts * reading / READINGS as u64 {
            let (sample, reached) = measure(contestant, &unique, CONNECTIONS, step, next).await?;
            anyhow::ensure!(sample.failures == 0, "{:?}", sample.failure);
            next = reached;
        }
        bytes.push(process_tree::memory(process.id()));
    }
    Ok(Growth { prompts: next - start, bytes })
}
