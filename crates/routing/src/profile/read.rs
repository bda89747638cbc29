//! From YAML to a profile, taking down every problem on the way.

use std::time::Duration;

use crate::assembly::{Blueprint, Made, MadePlugin, make};
use crate::parameter::{Parameter, Takes, number};
use crate::plugin::Stage;
use crate::problem::{Kind, Problem, Span};
use crate::profile::{Holding, Profile, Surroundings, slots};
use crate::queue::{Order, QueueRules};
use crate::selector::{Filtering, Picking, Scoring, Selector};
use crate::settings::{Entry, Settings};
use crate::stage::{Scale, WhenEmpty};
use crate::suggest::nearest;
use crate::values::BlockHashes;
use crate::workflow::{self, Step, StepDraft, TOP};
use crate::yaml::{self, Node, Yaml};

const KEYS: [&str; 9] = [
    "description",
    "prepare",
    "filter",
    "score",
    "pick",
    "selectors",
    "workflow",
    "hold",
    "speculate",
];
const SELECTOR_KEYS: [&str; 3] = ["filter", "score", "pick"];

/// What can be said of `hold`.
pub(crate) const HOLD: &[Parameter] = &[
    Parameter::with_default("deadline", Takes::Time, "30s", "How long a request may wait."),
    Parameter::with_default(
        "capacity",
        Takes::Whole(1, 1 << 24),
        "4096",
        "How many requests may wait.",
    ),
    Parameter::with_default(
        "order",
        Takes::OneOf(&["shortest_first", "arrival", "deadline"]),
        "shortest_first",
        "Which of a tenant's requests goes first.",
    ),
    Parameter::with_default(
        "patience",
        Takes::Number(0.0, 1e9),
        "10",
        "With `shortest_first`: how many times its own cost a request lets shorter ones pass.",
    ),
    Parameter::with_default(
        "promote_after",
        Takes::Time,
        "10s",
        "Waiting this long raises a request by one priority.",
    ),
    Parameter::with_default(
        "lookahead",
        Takes::Whole(1, 1 << 20),
        "16",
        "How many waiting requests are asked when there is no room.",
    ),
];

pub(super) fn profile(text: &str, surroundings: &Surroundings) -> Result<Profile, Vec<Problem>> {
    let root = yaml::parse(text).map_err(|problem| vec![problem])?;
    let mut blueprint = Blueprint::new(&surroundings.registry, &surroundings.models);
    let Yaml::Map(entries) = &root.value else {
        let message = format!("a profile is a map of stages, not {}", root.kind());
        return Err(vec![
            Problem::new(Kind::Syntax, root.span, message)
                .cure("write stages as keys, for instance `pick: round_robin`"),
        ]);
    };
    unknown_keys(entries, &KEYS, "a profile", &mut blueprint.problems);

    let mut preparers = Vec::new();
    for (turn, node) in list(root.get("prepare"), Stage::Prepare, &mut blueprint).enumerate() {
        if let Ok(MadePlugin { name, plugin: Made::Prepare(plugin), .. }) =
            make(&mut blueprint, node, Stage::Prepare, turn)
        {
            preparers.push((name, plugin));
        }
    }
    let drafts = workflow::read(root.get("workflow"), root.span, &mut blueprint.problems);
    let steps = steps(&root, drafts, preparers.len(), surroundings, &mut blueprint);
    let holding = holding(root.get("hold"), &mut blueprint);
    let speculate = speculate(root.get("speculate"), &mut blueprint);
    slots::check(&mut blueprint);
    slots::check_neighbours(&root, &mut blueprint);

    let looks_up = blueprint.lookups > 0;
    let (blocks, tokens) = (blueprint.reads_if_written(), blueprint.reads_if_written());
    if !blueprint.problems.is_empty() {
        blueprint.problems.dedup();
        return Err(blueprint.problems);
    }
    Ok(Profile {
        id: blueprint.profile,
        slots: blueprint.slots,
        preparers,
        steps,
        looks_up,
        speculate: speculate.filter(|_| blocks.is_some()),
        blocks,
        tokens,
        holding,
        printed: String::new(),
        graph: String::new(),
    })
}

fn unknown_keys(
    entries: &[(Node, Node)],
    known: &[&'static str],
    owner: &str,
    problems: &mut Vec<Problem>,
) {
    for (key, _) in entries {
        let name = key.text().unwrap_or_default();
        if known.contains(&name) {
            continue;
        }
        let cure = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it has: {}", known.join(", ")),
        };
        let message = format!("{owner} has no key `{name}`");
        problems.push(Problem::new(Kind::UnknownKey, key.span, message).cure(cure));
    }
}

/// The plugins of a stage. A single one need not be a list.
fn list<'a>(
    node: Option<&'a Node>,
    stage: Stage,
    blueprint: &mut Blueprint,
) -> std::slice::Iter<'a, Node> {
    match node {
        None => [].iter(),
        Some(Node { value: Yaml::List(items), .. }) => items.iter(),
        Some(Node { value: Yaml::Null, .. }) => [].iter(),
        Some(node) if stage == Stage::Pick || node.text().is_some() => {
            std::slice::from_ref(node).iter()
        }
        Some(node) => {
            let message = format!("`{}` is {}, not a list of plugins", stage.key(), node.kind());
            blueprint.problems.push(
                Problem::new(Kind::Syntax, node.span, message).cure("start each plugin with `- `"),
            );
            [].iter()
        }
    }
}

fn steps(
    root: &Node,
    drafts: Vec<StepDraft>,
    preparers: usize,
    surroundings: &Surroundings,
    blueprint: &mut Blueprint,
) -> Vec<Step> {
    let selectors = root.get("selectors");
    let mut steps = Vec::new();
    let mut used = Vec::new();
    for (at, draft) in drafts.into_iter().enumerate() {
        // Preparers come first, each step's plugins next, and its pick can be read after them.
        let turn = preparers + 2 * at;
        role(&draft, surroundings, blueprint);
        let picked = blueprint.writes_pick(draft.name.as_str(), turn + 1, draft.span);
        used.push(draft.selector.clone());
        let Some(node) = find_selector(root, selectors, &draft, blueprint) else { continue };
        if let Some(selector) = selector(node, &draft, turn, blueprint) {
            steps.push(Step { name: draft.name, selector, rules: draft.rules, picked });
        }
    }
    unused(root, selectors, &used, blueprint);
    steps
}

fn role(draft: &StepDraft, surroundings: &Surroundings, blueprint: &mut Blueprint) {
    let Some(roles) = &surroundings.roles else { return };
    let role = &draft.rules.role;
    if roles.contains(role) {
        return;
    }
    let known: Vec<_> = roles.iter().map(|role| format!("`{role}`")).collect();
    let message = format!("step `{}` needs the role `{role}`, which no pod can play", draft.name);
    let cure =
        format!("give a pod the role `{role}`, or use one that pods have: {}", known.join(", "));
    blueprint.problems.push(Problem::new(Kind::NoPodForRole, draft.role_span, message).cure(cure));
}

fn find_selector<'a>(
    root: &'a Node,
    selectors: Option<&'a Node>,
    draft: &StepDraft,
    blueprint: &mut Blueprint,
) -> Option<&'a Node> {
    if draft.selector == TOP {
        return Some(root);
    }
    if let Some(node) = selectors.and_then(|selectors| selectors.get(&draft.selector)) {
        return Some(node);
    }
    let known: Vec<_> = match selectors.map(|node| &node.value) {
        Some(Yaml::Map(entries)) => entries.iter().filter_map(|(key, _)| key.text()).collect(),
        _ => Vec::new(),
    };
    let name = &draft.selector;
    let message =
        format!("step `{}` needs the selector `{name}`, which does not exist", draft.name);
    let cure = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add `{name}: {{pick: max_score}}` to `selectors`"),
    };
    blueprint
        .problems
        .push(Problem::new(Kind::NoSelector, draft.selector_span, message).cure(cure));
    None
}

/// What no step uses would be silently ignored.
fn unused(root: &Node, selectors: Option<&Node>, used: &[String], blueprint: &mut Blueprint) {
    if let Some(Node { value: Yaml::Map(entries), .. }) = selectors {
        for (key, _) in entries {
            let name = key.text().unwrap_or_default();
            if !used.iter().any(|used| used == name) {
                let message = format!("no step uses the selector `{name}`");
                blueprint.problems.push(
                    Problem::new(Kind::NoSelector, key.span, message)
                        .cure("name it in a step of `workflow`, or remove it"),
                );
            }
        }
    }
    if let Yaml::Map(entries) = &root.value
        && !used.iter().any(|used| used == TOP)
    {
        for (key, _) in entries
            .iter()
            .filter(|(key, _)| key.text().is_some_and(|key| SELECTOR_KEYS.contains(&key)))
        {
            let name = key.text().unwrap_or_default();
            let message = format!("`{name}` at the top level is used by no step of the workflow");
            blueprint.problems.push(
                Problem::new(Kind::NoSelector, key.span, message)
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
) -> Option<Selector> {
    if draft.selector != TOP {
        match &node.value {
            Yaml::Map(entries) => {
                unknown_keys(entries, &SELECTOR_KEYS, "a selector", &mut blueprint.problems);
            }
            _ => {
                let message =
                    format!("selector `{}` is {}, not a map", draft.selector, node.kind());
                blueprint.problems.push(
                    Problem::new(Kind::Syntax, node.span, message)
                        .cure("give it `filter`, `score` and `pick`"),
                );
                return None;
            }
        }
    }
    let filters = filters(node.get("filter"), turn, blueprint);
    let scorers = scorers(node.get("score"), turn, blueprint);
    let Some(pick) = node.get("pick") else {
        let message = format!("step `{}` has no `pick`", draft.name);
        let cure = "add `pick: max_score`, or another picker";
        blueprint.problems.push(Problem::new(Kind::NoSelector, draft.span, message).cure(cure));
        return None;
    };
    let mut picker = None;
    for node in list(Some(pick), Stage::Pick, blueprint).take(1) {
        if let Ok(MadePlugin { name, plugin: Made::Pick(plugin), .. }) =
            make(blueprint, node, Stage::Pick, turn)
        {
            picker = Some(Picking { name, picker: plugin });
        }
    }
    Some(Selector { filters, scorers, picker: picker? })
}

fn filters(node: Option<&Node>, turn: usize, blueprint: &mut Blueprint) -> Vec<Filtering> {
    let mut filters = Vec::new();
    for node in list(node, Stage::Filter, blueprint) {
        let Ok(made) = make(blueprint, node, Stage::Filter, turn) else { continue };
        let Made::Filter(filter) = made.plugin else { continue };
        let given = made.reserved.iter().find(|(name, _)| *name == "on_empty");
        let when_empty = match given.map(|(_, node)| (node, node.text())) {
            None => filter.when_empty(),
            Some((_, Some("reject"))) => WhenEmpty::Reject,
            Some((_, Some("skip"))) => WhenEmpty::Skip,
            Some((_, Some("hold"))) => WhenEmpty::Hold,
            Some((node, text)) => {
                let found = text.unwrap_or_else(|| node.kind());
                let message = format!("`on_empty` of `{}` is `{found}`", made.name);
                blueprint.problems.push(
                    Problem::new(Kind::BadParameter, node.span, message)
                        .cure("give one of `reject`, `skip`, `hold`"),
                );
                continue;
            }
        };
        filters.push(Filtering { name: made.name, filter, when_empty });
    }
    filters
}

fn scorers(node: Option<&Node>, turn: usize, blueprint: &mut Blueprint) -> Vec<Scoring> {
    let mut scorers: Vec<(Span, Scoring)> = Vec::new();
    let mut weights_are_fine = true;
    for item in list(node, Stage::Score, blueprint) {
        let Ok(made) = make(blueprint, item, Stage::Score, turn) else { continue };
        let Made::Score(scorer) = made.plugin else { continue };
        let (name, span) = (made.name, made.span);
        let reserved =
            |key| made.reserved.iter().find(|(name, _)| *name == key).map(|(_, node)| node);
        let weight = reserved("weight").map_or(Some(1.0), number);
        let weight = weight.filter(|weight| *weight >= 0.0).unwrap_or_else(|| {
            let node = reserved("weight").unwrap_or(item);
            let found = node.text().unwrap_or_else(|| node.kind());
            let message = format!("weight of `{name}` is {found}; weights must be zero or more");
            weights_are_fine = false;
            blueprint.problems.push(
                Problem::new(Kind::BadWeight, node.span, message)
                    .cure("give a number of at least 0"),
            );
            1.0
        });
        let scale_ms = reserved("scale_ms").and_then(|node| {
            let scale = number(node).filter(|scale| *scale > 0.0 && scorer.scale() == Scale::Unit);
            if scale.is_none() {
                let message = format!("`scale_ms` of `{name}` is not usable");
                blueprint.problems.push(Problem::new(Kind::BadParameter, node.span, message).cure(
                    "give a number above 0, and only to scorers from 0 to 1: \
                         what the whole way from 1 to 0 costs in milliseconds",
                ));
            }
            scale
        });
        scorers.push((span, Scoring { name, scorer, weight, scale_ms }));
    }
    if weights_are_fine && !scorers.is_empty() && scorers.iter().all(|(_, s)| s.weight == 0.0) {
        let span = node.map_or(scorers[0].0, |_| scorers[0].0);
        blueprint.problems.push(
            Problem::new(Kind::BadWeight, span, "all weights are zero: the scores decide nothing")
                .cure("give at least one scorer a weight above 0, or remove `score`"),
        );
    }
    mixed_scales(&scorers, blueprint);
    scorers.into_iter().map(|(_, scoring)| scoring).collect()
}

fn mixed_scales(scorers: &[(Span, Scoring)], blueprint: &mut Blueprint) {
    let cost = scorers.iter().find(|(_, s)| s.scorer.scale() == Scale::Milliseconds);
    let unit = |(_, s): &&(Span, Scoring)| s.scorer.scale() == Scale::Unit;
    match cost {
        Some((cost_span, cost)) => {
            for (span, scoring) in scorers.iter().filter(unit).filter(|(_, s)| s.scale_ms.is_none())
            {
                let (name, cost) = (scoring.name, cost.name);
                let message = format!(
                    "`{name}` scores from 0 to 1 and `{cost}` in milliseconds; they cannot be added"
                );
                blueprint.problems.push(
                    Problem::new(Kind::MixedScales, *span, message)
                        .also(*cost_span, "in milliseconds")
                        .cure(format!("give `{name}` a `scale_ms`: what the whole way from 1 to 0 costs in milliseconds")),
                );
            }
        }
        None => {
            for (span, scoring) in scorers.iter().filter(|(_, s)| s.scale_ms.is_some()) {
                let message =
                    format!("`scale_ms` of `{}` has nothing to be scaled to", scoring.name);
                blueprint.problems.push(
                    Problem::new(Kind::MixedScales, *span, message)
                        .cure("remove it: no scorer here is in milliseconds"),
                );
            }
        }
    }
}

fn holding(node: Option<&Node>, blueprint: &mut Blueprint) -> Holding {
    let span = node.map_or(Span::default(), |node| node.span);
    let entries: &[(Node, Node)] = match node.map(|node| &node.value) {
        Some(Yaml::Map(entries)) => entries,
        None | Some(Yaml::Null) => &[],
        Some(_) => {
            blueprint.problems.push(
                Problem::new(Kind::Syntax, span, "`hold` is not a map")
                    .cure("write `hold: {unless: [concurrency: {requests: 8}], deadline: 30s}`"),
            );
            &[]
        }
    };
    let entry = Entry { name: "hold", span, settings: entries };
    let settings = Settings::read(&entry, HOLD, &["unless"], &mut blueprint.problems);
    // They judge the pod that was chosen, so they run after every step has been selected.
    let unless = filters(node.and_then(|node| node.get("unless")), usize::MAX, blueprint);
    let order = match settings.or("order", "arrival") {
        "shortest_first" => Order::ShortestFirst { patience: settings.or("patience", 10.0) },
        "deadline" => Order::Deadline,
        _ => Order::Arrival,
    };
    let defaults = QueueRules::default();
    Holding {
        unless,
        patience: settings.or("deadline", Duration::from_secs(30)),
        rules: QueueRules {
            capacity: settings.or("capacity", defaults.capacity),
            order,
            promote_after: settings.or("promote_after", defaults.promote_after),
            lookahead: settings.or("lookahead", defaults.lookahead),
        },
    }
}

/// How long a pod is expected to hold what it was sent: `off`, or a time; ten seconds by default.
fn speculate(node: Option<&Node>, blueprint: &mut Blueprint) -> Option<Duration> {
    let Some(node) = node else { return Some(Duration::from_secs(10)) };
    if node.text() == Some("off") {
        return None;
    }
    let read = Takes::Time.read(node);
    let Some(crate::parameter::Value::Time(time)) = read else {
        let found = node.text().unwrap_or_else(|| node.kind());
        let message = format!("`speculate` is `{found}`");
        blueprint.problems.push(Problem::new(Kind::BadParameter, node.span, message).cure(
            "give `off`, or how long a pod is expected to hold what it was sent, such as `10s`",
        ));
        return None;
    };
    slots::pipeline_reads::<BlockHashes>(blueprint, "speculate", node.span);
    Some(time)
}
