//! The plugins of one stage: made, weighed, and judged together.

use wornpath_yaml::{Node, Problem, ProblemKind, Span, Yaml, number};

use super::render::PluginView;
use crate::assembly::{Blueprint, BuiltPlugin, LATE, make};
use crate::plugin::Stage;
use crate::selector::{Filtering, Scoring};
use crate::stage::{Scale, WhenEmpty};

/// More plugins in one stage are a slip of whoever wrote the file by a program.
const MOST_PLUGINS: usize = 64;

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
            let (key, count) = (stage.key(), items.len());
            let message = format!("`{key}` has {count} plugins; {MOST_PLUGINS} are the most");
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

/// Makes the filters, noting each in `cards`.
pub(super) fn filters(
    node: Option<&Node>,
    turn: usize,
    blueprint: &mut Blueprint,
    cards: &mut Vec<PluginView>,
) -> Vec<Filtering> {
    let mut filters = Vec::new();
    for node in list(node, Stage::Filter, blueprint) {
        let Ok(mut made) = make(blueprint, node, Stage::Filter, turn) else { continue };
        let name = made.card.plugin;
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
        made.card.add("on_empty", when_empty.word());
        cards.push(made.card);
        filters.push(Filtering { name, filter, when_empty });
    }
    filters
}

/// Makes the filters that judge the chosen pod, after every step. There is nobody else to turn to, so
/// `on_empty` would say nothing.
pub(super) fn judges(
    node: Option<&Node>,
    blueprint: &mut Blueprint,
    cards: &mut Vec<PluginView>,
) -> Vec<Filtering> {
    let mut judges = Vec::new();
    for node in list(node, Stage::Filter, blueprint) {
        let Ok(made) = make(blueprint, node, Stage::Filter, LATE - 1) else { continue };
        let name = made.card.plugin;
        let BuiltPlugin::Filter(filter) = made.plugin else { continue };
        if let Some((_, given)) = made.reserved.iter().find(|(name, _)| *name == "on_empty") {
            let message = format!("`on_empty` of `{name}` says nothing in `unless` of `hold`");
            blueprint.problems.push(
                Problem::new(ProblemKind::BadParameter, given.span, message)
                    .cure("remove it: whoever does not pass makes the request wait"),
            );
        }
        cards.push(made.card);
        let when_empty = filter.when_empty();
        judges.push(Filtering { name, filter, when_empty });
    }
    judges
}

/// Makes the scorers, noting each in `cards`.
pub(super) fn scorers(
    node: Option<&Node>,
    turn: usize,
    blueprint: &mut Blueprint,
    cards: &mut Vec<PluginView>,
) -> Vec<Scoring> {
    let mut scorers: Vec<(Span, Scoring)> = Vec::new();
    for item in list(node, Stage::Score, blueprint) {
        let Ok(mut made) = make(blueprint, item, Stage::Score, turn) else { continue };
        let BuiltPlugin::Score(scorer) = made.plugin else { continue };
        let name = made.card.plugin;
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
        made.card.weight = Some(weight);
        made.card.add("weight", weight);
        if let Some(scale_ms) = scale_ms {
            made.card.add("scale_ms", scale_ms);
        }
        cards.push(made.card);
        scorers.push((made.span, Scoring { name, scorer, weight, scale_ms }));
    }
    if let [(span, _), ..] = &scorers[..]
        && scorers.iter().all(|(_, scoring)| scoring.weight == 0.0)
    {
        blueprint.problems.push(
            Problem::new(
                ProblemKind::BadWeight,
                *span,
                "all weights are zero: the scores decide nothing",
            )
            .cure("give at least one scorer a weight above 0, or remove `score`"),
        );
    }
    mixed_scales(&scorers, blueprint);
    scorers.into_iter().map(|(_, scoring)| scoring).collect()
}

/// More than that is a slip, and sums of such weights would not tell pods apart any more.
const LARGEST: f64 = 1e12;

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
                    Problem::new(ProblemKind::MixedScales, *span, message)
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
                    Problem::new(ProblemKind::MixedScales, *span, message)
                        .cure("remove it: no scorer here is in milliseconds"),
                );
            }
        }
    }
}
