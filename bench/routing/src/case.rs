//! The cases: a trace on a fleet, at a load that the best policies can just sustain.

use anyhow::{Context, bail, ensure};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;
use wornpath_sim::EngineProfile;
use wornpath_sim::replay::{ReplayFleet, Trace};

/// How far a seed moves arrivals, before the speed is applied.
const JITTER: Duration = Duration::from_secs(1);

pub(crate) const BLOCK: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// One trace on one fleet.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) file: String,
    pub(crate) engine: String,
    pub(crate) pods: usize,
    pub(crate) speed: f64,
    /// Copies of every session.
    pub(crate) copies: usize,
    pub(crate) seeds: u64,
}

/// A recorded trace and how it is replayed.
struct RecordedTrace {
    file: &'static str,
    engine: &'static str,
    /// Copies of sessions per 8 pods.
    copies: usize,
    seeds: u64,
    /// For 8 and 16 pods, about 0.8 of the highest speed at which the best policy keeps p95 TTFT
    /// under 5 s. The arXiv trace is too short for that rule: three minutes of it never reach a
    /// steady state at such a load, so it runs lightly loaded.
    speeds: [f64; 2],
}

#[rustfmt::skip]
const RECORDED: [RecordedTrace; 6] = [
    RecordedTrace { file: "mooncake_conversation_h1.jsonl", engine: "8b-h200", copies: 1, seeds: 3, speeds: [4.25, 9.5] },
    RecordedTrace { file: "toolagent_like_a.jsonl", engine: "8b-h200", copies: 1, seeds: 3, speeds: [5.7, 13.5] },
    RecordedTrace { file: "mooncake_synthetic_a.jsonl", engine: "8b-h200", copies: 1, seeds: 3, speeds: [5.5, 14.5] },
    RecordedTrace { file: "mooncake_arxiv_first1000.jsonl", engine: "8b-h200", copies: 1, seeds: 3, speeds: [2.0, 4.5] },
    RecordedTrace { file: "weka_agentic_a.jsonl", engine: "8b-h200", copies: 2, seeds: 10, speeds: [0.75, 0.75] },
    RecordedTrace { file: "b2b_saas_ramp.jsonl", engine: "32b-h100x2", copies: 1, seeds: 5, speeds: [0.2, 0.4] },
];

/// Every recorded trace at 8 and at 16 pods.
pub(crate) fn recorded() -> Vec<Case> {
    let of = |at: usize| {
        RECORDED.iter().map(move |trace| Case {
            file: trace.file.to_owned(),
            engine: trace.engine.to_owned(),
            pods: 8 << at,
            speed: trace.speeds[at],
            copies: if trace.copies > 1 { trace.copies << at } else { 1 },
            seeds: trace.seeds,
        })
    };
    of(0).chain(of(1)).collect()
}

impl Case {
    /// Reads `FILE,ENGINE,PODS,SPEED[,COPIES]`.
    pub(crate) fn parse(text: &str, seeds: u64) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.split(',').collect();
        let (fields, copies) = match parts[..] {
            [file, engine, pods, speed] => ([file, engine, pods, speed], "1"),
            [file, engine, pods, speed, copies] => ([file, engine, pods, speed], copies),
            _ => bail!(
                "--case `{text}`: give FILE,ENGINE,PODS,SPEED or FILE,ENGINE,PODS,SPEED,COPIES"
            ),
        };
        let [file, engine, pods, speed] = fields;
        let case = Self {
            file: file.to_owned(),
            engine: engine.to_owned(),
            pods: pods.parse().with_context(|| format!("--case: pods `{pods}`"))?,
            speed: speed.parse().with_context(|| format!("--case: speed `{speed}`"))?,
            copies: copies.parse().with_context(|| format!("--case: copies `{copies}`"))?,
            seeds,
        };
        ensure!((1..=256).contains(&case.pods), "--case: pods is {pods}; it must be 1 to 256");
        ensure!(
            case.speed.is_finite() && case.speed > 0.0,
            "--case: speed is {speed}; it must be above zero"
        );
        ensure!(case.copies > 0, "--case: copies is 0; it must be at least 1");
        EngineProfile::built_in(engine)?;
        Ok(case)
    }

    pub(crate) fn name(&self) -> String {
        format!("{}, {} seeds", self.name_of_one(), self.seeds)
    }

    /// The name without the number of seeds.
    pub(crate) fn name_of_one(&self) -> String {
        let file = self.file.trim_end_matches(".jsonl");
        let copies = if self.copies > 1 { format!(" x{}", self.copies) } else { String::new() };
        format!("{file}{copies}, {} pods {}, speed {}", self.pods, self.engine, self.speed)
    }

    pub(crate) fn read(&self, folder: &Path) -> anyhow::Result<Trace> {
        let path = folder.join(&self.file);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("cannot read {}; pass the folder of the traces with --traces", path.display())
        })?;
        Ok(Trace::read(&self.file, &text, BLOCK)?)
    }

    /// The traffic of one seed.
    pub(crate) fn traffic(&self, trace: &Trace, seed: u64) -> Trace {
        trace.clone().cloned(self.copies, seed).jittered(JITTER, seed).faster(self.speed)
    }

    pub(crate) fn fleet(&self, seed: u64) -> anyhow::Result<ReplayFleet> {
        Ok(ReplayFleet::new(EngineProfile::built_in(&self.engine)?, self.pods, seed))
    }
}
