//! What steps bring for later ones, and what they need of earlier ones.
//!
//! A preprocessor rewrites a request: its response has a part that later steps put into theirs. A
//! name connects the two, so that a profile in which one end is missing does not start.

use serde_json::Value as Json;
use wornpath_yaml::{Problem, ProblemKind, SettingValues, nearest};

use super::StepDraft;
use crate::plan::{Mutation, Start};
use crate::template::{is_pointer, is_template_name, template_names};

/// The mutations of `brings` and `needs`.
pub(super) fn mutations(settings: &SettingValues) -> impl Iterator<Item = Mutation> + use<> {
    let fields = |name| settings.maybe::<Vec<(String, Json)>>(name).unwrap_or_default();
    let brings = fields("brings").into_iter().map(|(part, pointer)| {
        // Anything but text is no pointer, and is refused as such.
        let pointer = pointer.as_str().map_or_else(|| pointer.to_string(), str::to_owned);
        Mutation::Bring { part, pointer }
    });
    let needs = fields("needs").into_iter();
    brings.chain(needs.map(|(field, template)| Mutation::Fill { field, template }))
}

/// A part that a step brings.
struct Brought<'a> {
    part: &'a str,
    step: &'a StepDraft,
    is_needed: bool,
}

/// Checks that every part that a step needs is brought before, and every part that a step brings is
/// needed after it.
pub(super) fn check(steps: &[StepDraft], problems: &mut Vec<Problem>) {
    let mut brought: Vec<Brought<'_>> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let mut refuse = |message: String, cure: String| {
            let problem = Problem::new(ProblemKind::BadParameter, step.parts_span, message);
            problems.push(problem.cure(cure));
        };
        let name = &step.name;
        for mutation in &step.rules.mutations {
            let Mutation::Fill { field, template } = mutation else { continue };
            let needed = template_names(template);
            if needed.is_empty() {
                let message = format!("`needs` of `{name}`: `{field}` needs no part");
                refuse(
                    message,
                    "write `<name>` for a part, or put the field into `set`".to_owned(),
                );
            }
            for part in needed {
                if let Some(known) = brought.iter_mut().find(|known| known.part == part) {
                    known.is_needed = true;
                    continue;
                }
                let message = format!("`{name}` needs `{part}`, which no earlier step brings");
                let known = brought.iter().map(|known| known.part);
                let cure = match nearest(part, known) {
                    Some(near) => format!("did you mean `<{near}>`?"),
                    None => format!("add `brings: {{{part}: /…}}` to a step before `{name}`"),
                };
                refuse(message, cure);
            }
        }
        for mutation in &step.rules.mutations {
            let Mutation::TakeKv(transfer) = mutation else { continue };
            let word = transfer.word();
            let is_offer =
                |it: &Mutation| matches!(it, Mutation::OfferKv(offer) if offer == transfer);
            if !steps[..at].iter().any(|before| before.rules.mutations.iter().any(is_offer)) {
                let message = format!("`{name}` takes `{word}`, which no earlier step offers");
                refuse(message, format!("add `offers: {word}` to a step before `{name}`"));
            }
            if step.rules.start != transfer.start() {
                let start = if transfer.start() == Start::Together { "together" } else { "after" };
                let message = format!("`takes: {word}` of `{name}` needs `start: {start}`");
                refuse(message, format!("write `start: {start}`"));
            }
        }
        let is_waited_for = steps.get(at + 1).is_some_and(|next| next.rules.start == Start::After);
        for mutation in &step.rules.mutations {
            let Mutation::Bring { part, pointer } = mutation else { continue };
            if !is_pointer(pointer) {
                let message = format!(
                    "`brings` of `{name}`: `{part}` is at `{pointer}`, which is no JSON pointer"
                );
                refuse(
                    message,
                    "write keys and positions after slashes, such as `/choices/0/text`".to_owned(),
                );
            }
            if !is_template_name(part) {
                let message = format!("`brings` of `{name}`: `{part}` is no name");
                refuse(message, "use letters, digits, `_` and `-`".to_owned());
            }
            if let Some(other) = brought.iter().find(|other| other.part == part) {
                let message = format!("`{}` and `{name}` both bring `{part}`", other.step.name);
                refuse(message, "give each part a name of its own".to_owned());
            } else if !is_waited_for {
                let message = format!(
                    "`brings` of `{name}` has no effect: no step starts after it has ended"
                );
                refuse(message, "remove it, or let the next step `start: after`".to_owned());
            } else {
                brought.push(Brought { part, step, is_needed: false });
            }
        }
    }
    for Brought { part, step, .. } in brought.iter().filter(|part| !part.is_needed) {
        let message = format!("`{}` brings `{part}`, which no later step needs", step.name);
        problems.push(
            Problem::new(ProblemKind::BadParameter, step.parts_span, message)
                .cure(format!("remove it, or write `<{part}>` into `needs` of a later step")),
        );
    }
}
