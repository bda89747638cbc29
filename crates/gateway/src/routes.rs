//! The route table: the checked profiles, and which profile serves a request.
//!
//! Routes are tried in order; the first whose path, model and tenant match decides. Without a match
//! the first profile counts.

use std::sync::Arc;
use wornpath_config::{RouteSettings, Settings, ShadowSettings};
use wornpath_routing::{
    Models, Name, PluginView, Problems, Profile, ProfileEnv, Slot, Tokens, WithoutEvents,
};

/// Why the profiles or routes of a configuration are invalid.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// Profiles failed their check; each problem names its place and its cure.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<String>())]
    Profiles(Vec<Problems>),
    /// The configuration has no profile.
    #[error("no profile configured; add at least one")]
    NoProfile,
    /// A route names a profile that is not configured.
    #[error("route names unknown profile `{profile}`; available: {known}")]
    UnknownProfile {
        /// The name in the route.
        profile: String,
        /// The configured profiles, separated by commas.
        known: String,
    },
}

/// The profiles and models in force, and the routes between requests and profiles.
#[derive(Debug)]
pub struct RouteTable {
    models: Arc<Models>,
    profiles: Vec<(Name, Arc<Profile>)>,
    /// Each with the position of its profile in `profiles`.
    routes: Vec<(RouteSettings, usize)>,
    /// Pairs of an alias that clients may send and the name that pods know the model by.
    aliases: Vec<(String, Name)>,
    shadow: Option<ShadowProfile>,
    /// The position of the profile for models without a tokenizer, which replaces the first.
    by_text: Option<usize>,
    wants_tokens: bool,
}

/// A profile that decides beside the first one, without effect.
#[derive(Debug)]
pub(crate) struct ShadowProfile {
    pub(crate) name: Name,
    /// An instance of its own: its plugins remember what it chose.
    pub(crate) profile: Profile,
    pub(crate) per_second: f64,
}

impl RouteTable {
    /// Checks the profiles against the models. The roles of pods are checked with the
    /// configuration, which knows whether discovery may add pods that it does not list.
    ///
    /// # Errors
    /// Every problem of every profile, no profile at all, or a route to an unknown one.
    pub fn check(settings: &Settings) -> Result<Self, RoutingError> {
        let mut models = Models::new(settings.key.clone());
        for model in &settings.models {
            models = models.with(&model.name, model.block_size.tokens(), model.tokenizer.clone());
        }
        let models = Arc::new(models);
        let env = ProfileEnv { models: Arc::clone(&models), ..ProfileEnv::default() };
        let mut profiles = Vec::new();
        let mut problems = Vec::new();
        for named in &settings.profiles {
            match Profile::check(&named.file, &named.text, &env) {
                Ok(profile) => profiles.push((Name::from(named.name.as_str()), Arc::new(profile))),
                Err(found) => problems.push(found),
            }
        }
        let mut by_text = None;
        if let Some(named) = &settings.by_text {
            match Profile::check(&named.file, &named.text, &env) {
                Ok(profile) => {
                    by_text = Some(profiles.len());
                    profiles.push((Name::from(named.name.as_str()), Arc::new(profile)));
                }
                Err(found) => problems.push(found),
            }
        }
        let mut shadow = None;
        if let Some(ShadowSettings { profile: named, per_second }) = &settings.shadow {
            match Profile::check(&named.file, &named.text, &env) {
                Ok(profile) => {
                    let name = Name::from(named.name.as_str());
                    shadow = Some(ShadowProfile { name, profile, per_second: *per_second });
                }
                Err(found) => problems.push(found),
            }
        }
        if !problems.is_empty() {
            return Err(RoutingError::Profiles(problems));
        }
        if profiles.is_empty() {
            return Err(RoutingError::NoProfile);
        }
        let mut routes = Vec::new();
        for route in &settings.routes {
            let at = profiles.iter().position(|(name, _)| *name == *route.profile);
            let at = at.ok_or_else(|| RoutingError::UnknownProfile {
                profile: route.profile.clone(),
                known: profiles
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
            routes.push((route.clone(), at));
        }
        let alias = |name: &str, alias: &String| (alias.clone(), Name::from(name));
        let aliases = settings.models.iter().flat_map(|model| {
            model.aliases.iter().map(|other| alias(&model.name, other)).collect::<Vec<_>>()
        });
        let wants_tokens = profiles.iter().any(|(_, profile)| tokenizes(profile));
        let aliases = aliases.collect();
        Ok(Self { models, profiles, routes, aliases, shadow, by_text, wants_tokens })
    }

    /// The profile that serves a request, with its name.
    #[must_use]
    pub fn profile(
        &self,
        path: &str,
        model: &Name,
        tenant: Option<&Name>,
    ) -> (&Name, &Arc<Profile>) {
        let matches = |route: &RouteSettings| {
            route.path.as_ref().is_none_or(|pattern| is_path(pattern, path))
                && route.model.as_ref().is_none_or(|wanted| wanted == model)
                && route.tenant.as_ref().is_none_or(|wanted| Some(wanted) == tenant)
        };
        let at = self.routes.iter().find(|(route, _)| matches(route)).map_or(0, |(_, at)| *at);
        let is_tokenized = || self.models.find(model).is_some_and(|it| it.tokenizer().is_some());
        let at = self.by_text.filter(|_| at == 0 && !is_tokenized()).unwrap_or(at);
        let (name, profile) = &self.profiles[at];
        (name, profile)
    }

    /// Whether the pattern of a route is for paths below this root, and matches the path.
    pub(crate) fn names(&self, root: &str, path: &str) -> bool {
        let mut patterns = self.routes.iter().filter_map(|(route, _)| route.path.as_ref());
        patterns.any(|pattern| pattern.starts_with(root) && is_path(pattern, path))
    }

    /// All profiles with their names, in the order of the configuration.
    #[must_use]
    pub fn profiles(&self) -> &[(Name, Arc<Profile>)] {
        &self.profiles
    }

    /// A profile in use that refuses pods without cache events, if there is one.
    pub(crate) fn refuses_without_events(&self) -> Option<&Name> {
        let refuses =
            |at: &usize| self.profiles[*at].1.without_events() == Some(WithoutEvents::Refuse);
        let mut used = std::iter::once(0).chain(self.routes.iter().map(|(_, at)| *at));
        used.find(refuses).map(|at| &self.profiles[at].0)
    }

    /// Whether a profile tokenizes prompts.
    #[must_use]
    pub const fn wants_tokens(&self) -> bool {
        self.wants_tokens
    }

    /// The configured models, with tokenizer and block size.
    #[must_use]
    pub const fn models(&self) -> &Arc<Models> {
        &self.models
    }

    pub(crate) const fn shadow(&self) -> Option<&ShadowProfile> {
        self.shadow.as_ref()
    }

    pub(crate) fn aliases(&self) -> &[(String, Name)] {
        &self.aliases
    }
}

/// Whether a profile tokenizes prompts; others compare at most their text.
#[must_use]
pub fn tokenizes(profile: &Profile) -> bool {
    let writes_tokens = |plugin: &PluginView| plugin.writes.iter().any(|slot| slot == Tokens::NAME);
    profile.graph().prepare.iter().any(writes_tokens)
}

/// Whether a path matches a route's pattern: equal, or a prefix if the pattern ends in `*`.
pub(crate) fn is_path(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => pattern == path,
    }
}
