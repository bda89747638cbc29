//! The steps of the workflow, each with the selector that finds its pod.

use wornpath_yaml::writer::word;
use wornpath_yaml::{Node, Problem, ProblemKind, Yaml, nearest, unknown_keys};

use super::render::{PluginView, ProfileView, StepView};
use super::stages::{filters, list, scorers};
use crate::assembly::{Blueprint, BuiltPlugin, LATE, make};
use crate::plugin::Stage;
use crate::selector::{Picking, Selector};
use crate::slot::Slot;
use crate::values::Picked;
use crate::workflow::{Bind, SelectorPlace, StepDraft, WorkflowStep};

const SELECTOR_KEYS: [&str; 3] = ["filter", "score", "pick"];

/// Makes every step of the workflow. Preparers come first, each step's plugins next, and its pick can
/// be read after them.
pub(super) fn steps(
    root: &Node,
    drafts: Vec<StepDraft>,
    blueprint: &mut Blueprint,
    sheet: &mut ProfileView,
) -> Vec<WorkflowStep> {
    let selectors = root.get("selectors");
    let first_turn = match root.get("prepare").map(|node| &node.value) {
        Some(Yaml::List(items)) => items.len(),
        _ => 1,
    };
    let mut steps = Vec::new();
    let mut used = Vec::new();
    for (at, draft) in drafts.into_iter().enumerate() {
        let turn = match draft.rules.bind {
            Bind::Early => first_turn + 2 * at,
            Bind::Late => LATE + 2 * at,
        };
        let user = format!("step `{}`", draft.name);
        let unplayable = blueprint.unplayable(&user, &draft.rules.role, draft.role_span);
        blueprint.problems.extend(unplayable);
        let picked = blueprint.writes_pick(draft.name.as_str(), turn + 1, draft.span);
        used.push(draft.selector.clone());
        let node = match find_selector(root, selectors, &draft, blueprint) {
            Ok(node) => node,
            Err(meant) => {
                used.extend(meant.map(|name| SelectorPlace::Named(name.to_owned())));
                continue;
            }
        };
        let mut plugins = Vec::new();
        let Some(selector) = selector(node, &draft, turn, blueprint, &mut plugins) else {
            continue;
        };
        let StepDraft { name, selector: place, rules, .. } = draft;
        sheet.graph.steps.push(StepView {
            name: name.clone(),
            role: rules.role.clone(),
            plugins,
            selector: place,
            rules: rules.written(),
        });
        steps.push(WorkflowStep { name, selector, rules, picked });
    }
    // A workflow that could not be read names no selectors.
    if !used.is_empty() {
        unused(root, selectors, &used, blueprint);
    }
    steps
}

/// The selector of a step; if there is none, the name of the one that was probably meant.
fn find_selector<'a>(
    root: &'a Node,
    selectors: Option<&'a Node>,
    draft: &StepDraft,
    blueprint: &mut Blueprint,
) -> Result<&'a Node, Option<&'a str>> {
    let SelectorPlace::Named(name) = &draft.selector else { return Ok(root) };
    if let Some(node) = selectors.and_then(|selectors| selectors.get(name)) {
        return Ok(node);
    }
    let message =
        format!("step `{}` needs the selector `{name}`, which does not exist", draft.name);
    let meant = meant(selectors, name);
    let cure = match meant {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add `{}: {{pick: max_score}}` to `selectors`", word(name)),
    };
    blueprint
        .problems
        .push(Problem::new(ProblemKind::NoSelector, draft.selector_span, message).cure(cure));
    Err(meant)
}

fn meant<'a>(selectors: Option<&'a Node>, name: &str) -> Option<&'a str> {
    let Some(Yaml::Map(entries)) = selectors.map(|node| &node.value) else { return None };
    nearest(name, entries.iter().filter_map(|(key, _)| key.text()))
}

/// What no step uses would be silently ignored.
fn unused(
    root: &Node,
    selectors: Option<&Node>,
    used: &[SelectorPlace],
    blueprint: &mut Blueprint,
) {
    if let Some(Node { value: Yaml::Map(entries), .. }) = selectors {
        for (key, _) in entries {
            let name = key.text().unwrap_or_default();
            if !used.contains(&SelectorPlace::Named(name.to_owned())) {
                let message = format!("no step uses the selector `{name}`");
                blueprint.problems.push(
                    Problem::new(ProblemKind::NoSelector, key.span, message)
                        .cure("name it in a step of `workflow`, or remove it"),
                );
            }
        }
    }
    if let Yaml::Map(entries) = &root.value
        && !used.contains(&SelectorPlace::Top)
    {
        for (key, _) in entries
            .iter()
            .filter(|(key, _)| key.text().is_some_and(|key| SELECTOR_KEYS.contains(&key)))
        {
            let name = key.text().unwrap_or_default();
            let message = format!("`{name}` at the top level is used by no step of the workflow");
            blueprint.problems.push(
                Problem::new(ProblemKind::NoSelector, key.span, message)
                    .cure("move it into one of `selectors`"),
            );
        }
    }
}

fn selector(
    node: &Node,
    draft: &StepDraft,
    turn: usize,
    blueprint: &mut Blueprint,
    cards: &mut Vec<PluginView>,
) -> Option<Selector> {
    if let SelectorPlace::Named(name) = &draft.selector {
        match &node.value {
            Yaml::Map(entries) => {
                unknown_keys(entries, &SELECTOR_KEYS, "a selector", &mut blueprint.problems);
            }
            _ => {
                let message = format!("selector `{name}` is {}, not a map", node.kind());
                blueprint.problems.push(
                    Problem::new(ProblemKind::Syntax, node.span, message)
                        .cure("give it `filter`, `score` and `pick`"),
                );
                return None;
            }
        }
    }
    let filters = filters(node.get("filter"), turn, blueprint, cards);
    let scorers = scorers(node.get("score"), turn, blueprint, cards);
    let pickers: Vec<_> = list(node.get("pick"), Stage::Pick, blueprint).collect();
    let node = match &pickers[..] {
        [picker] => *picker,
        [] => {
            let message = format!("step `{}` has no `pick`", draft.name);
            let cure = "add `pick: max_score`, or another picker";
            blueprint
                .problems
                .push(Problem::new(ProblemKind::NoSelector, draft.span, message).cure(cure));
            return None;
        }
        [_, second, ..] => {
            let message = format!("step `{}` has {} pickers", draft.name, pickers.len());
            let cure = "keep one; some pickers take another one as `otherwise`";
            blueprint
                .problems
                .push(Problem::new(ProblemKind::Conflict, second.span, message).cure(cure));
            return None;
        }
    };
    let mut made = make(blueprint, node, Stage::Pick, turn).ok()?;
    let BuiltPlugin::Pick(picker) = made.plugin else { return None };
    made.card.writes.push(format!("{}({})", Picked::NAME, draft.name));
    let picker = Picking { name: made.card.plugin, picker };
    cards.push(made.card);
    Some(Selector { filters, scorers, picker })
}
