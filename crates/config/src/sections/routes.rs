//! `routes`: the profile of each request.

use wornpath_routing::{PluginView, Profile, ProfileEnv, Role, Slot, Tokens, WithoutEvents};
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes, Yaml};

use super::models::ModelConfig;
use super::profiles::resolve;
use crate::builtin::{BUILTIN_PROFILES, DEFAULT_PROFILE, TEXT_PROFILE, builtin_profile};
use crate::diagnostics::Diagnostics;
use crate::pod::PodConfig;
use crate::section::{Section, maps};
use crate::settings::{NamedProfile, RouteSettings, Settings};
use crate::tenant::TenantSettings;

#[rustfmt::skip]
pub(crate) const ROUTE: &[Parameter] = &[
    Parameter::required("profile", Takes::Text, "The profile: a name in `profiles`, or a built-in one."),
];

#[rustfmt::skip]
pub(crate) const MATCH: &[Parameter] = &[
    Parameter::optional("path", Takes::Text, "The path, such as `/v1/embeddings`; with `*` at the end, it matches as a prefix. Engine management paths, such as `/sleep` or `/flush_cache`, are forwarded only if a route names them."),
    Parameter::optional("model", Takes::Text, "The base model, by its name."),
    Parameter::optional("tenant", Takes::Text, "The tenant, by name."),
];

/// What a route may refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteScope<'a> {
    /// The configured models.
    pub(crate) models: &'a [ModelConfig],
    /// The configured tenants.
    pub(crate) tenants: &'a [TenantSettings],
}

/// The routes under `routes`. Without any, all requests use the only profile. Without profiles
/// either, there is no route, and the built-in default is the first profile.
pub(crate) fn routes(
    root: &Node,
    scope: RouteScope<'_>,
    profiles: &mut Vec<NamedProfile>,
    diagnostics: &mut Diagnostics,
) -> Vec<RouteSettings> {
    let entries = maps(root, "routes", &mut diagnostics.problems);
    if entries.is_empty() {
        return default_route(root, scope.models, profiles, diagnostics).into_iter().collect();
    }
    let mut routes = Vec::new();
    let mut catch_all: Option<Span> = None;
    for entry in entries {
        let span = entry.span;
        let section = Section::read(entry, ROUTE, &["match"], &mut diagnostics.problems);
        let route = route(&section, scope, profiles, diagnostics);
        check_tokenizers(&route, section.at("profile"), scope.models, profiles, diagnostics);
        if let Some(first) = catch_all {
            diagnostics.problems.push(
                Problem::new(ProblemKind::Unreachable, span, "no request can reach this route")
                    .also(first, "matches every request")
                    .cure("move it before that route, or remove it"),
            );
        }
        if route.path.is_none() && route.model.is_none() && route.tenant.is_none() {
            catch_all.get_or_insert(span);
        }
        routes.push(route);
    }
    if catch_all.is_none() {
        let span = root.get("routes").map_or(root.span, |node| node.span);
        let problem =
            Problem::new(ProblemKind::MissingDependency, span, "some requests match no route");
        diagnostics.problems.push(problem.cure(format!(
            "add a route for all other requests at the end: `- profile: {DEFAULT_PROFILE}`"
        )));
    }
    routes
}

fn route(
    section: &Section<'_>,
    scope: RouteScope<'_>,
    profiles: &mut Vec<NamedProfile>,
    diagnostics: &mut Diagnostics,
) -> RouteSettings {
    let profile: String = section.or("profile", String::new());
    if !profile.is_empty() && !resolve(&profile, profiles) {
        let own: Vec<_> = profiles.iter().map(|known| known.name.clone()).collect();
        let known =
            own.iter().map(String::as_str).chain(BUILTIN_PROFILES.iter().map(|(name, _)| *name));
        diagnostics.check_known("profile", &profile, section.at("profile"), known);
    }
    let matched = Section::of(
        section.node("match"),
        "match",
        section.span(),
        MATCH,
        &mut diagnostics.problems,
    );
    let path: Option<String> = matched.maybe("path");
    if let Some(path) = &path
        && (!path.starts_with('/') || path[..path.len() - 1].contains('*'))
    {
        let message = format!("`{path}` is not a valid path pattern");
        let problem = Problem::new(ProblemKind::BadParameter, matched.at("path"), message);
        diagnostics.problems.push(problem.cure("start with `/`, and use `*` only at the end"));
    }
    let model: Option<String> = matched.maybe("model");
    if let Some(model) = &model {
        let known = scope.models.iter().map(|model| model.name.as_str());
        diagnostics.check_known("model", model, matched.at("model"), known);
    }
    let tenant: Option<String> = matched.maybe("tenant");
    if let Some(tenant) = &tenant {
        let known = scope.tenants.iter().map(|tenant| tenant.name.as_str());
        diagnostics.check_known("tenant", tenant, matched.at("tenant"), known);
    }
    RouteSettings { path, model: model.map(Into::into), tenant: tenant.map(Into::into), profile }
}

/// Whether a profile tokenizes prompts. An invalid profile does not.
#[must_use]
pub fn needs_tokens(profile: &NamedProfile) -> bool {
    let checked = Profile::check(&profile.file, &profile.text, &ProfileEnv::default());
    let writes_tokens = |card: &PluginView| card.writes.iter().any(|slot| slot == Tokens::NAME);
    checked.is_ok_and(|profile| profile.graph().prepare.iter().any(writes_tokens))
}

/// Reports a route whose profile needs tokens for a model without a tokenizer.
fn check_tokenizers(
    route: &RouteSettings,
    span: Span,
    models: &[ModelConfig],
    profiles: &[NamedProfile],
    diagnostics: &mut Diagnostics,
) {
    let Some(profile) = profiles.iter().find(|profile| profile.name == route.profile) else {
        return;
    };
    if !needs_tokens(profile) {
        return;
    }
    let applies = |model: &&ModelConfig| {
        route.model.as_ref().is_none_or(|name| *name == *model.name.as_str())
    };
    let without = models.iter().filter(applies).find(|model| !model.tokenizer.is_given());
    let message = match without {
        Some(model) => {
            format!(
                "profile `{}` needs tokens, but model `{}` has no tokenizer",
                route.profile, model.name
            )
        }
        None if models.is_empty() => {
            format!("profile `{}` needs tokens, but no model has a tokenizer", route.profile)
        }
        None => return,
    };
    let cure = format!("give models a `tokenizer`, or use `{TEXT_PROFILE}`, which needs none");
    diagnostics
        .problems
        .push(Problem::new(ProblemKind::MissingDependency, span, message).cure(cure));
}

/// Reports pods without events that a profile with `without_events: refuse` would use.
pub(crate) fn check_events(
    root: &Node,
    pods: &[PodConfig],
    settings: &Settings,
    diagnostics: &mut Diagnostics,
) {
    let routes = &settings.routes;
    let is_used = |profile: &&NamedProfile| {
        routes.is_empty() || routes.iter().any(|route| route.profile == profile.name)
    };
    let refuses = |profile: &&NamedProfile| {
        let checked = Profile::check(&profile.file, &profile.text, &ProfileEnv::default());
        checked.is_ok_and(|profile| profile.without_events() == Some(WithoutEvents::Refuse))
    };
    let Some(profile) = settings.profiles.iter().filter(is_used).find(refuses) else { return };
    let Some(Yaml::List(entries)) = root.get("pods").map(|node| &node.value) else { return };
    for pod in pods.iter().filter(|pod| pod.events.is_empty()) {
        let is_entry_of_pod = |entry: &&Node| {
            let url = entry.get("url").and_then(Node::text).unwrap_or_default();
            url.trim_end_matches('/') == pod.url()
        };
        let span = entries.iter().find(is_entry_of_pod).map_or(root.span, |entry| entry.span);
        let pod = pod.name();
        let profile = &profile.name;
        let message =
            format!("profile `{profile}` requires cache events, but pod `{pod}` has no `events`");
        diagnostics
            .problems
            .push(Problem::new(ProblemKind::Conflict, span, message).cure(
                "give the pod `events`, or set `without_events: approximate` in the profile",
            ));
    }
}

/// The route of all requests, if the file has no `routes`.
fn default_route(
    root: &Node,
    models: &[ModelConfig],
    profiles: &mut Vec<NamedProfile>,
    diagnostics: &mut Diagnostics,
) -> Option<RouteSettings> {
    let profile = match &profiles[..] {
        [] => {
            resolve(DEFAULT_PROFILE, profiles);
            return None;
        }
        [only] => only.name.clone(),
        [first, ..] => {
            let span = root.get("profiles").map_or(root.span, |node| node.span);
            let message = format!("{} profiles are defined, but no route uses any", profiles.len());
            let cure = format!("choose one: `routes: [{{profile: {}}}]`", first.name);
            diagnostics
                .problems
                .push(Problem::new(ProblemKind::MissingDependency, span, message).cure(cure));
            first.name.clone()
        }
    };
    let route = RouteSettings { profile, ..RouteSettings::default() };
    let span = root.get("profiles").map_or(root.span, |node| node.span);
    check_tokenizers(&route, span, models, profiles, diagnostics);
    Some(route)
}

/// Reports roles of built-in profiles that no pod has. The configuration's own profiles are checked
/// where they are defined.
pub(crate) fn check_roles(
    root: &Node,
    roles: Option<Vec<Role>>,
    settings: &Settings,
    diagnostics: &mut Diagnostics,
) {
    let env = ProfileEnv { roles, ..ProfileEnv::default() };
    for profile in &settings.profiles {
        let is_builtin = builtin_profile(&profile.name).is_some_and(|text| text == profile.text);
        let Err(problems) = Profile::check(&profile.file, &profile.text, &env) else {
            continue;
        };
        for problem in problems.all().iter().filter(|_| is_builtin) {
            let name = &profile.name;
            let what = problem.message();
            let message = format!("built-in profile `{name}` does not match the pods: {what}");
            let span = root.get("pods").map_or(root.span, |node| node.span);
            diagnostics.problems.push(Problem::new(ProblemKind::NoPodForRole, span, message).cure(
                "give a pod that role, or route to a profile that matches, such as `prefill-decode` for pods with `role: prefill` \
                 and `role: decode`",
            ));
        }
    }
}

/// Moves the profile of the last route, which matches every request, to the front.
pub(crate) fn default_first(routes: &[RouteSettings], profiles: &mut [NamedProfile]) {
    let Some(last) = routes.last() else { return };
    if let Some(at) = profiles.iter().position(|profile| profile.name == last.profile) {
        profiles[..=at].rotate_right(1);
    }
}
