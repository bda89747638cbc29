//! `region`: prefers pods in or near the client's region.
//!
//! The client's region is an attribute of the request, a pod's region part of its topology.
//! Distances between regions are not known to the router; `near` scores pairs of regions.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Attributes, Reads};
use crate::stage::{Decision, Scale, Score};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "region",
    summary: "1 for pods in the client's region, the score in `near` for neighbouring regions, 0 elsewhere.",
    parameters: &[
        Parameter::with_default(
            "attribute",
            Takes::Text,
            "region",
            "The attribute with the client's region, set by `attributes`.",
        ),
        Parameter::optional(
            "near",
            Takes::Numbers,
            "Scores of pairs of regions, from 0 to 1: `{eu-west/eu-central: 0.8}`. Either region may be the \
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
    near: Vec<RegionPair>,
}

/// The score of two neighbouring regions, in either direction.
struct RegionPair {
    regions: [Name; 2],
    score: f64,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused> {
    let mut near = Vec::new();
    for (pair, score) in assembly.maybe::<Vec<(String, f64)>>("near").unwrap_or_default() {
        let Some((one, other)) = pair.split_once('/') else {
            let message = format!("`{pair}` is not a pair of regions");
            return Err(assembly.refuse("near", &message, "write `one/other: 0.8`"));
        };
        if score > 1.0 {
            let message = format!("the score of `{pair}` is {score}, above 1");
            return Err(assembly.refuse("near", &message, "give a number from 0 to 1"));
        }
        near.push(RegionPair { regions: [one.trim().into(), other.trim().into()], score });
    }
    let attribute: String = assembly.get("attribute");
    Ok(Box::new(Region { attributes: assembly.reads(), attribute: attribute.into(), near }))
}

impl Region {
    #[inline]
    fn score_of(&self, client: &Name, pod: &Name) -> f64 {
        if client == pod {
            return 1.0;
        }
        let pair = self.near.iter().find(|pair| {
            let [one, other] = &pair.regions;
            (one == client && other == pod) || (one == pod && other == client)
        });
        pair.map_or(0.0, |pair| pair.score)
    }
}

impl Score for Region {
    fn scale(&self) -> Scale {
        Scale::Unit
    }

    fn score(&self, decision: &Decision<'_>, candidates: &[Candidate], scores: &mut [f64]) {
        let attributes = decision.read(&self.attributes);
        let Some(client) = attributes.and_then(|all| all.get(&self.attribute)) else { return };
        for (candidate, score) in candidates.iter().zip(scores) {
            let region = decision.pod(*candidate).facts().topology.region.as_ref();
            *score = region.map_or(0.0, |region| self.score_of(client, region));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::{PodFacts, Topology};
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    #[test]
    fn the_clients_own_region_scores_above_its_neighbours() {
        let pod = |region: &str| PodFacts {
            topology: Topology { region: Some(region.into()), ..Topology::default() },
            ..PodFacts::serving(region, "m")
        };
        let pods =
            vec![pod("eu-west"), pod("eu-central"), pod("us-east"), PodFacts::serving("?", "m")];
        let mut harness = Harness::with(pods);
        let prepare = ["attributes: {headers: [region=x-region]}"];
        let yaml = "region: {near: {eu-west/eu-central: 0.8}}";
        assert_eq!(harness.run(&prepare, Stage::Score, yaml).scores(), [0.0; 4]);
        harness.request.headers = vec![("x-region".into(), "eu-central".into())];
        let scores = harness.run(&prepare, Stage::Score, yaml).scores();
        assert_eq!(scores, [0.8, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_key_of_near_that_is_not_a_pair_is_refused() {
        assert_eq!(
            Harness::assembly_error(Stage::Score, "region: {near: {eu: 1}}"),
            "`near` of `region`: `eu` is not a pair of regions"
        );
    }
}
