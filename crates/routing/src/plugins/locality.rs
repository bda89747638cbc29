//! `locality`: the nearer to the pod of an earlier step, the better.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::{Candidate, Topology};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Scale, Score};
use crate::values::Picked;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "locality",
    summary: "How near a pod is to the one that an earlier step was given: 1 on the same host, less in the same \
              rack, zone and region, 0 elsewhere.",
    parameters: &[
        Parameter::required("step", Takes::Text, "The earlier step."),
        Parameter::with_default(
            "near",
            Takes::Numbers,
            "{host: 1, rack: 0.75, zone: 0.5, region: 0.25}",
            "What sharing a `host`, `rack`, `zone` or `region` is worth, from 0 to 1.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "locality: {step: prefill, weight: 2}",
    make: Make::Score(make),
};

const PLACES: [&str; 4] = ["host", "rack", "zone", "region"];

struct Locality {
    picked: Reads<Picked>,
    near: [f64; 4],
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let mut near = [0.0; 4];
    for (place, worth) in assembly.get::<Vec<(String, f64)>>("near") {
        let Some(at) = PLACES.iter().position(|known| *known == place) else {
            let message = format!("there is no place `{place}`");
            return Err(assembly.refuse("near", &message, "use host, rack, zone or region"));
        };
        if worth > 1.0 {
            let message = format!("`{place}` is worth {worth}");
            return Err(assembly.refuse("near", &message, "give a number from 0 to 1"));
        }
        near[at] = worth;
    }
    let step: String = assembly.get("step");
    Ok(Box::new(Locality { picked: assembly.picked(&step), near }))
}

fn places(topology: &Topology) -> [Option<&Name>; 4] {
    let Topology { host, rack, zone, region } = topology;
    [host.as_ref(), rack.as_ref(), zone.as_ref(), region.as_ref()]
}

impl Score for Locality {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let picked = scene.read(&self.picked).and_then(|picked| picked.0);
        let Some(other) = picked.and_then(|pod| scene.fleet().find(pod)) else { return };
        let there = places(&scene.pod(other).facts().topology);
        for (candidate, score) in candidates.iter().zip(scores) {
            let here = places(&scene.pod(*candidate).facts().topology);
            let shared =
                |at: &usize| *candidate == other || here[*at].is_some() && here[*at] == there[*at];
            *score = (0..4).find(shared).map_or(0.0, |at| self.near[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Topology};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn rehearsal() -> Harness {
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
            PodFacts::serving("nowhere", "m"),
        ])
    }

    #[test]
    fn the_nearest_shared_place_counts() {
        let mut rehearsal = rehearsal();
        let yaml = "locality: {step: prefill}";
        assert_eq!(rehearsal.play(&[], Stage::Score, yaml).scores(), [0.0; 7], "nobody was picked");
        rehearsal.picks = vec![("prefill", rehearsal.fleet.pods()[0].id())];
        let scores = rehearsal.play(&[], Stage::Score, yaml).scores();
        assert_eq!(scores, [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
    }

    #[test]
    fn a_pod_of_unknown_place_is_near_to_itself_only() {
        let mut rehearsal = rehearsal();
        rehearsal.picks = vec![("prefill", rehearsal.fleet.pods()[6].id())];
        let scores = rehearsal.play(&[], Stage::Score, "locality: {step: prefill}").scores();
        assert_eq!(scores, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn places_that_do_not_exist_are_refused() {
        assert_eq!(
            Harness::complaint(Stage::Score, "locality: {step: prefill, near: {room: 1}}"),
            "`near` of `locality`: there is no place `room`"
        );
    }
}
