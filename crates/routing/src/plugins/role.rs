//! `role`: narrows a step's candidates to pods that also have another role.
//!
//! Every candidate has the step's own role already; this filter cannot add pods of other roles.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::name::Role;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "role",
    summary: "Keeps pods that have one of these roles besides the step's own. It only narrows the candidates: to admit \
              other pods, change the step's `role`. Rejects the request if no pod passes.",
    parameters: &[Parameter::required(
        "any_of",
        Takes::Texts,
        "A pod must have at least one of these roles, besides the step's own.",
    )],
    needs: &[],
    conflicts: &[],
    example: "role: {any_of: [prefill]}",
    make: Make::Filter(make),
};

struct HasRole {
    any_of: Vec<Role>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let any_of: Vec<String> = assembly.get("any_of");
    if any_of.is_empty() {
        let cure = "name a role; every candidate has the step's own";
        return Err(assembly.refuse("any_of", "the list of roles is empty", cure));
    }
    let mut roles = Vec::new();
    for name in &any_of {
        roles.push(assembly.role("any_of", name)?);
    }
    Ok(Box::new(HasRole { any_of: roles }))
}

impl Filter for HasRole {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            let roles = &decision.pod(*candidate).facts().roles;
            *keep = roles.iter().any(|role| self.any_of.contains(role));
        }
    }

    fn why(&self, decision: &Decision<'_>, candidate: Candidate) -> String {
        let has = names(&decision.pod(candidate).facts().roles);
        format!("has roles {has}; needs one of {}", names(&self.any_of))
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        let reason = format!("no pod has one of the roles {}", names(&self.any_of));
        Rejection::unavailable(&reason)
    }
}

fn names(roles: &[Role]) -> String {
    roles.iter().map(Role::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::name::Role;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn harness() -> Harness {
        let facts = |roles: &[&str]| PodFacts {
            roles: roles.iter().map(|role| Role::named(role)).collect(),
            ..PodFacts::serving(&roles.join("-"), "m")
        };
        Harness::with(vec![facts(&["serve"]), facts(&["prefill"]), facts(&["prefill", "decode"])])
    }

    #[test]
    fn pods_that_have_one_of_the_roles_are_kept() {
        let harness = harness();
        let decode = harness.run(&[], Stage::Filter, "role: {any_of: [decode]}");
        assert_eq!(decode.kept(), [2]);
        assert_eq!(decode.why(1), "has roles prefill; needs one of decode");
        let either = harness.run(&[], Stage::Filter, "role: {any_of: [serve, prefill]}");
        assert_eq!(either.kept(), [0, 1, 2]);
    }

    #[test]
    fn an_empty_list_of_roles_is_refused() {
        let error = Harness::assembly_error(Stage::Filter, "role: {any_of: []}");
        assert_eq!(error, "`any_of` of `role`: the list of roles is empty");
    }
}
