//! `locality`: prefers pods near the pod of an earlier step.
//!
//! A decode pod loads the KV cache that the prefill pod computed; the transfer is faster within a
//! host, rack or zone. The score is that of the innermost level of the topology that both pods
//! share.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, Topology};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Picked, Reads};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "locality",
    summary: "Proximity to the pod of an earlier step: 1 on the same host, less in the same rack, zone and region, 0 \
              elsewhere.",
    parameters: &[
        Parameter::required("step", Takes::Text, "The earlier step of the workflow."),
        Parameter::with_default(
            "near",
            Takes::Numbers,
            "{host: 1, rack: 0.75, zone: 0.5, region: 0.25}",
            "Scores of a shared `host`, `rack`, `zone` or `region`, from 0 to 1.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "locality: {step: prefill, weight: 2}",
    make: Make::Score(make),
};

const LEVELS: [&str; 4] = ["host", "rack", "zone", "region"];

struct Locality {
    picked: Reads<Picked>,
    near: [f64; 4],
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let mut near = [0.0; 4];
    for (level, score) in assembly.get::<Vec<(String, f64)>>("near") {
        let Some(at) = LEVELS.iter().position(|known| *known == level) else {
            let message = format!("unknown topology level `{level}`");
            return Err(assembly.refuse("near", &message, "use host, rack, zone or region"));
        };
        if score > 1.0 {
            let message = format!("the score of `{level}` is {score}, above 1");
            return Err(assembly.refuse("near", &message, "give a number from 0 to 1"));
        }
        near[at] = score;
    }
    let step: String = assembly.get("step");
    Ok(Box::new(Locality { picked: assembly.picked(&step), near }))
}

fn levels(topology: &Topology) -> [Option<&Name>; 4] {
    let Topology { host, rack, zone, region } = topology;
    [host.as_ref(), rack.as_ref(), zone.as_ref(), region.as_ref()]
}

impl Score for Locality {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let picked = decision.read(&self.picked).and_then(|picked| picked.0);
        let Some(other) = picked.and_then(|pod| decision.fleet().find(pod)) else { return };
        let theirs = levels(&decision.pod(other).facts().topology);
        for (candidate, score) in candidates.iter().zip(scores) {
            let own = levels(&decision.pod(*candidate).facts().topology);
            let shared =
                |at: &usize| *candidate == other || own[*at].is_some() && own[*at] == theirs[*at];
            *score = (0..4).find(shared).map_or(0.0, |at| self.near[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Topology};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn harness() -> Harness {
        let pod = |name: &str, [host, rack, zone, region]: [&str; 4]| PodFacts {
            topology: Topology {
                host: Some(host.into()),
                rack: Some(rack.into()),
                zone: Some(zone.into()),
                region: Some(region.into()),
            },
            ..PodFacts::serving(name, "m")
        };
        Harness::with(vec![
            pod("prefill", ["h1", "r1", "z1", "eu"]),
            pod("a", ["h1", "r1", "z1", "eu"]),
            pod("b", ["h2", "r1", "z1", "eu"]),
            pod("c", ["h3", "r2", "z1", "eu"]),
            pod("d", ["h4", "r3", "z2", "eu"]),
            pod("e", ["h5", "r4", "z3", "us"]),
            PodFacts::serving("unknown", "m"),
        ])
    }

    #[test]
    fn the_innermost_shared_level_counts() {
        let mut harness = harness();
        let yaml = "locality: {step: prefill}";
        assert_eq!(harness.run(&[], Stage::Score, yaml).scores(), [0.0; 7], "no pod was picked");
        harness.picks = vec![("prefill", harness.fleet.pods()[0].id())];
        let scores = harness.run(&[], Stage::Score, yaml).scores();
        assert_eq!(scores, [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn a_pod_without_topology_is_near_only_to_itself() {
        let mut harness = harness();
        harness.picks = vec![("prefill", harness.fleet.pods()[6].id())];
        let scores = harness.run(&[], Stage::Score, "locality: {step: prefill}").scores();
        assert_eq!(scores, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn unknown_topology_levels_are_refused() {
        assert_eq!(
            Harness::assembly_error(Stage::Score, "locality: {step: prefill, near: {room: 1}}"),
            "`near` of `locality`: unknown topology level `room`"
        );
    }
}
