//! Makes the steps of the workflow, each with the selector that finds its pod: filters, scorers and
//! a picker. The weights and scales of scorers are checked together.

use wornpath_yaml::writer::word;
use wornpath_yaml::{Node, Problem, ProblemKind, Span, Yaml, nearest, number, unknown_keys};

use super::render::{ProfileView, StepView};
use crate::assembly::{BuiltPlugin, PluginView, make};
use crate::plugin::{Blueprint, LATE};
use crate::selector::Selector;
use crate::slot::{Picked, Slot};
use crate::stage::{ConfiguredFilter, ConfiguredPicker, ConfiguredScorer, Scale, Stage, WhenEmpty};
use crate::workflow::{Bind, SelectorPlace, StepDraft, WorkflowStep};

/// Every decision runs every plugin, so their number is bounded.
const MOST_PLUGINS: usize = 64;

/// Sums of larger weights would lose the differences between pods.
const LARGEST: f64 = 1e12;

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
    if let (Some(cure), Some(first)) = (picker.ignores_scores(), scorers.first()) {
        let message =
            format!("`{}` has no effect: `{}` does not read scores", first.name, made.view.plugin);
        let problem = Problem::new(ProblemKind::Conflict, made.span, message);
        blueprint.problems.push(problem.cure(cure));
    }
    made.view.writes.push(format!("{}({})", Picked::NAME, draft.name));
    let picker = ConfiguredPicker { name: made.view.plugin, picker };
    views.push(made.view);
    Some(Selector { filters, scorers, picker })
}

/// The plugins of a stage. A single one need not be a list.
pub(super) fn list<'a>(
    node: Option<&'a Node>,
    stage: Stage,
    blueprint: &mut Blueprint,
) -> std::slice::Iter<'a, Node> {
    match node {
        None => [].iter(),
        Some(Node { value: Yaml::List(items), .. }) => {
            let Some(beyond) = items.get(MOST_PLUGINS) else { return items.iter() };
            let key = stage.key();
            let count = items.len();
            let message = format!("`{key}` has {count} plugins; the limit is {MOST_PLUGINS}");
            blueprint.problems.push(
                Problem::new(ProblemKind::Syntax, beyond.span, message)
                    .cure("remove this one and those after it"),
            );
            [].iter()
        }
        Some(Node { value: Yaml::Null, .. }) => [].iter(),
        Some(node) if stage == Stage::Pick || node.text().is_some() => {
            std::slice::from_ref(node).iter()
        }
        Some(node) => {
            let message = format!("`{}` is {}, not a list of plugins", stage.key(), node.kind());
            blueprint.problems.push(
                Problem::new(ProblemKind::Syntax, node.span, message)
                    .cure("start each plugin with `- `"),
            );
            [].iter()
        }
    }
}

/// Makes the filters, and adds each to `views`.
fn filters(
    node: Option<&Node>,
    order: usize,
    blueprint: &mut Blueprint,
    views: &mut Vec<PluginView>,
) -> Vec<ConfiguredFilter> {
    let mut filters = Vec::new();
    for node in list(node, Stage::Filter, blueprint) {
        let Ok(mut made) = make(blueprint, node, Stage::Filter, order) else { continue };
        let name = made.view.plugin;
        let BuiltPlugin::Filter(filter) = made.plugin else { continue };
        let given = made.reserved.iter().find(|(name, _)| *name == "on_empty");
        let when_empty = match given {
            None => filter.when_empty(),
            Some((_, node)) => {
                let meant = |known: &WhenEmpty| node.text() == Some(known.word());
                let Some(known) = WhenEmpty::ALL.into_iter().find(meant) else {
                    let found = node.text().unwrap_or_else(|| node.kind());
                    let message = format!("`on_empty` of `{name}` is `{found}`");
                    blueprint.problems.push(
                        Problem::new(ProblemKind::BadParameter, node.span, message)
                            .cure("give one of `reject`, `skip`, `hold`"),
                    );
                    continue;
                };
                known
            }
        };
        made.view.add("on_empty", when_empty.word());
        views.push(made.view);
        filters.push(ConfiguredFilter { name, filter, when_empty });
    }
    filters
}

/// Makes the filters of `hold`, which check the chosen pod. There is no other candidate, so
/// `on_empty` has no effect.
pub(super) fn hold_filters(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    views: &mut Vec<PluginView>,
) -> Vec<ConfiguredFilter> {
    let mut filters = Vec::new();
    for node in list(node, Stage::Filter, blueprint) {
        let Ok(made) = make(blueprint, node, Stage::Filter, LATE - 1) else { continue };
        let name = made.view.plugin;
        let BuiltPlugin::Filter(filter) = made.plugin else { continue };
        if let Some((_, given)) = made.reserved.iter().find(|(name, _)| *name == "on_empty") {
            let message = format!("`on_empty` of `{name}` has no effect in `unless` of `hold`");
            blueprint.problems.push(
                Problem::new(ProblemKind::BadParameter, given.span, message)
                    .cure("remove it: a request waits if its pod does not pass"),
            );
        }
        views.push(made.view);
        let when_empty = filter.when_empty();
        filters.push(ConfiguredFilter { name, filter, when_empty });
    }
    filters
}

/// Makes the scorers, and adds each to `views`.
fn scorers(
    node: Option<&Node>,
    order: usize,
    blueprint: &mut Blueprint,
    views: &mut Vec<PluginView>,
) -> Vec<ConfiguredScorer> {
    let mut scorers: Vec<(Span, ConfiguredScorer)> = Vec::new();
    for item in list(node, Stage::Score, blueprint) {
        let Ok(mut made) = make(blueprint, item, Stage::Score, order) else { continue };
        let BuiltPlugin::Score(scorer) = made.plugin else { continue };
        let name = made.view.plugin;
        let reserved =
            |key| made.reserved.iter().find(|(name, _)| *name == key).map(|(_, node)| node);
        let weight = reserved("weight").map_or(Ok(1.0), |node| weight(name, node));
        let scale_ms = reserved("scale_ms").map(|node| scale_ms(name, scorer.scale(), node));
        let weight = weight.unwrap_or_else(|problem| {
            blueprint.problems.push(problem);
            f64::NAN
        });
        let scale_ms = scale_ms.transpose().unwrap_or_else(|problem| {
            blueprint.problems.push(problem);
            None
        });
        made.view.weight = Some(weight);
        made.view.add("weight", weight);
        if let Some(scale_ms) = scale_ms {
            made.view.add("scale_ms", scale_ms);
        }
        views.push(made.view);
        scorers.push((made.span, ConfiguredScorer { name, scorer, weight, scale_ms }));
    }
    if let [(span, _), ..] = &scorers[..]
        && scorers.iter().all(|(_, scoring)| scoring.weight == 0.0)
    {
        blueprint.problems.push(
            Problem::new(
                ProblemKind::BadWeight,
                *span,
                "all weights are zero: the scores have no effect",
            )
            .cure("give at least one scorer a weight above 0, or remove `score`"),
        );
    }
    mixed_scales(&scorers, blueprint);
    scorers.into_iter().map(|(_, scoring)| scoring).collect()
}

fn weight(name: &str, node: &Node) -> Result<f64, Problem> {
    number(node).filter(|weight| (0.0..=LARGEST).contains(weight)).ok_or_else(|| {
        let found = node.text().unwrap_or_else(|| node.kind());
        let rule = match number(node) {
            Some(weight) if weight < 0.0 => "zero or more",
            _ => "numbers up to 1e12",
        };
        let message = format!("weight of `{name}` is {found}; weights must be {rule}");
        Problem::new(ProblemKind::BadWeight, node.span, message)
            .cure("give a number from 0 to 1e12")
    })
}

fn scale_ms(name: &str, scale: Scale, node: &Node) -> Result<f64, Problem> {
    let usable = number(node).filter(|ms| *ms > 0.0 && *ms <= LARGEST && scale == Scale::Unit);
    usable.ok_or_else(|| {
        let message = format!("`scale_ms` of `{name}` is not usable");
        Problem::new(ProblemKind::BadParameter, node.span, message).cure(
            "give a number above 0 and up to 1e12, and only to scorers from 0 to 1: \
             what the whole way from 1 to 0 costs in milliseconds",
        )
    })
}

fn mixed_scales(scorers: &[(Span, ConfiguredScorer)], blueprint: &mut Blueprint) {
    let cost = scorers.iter().find(|(_, s)| s.scorer.scale() == Scale::Milliseconds);
    let unit = |(_, s): &&(Span, ConfiguredScorer)| s.scorer.scale() == Scale::Unit;
    match cost {
        Some((cost_span, cost)) => {
            for (span, scoring) in scorers.iter().filter(unit).filter(|(_, s)| s.scale_ms.is_none())
            {
                let name = scoring.name;
                let cost = cost.name;
                let message = format!(
                    "`{name}` scores from 0 to 1 and `{cost}` in milliseconds; they cannot be added"
                );
                blueprint.problems.push(
                    Problem::new(ProblemKind::MixedScales, *span, message)
                        .also(*cost_span, "in milliseconds")
                        .cure(format!("give `{name}` a `scale_ms`: what the whole way from 1 to 0 costs in milliseconds")),
                );
            }
        }
        None => {
            for (span, scoring) in scorers.iter().filter(|(_, s)| s.scale_ms.is_some()) {
                let message = format!("`scale_ms` of `{}` has no effect", scoring.name);
                blueprint.problems.push(
                    Problem::new(ProblemKind::MixedScales, *span, message)
                        .cure("remove it: no scorer here is in milliseconds"),
                );
            }
        }
    }
}
