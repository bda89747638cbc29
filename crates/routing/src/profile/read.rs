//! Reads a profile and reports all its problems.

use wornpath_yaml::{Node, Problem, ProblemKind, Problems, Yaml, parse, unknown_keys};

use super::hold::holding;
use super::render::ProfileView;
use super::speculation::{speculate, without_events};
use super::stages::list;
use super::steps::steps;
use super::{Profile, ProfileEnv, slots};
use crate::assembly::{BuiltPlugin, make};
use crate::plugin::Blueprint;
use crate::stage::Stage;
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
    let drafts = workflow::read(root.get("workflow"), root.span, &mut blueprint.problems);
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
