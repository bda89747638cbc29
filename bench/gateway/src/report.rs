//! The tables, the raw figures and the bars.

use crate::contestant::Kind;
use crate::memory_growth::Growth;
use crate::rounds::Results;
use crate::stalls::{Delays, Observation, Round, Stalls};
use crate::stats::median;
use crate::steal;
use crate::tokenizing::NewText;

/// An upper limit and the figure that was measured.
pub(crate) struct Bar {
    name: String,
    found: f64,
    most: f64,
}

impl Bar {
    pub(crate) fn new(name: impl Into<String>, found: f64, most: f64) -> Self {
        Self { name: name.into(), found, most }
    }

    /// Whether it is met; a missing figure (NaN) is not.
    pub(crate) fn is_met(&self) -> bool {
        self.found <= self.most
    }
}

/// Prints a Markdown table for each scenario.
pub(crate) fn tables(results: &Results) {
    for (at, scenario) in results.scenarios.iter().enumerate() {
        println!("\n### {}\n", scenario.name());
        let first = if scenario.is_paced() { "first token" } else { "p50" };
        println!(
            "| | CPU/request, µs | / nginx | {first}, µs | added, µs | p99, µs | requests/s |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|");
        for kind in results.kinds.iter().filter(|kind| scenario.is_for(**kind)) {
            let figure = if scenario.is_paced() { |s: &_| first_p50(s) } else { |s: &_| p50(s) };
            let tail = if scenario.is_paced() { |s: &_| first_p99(s) } else { |s: &_| p99(s) };
            println!(
                "| {} | {} | {} | {:.0} | {} | {:.0} | {:.0} |",
                kind.name(),
                shown(results.median(at, *kind, |sample| sample.cpu), 1),
                shown(results.cpu_ratio(at, *kind), 2),
                results.median(at, *kind, figure),
                shown(results.added(at, *kind, figure), 0),
                results.median(at, *kind, tail),
                results.median(at, *kind, |sample| sample.per_second),
            );
        }
    }
    println!("\n### Memory after all of that\n\n| | MB |\n|---|---:|");
    for (kind, bytes) in results.kinds.iter().zip(&results.memory) {
        if let Some(bytes) = bytes {
            println!("| {} | {:.0} |", kind.name(), *bytes as f64 / 1e6);
        }
    }
}

/// Prints how many measurements exceeded the steal share.
pub(crate) fn steal_share(results: &Results) {
    let all = |at| results.kinds.iter().flat_map(move |kind| results.of(at, *kind));
    let shares: Vec<_> =
        (0..results.scenarios.len()).flat_map(all).map(|sample| sample.stolen).collect();
    let beyond = shares.iter().filter(|share| **share > steal::MAX_SHARE).count();
    println!(
        "others had more than {:.0} % of the processors in {beyond} of {} measurements; {} were made again because of that",
        steal::MAX_SHARE * 100.0,
        shares.len(),
        results.repeated
    );
}

/// Prints every round.
pub(crate) fn raw(results: &Results) {
    println!(
        "\n### Every round: requests, CPU/request, p50, p99, first p50, first p99 (µs), share of others (%)\n"
    );
    for (at, scenario) in results.scenarios.iter().enumerate() {
        for kind in &results.kinds {
            for (round, sample) in results.of(at, *kind).iter().enumerate() {
                println!(
                    "{}; {}; round {}: {} {:.1} {:.0} {:.0} {:.0} {:.0} {:.0}",
                    scenario.name(),
                    kind.name(),
                    round + 1,
                    sample.requests,
                    sample.cpu,
                    sample.p50,
                    sample.p99,
                    sample.first_p50,
                    sample.first_p99,
                    sample.stolen * 100.0
                );
            }
        }
    }
}

/// The bars of all scenarios.
pub(crate) fn scenario_bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    if !results.kinds.contains(&Kind::CacheAware) {
        return bars;
    }
    for (at, scenario) in results.scenarios.iter().enumerate() {
        let name = scenario.name();
        let ours = Kind::CacheAware;
        if scenario.is_paced() {
            bars.push(Bar::new(format!("{name}: CPU / nginx"), results.cpu_ratio(at, ours), 1.5));
            let added = results.added(at, ours, first_p50);
            bars.push(Bar::new(format!("{name}: added to the first token, µs"), added, 1000.0));
            continue;
        }
        bars.push(Bar::new(format!("{name}: CPU / nginx"), results.cpu_ratio(at, ours), 3.0));
        if scenario.connections == 1 {
            let [added, nginx] = [ours, Kind::Nginx].map(|kind| results.added(at, kind, p50));
            bars.push(Bar::new(format!("{name}: added p50, µs"), added, 60.0));
            // The same bar on a machine of any speed: it was set where nginx adds 20 µs.
            bars.push(Bar::new(format!("{name}: added p50 / nginx's"), added / nginx, 3.0));
        }
        if results.kinds.contains(&Kind::ManyPods) && scenario.is_for(Kind::ManyPods) {
            let more = results.compare(at, Kind::ManyPods, ours, |many, few| many.cpu - few.cpu);
            bars.push(Bar::new(format!("{name}: CPU at 256 pods over 8, µs"), more, 20.0));
        }
    }
    bars
}

/// The bars with a tokenizer: the cost of routing by text plus tokenizing the new text, and a
/// fifth.
pub(crate) fn tokenizer_bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    println!(
        "\n### With a tokenizer\n\n| | by text, µs | rendering what is new, µs | tokenizing it, µs | with the tokenizer, µs |\n\
         |---|---:|---:|---:|---:|"
    );
    for (at, scenario) in
        results.scenarios.iter().enumerate().filter(|(_, scenario)| scenario.is_whole())
    {
        let new_texts = &results.new_texts[at];
        let cpu = |kind| results.of(at, kind).iter().map(|sample| sample.cpu);
        let rounds = cpu(Kind::CacheAware).zip(cpu(Kind::Tokenizer)).zip(new_texts);
        let ratios: Vec<_> =
            rounds.map(|((text, tokens), new)| tokens / (text + new.tokenizing)).collect();
        let middle =
            |figure: fn(&NewText) -> f64| median(&new_texts.iter().map(figure).collect::<Vec<_>>());
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} |",
            scenario.name(),
            results.median(at, Kind::CacheAware, |sample| sample.cpu),
            middle(|new| new.rendering),
            middle(|new| new.tokenizing),
            results.median(at, Kind::Tokenizer, |sample| sample.cpu),
        );
        // The cost of rendering is printed, but not part of the bar.
        let name = format!("{}: CPU with the tokenizer / (text + tokenizing)", scenario.name());
        if results.kinds.contains(&Kind::CacheAware) {
            bars.push(Bar::new(name, median(&ratios), 1.2));
        }
    }
    bars
}

pub(crate) fn growth_bar(growth: &Growth) -> Bar {
    println!("\n### Memory under {} prompts that share nothing, MB\n", growth.prompts);
    let megabytes: Vec<_> =
        growth.bytes.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
    println!("{}", megabytes.join(" "));
    Bar::new("memory: last half / first half of the unique prompts", growth.ratio(), 1.05)
}

/// The bar counts late tokens: no more than with an idle gateway, and chance.
pub(crate) fn stall_bar(stalls: &Stalls) -> Bar {
    println!(
        "\n### Tokens' way from engine to client, µs, while prompts of {} tokens are tokenized\n\n\
         {} rounds; engines and clients on a processor of their own{}\n\n\
         | | p50 | p99 | p99.9 | worst | > 1 ms | tokens | prompts |\n|---|---:|---:|---:|---:|---:|---:|---:|",
        stalls.long_tokens,
        stalls.rounds.len(),
        if stalls.is_realtime { ", before all else there" } else { "" }
    );
    type Situation = fn(&Round) -> &Observation;
    type Path = fn(&Observation) -> &Delays;
    let situations: [(&str, Situation); 3] = [
        ("nothing else to do", |round| &round.idle),
        ("one long prompt after another", |round| &round.sequential),
        ("several at a time", |round| &round.concurrent),
    ];
    let paths: [(&str, Path); 2] = [
        ("through", |observation| &observation.through),
        ("past", |observation| &observation.past),
    ];
    for (situation, observation) in situations {
        for (path, delays) in paths {
            for round in &stalls.rounds {
                let observation = observation(round);
                let Delays { p50, p99, p999, worst, late, tokens } = delays(observation);
                let prompts = observation.prompts;
                println!(
                    "| {path} the gateway, {situation} | {p50:.0} | {p99:.0} | {p999:.0} | {worst:.0} | {late} | {tokens} | {prompts} |"
                );
            }
        }
    }
    let late = |observation: Situation| -> f64 {
        stalls.rounds.iter().map(|round| observation(round).through.late as f64).sum()
    };
    println!("\ntokens through the gateway that took more than a millisecond, in all rounds:");
    for (situation, observation) in situations {
        println!("- {situation}: {:.0}", late(observation));
    }
    // A virtual machine stalls now and then, under any load.
    let idle = late(|round| &round.idle);
    let chance = 3.0 * idle.max(1.0).sqrt();
    let name = "tokens that took more than 1 ms while long prompts are tokenized; most: an idle gateway's, and chance";
    Bar::new(name, late(|round| &round.sequential), (idle + chance).round())
}

/// Prints the bars; returns whether all are met.
pub(crate) fn verdict(bars: &[Bar]) -> bool {
    println!("\n### Bars\n");
    for bar in bars {
        let word = if bar.is_met() { "pass" } else { "MISS" };
        println!("{word} {}: {:.2} <= {}", bar.name, bar.found, bar.most);
    }
    bars.iter().all(Bar::is_met)
}

/// Prints the last line: the worst of the scenarios with short prompts.
pub(crate) fn last_line(results: &Results) {
    let short = results
        .scenarios
        .iter()
        .enumerate()
        .filter(|(_, scenario)| scenario.bytes == 1024 && !scenario.is_paced());
    let worst =
        short.map(|(at, _)| results.cpu_ratio(at, Kind::CacheAware)).fold(f64::NAN, f64::max);
    println!("gateway: cpu ratio to nginx (1 KB, cache-aware) = {}", shown(worst, 2));
}

fn shown(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

fn p50(sample: &crate::load::Sample) -> f64 {
    sample.p50
}

fn p99(sample: &crate::load::Sample) -> f64 {
    sample.p99
}

fn first_p50(sample: &crate::load::Sample) -> f64 {
    sample.first_p50
}

fn first_p99(sample: &crate::load::Sample) -> f64 {
    sample.first_p99
}
