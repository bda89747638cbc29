//! Random expressions mean the same to an interpreter of the whole language, the crate `cel`.
//!
//! Left out are the places where the subset differs on purpose: mixed numbers, ints beyond 53 bits,
//! doubles that are not numbers, and labels that are absent.

use cel::{Context, Env, Value};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::tests::{Field, Pod, Varying};
use super::{CelBatch, compile_number};
use crate::rng::Rng;

const EXPRESSIONS: u64 = 4_000;
const MAX_DEPTH: u32 = 5;
/// Ints stay exact in both.
const MAX_INT: u64 = 1 << 40;
const ZONES: [&str; 4] = ["eu-west", "", "us", "añb"];
const TEXTS: [&str; 6] = ["eu-west", "", "e", "añb", "z", "west"];

/// A candidate with random values.
struct Candidate {
    requests: i64,
    kv_usage: f64,
    draining: bool,
    zone: &'static str,
}

impl Candidate {
    fn new(rng: &mut Rng) -> Self {
        Self {
            requests: rng.below(5) as i64,
            kv_usage: rng.below(8) as f64 / 4.0,
            draining: rng.below(2) == 1,
            zone: pick(rng, &ZONES),
        }
    }

    /// The value that `cel` gives an expression; none for an error.
    fn by_oracle(&self, text: &str, env: &Arc<Env>) -> Option<Value> {
        let mut context = Context::with_env(Arc::clone(env));
        let labels = HashMap::from([("zone", Value::from(self.zone))]);
        let pod = HashMap::from([
            ("requests", Value::from(self.requests)),
            ("kv_usage", Value::from(self.kv_usage)),
            ("draining", Value::from(self.draining)),
            ("labels", Value::from(labels)),
        ]);
        context.add_variable_from_value("pod", pod);
        let program = env.compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        program.execute(&context).ok()
    }
}

struct Candidates([Candidate; 3]);

impl CelBatch<Field> for Candidates {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn varies(&self, field: Field) -> bool {
        field != Field::Rack
    }

    fn fill(&self, field: Field, column: &mut [f64]) {
        for (value, candidate) in column.iter_mut().zip(&self.0) {
            *value = match field {
                Field::Requests => candidate.requests as f64,
                Field::Usage => candidate.kv_usage,
                _ => f64::from(candidate.draining),
            };
        }
    }

    fn text(&self, field: Field, candidate: usize) -> Option<&str> {
        (field == Field::Zone).then_some(self.0[candidate].zone)
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len())]
}

/// An int expression, and a bound on its magnitude.
fn int(rng: &mut Rng, depth: u32) -> (String, u64) {
    let leaf = depth == 0 || rng.below(4) == 0;
    if leaf {
        return match rng.below(3) {
            0 => ("pod.requests".to_owned(), 5),
            _ => {
                let number = rng.below(10) as u64;
                (number.to_string(), number)
            }
        };
    }
    let (one, most) = int(rng, depth - 1);
    let (other, other_most) = int(rng, depth - 1);
    match rng.below(8) {
        0 => (format!("-({one})"), most),
        1 => (format!("({one} - {other})"), most + other_most),
        2 if most * other_most.max(1) < MAX_INT => {
            (format!("({one} * {other})"), most * other_most)
        }
        3 => (format!("({one} / {other})"), most),
        4 => (format!("{one} % ({other})"), most),
        5 => (format!("({} ? {one} : {other})", truth(rng, depth - 1)), most.max(other_most)),
        6 => (format!("{}.size()", string(rng)), 16),
        _ => (format!("({one} + {other})"), most + other_most),
    }
}

/// A double expression that is a number.
fn double(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 || rng.below(4) == 0 {
        return match rng.below(3) {
            0 => "pod.kv_usage".to_owned(),
            1 => format!("double({})", int(rng, 0).0),
            _ => format!("{}.{}", rng.below(9), pick(rng, &[0, 25, 5])),
        };
    }
    let one = double(rng, depth - 1);
    let other = double(rng, depth - 1);
    match rng.below(6) {
        0 => format!("({one} - {other})"),
        1 => format!("({one} * {other})"),
        2 => format!("({one} / {}.5)", rng.below(4)),
        3 => format!("({} ? {one} : {other})", truth(rng, depth - 1)),
        4 => format!("-({one})"),
        _ => format!("({one} + {other})"),
    }
}

fn string(rng: &mut Rng) -> String {
    match rng.below(3) {
        0 => "pod.labels.zone".to_owned(),
        1 => format!("'{}'", pick(rng, &TEXTS)),
        _ => format!("\"{}\"", pick(rng, &TEXTS)),
    }
}

fn truth(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 {
        return pick(rng, &["true", "false", "pod.draining", "has(pod.labels.rack)"]).to_owned();
    }
    let depth = depth - 1;
    let relation = pick(rng, &["<", "<=", ">", ">=", "==", "!="]);
    match rng.below(9) {
        0 => format!("({} && {})", truth(rng, depth), truth(rng, depth)),
        1 => format!("({} || {})", truth(rng, depth), truth(rng, depth)),
        2 => format!("!({})", truth(rng, depth)),
        3 => format!("({} {relation} {})", int(rng, depth).0, int(rng, depth).0),
        4 => format!("({} {relation} {})", double(rng, depth), double(rng, depth)),
        5 => format!("({} {relation} {})", string(rng), string(rng)),
        6 => {
            let mut list = String::new();
            for _ in 0..rng.below(4) {
                write!(list, "{}, ", rng.below(9)).unwrap();
            }
            format!("({} in [{}])", int(rng, depth).0, list.trim_end_matches(", "))
        }
        7 => {
            let method = pick(rng, &["contains", "startsWith", "endsWith"]);
            format!("{}.{method}({})", string(rng), string(rng))
        }
        _ => "has(pod.labels.zone)".to_owned(),
    }
}

#[test]
fn thousands_of_random_expressions_mean_what_they_mean_to_an_interpreter_of_the_language() {
    let env = Arc::new(Env::stdlib());
    let [mut values, mut errors, mut truths] = [0; 3];
    for seed in 0..EXPRESSIONS {
        let mut rng = Rng::new(seed);
        let text = match seed % 3 {
            0 => int(&mut rng, MAX_DEPTH).0,
            1 => double(&mut rng, MAX_DEPTH),
            _ => truth(&mut rng, MAX_DEPTH),
        };
        let candidates = Candidates(std::array::from_fn(|_| Candidate::new(&mut rng)));
        let is_truth = seed % 3 == 2;
        let compiled = if is_truth { format!("({text}) ? 1 : 0") } else { text.clone() };
        let program = compile_number(&compiled, &Pod(Varying::Yes))
            .unwrap_or_else(|error| panic!("seed {seed}: {text}: {error}"));
        let mut ours = [0.0; 3];
        program.evaluate(&candidates, &mut ours);
        for (candidate, ours) in candidates.0.iter().zip(ours) {
            let oracle = match candidate.by_oracle(&text, &env) {
                Some(Value::Int(int)) => int as f64,
                Some(Value::Float(double)) => double,
                Some(Value::Bool(flag)) => f64::from(flag),
                Some(other) => panic!("seed {seed}: {text}: {other:?}"),
                None => f64::NAN,
            };
            let is_same = ours == oracle || ours.is_nan() && oracle.is_nan();
            assert!(is_same, "seed {seed}: {text}: {ours}, not {oracle}");
            let kind = if ours.is_nan() { &mut errors } else { &mut values };
            *kind += 1;
            truths += u32::from(is_truth && ours == 1.0);
        }
    }
    // The generator makes enough of every kind to find a difference.
    assert!(values > 8_000 && errors > 300 && truths > 1_000, "{values} {errors} {truths}");
}
