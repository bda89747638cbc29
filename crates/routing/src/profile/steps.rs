//! Makes the steps of the workflow, each with the selector that finds its pod.

use wornpath_yaml::writer::word;
use wornpath_yaml::{Node, Problem, ProblemKind, Yaml, nearest, unknown_keys};

use super::render::{ProfileView, StepView};
use super::stages::{filters, list, scorers};
use crate::assembly::{BuiltPlugin, PluginView, make};
use crate::plugin::{Blueprint, LATE};
use crate::selector::Selector;
use crate::slot::Slot;
use crate::stage::{ConfiguredPicker, Stage};
use crate::values::Picked;
use crate::workflow::{Bind, SelectorPlace, StepDraft, WorkflowStep};

const SELECTOR_KEYS: [&str; 3] = ["filter", "score", "pick"];

/// Makes every step of the workflow. Preparers use slots first, then each step's plugins, and its
/// pick can be read after them.
pub(super) fn steps(
    root: &Node,
    drafts: Vec<StepDraft>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> Vec<WorkflowStep> {
    let selectors = root.get("selectors");
    let first_order = match root.get("prepare").map(|node| &node.value) {
        Some(Yaml::List(items)) => items.len(),
        _ => 1,
    };
    let mut steps = Vec::new();
    let mut used = Vec::new();
    for (at, draft) in drafts.into_iter().enumerate() {
        let order = match draft.rules.bind {
            Bind::Early => first_order + 2 * at,
            Bind::Late => LATE + 2 * at,
        };
        let user = format!("step `{}`", draft.name);
        let problem = blueprint.role_without_pods(&user, &draft.rules.role, draft.role_span);
        blueprint.problems.extend(problem);
        let picked = blueprint.writes_pick(draft.name.as_str(), order + 1, draft.span);
        used.push(draft.selector.clone());
        let node = match find_selector(root, selectors, &draft, blueprint) {
            Ok(node) => node,
            Err(near) => {
                used.extend(near.map(|name| SelectorPlace::Named(name.to_owned())));
                continue;
            }
        };
        let mut plugins = Vec::new();
        let Some(selector) = selector(node, &draft, order, blueprint, &mut plugins) else {
            continue;
        };
        let StepDraft { name, selector: place, rules, .. } = draft;
        view.graph.steps.push(StepView {
            name: name.clone(),
            role: rules.role.clone(),
            plugins,
            selector: place,
            rules: rules.to_yaml(),
        });
        steps.push(WorkflowStep { name, selector, rules, picked });
    }
    // A workflow that could not be read names no selectors.
    if !used.is_empty() {
        unused(root, selectors, &used, blueprint);
    }
    steps
}

/// The selector of a step; if there is none, the nearest name of another.
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
    let near = nearest_selector(selectors, name);
    let cure = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add `{}: {{pick: max_score}}` to `selectors`", word(name)),
    };
    blueprint
        .problems
        .push(Problem::new(ProblemKind::NoSelector, draft.selector_span, message).cure(cure));
    Err(near)
}

fn nearest_selector<'a>(selectors: Option<&'a Node>, name: &str) -> Option<&'a str> {
    let Some(Yaml::Map(entries)) = selectors.map(|node| &node.value) else { return None };
    nearest(name, entries.iter().filter_map(|(key, _)| key.text()))
}

/// Reports selectors that no step uses: they would be ignored silently.
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
    order: usize,
    blueprint: &mut Blueprint,
    views: &mut Vec<PluginView>,
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
    let filters = filters(node.get("filter"), order, blueprint, views);
    let scorers = scorers(node.get("score"), order, blueprint, views);
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
    let mut made = make(blueprint, node, Stage::Pick, order).ok()?;
    let BuiltPlugin::Pick(picker) = made.plugin else { return None };
    made.view.writes.push(format!("{}({})", Picked::NAME, draft.name));
    let picker = ConfiguredPicker { name: made.view.plugin, picker };
    views.push(made.view);
    Some(Selector { filters, scorers, picker })
}
