//! `profiles`: in the configuration itself, in files of their own, or built in.

use std::path::Path;

use wornpath_routing::{Profile, ProfileEnv, Role};
use wornpath_yaml::{Node, Problem, ProblemKind, Yaml, nearest};

use crate::builtin::{BUILTIN_PROFILES, builtin_profile};
use crate::diagnostics::Diagnostics;
use crate::settings::NamedProfile;
use crate::settings::OFFLINE;

/// The profiles under `profiles`. `roles` are those of the pods, if no pods can be added later.
pub(crate) fn profiles(
    root: &Node,
    roles: Option<Vec<Role>>,
    diagnostics: &mut Diagnostics,
) -> Vec<NamedProfile> {
    let env = ProfileEnv { roles, ..ProfileEnv::default() };
    let entries = match root.get("profiles").map(|node| (&node.value, node)) {
        None | Some((Yaml::Null, _)) => return Vec::new(),
        Some((Yaml::Map(entries), _)) => entries,
        Some((_, node)) => {
            let message =
                format!("`profiles` must be a map from names to profiles, not {}", node.kind());
            let problem = Problem::new(ProblemKind::Syntax, node.span, message);
            diagnostics.problems.push(problem.cure("write `profiles: {chat: chat.yaml}`"));
            return Vec::new();
        }
    };
    let mut profiles = Vec::new();
    for (key, node) in entries {
        let name = key.text().unwrap_or_default().to_owned();
        if name == OFFLINE {
            let message = format!("profile name `{name}` is reserved");
            let problem = Problem::new(ProblemKind::Conflict, key.span, message);
            diagnostics
                .problems
                .push(problem.cure("batch requests are counted under that name; choose another"));
        }
        let (file, checked) = match &node.value {
            Yaml::Scalar { text, .. } => (text.clone(), from_file(text, node, &env, diagnostics)),
            _ => {
                let checked = Profile::check_node(node, &env);
                let problems = |problems| diagnostics.problems.extend::<Vec<Problem>>(problems);
                (format!("profile {name}"), checked.map_err(problems).ok())
            }
        };
        // An invalid profile keeps its name, so that routes to it are not reported as well.
        let text = checked.map(|profile| profile.printed()).unwrap_or_default();
        profiles.push(NamedProfile { name, file, text });
    }
    profiles
}

/// Prefix of the file name of a built-in profile, which has no file.
pub(crate) const BUILTIN_FILE_PREFIX: &str = "built-in profile `";

/// Adds the built-in profile `name` unless the configuration defines one of that name. Whether the
/// profile exists.
pub(crate) fn resolve(name: &str, profiles: &mut Vec<NamedProfile>) -> bool {
    if profiles.iter().any(|profile| profile.name == name) {
        return true;
    }
    let Some(text) = builtin_profile(name) else { return false };
    let file = format!("{BUILTIN_FILE_PREFIX}{name}`");
    profiles.push(NamedProfile { name: name.to_owned(), file, text: text.to_owned() });
    true
}

fn from_file(
    path: &str,
    node: &Node,
    env: &ProfileEnv,
    diagnostics: &mut Diagnostics,
) -> Option<Profile> {
    match diagnostics.environment.text(Path::new(path)) {
        Ok(text) => match Profile::check(path, &text, env) {
            Ok(profile) => Some(profile),
            Err(problems) => {
                diagnostics.other_files.push(problems);
                None
            }
        },
        Err(error) => {
            let message = format!("cannot read profile `{path}`: {error}");
            let names = BUILTIN_PROFILES.iter().map(|(name, _)| *name);
            let cure = match nearest(path, names) {
                Some(near) => {
                    format!("`{near}` is built in: routes can use it without an entry here")
                }
                None => "give a file; relative paths start at this file's folder".to_owned(),
            };
            diagnostics
                .problems
                .push(Problem::new(ProblemKind::NotFound, node.span, message).cure(cure));
            None
        }
    }
}
