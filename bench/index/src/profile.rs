//! One phase of one index over and over, for a profiler.

use crate::contest::Input;
use crate::rounds::contestants;
use crate::workload::Workload;

/// The phase that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Query,
    Store,
    Churn,
}

/// Runs a phase `rounds` times and prints its CPU nanoseconds per query or block.
pub(crate) fn run(workload: &Workload, only: Option<&str>, phase: Phase, rounds: usize) {
    for mut contestant in contestants(workload, only) {
        for _ in 0..rounds {
            contestant.create();
            let mut nanos = 0.0;
            match phase {
                Phase::Store => profiled_phase(&mut || nanos = contestant.store()),
                Phase::Churn => {
                    contestant.store();
                    profiled_phase(&mut || nanos = contestant.churn());
                }
                Phase::Query => {
                    contestant.store();
                    profiled_phase(&mut || nanos = contestant.query(Input::Cumulative, 1));
                }
            }
            println!("{} {} {phase:?}: {nanos:.1} ns", workload.size.name, contestant.name());
            contestant.end();
        }
    }
}

/// Everything worth profiling happens under this name: `--toggle-collect='*profiled_phase*'`.
#[inline(never)]
pub(crate) fn profiled_phase(work: &mut dyn FnMut()) {
    work();
    // Keeps the call above from becoming a jump, which a profiler would not see return.
    std::hint::black_box(());
}
