//! The checked profiles, and which request goes by which.

use std::sync::Arc;
use wornpath_config::{RouteSettings, Settings};
use wornpath_routing::{Models, Name, Problems, Profile, ProfileEnv, WithoutEvents};

/// Profiles that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// Something is wrong with them, each problem with its place and its cure.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<String>())]
    Profiles(Vec<Problems>),
    /// There is none.
    #[error("no profile configured; add at least one")]
    NoProfile,
    /// A route names a profile that there is not.
    #[error("route names unknown profile `{profile}`; available: {known}")]
    UnknownProfile {
        /// The name.
        profile: String,
        /// Those there are.
        known: String,
    },
}

/// How requests are routed.
#[derive(Debug)]
pub struct RouteTable {
    models: Arc<Models>,
    profiles: Vec<(Name, Arc<Profile>)>,
    /// With the position of their profile.
    routes: Vec<(RouteSettings, usize)>,
    /// Other names of models: what clients say, and what pods call it.
    aliases: Vec<(String, Name)>,
}

impl RouteTable {
    /// Checks the profiles against the models. Whether pods play their roles is checked with the configuration, which
    /// knows whether others may come than those it lists.
    ///
    /// # Errors
    /// Every problem of every profile.
    pub fn check(settings: &Settings) -> Result<Self, RoutingError> {
        let mut models = Models::new(settings.key.clone());
        for model in &settings.models {
            models = models.with(&model.name, model.block_size.tokens(), model.tokenizer.clone());
        }
        let models = Arc::new(models);
        let surroundings = ProfileEnv { models: Arc::clone(&models), ..ProfileEnv::default() };
        let (mut profiles, mut problems) = (Vec::new(), Vec::new());
        for named in &settings.profiles {
            match Profile::check(&named.file, &named.text, &surroundings) {
                Ok(profile) => profiles.push((Name::from(named.name.as_str()), Arc::new(profile))),
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
        Ok(Self { models, profiles, routes, aliases: aliases.collect() })
    }

    /// The profile of a request.
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
        let (name, profile) = &self.profiles[at];
        (name, profile)
    }

    /// All profiles by name.
    #[must_use]
    pub fn profiles(&self) -> &[(Name, Arc<Profile>)] {
        &self.profiles
    }

    /// The profile that some requests go by and that refuses pods which never tell what they hold, if there is one.
    pub(crate) fn refuses_without_events(&self) -> Option<&Name> {
        let refuses =
            |at: &usize| self.profiles[*at].1.without_events() == Some(WithoutEvents::Refuse);
        let mut used = std::iter::once(0).chain(self.routes.iter().map(|(_, at)| *at));
        used.find(refuses).map(|at| &self.profiles[at].0)
    }

    /// The models of which more than the name is known.
    #[must_use]
    pub const fn models(&self) -> &Arc<Models> {
        &self.models
    }

    pub(crate) fn aliases(&self) -> &[(String, Name)] {
        &self.aliases
    }
}

/// Whether a route's pattern means a path.
pub(crate) fn is_path(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => pattern == path,
    }
}
