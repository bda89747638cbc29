//! Fits the terms of a step to times measured on a real GPU and prints them with their errors.
//!
//! `cargo run -p wornpath-sim --example fit_profile` reads `engines/h200-measured.json` and prints
//! what stands under `step_ms` in the `-measured` profiles. Decode gives the terms of decoding,
//! then prefill those of prefill, then shared prefixes the cascade's; each fit minimizes the mean
//! squared logarithm of model over measurement, one term at a time with shrinking strides, which is
//! slow, simple and always gives the same numbers.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example reports and stops at once"
)]

use serde_json::Value;
use wornpath_sim::{Cascade, StepCost, StepLoad};

/// A step and its measured time.
struct Sample {
    load: StepLoad,
    milliseconds: f64,
}

type Term = fn(&mut StepCost) -> &mut f64;

fn main() {
    let json = include_str!("../engines/h200-measured.json");
    let measured: Value = serde_json::from_str(json).unwrap();
    for (model, tables) in measured["models"].as_object().unwrap() {
        let decode: Vec<_> = rows(&tables["decode_ms"])
            .map(|row| Sample { load: decoding(row[0], row[1], 0.0), milliseconds: row[2] })
            .collect();
        // Longer chunks do not fit into a step.
        let prefill: Vec<_> = rows(&tables["prefill_ms"])
            .filter(|row| row[0] <= 8_192.0)
            .map(|row| Sample { load: chunk(row[1], row[0]), milliseconds: row[2] })
            .collect();
        // The engine takes the faster of plain and cascade.
        let shared: Vec<_> = rows(&tables["shared_prefix_decode_ms"])
            .map(|row| Sample {
                load: decoding(row[0], row[1] + row[2], row[1]),
                milliseconds: row[3].min(row[4]),
            })
            .collect();
        let mut cost = StepCost {
            base: 5.0,
            prefill: 3.0,
            per_prefill_token: 0.02,
            free_prefill_tokens: 200.0,
            per_pair: 1e-6,
            per_past_token: 1e-3,
            per_sequence: 0.02,
            per_context_token: 3e-5,
            per_longest_token: 3e-4,
            cascade: None,
        };
        fit(
            &mut cost,
            &decode,
            &[
                |cost| &mut cost.base,
                |cost| &mut cost.per_sequence,
                |cost| &mut cost.per_context_token,
                |cost| &mut cost.per_longest_token,
            ],
        );
        fit(
            &mut cost,
            &prefill,
            &[
                |cost| &mut cost.prefill,
                |cost| &mut cost.per_prefill_token,
                |cost| &mut cost.free_prefill_tokens,
                |cost| &mut cost.per_pair,
                |cost| &mut cost.per_past_token,
            ],
        );
        let start =
            Cascade { base: 1.0, per_shared_token: 1e-4, least_sequences: 8, least_tokens: 256 };
        cost.cascade = Some(start);
        fit(
            &mut cost,
            &shared,
            &[
                |cost| &mut cost.cascade.as_mut().unwrap().base,
                |cost| &mut cost.cascade.as_mut().unwrap().per_shared_token,
            ],
        );
        println!("{model}: {}", serde_json::to_string_pretty(&cost).unwrap());
        for (table, samples) in [("prefill", prefill), ("decode", decode), ("shared", shared)] {
            report(table, &cost, &samples);
        }
    }
}

fn decoding(sequences: f64, context: f64, shared_prefix: f64) -> StepLoad {
    StepLoad {
        sequences: sequences as usize,
        context_tokens: (sequences * context) as usize,
        longest_context: context as usize,
        shared_prefix: shared_prefix as usize,
        ..StepLoad::default()
    }
}

fn chunk(past: f64, tokens: f64) -> StepLoad {
    let mut load = StepLoad::default();
    load.add_chunk(past as usize, tokens as usize);
    load
}

fn rows(table: &Value) -> impl Iterator<Item = Vec<f64>> {
    let cells =
        |row: &Value| row.as_array().unwrap().iter().map(|cell| cell.as_f64().unwrap()).collect();
    table.as_array().unwrap().iter().map(cells)
}

fn fit(cost: &mut StepCost, samples: &[Sample], terms: &[Term]) {
    let mut stride = 0.5;
    while stride > 1e-4 {
        let mut improved = false;
        for term in terms {
            for factor in [1.0 + stride, 1.0 / (1.0 + stride)] {
                let mut candidate = *cost;
                *term(&mut candidate) *= factor;
                if error(&candidate, samples) < error(cost, samples) {
                    *cost = candidate;
                    improved = true;
                }
            }
        }
        if !improved {
            stride *= 0.7;
        }
    }
    for term in terms {
        let rounded: f64 = format!("{:.3e}", term(cost)).parse().unwrap();
        *term(cost) = rounded;
    }
}

fn error(cost: &StepCost, samples: &[Sample]) -> f64 {
    let square =
        |sample: &Sample| (cost.milliseconds(&sample.load) / sample.milliseconds).ln().powi(2);
    samples.iter().map(square).sum()
}

fn report(table: &str, cost: &StepCost, samples: &[Sample]) {
    let relative = |sample: &Sample| cost.milliseconds(&sample.load) / sample.milliseconds - 1.0;
    let mut errors: Vec<f64> = samples.iter().map(relative).map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    let worst = errors[errors.len() - 1];
    println!(
        "  {table}: {} points, error median {:.1}%, worst {:.1}%",
        errors.len(),
        median * 100.0,
        worst * 100.0
    );
}
