//! Two runs side by side.

use super::load::DemoTally;
use std::io::Write;
use std::time::Duration;
use wornpath_sim::{StepCost, StepLoad};

/// Milliseconds of an engine that need not compute the first `cached` tokens of a prompt: the prompt alone
/// in one step, computed whole or from there.
pub(super) fn spared_ms(cost: &StepCost, prompt: usize, cached: usize) -> f64 {
    let from = |past: usize| {
        let mut load = StepLoad::default();
        load.add_chunk(past, prompt - past);
        cost.milliseconds(&load)
    };
    from(0) - from(cached.min(prompt))
}

/// Writes what each policy came to.
pub(super) fn write(runs: [(&str, &DemoTally); 2], out: &mut dyn Write) -> std::io::Result<()> {
    let [one, two] = runs.map(|(policy, _)| policy);
    writeln!(out, "\n  {:<26}{one:>14}{two:>14}", "")?;
    let mut row = |name: &str, cell: &dyn Fn(&DemoTally) -> String| {
        let [one, two] = runs.map(|(_, tally)| cell(tally));
        writeln!(out, "  {name:<26}{one:>14}{two:>14}")
    };
    let ms = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    row("TTFT p50", &|tally| ms(tally.first_token_at(0.5)))?;
    row("TTFT p95", &|tally| ms(tally.first_token_at(0.95)))?;
    row("prompt tokens from caches", &|tally| format!("{:.1}%", tally.hit_rate() * 100.0))?;
    row("prefill tokens saved", &|tally| tally.cached_tokens.to_string())?;
    row("GPU seconds saved", &|tally| format!("{:.1}", tally.spared_ms / 1e3))?;
    row("failed requests", &|tally| tally.failures.len().to_string())
}

/// Why the second run is no better than the first, if it is not. Times are shown and do not count: a machine that is
/// busy otherwise makes either run slow.
pub(super) fn not_better(before: &DemoTally, after: &DemoTally) -> Option<String> {
    let rates = (before.hit_rate(), after.hit_rate());
    if rates.1 <= rates.0 {
        return Some(format!("its hit rate is {:.3}, not above {:.3}", rates.1, rates.0));
    }
    let spared = (before.spared_ms / 1e3, after.spared_ms / 1e3);
    let told = || format!("it saved {:.1} GPU seconds, not more than {:.1}", spared.1, spared.0);
    (spared.1 <= spared.0).then(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_token_spares_its_own_time_and_that_of_its_attention() {
        let cost =
            StepCost { base: 5.0, per_prefill_token: 0.1, per_pair: 0.001, ..StepCost::default() };
        assert!(spared_ms(&cost, 100, 0).abs() < 1e-9);
        let spared = spared_ms(&cost, 100, 60);
        assert!((spared - (6.0 + 0.001 * 60.0 * 60.0 / 2.0)).abs() < 1e-9, "{spared}");
    }
}
