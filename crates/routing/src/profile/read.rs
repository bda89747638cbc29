//! From YAML to a profile, taking down every problem on the way.

use wornpath_yaml::{Node, Problem, ProblemKind, Yaml, unknown_keys};

use super::hold::{holding, speculate};
use super::render::ProfileView;
use super::stages::list;
use super::steps::steps;
use super::without_events::without_events;
use super::{Profile, ProfileEnv, slots};
use crate::assembly::{Blueprint, BuiltPlugin, make};
use crate::plugin::Stage;
use crate::workflow;

const KEYS: [&str; 10] = [
    "description",
    "prepare",
    "filter",
    "score",
    "pick",
    "selectors",
    "workflow",
    "hold",
    "speculate",
    "without_events",
];

pub(super) fn profile(root: &Node, surroundings: &ProfileEnv) -> Result<Profile, Vec<Problem>> {
    let mut blueprint = Blueprint::new(&surroundings.registry, &surroundings.models);
    blueprint.roles.clone_from(&surroundings.roles);
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
    let mut sheet = ProfileView { description, ..ProfileView::default() };
    let mut preparers = Vec::new();
    for (turn, node) in list(root.get("prepare"), Stage::Prepare, &mut blueprint).enumerate() {
        let Ok(made) = make(&mut blueprint, node, Stage::Prepare, turn) else { continue };
        let BuiltPlugin::Prepare(preparer) = made.plugin else { continue };
        preparers.push((made.card.plugin, preparer));
        sheet.graph.prepare.push(made.card);
    }
    let drafts = workflow::read(root.get("workflow"), root.span, &mut blueprint.problems);
    let steps = steps(root, drafts, &mut blueprint, &mut sheet);
    let holding = holding(root.get("hold"), &mut blueprint, &mut sheet);
    let speculate = speculate(root.get("speculate"), &mut blueprint, &mut sheet);
    let without_events = without_events(root.get("without_events"), &mut blueprint, &mut sheet);
    slots::check(&mut blueprint);
    slots::check_neighbours(&mut blueprint);

    let (blocks, tokens) = (blueprint.reads_if_written(), blueprint.reads_if_written());
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
        sheet,
    })
}
