//! Named profiles: in the configuration itself, in files of their own, or shipped.

use std::path::Path;

use wornpath_routing::document::{Node, Yaml, nearest};
use wornpath_routing::{Problem, ProblemKind, Profile, ProfileEnv, Role};

use crate::builtin::{SHIPPED, shipped};
use crate::diagnostics::Diagnostics;
use crate::settings::NamedProfile;
use crate::settings::OFFLINE;

/// The profiles under `profiles`. `roles` are those that pods can play, if all pods are known.
pub(crate) fn profiles(
    root: &Node,
    roles: Option<Vec<Role>>,
    notes: &mut Diagnostics,
) -> Vec<NamedProfile> {
    let surroundings = ProfileEnv { roles, ..ProfileEnv::default() };
    let entries = match root.get("profiles").map(|node| (&node.value, node)) {
        None | Some((Yaml::Null, _)) => return Vec::new(),
        Some((Yaml::Map(entries), _)) => entries,
        Some((_, node)) => {
            let message =
                format!("`profiles` must be a map from names to profiles, not {}", node.kind());
            let problem = Problem::new(ProblemKind::Syntax, node.span, message);
            notes.problems.push(problem.cure("write `profiles: {chat: chat.yaml}`"));
            return Vec::new();
        }
    };
    let mut profiles = Vec::new();
    for (key, node) in entries {
        let name = key.text().unwrap_or_default().to_owned();
        if name == OFFLINE {
            let message = format!("profile name `{name}` is reserved");
            let problem = Problem::new(ProblemKind::Conflict, key.span, message);
            notes.problems.push(problem.cure("batch requests are counted under that name; choose another"));
        }
        let (file, checked) = match &node.value {
            Yaml::Scalar { text, .. } => {
                (text.clone(), from_file(text, node, &surroundings, notes))
            }
            _ => {
                let checked = Profile::check_node(node, &surroundings);
                let problems = |problems| notes.problems.extend::<Vec<Problem>>(problems);
                (format!("profile {name}"), checked.map_err(problems).ok())
            }
        };
        // A refused profile has its name all the same, so that routes to it are not refused as well.
        let text = checked.map(|profile| profile.printed()).unwrap_or_default();
        profiles.push(NamedProfile { name, file, text });
    }
    profiles
}

/// How what a shipped profile came from begins: it is no file.
pub(crate) const SHIPPED_FILE: &str = "shipped profile `";

/// The profile that a route names, taken from the shipped ones where the configuration has none of that
/// name. Whether there is one.
pub(crate) fn resolve(name: &str, profiles: &mut Vec<NamedProfile>) -> bool {
    if profiles.iter().any(|profile| profile.name == name) {
        return true;
    }
    let Some(text) = shipped(name) else { return false };
    let file = format!("{SHIPPED_FILE}{name}`");
    profiles.push(NamedProfile { name: name.to_owned(), file, text: text.to_owned() });
    true
}

fn from_file(
    path: &str,
    node: &Node,
    surroundings: &ProfileEnv,
    notes: &mut Diagnostics,
) -> Option<Profile> {
    match notes.outside.text(Path::new(path)) {
        Ok(text) => match Profile::check(path, &text, surroundings) {
            Ok(profile) => Some(profile),
            Err(problems) => {
                notes.elsewhere.push(problems);
                None
            }
        },
        Err(error) => {
            let message = format!("cannot read profile `{path}`: {error}");
            let names = SHIPPED.iter().map(|(name, _)| *name);
            let cure = match nearest(path, names) {
                Some(near) => {
                    format!("`{near}` is built in: routes can use it without an entry here")
                }
                None => "give a file; relative paths start at this file's folder".to_owned(),
            };
            notes.problems.push(Problem::new(ProblemKind::NotFound, node.span, message).cure(cure));
            None
        }
    }
}
