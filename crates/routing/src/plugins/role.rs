//! `role`: keeps pods that can play a role.

use crate::assembly::{Assembly, Refused};
use crate::fleet::Candidate;
use crate::name::Role;
use crate::parameter::{Parameter, Takes};
use crate::plugin::{Make, Plugin};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "role",
    summary: "Keeps pods that can play the step's role, or one of those named. Rejects the request if \
              there is none.",
    parameters: &[Parameter::with_default(
        "any_of",
        Takes::Texts,
        "[]",
        "Roles of which a pod must have one; the step's own role if none is named.",
    )],
    needs: &[],
    conflicts: &[],
    example: "role: {any_of: [prefill, serve]}",
    make: Make::Filter(make),
};

struct HasRole {
    any_of: Vec<Role>,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, Refused> {
    let any_of: Vec<String> = assembly.get("any_of");
    Ok(Box::new(HasRole { any_of: any_of.iter().map(|name| Role::named(name)).collect() }))
}

impl HasRole {
    fn wanted<'a>(&'a self, scene: &Decision<'a>) -> &'a [Role] {
        if self.any_of.is_empty() { std::slice::from_ref(scene.role()) } else { &self.any_of }
    }
}

impl Filter for HasRole {
    fn keep(&self, scene: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        let wanted = self.wanted(scene);
        for (candidate, keep) in candidates.iter().zip(keep) {
            let roles = &scene.pod(*candidate).facts().roles;
            *keep = roles.iter().any(|role| wanted.contains(role));
        }
    }

    fn why(&self, scene: &Decision<'_>, candidate: Candidate) -> String {
        let names = |roles: &[Role]| roles.iter().map(Role::as_str).collect::<Vec<_>>().join(", ");
        let has = names(&scene.pod(candidate).facts().roles);
        format!("plays {has}, not {}", names(self.wanted(scene)))
    }

    fn rejection(&self) -> Rejection {
        Rejection::unavailable("no pod can play the role")
    }
}

#[cfg(test)]
mod tests {
    use crate::fleet::PodFacts;
    use crate::name::Role;
    use crate::plugin::Stage;
    use crate::plugins::rehearsal::Rehearsal;

    fn rehearsal() -> Rehearsal {
        let facts = |roles: &[&str]| PodFacts {
            roles: roles.iter().map(|role| Role::named(role)).collect(),
            ..PodFacts::serving(&roles.join("-"), "m")
        };
        Rehearsal::with(vec![facts(&["serve"]), facts(&["prefill"]), facts(&["prefill", "decode"])])
    }

    #[test]
    fn the_steps_own_role_counts_unless_others_are_named() {
        let rehearsal = rehearsal();
        let decode = rehearsal.play(&[], Stage::Filter, "role").in_role("decode");
        assert_eq!(decode.kept(), [2]);
        assert_eq!(decode.why(1), "plays prefill, not decode");
        let named = rehearsal.play(&[], Stage::Filter, "role: {any_of: [serve, prefill]}");
        assert_eq!(named.kept(), [0, 1, 2]);
    }
}
