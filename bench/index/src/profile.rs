//! One phase of one index over and over, for a profiler to look at.

use crate::contest::Input;
use crate::rounds::contestants;
use crate::workload::Workload;

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Query,
    Store,
    Churn,
}

/// Runs a phase `rounds` times and prints its CPU nanoseconds per query or block.
pub(crate) fn run(workload: &Workload, only: Option<&str>, phase: Phase, rounds: usize) {
    for mut life in contestants(workload, only) {
        for _ in 0..rounds {
            life.create();
            let mut nanos = 0.0;
            match phase {
                Phase::Store => profiled_phase(&mut || nanos = life.store()),
                Phase::Churn => {
                    life.store();
                    profiled_phase(&mut || nanos = life.churn());
                }
                Phase::Query => {
                    life.store();
                    profiled_phase(&mut || nanos = life.query(Input::Cumulative, 1));
                }
            }
            println!("{} {} {phase:?}: {nanos:.1} ns", workload.size.name, life.name());
            life.end();
        }
    }
}

/// Everything worth profiling happens under this name: `--toggle-collect='*profiled_phase*'`.
#[inline(never)]
fn profiled_phase(work: &mut dyn FnMut()) {
    work();
    // Keeps the call above from becoming a jump, which a profiler would not see return.
    std::hint::black_box(());
}
