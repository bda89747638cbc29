//! Reads `hold`: when a request waits, and how the queue orders it.

use std::time::Duration;

use wornpath_yaml::{
    GivenSetting, Node, Parameter, Problem, ProblemKind, SettingEntry, SettingValues, Span, Takes,
    Yaml,
};

use super::render::ProfileView;
use super::{HoldPolicy, slots, stages};
use crate::plugin::Blueprint;
use crate::values::Attributes;
use crate::wait_queue::{QueueOrder, QueueRules, Tenant};

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

/// Reads `hold`. Its filters check the chosen pod, after every step has one.
pub(super) fn holding(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    view: &mut ProfileView,
) -> HoldPolicy {
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
    let unless = stages::hold_filters(unless, blueprint, &mut view.graph.hold);
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
