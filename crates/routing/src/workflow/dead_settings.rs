//! What a step says in vain: it would be ignored, or contradict what is said elsewhere.

use wornpath_yaml::{Problem, ProblemKind, SettingEntry};

use super::{Bind, StepDraft};

/// How many steps stand around one.
#[derive(Clone, Copy)]
pub(super) struct SettingScope {
    pub(super) before: usize,
    pub(super) after: usize,
}

/// Refuses what has a meaning only with a step before or after this one.
pub(super) fn says_nothing(
    step: &SettingEntry<'_>,
    around: SettingScope,
    problems: &mut Vec<Problem>,
) {
    for (key, value) in step.settings {
        let missing = match (key.text().unwrap_or_default(), value.text()) {
            ("takes", _) | ("start", Some("together")) if around.before == 0 => "before",
            ("min_uncached_tokens" | "lease", _) | ("then", Some("skip")) if around.after == 0 => {
                "after"
            }
            _ => continue,
        };
        let name = key.text().unwrap_or_default();
        let message =
            format!("`{name}` of `{}` says nothing: no step comes {missing} it", step.name);
        problems.push(
            Problem::new(ProblemKind::BadParameter, key.span, message)
                .cure(format!("remove it, or put a step {missing} `{}`", step.name)),
        );
    }
}

/// Whether a step is worth it depends on what the next one's pod has to compute, so that pod must be known.
pub(super) fn before_late(steps: &[StepDraft], problems: &mut Vec<Problem>) {
    for pair in steps.windows(2) {
        let [step, next] = pair else { continue };
        let least = step.rules.min_uncached_tokens.filter(|least| *least > 0);
        if let (Some(least), Bind::Late) = (least, next.rules.bind) {
            let (name, next) = (&step.name, &next.name);
            let message = format!(
                "`min_uncached_tokens` of `{name}`, which is {least}, says nothing: `{next}` has no pod before it \
                 starts, so what that has to compute is not known"
            );
            problems.push(Problem::new(ProblemKind::BadParameter, step.span, message).cure(
                format!("write `min_uncached_tokens: 0`, or remove `bind: late` of `{next}`"),
            ));
        }
    }
}

/// `transfer` says these for both steps; what a step says of them would be ignored or contradict it.
pub(super) fn said_by_transfer(step: &SettingEntry<'_>, problems: &mut Vec<Problem>) {
    for (key, _) in step.settings {
        let name = key.text().unwrap_or_default();
        if ["prefill_only", "offers", "takes", "start"].contains(&name) {
            let message = format!("`{name}` of `{}` is said by `transfer`", step.name);
            problems.push(
                Problem::new(ProblemKind::BadParameter, key.span, message)
                    .cure("remove it, or write the two steps out under `steps`"),
            );
        }
    }
}
