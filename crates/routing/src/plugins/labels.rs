//! `labels`: keeps pods whose labels match a selector, or equal the request's attributes.

use wornpath_yaml::{Parameter, Takes};

use super::label_selector::LabelSelector;
use crate::fleet::{Candidate, PodFacts};
use crate::name::Name;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::slot::{Attributes, Reads};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "labels",
    summary: "Keeps pods whose labels match a Kubernetes label selector, and equal the request's attributes listed in \
              `same`. Rejects the request if no pod passes.",
    parameters: &[
        Parameter::optional(
            "match",
            Takes::Text,
            "A label selector: `zone in (a, b), gpu = h100, !spot`. All requirements must hold.",
        ),
        Parameter::with_default(
            "same",
            Takes::Texts,
            "[]",
            "Labels that must equal an attribute, as `label=attribute`, or `label` alone if both have that name. A \
             request without the attribute matches every pod.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "labels: {match: \"gpu = h100, !spot\"}",
    make: Make::Filter(make),
};

struct Labels {
    selector: Option<LabelSelector>,
    /// Pairs of a label and the attribute that it must equal.
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
        let cure = "set `match`, for example \"gpu = h100\", or `same`";
        return Err(assembly.refuse("match", "neither `match` nor `same` is set", cure));
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

    fn attributes<'a>(&self, decision: &Decision<'a>) -> Option<&'a Attributes> {
        self.attributes.as_ref().and_then(|handle| decision.read(handle))
    }
}

impl Filter for Labels {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let attributes = self.attributes(decision);
        for (candidate, keep) in candidates.iter().zip(keep) {
            let facts = decision.pod(*candidate).facts();
            *keep = self.selector.as_ref().is_none_or(|selector| selector.matches(&facts.labels))
                && self.differing(attributes, facts).is_none();
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let facts = decision.pod(candidate).facts();
        let unmet = self.selector.as_ref().and_then(|selector| selector.unmet(&facts.labels));
        match (unmet, self.differing(self.attributes(decision), facts)) {
            (Some(unmet), _) => format!("labels do not match `{unmet}`"),
            (None, Some((label, attribute))) => {
                format!("label `{label}` differs from request attribute `{attribute}`")
            }
            (None, None) => "labels match".to_owned(),
        }
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod matches the required labels")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn harness() -> Harness {
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
    fn a_selector_keeps_the_pods_that_it_matches() {
        let harness = harness();
        let run = harness.run(&[], Stage::Filter, "labels: {match: 'gpu in (h100, h200)'}");
        assert_eq!(run.kept(), [0]);
        assert_eq!(run.why(1), "labels do not match `gpu in (h100, h200)`");
    }

    #[test]
    fn labels_in_same_must_equal_the_requests_attributes() {
        let mut harness = harness();
        let yaml = "labels: {same: [pool=tenant]}";
        let free = harness.run(&["attributes"], Stage::Filter, yaml);
        assert_eq!(free.kept(), [0, 1, 2]);
        harness.request.tenant = Some("acme".into());
        let bound = harness.run(&["attributes"], Stage::Filter, yaml);
        assert_eq!(bound.kept(), [0, 1]);
        assert_eq!(bound.why(2), "label `pool` differs from request attribute `tenant`");
    }

    #[test]
    fn a_selector_that_does_not_parse_is_refused_with_the_column() {
        assert_eq!(
            Harness::assembly_error(Stage::Filter, "labels: {match: 'gpu is h100'}"),
            "`match` of `labels`: column 5 of `gpu is h100`: \
             expected `=`, `!=`, `in`, `notin` or `,`, found `is`"
        );
        assert_eq!(
            Harness::assembly_error(Stage::Filter, "labels"),
            "`labels`: neither `match` nor `same` is set"
        );
    }
}
