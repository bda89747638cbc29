//! Refuses settings of a step that have no effect or contradict another setting.

use wornpath_yaml::{Problem, ProblemKind, SettingEntry};

use super::{Bind, StepDraft};

/// The number of steps before and after a step.
#[derive(Clone, Copy)]
pub(super) struct SettingScope {
    pub(super) before: usize,
    pub(super) after: usize,
}

/// Refuses settings that need a step before or after this one.
pub(super) fn check_neighbours(
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
            format!("`{name}` of `{}` has no effect: no step comes {missing} it", step.name);
        problems.push(
            Problem::new(ProblemKind::BadParameter, key.span, message)
                .cure(format!("remove it, or put a step {missing} `{}`", step.name)),
        );
    }
}

/// Refuses `min_uncached_tokens` before a late-bound step: the condition needs the next step's pod.
pub(super) fn check_late_binding(steps: &[StepDraft], problems: &mut Vec<Problem>) {
    for pair in steps.windows(2) {
        let [step, next] = pair else { continue };
        let least = step.rules.min_uncached_tokens.filter(|least| *least > 0);
        if let (Some(least), Bind::Late) = (least, next.rules.bind) {
            let name = &step.name;
            let next = &next.name;
            let message = format!(
                "`min_uncached_tokens` of `{name}` ({least}) has no effect: `{next}` is bound late, so its \
                 uncached tokens are unknown when the plan is made"
            );
            problems.push(Problem::new(ProblemKind::BadParameter, step.span, message).cure(
                format!("write `min_uncached_tokens: 0`, or remove `bind: late` of `{next}`"),
            ));
        }
    }
}

/// Refuses settings of `prefill_decode`'s steps that `transfer` determines.
pub(super) fn check_transfer(step: &SettingEntry<'_>, problems: &mut Vec<Problem>) {
    for (key, _) in step.settings {
        let name = key.text().unwrap_or_default();
        if ["prefill_only", "offers", "takes", "start"].contains(&name) {
            let message = format!("`{name}` of `{}` is determined by `transfer`", step.name);
            problems.push(
                Problem::new(ProblemKind::BadParameter, key.span, message)
                    .cure("remove it, or write the two steps out under `steps`"),
            );
        }
    }
}
