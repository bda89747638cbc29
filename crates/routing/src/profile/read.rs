//! Reads a profile and reports all its problems.
//!
//! `hold` says when a request waits, and how the queue orders it. `speculate` and `without_events`
//! say what the index is told that no engine has confirmed: a pod that was just sent a prompt will
//! hold it soon, and `speculate` says for how long the index believes so. A pod without events
//! never confirms anything, so its cache can only be approximated from what it was sent; whether
//! that is good enough is the profile's decision.

use std::time::Duration;

use wornpath_yaml::{
    GivenSetting, Node, Parameter, Problem, ProblemKind, Problems, SettingEntry, SettingValues,
    Span, Takes, Value, Yaml, parse, unknown_keys, writer,
};

use super::render::ProfileView;
use super::steps::{hold_filters, list, steps};
use super::{HoldPolicy, Profile, ProfileEnv, slots};
use crate::assembly::{BuiltPlugin, make};
use crate::plugin::Blueprint;
use crate::slot::{Attributes, BlockHashes};
use crate::stage::Stage;
use crate::transfer::Transfers;
use crate::wait_queue::{QueueOrder, QueueRules, Tenant};
use crate::workflow;

const KEYS: [&str; 11] = [
    "description",
    "prepare",
    "filter",
    "score",
    "pick",
    "selectors",
    "workflow",
    "transfers",
    "hold",
    "speculate",
    "without_events",
];

/// The parameters of `hold`.
pub(crate) const HOLD: &[Parameter] = &[
    Parameter::with_default(
        "deadline",
        Takes::Time,
        "30s",
        "How long a request may wait; less if it says so itself, in milliseconds, by an attribute `deadline_ms`.",
    ),
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
        "Which of a tenant's requests goes first; `deadline` needs `attributes` that name `deadline_ms`.",
    ),
    Parameter::with_default(
        "patience",
        Takes::Number(0.0, 1e9),
        "10",
        "With `shortest_first`: how many times its own cost a request lets shorter ones pass.",
    ),
    Parameter::optional(
        "fair_for",
        Takes::Time,
        "Where tenants share the queue, the one that got the least work goes first. A request that has been due for this \
         long goes before the later ones of all tenants: at once with `0s`, never without this setting.",
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
    Parameter::optional(
        "shares",
        Takes::Numbers,
        "Tenants that get more than others, such as `{acme: 3}` for three times the work; a whole number each.",
    ),
];

/// How pods without cache events are treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WithoutEvents {
    /// Their caches are approximated from what they were sent.
    Approximate,
    /// A fleet with such a pod is refused.
    Refuse,
}

impl WithoutEvents {
    /// Its word in YAML.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approximate => "approximate",
            Self::Refuse => "refuse",
        }
    }
}

impl Profile {
    /// Reads and checks a profile. Problems name it `file`.
    ///
    /// # Errors
    /// All its problems, not only the first.
    pub fn check(file: &str, text: &str, env: &ProfileEnv) -> Result<Self, Problems> {
        parse(text)
            .map_err(|problem| vec![problem])
            .and_then(|root| Self::check_node(&root, env))
            .map_err(|problems| Problems::new("profile", file, text, problems))
    }

    /// Reads and checks a profile that is part of a larger document.
    ///
    /// # Errors
    /// All its problems.
    pub fn check_node(root: &Node, env: &ProfileEnv) -> Result<Self, Vec<Problem>> {
        read(root, env)
    }
}

fn read(root: &Node, env: &ProfileEnv) -> Result<Profile, Vec<Problem>> {
    let mut blueprint = Blueprint::new(&env.registry, &env.models);
    blueprint.roles.clone_from(&env.roles);
    let Yaml::Map(entries) = &root.value else {
        let message = format!("a profile is a map of stages, not {}", root.kind());
        return Err(vec![
            Problem::new(ProblemKind::Syntax, root.span, message)
                .cure("write stages as keys, for instance `pick: round_robin`"),
        ]);
    };
    unknown_keys(entries, &KEYS, "a profile", &mut blueprint.problems);

    let description = root.get("description");
    if let Some(node) = description.filter(|node| node.text().is_none()) {
        let message = format!("`description` is {}, not text", node.kind());
        let problem = Problem::new(ProblemKind::BadParameter, node.span, message);
        blueprint.problems.push(problem.cure("write a sentence, or remove it"));
    }
    let description = description.and_then(Node::text).map(str::to_owned);
    let mut view = ProfileView { description, ..ProfileView::default() };
    let mut preparers = Vec::new();
    for (order, node) in list(root.get("prepare"), Stage::Prepare, &mut blueprint).enumerate() {
        let Ok(made) = make(&mut blueprint, node, Stage::Prepare, order) else { continue };
        let BuiltPlugin::Prepare(preparer) = made.plugin else { continue };
        preparers.push((made.view.plugin, preparer));
        view.graph.prepare.push(made.view);
    }
    let transfers = Transfers::read(root.get("transfers"), &mut blueprint.problems);
    view.transfers = transfers.printed();
    let workflow = root.get("workflow");
    let drafts = workflow::read(workflow, root.span, &transfers, &mut blueprint.problems);
    let steps = steps(root, drafts, &mut blueprint, &mut view);
    let holding = holding(root.get("hold"), &mut blueprint, &mut view);
    let speculate = speculate(root.get("speculate"), &mut blueprint, &mut view);
    let without_events = without_events(root.get("without_events"), &mut blueprint, &mut view);
    slots::check(&mut blueprint);
    slots::check_relations(&mut blueprint);

    let blocks = blueprint.reads_if_written();
    let tokens = blueprint.reads_if_written();
    let attributes = blueprint.reads_if_written();
    if !blueprint.problems.is_empty() {
        return Err(blueprint.problems);
    }
    Ok(Profile {
        id: blueprint.profile,
        slots: blueprint.slots,
        preparers,
        steps,
        blocks,
        tokens,
        attributes,
        speculate,
        without_events,
        holding,
        view,
    })
}

/// Reads `hold`. Its filters check the chosen pod, after every step has one.
fn holding(node: Option<&Node>, blueprint: &mut Blueprint, view: &mut ProfileView) -> HoldPolicy {
    let span = node.map_or(Span::default(), |node| node.span);
    let entries: &[(Node, Node)] = match node.map(|node| &node.value) {
        Some(Yaml::Map(entries)) => entries,
        None | Some(Yaml::Null) => &[],
        Some(_) => {
            blueprint.problems.push(
                Problem::new(ProblemKind::Syntax, span, "`hold` is not a map")
                    .cure("write `hold: {unless: [concurrency: {requests: 8}], deadline: 30s}`"),
            );
            &[]
        }
    };
    let entry = SettingEntry { name: "hold", span, settings: entries };
    let settings = SettingValues::read(&entry, HOLD, &["unless"], &mut blueprint.problems);
    let order = order(&entry, &settings, blueprint);
    let has_patience = matches!(order, QueueOrder::ShortestFirst { .. });
    for setting in settings.all() {
        if let GivenSetting::Value(value) = &setting.value
            && (has_patience || setting.name != "patience")
        {
            view.hold.push_str(&format!("  {}: {value}\n", setting.name));
        }
    }
    let unless = node.and_then(|node| node.get("unless"));
    let unless = hold_filters(unless, blueprint, &mut view.graph.hold);
    let defaults = QueueRules::default();
    let promote_after = settings.or("promote_after", defaults.promote_after);
    if promote_after.is_zero() {
        let span = settings.find("promote_after").map_or(span, |setting| setting.span);
        let message = "`promote_after` of `hold` is zero: every request would be promoted at once";
        blueprint.problems.push(
            Problem::new(ProblemKind::BadParameter, span, message)
                .cure("give a time above zero, such as `10s`"),
        );
    }
    let shares = shares(&settings, blueprint);
    HoldPolicy {
        unless,
        shares,
        max_wait: settings.or("deadline", Duration::from_secs(30)),
        rules: QueueRules {
            capacity: settings.or("capacity", defaults.capacity),
            order,
            fair_for: settings.or("fair_for", defaults.fair_for),
            promote_after,
            lookahead: settings.or("lookahead", defaults.lookahead),
        },
    }
}

/// Reads `order`, and refuses settings that have no effect with it.
fn order(
    entry: &SettingEntry<'_>,
    settings: &SettingValues,
    blueprint: &mut Blueprint,
) -> QueueOrder {
    let word = settings.or("order", "shortest_first");
    let order = match word {
        "shortest_first" => {
            return QueueOrder::ShortestFirst { patience: settings.or("patience", 10.0) };
        }
        "deadline" => {
            let span = settings.find("order").map_or(entry.span, |setting| setting.span);
            slots::pipeline_reads::<Attributes>(blueprint, "order: deadline", span);
            QueueOrder::Deadline
        }
        _ => QueueOrder::Arrival,
    };
    if let Some((key, _)) = entry.settings.iter().find(|(key, _)| key.text() == Some("patience")) {
        let message = format!("`patience` of `hold` has no effect with `order: {word}`");
        blueprint.problems.push(
            Problem::new(ProblemKind::BadParameter, key.span, message)
                .cure("remove it, or order `shortest_first`"),
        );
    }
    order
}

fn shares(settings: &SettingValues, blueprint: &mut Blueprint) -> Vec<(Tenant, u32)> {
    const MOST: f64 = 1_000_000.0;
    let given: Vec<(String, f64)> = settings.or("shares", Vec::new());
    let is_share = |share: f64| (1.0..=MOST).contains(&share) && share.fract() == 0.0;
    let span = settings.find("shares").map_or(Span::default(), |setting| setting.span);
    for (tenant, share) in given.iter().filter(|(_, share)| !is_share(*share)) {
        let message = format!("the share of `{tenant}` in `shares` of `hold` is {share}");
        blueprint.problems.push(
            Problem::new(ProblemKind::BadParameter, span, message)
                .cure(format!("give a whole number from 1 to {MOST}")),
        );
    }
    given.iter().map(|(tenant, share)| (Tenant::named(tenant), *share as u32)).collect()
}

/// Reads `speculate`: `off`, or how long the index believes that a pod holds what it was sent. Ten
/// seconds by default, if the profile hashes prompts.
fn speculate(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> Option<Duration> {
    let time = match node {
        None => slots::is_written::<BlockHashes>(blueprint).then_some(Duration::from_secs(10)),
        Some(node) if node.text() == Some("off") => None,
        Some(node) => match Takes::Time.read(node) {
            Some(Value::Time(time)) => {
                slots::pipeline_reads::<BlockHashes>(blueprint, "speculate", node.span);
                Some(time)
            }
            _ => {
                let found = node.text().unwrap_or_else(|| node.kind());
                let message = format!("`speculate` is `{found}`");
                blueprint.problems.push(Problem::new(ProblemKind::BadParameter, node.span, message).cure(
                    "give `off`, or how long a pod is expected to hold what it was sent, such as `10s`",
                ));
                None
            }
        },
    };
    view.speculate = time.map_or_else(|| "off".to_owned(), writer::time);
    time
}

/// Reads `without_events`, which has an effect only in profiles that look prompts up.
fn without_events(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> WithoutEvents {
    let chosen = match node.map(|node| (node, node.text())) {
        None | Some((_, Some("approximate"))) => WithoutEvents::Approximate,
        Some((_, Some("refuse"))) => WithoutEvents::Refuse,
        Some((node, text)) => {
            let message = format!("`without_events` is `{}`", text.unwrap_or_else(|| node.kind()));
            let problem = Problem::new(ProblemKind::BadParameter, node.span, message);
            blueprint.problems.push(problem.cure("give `approximate` or `refuse`"));
            WithoutEvents::Approximate
        }
    };
    if let Some(node) = node {
        slots::pipeline_reads::<BlockHashes>(blueprint, "without_events", node.span);
    }
    if slots::is_written::<BlockHashes>(blueprint) {
        view.without_events = Some(chosen.word());
    }
    chosen
}
