//! The tables: figures side by side, the bars, and the raw rounds.

use crate::metric::Metric;
use crate::results::Results;

/// Prints the table of one size.
pub(crate) fn table(results: &Results) {
    println!("\n== {} ==", results.size);
    print!("{:44}", "median [quartiles] best");
    for name in &results.names {
        print!("{name:>30}");
    }
    println!("{:>32}", "ours / better peer");
    for metric in Metric::ALL {
        print!("{:44}", metric.label());
        for index in 0..results.names.len() {
            let cell = results.spread(metric, index).map_or("-".into(), |spread| {
                let figures = [spread.median, spread.lower, spread.upper, spread.least].map(figure);
                match results.samples(metric, index).len() {
                    1 => figures[0].clone(),
                    _ => format!("{} [{} {}] {}", figures[0], figures[1], figures[2], figures[3]),
                }
            });
            print!("{cell:>30}");
        }
        let ratio = results.ratio(metric).filter(|_| metric.compares());
        let ratio = ratio.map_or("-".into(), |ratio| {
            let spread = ratio.spread;
            let peer = results.names[ratio.peer];
            format!("{:.2} [{:.2} {:.2}] {peer}", spread.median, spread.lower, spread.upper)
        });
        println!("{ratio:>32}");
    }
}

/// Prints notes on the comparison.
pub(crate) fn notes() {
    println!(
        "
Both peers take content hashes and compare them run by run or edge by edge: they compute no chain,
so that is their fastest input and both query rows give it to them. Ours takes the chained hashes in
the first row and computes them from the content hashes in the second. kv-index answers into a reused
list, CRTC into a map it allocates, ours into a reused array with the depth of every pod, as the router
reads it. In the row with speculation ours expects each of the queries on a pod while caches churn. Removal: kv-index and CRTC return when the pod is
gone from the tree; ours returns at once and sweeps later, so its share \"during the call\" is of very
few reads. CRTC's memory is measured after its own housekeeping, which it runs every five minutes."
    );
}

/// Three significant digits or so.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints a line per bar and size.
pub(crate) fn bars(all: &[Results]) {
    println!("\n== bars: ours against the better peer, median [quartiles] ==");
    let mut missed = 0;
    for metric in Metric::ALL {
        for results in all {
            let Some((met, figures)) = results.verdict(metric) else { continue };
            missed += usize::from(!met);
            let word = if met { "pass" } else { "MISS" };
            println!("{word}  {:9} {:44} {figures}", results.size, metric.label());
        }
    }
    println!("bars missed: {missed}");
}

/// Prints every sample.
pub(crate) fn raw(all: &[Results]) {
    println!("\n== every round ==");
    for results in all {
        for metric in Metric::ALL {
            for (index, name) in results.names.iter().enumerate() {
                let samples = results.samples(metric, index);
                let samples: Vec<String> =
                    samples.iter().map(|value| format!("{value:.3}")).collect();
                println!(
                    "{:9} {:44} {name:10} {}",
                    results.size,
                    metric.label(),
                    samples.join(" ")
                );
            }
        }
    }
}

/// Prints the last line: the worst query ratio of all sizes.
pub(crate) fn verdict(all: &[Results]) {
    let ratios = all.iter().filter_map(|results| results.ratio(Metric::Query));
    let worst = ratios.map(|ratio| ratio.spread.median).max_by(f64::total_cmp);
    match worst {
        Some(worst) => println!("index: worst ratio to best peer = {worst:.3}"),
        None => println!("index: worst ratio to best peer = not measured"),
    }
}
