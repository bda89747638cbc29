//! The exactness suite: wrong answers per class of event sequences, against the naive scan.
//!
//! Wrong answers of peers are information. Ours must have none.

use crate::adapters::{Crtc, Index, KvIndex, Naive, Ours, Reader};
use crate::adversary::{Case, Class};
use crate::results::OURS;

/// Points of a case at which it is queried.
const CHECKPOINTS: usize = 4;

/// Runs every class on every index and prints the table; our wrong answers go to `failures`.
pub(crate) fn suite(cases: u64, failures: &mut Vec<String>) {
    let names = [KvIndex::NAME, Crtc::NAME, Ours::NAME];
    println!("\n== wrong answers against the naive scan, % of the queries of a class ==");
    print!("{:44}{:>12}", "", "queries");
    names.iter().for_each(|name| print!("{name:>12}"));
    println!();
    for class in Class::ALL {
        let cases = if class == Class::ManyPods { cases.div_ceil(20) } else { cases };
        let mut wrong = [0; 3];
        let mut queries = 0;
        for seed in 0..cases {
            let case = Case::of(class, seed);
            let truth = answers::<Naive>(&case);
            queries += truth.len();
            let mut count = |i: usize, answers: Vec<Vec<u32>>| {
                let differ = answers.iter().zip(&truth).filter(|(a, b)| a != b).count();
                if differ > 0 && names[i] == OURS {
                    let label = class.label();
                    failures.push(format!("{label}: {differ} wrong answers with seed {seed}"));
                }
                wrong[i] += differ;
            };
            if !class.needs_tiers() {
                count(0, answers::<KvIndex>(&case));
                count(1, answers::<Crtc>(&case));
            }
            count(2, answers::<Ours>(&case));
        }
        print!("{:44}{queries:>12}", class.label());
        for (i, name) in names.iter().enumerate() {
            if class.needs_tiers() && *name != OURS {
                print!("{:>12}", "-");
            } else {
                print!("{:>12.1}", 100.0 * wrong[i] as f64 / queries as f64);
            }
        }
        println!();
    }
}

/// All answers of an index to a case: the depths of every query at every checkpoint.
fn answers<I: Index>(case: &Case) -> Vec<Vec<u32>> {
    let log = I::log(&case.log);
    let queries = I::queries(&case.queries);
    let (shared, mut writer) = I::create(case.pods);
    let mut answers = Vec::with_capacity((CHECKPOINTS + 1) * case.query_count);
    let mut query_all = |shared: &I::Shared| {
        let mut reader = I::reader(shared);
        for query in 0..case.query_count {
            reader.lookup(&queries, query);
            let mut depths = vec![0; case.pods];
            reader.depths(&mut depths);
            answers.push(depths);
        }
    };
    let events = case.log.events.len();
    for checkpoint in 0..CHECKPOINTS {
        let part = events * checkpoint / CHECKPOINTS..events * (checkpoint + 1) / CHECKPOINTS;
        I::apply(&shared, &mut writer, &log, part);
        query_all(&shared);
    }
    for pod in &case.leaving {
        I::remove_pod(&shared, &mut writer, *pod);
    }
    if !case.leaving.is_empty() {
        query_all(&shared);
        while I::sweep(&shared, &mut writer) {}
        query_all(&shared);
    }
    answers
}
