//! The exactness suite: wrong answers per class of mistreatment, against the naive scan.
//!
//! What the peers answer wrongly is information. Ours must not answer anything wrongly.

use crate::adapters::{Crtc, Index, KvIndex, Naive, Ours, Reader};
use crate::adversary::{Case, Class};
use crate::results::OURS;

/// Points of a story at which it is asked about.
const STOPS: usize = 4;

/// Plays every class to every index and prints the table; our wrong answers go to `failures`.
pub(crate) fn suite(cases: u64, failures: &mut Vec<String>) {
    let names = [KvIndex::NAME, Crtc::NAME, Ours::NAME];
    println!("\n== wrong answers against the naive scan, % of the queries of a class ==");
    print!("{:44}{:>12}", "", "queries");
    names.iter().for_each(|name| print!("{name:>12}"));
    println!();
    for class in Class::ALL {
        let cases = if class == Class::ManyPods { cases.div_ceil(20) } else { cases };
        let (mut wrong, mut asked) = ([0; 3], 0);
        for seed in 0..cases {
            let case = Case::of(class, seed);
            let truth = answers::<Naive>(&case);
            asked += truth.len();
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
        print!("{:44}{asked:>12}", class.label());
        for (i, name) in names.iter().enumerate() {
            if class.needs_tiers() && *name != OURS {
                print!("{:>12}", "-");
            } else {
                print!("{:>12.1}", 100.0 * wrong[i] as f64 / asked as f64);
            }
        }
        println!();
    }
}

/// Every answer of an index to a story: all depths, for every query at every stop.
fn answers<I: Index>(case: &Case) -> Vec<Vec<u32>> {
    let (log, queries) = (I::log(&case.log), I::queries(&case.queries));
    let (shared, mut writer) = I::create(case.pods);
    let mut answers = Vec::with_capacity((STOPS + 1) * case.asked);
    let mut ask = |shared: &I::Shared| {
        let mut reader = I::reader(shared);
        for query in 0..case.asked {
            reader.lookup(&queries, query);
            let mut depths = vec![0; case.pods];
            reader.depths(&mut depths);
            answers.push(depths);
        }
    };
    let events = case.log.events.len();
    for stop in 0..STOPS {
        let part = events * stop / STOPS..events * (stop + 1) / STOPS;
        I::apply(&shared, &mut writer, &log, part);
        ask(&shared);
    }
    for pod in &case.leaving {
        I::remove_pod(&shared, &mut writer, *pod);
    }
    if !case.leaving.is_empty() {
        ask(&shared);
        while I::sweep(&shared, &mut writer) {}
        ask(&shared);
    }
    answers
}
