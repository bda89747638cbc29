//! What the registry knows of a plugin, and the registry.

use wornpath_yaml::{Parameter, Takes};

use crate::assembly::{Assembly, AssemblyRefused};
use crate::stage::{Filter, Pick, Prepare, Score};

/// The type of a parameter that is another picker; [`Assembly::picker`] makes it.
pub const PICKER: Takes = Takes::Nested("a picker, such as `max_score`");

/// A plugin as the registry knows it: everything but the running thing.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// Its name in YAML, unique in its stage.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Plugins that must be in the profile too, by stage and name.
    pub needs: &'static [(Stage, &'static str)],
    /// Plugins that must not.
    pub conflicts: &'static [(Stage, &'static str)],
    /// How it looks in a profile; a test makes it from this.
    pub example: &'static str,
    /// Makes it.
    pub make: Make,
}

/// Makes a plugin of one stage. The function asks the assembly for handles and parameters.
#[derive(Clone, Copy, Debug)]
pub enum Make {
    /// For `prepare`.
    Prepare(fn(&mut Assembly<'_>) -> Result<Box<dyn Prepare>, AssemblyRefused>),
    /// For `filter`.
    Filter(fn(&mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused>),
    /// For `score`.
    Score(fn(&mut Assembly<'_>) -> Result<Box<dyn Score>, AssemblyRefused>),
    /// For `pick`.
    Pick(fn(&mut Assembly<'_>) -> Result<Box<dyn Pick>, AssemblyRefused>),
}

/// Where in the pipeline a plugin stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Once per request.
    Prepare,
    /// Who cannot.
    Filter,
    /// Who should.
    Score,
    /// Who will.
    Pick,
}

impl Stage {
    /// All four, in order.
    pub const ALL: [Self; 4] = [Self::Prepare, Self::Filter, Self::Score, Self::Pick];

    /// Its key in a profile.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Filter => "filter",
            Self::Score => "score",
            Self::Pick => "pick",
        }
    }
}

impl Plugin {
    /// The stage it belongs to.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        match self.make {
            Make::Prepare(_) => Stage::Prepare,
            Make::Filter(_) => Stage::Filter,
            Make::Score(_) => Stage::Score,
            Make::Pick(_) => Stage::Pick,
        }
    }
}

/// The plugins that profiles can name.
#[derive(Clone, Debug)]
pub struct Registry {
    plugins: Vec<Plugin>,
}

impl Registry {
    /// The plugins that wornpath ships.
    #[must_use]
    pub fn shipped() -> Self {
        Self { plugins: crate::plugins::ALL.to_vec() }
    }

    /// One more. It takes the place of a plugin of the same stage and name.
    #[must_use]
    pub fn with(mut self, plugin: Plugin) -> Self {
        self.plugins.retain(|known| (known.stage(), known.name) != (plugin.stage(), plugin.name));
        self.plugins.push(plugin);
        self
    }

    /// All of them, in the order they were registered.
    #[must_use]
    pub fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }

    /// The plugin of that name.
    #[must_use]
    pub fn find(&self, stage: Stage, name: &str) -> Option<&Plugin> {
        self.plugins.iter().find(|plugin| plugin.stage() == stage && plugin.name == name)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::shipped()
    }
}
