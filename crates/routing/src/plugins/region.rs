//! `region`: the nearer a pod's region to the client's, the better.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Scale, Score};
use crate::values::Attributes;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "region",
    summary: "1 for pods in the client's region, what `near` says for neighbouring regions, 0 elsewhere.",
    parameters: &[
        Parameter::with_default(
            "attribute",
            Takes::Text,
            "region",
            "The attribute that holds the client's region; `attributes` names it.",
        ),
        Parameter::optional(
            "near",
            Takes::Numbers,
            "What pairs of regions are worth, from 0 to 1: `{eu-west/eu-central: 0.8}`. Either may be the \
             client's.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "region: {near: {eu-west/eu-central: 0.8}}",
    make: Make::Score(make),
};

struct Region {
    attributes: Reads<Attributes>,
    attribute: Name,
    near: Vec<(Name, Name, f64)>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let mut near = Vec::new();
    for (pair, worth) in assembly.maybe::<Vec<(String, f64)>>("near").unwrap_or_default() {
        let Some((one, other)) = pair.split_once('/') else {
            let message = format!("`{pair}` is not a pair of regions");
            return Err(assembly.refuse("near", &message, "write `one/other: 0.8`"));
        };
        if worth > 1.0 {
            let message = format!("`{pair}` is worth {worth}");
            return Err(assembly.refuse("near", &message, "give a number from 0 to 1"));
        }
        near.push((one.trim().into(), other.trim().into(), worth));
    }
    let attribute: String = assembly.get("attribute");
    Ok(Box::new(Region { attributes: assembly.reads(), attribute: attribute.into(), near }))
}

impl Region {
    #[inline]
    fn worth(&self, client: &Name, pod: &Name) -> f64 {
        if client == pod {
            return 1.0;
        }
        let pair = self.near.iter().find(|(one, other, _)| {
            (one == client && other == pod) || (one == pod && other == client)
        });
        pair.map_or(0.0, |(_, _, worth)| *worth)
    }
}

impl Score for Region {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, scene: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let attributes = scene.read(&self.attributes);
        let Some(client) = attributes.and_then(|all| all.get(&self.attribute)) else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            let region = scene.pod(*candidate).facts().topology.region.as_ref();
            *score = region.map_or(0.0, |region| self.worth(client, region));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Topology};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_clients_own_region_comes_before_its_neighbours() {
        let pod = |region: &str| PodFacts {
            topology: Topology { region: Some(region.into()), ..Topology::default() },
            ..PodFacts::serving(region, "m")
        };
        let pods =
            vec![pod("eu-west"), pod("eu-central"), pod("us-east"), PodFacts::serving("?", "m")];
        let mut rehearsal = Harness::with(pods);
        let prepare = ["attributes: {headers: [region=x-region]}"];
        let yaml = "region: {near: {eu-west/eu-central: 0.8}}";
        assert_eq!(rehearsal.play(&prepare, Stage::Score, yaml).scores(), [0.0; 4]);
        rehearsal.request.headers = vec![("x-region".into(), "eu-central".into())];
        let scores = rehearsal.play(&prepare, Stage::Score, yaml).scores();
        assert_eq!(scores, [0.8, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        assert_eq!(
            Harness::complaint(Stage::Score, "region: {near: {eu: 1}}"),
            "`near` of `region`: `eu` is not a pair of regions"
        );
    }
}
