//! `role`: of the pods that can play the step's role, keeps those that can play another one too.

use wornpath_yaml::{Parameter, Takes};

use crate::fleet::Candidate;
use crate::name::Role;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "role",
    summary: "Of the step's pods, which all can play its role, keeps those that can also play one of these. It \
              only narrows: to let other pods in, change the step's `role`. Rejects the request if there is none.",
    parameters: &[Parameter::required(
        "any_of",
        Takes::Texts,
        "Roles of which a pod must have one, besides the step's own.",
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
        let cure = "name a role; every candidate can play the step's own";
        return Err(assembly.refuse("any_of", "no role is named", cure));
    }
    let mut roles = Vec::new();
    for name in &any_of {
        roles.push(assembly.role("any_of", name)?);
    }
    Ok(Box::new(HasRole { any_of: roles }))
}

impl Filter for HasRole {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        for (candidate, keep) in candidates.iter().zip(keep) {
            let roles = &scene.pod(*candidate).facts().roles;
            *keep = roles.iter().any(|role| self.any_of.contains(role));
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let names = |roles: &[Role]| roles.iter().map(Role::as_str).collect::<Vec<_>>().join(", ");
        let has = names(&scene.pod(candidate).facts().roles);
        format!("plays {has}, not {}", names(&self.any_of))
    }

    fn rejection(&self, _scene: &Decision<'_>) -> Rejection {
        Rejection::unavailable("no pod can play the role")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::name::Role;
    use crate::plugins::harness::Harness;
    use crate::stage::Stage;

    fn rehearsal() -> Harness {
        let facts = |roles: &[&str]| PodFacts {
            roles: roles.iter().map(|role| Role::named(role)).collect(),
            ..PodFacts::serving(&roles.join("-"), "m")
        };
        Harness::with(vec![facts(&["serve"]), facts(&["prefill"]), facts(&["prefill", "decode"])])
    }

    #[test]
    fn pods_that_have_one_of_the_roles_are_kept() {
        let rehearsal = rehearsal();
        let decode = rehearsal.play(&[], Stage::Filter, "role: {any_of: [decode]}");
        assert_eq!(decode.kept(), [2]);
        assert_eq!(decode.why(1), "plays prefill, not decode");
        let either = rehearsal.play(&[], Stage::Filter, "role: {any_of: [serve, prefill]}");
        assert_eq!(either.kept(), [0, 1, 2]);
    }

    #[test]
    fn no_role_at_all_is_refused() {
        let nothing = Harness::complaint(Stage::Filter, "role: {any_of: []}");
        assert_eq!(nothing, "`any_of` of `role`: no role is named");
    }
}
