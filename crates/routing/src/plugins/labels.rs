//! `labels`: keeps pods whose labels match a selector, or agree with the request's attributes.

use wornpath_yaml::{Parameter, Takes};

use super::label_selector::LabelSelector;
use crate::fleet::{Candidate, PodFacts};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::Reads;
use crate::stage::{Decision, Filter, Rejection};
use crate::values::Attributes;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "labels",
    summary: "Keeps pods whose labels match a selector as in Kubernetes, and equal the request's attributes \
              where `same` says so. Rejects the request if there is none.",
    parameters: &[
        Parameter::optional(
            "match",
            Takes::Text,
            "A selector: `zone in (a, b), gpu = h100, !spot`. All its parts must hold.",
        ),
        Parameter::with_default(
            "same",
            Takes::Texts,
            "[]",
            "Labels that must equal an attribute, as `label=attribute`, or `label` alone if both are called \
             so. A request without the attribute is not bound.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "labels: {match: \"gpu = h100, !spot\"}",
    make: Make::Filter(make),
};

struct Labels {
    selector: Option<LabelSelector>,
    same: Vec<(Name, Name)>,
    attributes: Option<Reads<Attributes>>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let selector = match assembly.maybe::<String>("match") {
        None => None,
        Some(text) => match LabelSelector::parse(&text) {
            Ok(selector) => Some(selector),
            Err(error) => {
                let cure = "write `label = value`, `label in (a, b)`, `label` or `!label`";
                return Err(assembly.refuse("match", &error.to_string(), cure));
            }
        },
    };
    let same: Vec<String> = assembly.get("same");
    if selector.is_none() && same.is_empty() {
        let cure = "give `match`, for instance \"gpu = h100\", or `same`";
        return Err(assembly.refuse("match", "nothing says which labels", cure));
    }
    let pair = |item: &String| {
        let (label, attribute) = item.split_once('=').unwrap_or((item, item));
        (Name::from(label.trim()), Name::from(attribute.trim()))
    };
    let attributes = (!same.is_empty()).then(|| assembly.reads());
    Ok(Box::new(Labels { selector, same: same.iter().map(pair).collect(), attributes }))
}

impl Labels {
    /// The first label that differs from the attribute it must equal.
    #[inline]
    fn differing(
        &self,
        attributes: Option<&Attributes>,
        facts: &PodFacts,
    ) -> Option<&(Name, Name)> {
        let attributes = attributes?;
        self.same.iter().find(|(label, attribute)| {
            let wanted = attributes.get(attribute);
            wanted.is_some() && facts.label(label) != wanted
        })
    }

    fn attributes<'a>(&self, scene: &Decision<'a>) -> Option<&'a Attributes> {
        self.attributes.as_ref().and_then(|handle| scene.read(handle))
    }
}

impl Filter for Labels {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let attributes = self.attributes(scene);
        for (candidate, keep) in candidates.iter().zip(keep) {
            let facts = scene.pod(*candidate).facts();
            *keep = self.selector.as_ref().is_none_or(|selector| selector.matches(&facts.labels))
                && self.differing(attributes, facts).is_none();
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let facts = scene.pod(candidate).facts();
        let unmet = self.selector.as_ref().and_then(|selector| selector.unmet(&facts.labels));
        match (unmet, self.differing(self.attributes(scene), facts)) {
            (Some(unmet), _) => format!("not `{unmet}`"),
            (None, Some((label, attribute))) => {
                format!("label `{label}` is not the request's `{attribute}`")
            }
            (None, None) => "labels match".to_owned(),
        }
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod has the labels that the request needs")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn rehearsal() -> Harness {
        let pod = |labels: &[(&str, &str)]| PodFacts {
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..PodFacts::serving(&format!("{labels:?}"), "m")
        };
        Harness::with(vec![
            pod(&[("gpu", "h100"), ("pool", "acme")]),
            pod(&[("gpu", "a100"), ("pool", "acme")]),
            pod(&[]),
        ])
    }

    #[test]
    fn a_selector_keeps_the_pods_it_means() {
        let rehearsal = rehearsal();
        let played = rehearsal.play(&[], Stage::Filter, "labels: {match: 'gpu in (h100, h200)'}");
        assert_eq!(played.kept(), [0]);
        assert_eq!(played.why(1), "not `gpu in (h100, h200)`");
    }

    #[test]
    fn labels_follow_the_request_where_they_must_be_the_same() {
        let mut rehearsal = rehearsal();
        let yaml = "labels: {same: [pool=tenant]}";
        let free = rehearsal.play(&["attributes"], Stage::Filter, yaml);
        assert_eq!(free.kept(), [0, 1, 2]);
        rehearsal.request.tenant = Some("acme".into());
        let bound = rehearsal.play(&["attributes"], Stage::Filter, yaml);
        assert_eq!(bound.kept(), [0, 1]);
        assert_eq!(bound.why(2), "label `pool` is not the request's `tenant`");
    }

    #[test]
    fn a_selector_that_does_not_parse_is_refused_with_the_column() {
        assert_eq!(
            Harness::complaint(Stage::Filter, "labels: {match: 'gpu is h100'}"),
            "`match` of `labels`: column 5 of `gpu is h100`: \
             expected `=`, `!=`, `in`, `notin` or `,`, found `is`"
        );
        assert_eq!(
            Harness::complaint(Stage::Filter, "labels"),
            "`labels`: nothing says which labels"
        );
    }
}
