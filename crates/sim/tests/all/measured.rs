//! The profiles fitted to measurements agree with those measurements.

use serde_json::Value;
use wornpath_sim::{EngineProfile, StepLoad};

/// The errors of a profile over one table, smallest first.
fn errors(
    profile: &EngineProfile,
    rows: &Value,
    sample: impl Fn(&[f64]) -> Option<(StepLoad, f64)>,
) -> Vec<f64> {
    let mut errors = Vec::new();
    for row in rows.as_array().unwrap() {
        let cells: Vec<f64> = row.as_array().unwrap().iter().map(|c| c.as_f64().unwrap()).collect();
        if let Some((load, milliseconds)) = sample(&cells) {
            errors.push((profile.step_cost().milliseconds(&load) / milliseconds - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    errors
}

fn decode(sequences: f64, context: f64, shared: f64) -> StepLoad {
    StepLoad {
        sequences: sequences as usize,
        context_tokens: (sequences * context) as usize,
        longest_context: context as usize,
        shared_prefix: shared as usize,
        ..StepLoad::default()
    }
}

#[test]
fn fitted_profiles_are_within_4_percent_of_half_and_17_percent_of_all_measurements() {
    let json = include_str!("../../engines/h200-measured.json");
    let measured: Value = serde_json::from_str(json).unwrap();
    for (model, name) in
        [("llama3-8b", "8b-h200-measured"), ("qwen3-32b-shape", "32b-h200-measured")]
    {
        let profile = EngineProfile::built_in(name).unwrap();
        let tables = &measured["models"][model];
        let prefill = errors(&profile, &tables["prefill_ms"], |row| {
            let mut load = StepLoad::default();
            load.add_chunk(row[1] as usize, row[0] as usize);
            (row[0] as usize <= profile.max_step_tokens()).then_some((load, row[2]))
        });
        let decoding = errors(&profile, &tables["decode_ms"], |row| {
            Some((decode(row[0], row[1], 0.0), row[2]))
        });
        let shared = errors(&profile, &tables["shared_prefix_decode_ms"], |row| {
            Some((decode(row[0], row[1] + row[2], row[1]), row[3].min(row[4])))
        });
        for (table, errors, most) in
            [("prefill", prefill, 0.17), ("decode", decoding, 0.09), ("shared", shared, 0.07)]
        {
            let median = errors[errors.len() / 2];
            let worst = errors[errors.len() - 1];
            println!("{name} {table}: median {median:.3}, worst {worst:.3}");
            assert!(median < 0.04 && worst < most, "{name} {table}: {median} {worst}");
        }
    }
}
