//! A plugin: what it declares of itself, and what it is made with.
//!
//! The registry knows a [`Plugin`] as data: its name, its parameters and a function that makes it.
//! That function gets an [`Assembly`], asks it for parameters and for handles to slots, and holding
//! a handle is the declaration that the plugin reads or writes the slot. The [`Blueprint`] records
//! every use of a slot with its position in the YAML, and `profile/slots.rs` checks all of them
//! together.

use std::sync::{Arc, OnceLock};

use wornpath_yaml::{FromValue, Parameter, Problem, ProblemKind, SettingValues, Span, Takes};

use crate::models::Models;
use crate::name::Role;
use crate::slot::{BlockHashes, Picked, ProfileId, Reads, Slot, SlotKind, Writes};
use crate::stage::{Filter, HeldDepth, Pick, Prepare, Score, Stage};

/// The type of a parameter that is another picker; [`Assembly::picker`] makes it.
pub const PICKER: Takes = Takes::Nested("a picker, such as `max_score`");

/// A plugin as the registry knows it: everything but the instance.
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// Its name in YAML, unique in its stage.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Plugins that the profile must have too, by stage and name.
    pub needs: &'static [(Stage, &'static str)],
    /// Plugins that the profile must not have.
    pub conflicts: &'static [(Stage, &'static str)],
    /// Its use in a profile; a test makes the plugin from it.
    pub example: &'static str,
    /// The function that makes it.
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
    /// A registry of these plugins, whose names differ within a stage.
    pub(crate) const fn of(plugins: Vec<Plugin>) -> Self {
        Self { plugins }
    }

    /// Adds a plugin. It replaces one of the same stage and name.
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

/// The plugins of this process, which everything that checks a profile finds without being handed
/// them. They are a property of the program, as its allocator is, and never change.
static INSTALLED: OnceLock<Registry> = OnceLock::new();

/// Plugins are installed after a profile was checked without them, or twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("plugins must be installed once, before the first profile is checked")]
pub struct InstalledTooLate(());

impl Registry {
    /// Makes these the plugins of the process, which [`Registry::default`] returns.
    ///
    /// # Errors
    /// If the process has plugins already: they were installed or used before.
    pub fn install(self) -> Result<(), InstalledTooLate> {
        INSTALLED.set(self).map_err(|_| InstalledTooLate(()))
    }
}

/// The plugins of the process: those installed, or else the shipped ones.
impl Default for Registry {
    fn default() -> Self {
        INSTALLED.get_or_init(Self::shipped).clone()
    }
}

/// A plugin cannot be made. The problem has been recorded, with its position and cure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AssemblyRefused(());

impl AssemblyRefused {
    pub(crate) const fn recorded() -> Self {
        Self(())
    }
}

/// A profile while it is being assembled.
pub(crate) struct Blueprint {
    pub(crate) profile: ProfileId,
    pub(crate) registry: Registry,
    pub(crate) models: Arc<Models>,
    /// The roles of the configured pods; `None` if pods are not known yet.
    pub(crate) roles: Option<Vec<Role>>,
    pub(crate) slots: Vec<SlotKind>,
    pub(crate) uses: Vec<Use>,
    /// Every plugin and its position, nested pickers and the filters of `hold` included.
    pub(crate) plugins: Vec<(Plugin, Span)>,
    pub(crate) problems: Vec<Problem>,
}

/// Orders from here on are those of steps that are bound when they start, after the plan is made.
pub(crate) const LATE: usize = usize::MAX / 2;

/// One read or write of a slot.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) slot: usize,
    pub(crate) access: SlotAccess,
    pub(crate) user: String,
    pub(crate) stage: Stage,
    /// The order of uses in the life of a request.
    pub(crate) order: usize,
    pub(crate) span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotAccess {
    Read,
    Write,
}

impl Blueprint {
    pub(crate) fn new(registry: &Registry, models: &Arc<Models>) -> Self {
        Self {
            profile: ProfileId::next(),
            registry: registry.clone(),
            models: Arc::clone(models),
            roles: None,
            slots: Vec::new(),
            uses: Vec::new(),
            plugins: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn slot<T: Slot>(&mut self, of: Option<&str>) -> usize {
        let kind = SlotKind::of::<T>(of);
        let known = self.slots.iter().position(|slot| slot.same(&kind));
        known.unwrap_or_else(|| {
            self.slots.push(kind);
            self.slots.len() - 1
        })
    }

    /// Records a plugin and its position, once: two steps may share a selector.
    pub(crate) fn add_plugin(&mut self, plugin: Plugin, span: Span) {
        let is_known = |(known, at): &(Plugin, Span)| known.name == plugin.name && *at == span;
        if !self.plugins.iter().any(is_known) {
            self.plugins.push((plugin, span));
        }
    }

    /// The problem that no pod has the role which `user` needs, if pods are known.
    pub(crate) fn role_without_pods(&self, user: &str, role: &Role, span: Span) -> Option<Problem> {
        let roles = self.roles.as_ref().filter(|roles| !roles.contains(role))?;
        let known: Vec<_> = roles.iter().map(|role| format!("`{role}`")).collect();
        let known = known.join(", ");
        let message = format!("{user} needs the role `{role}`, which no pod has");
        let cure = format!("give a pod the role `{role}`, or use one that pods have: {known}");
        Some(Problem::new(ProblemKind::NoPodForRole, span, message).cure(cure))
    }

    /// Records a problem that prevents a plugin.
    pub(crate) fn refuse(&mut self, problem: Problem) -> AssemblyRefused {
        self.problems.push(problem);
        AssemblyRefused::recorded()
    }

    /// The handle to a slot, for the pipeline itself, if a plugin writes the slot.
    pub(crate) fn reads_if_written<T: Slot>(&mut self) -> Option<Reads<T>> {
        let slot = self.slot::<T>(None);
        let written =
            self.uses.iter().any(|used| used.slot == slot && used.access == SlotAccess::Write);
        written.then(|| Reads::new(slot as u16, self.profile))
    }

    /// The handle to a step's pick, which later steps can read.
    pub(crate) fn writes_pick(&mut self, step: &str, order: usize, span: Span) -> Writes<Picked> {
        let slot = self.slot::<Picked>(Some(step));
        self.uses.push(Use {
            slot,
            access: SlotAccess::Write,
            user: step.to_owned(),
            stage: Stage::Pick,
            order,
            span,
        });
        Writes::new(slot as u16, self.profile)
    }
}

/// What the function that makes a plugin gets: parameters, and handles to slots.
pub struct Assembly<'a> {
    pub(crate) blueprint: &'a mut Blueprint,
    pub(crate) plugin: &'static str,
    pub(crate) stage: Stage,
    pub(crate) span: Span,
    pub(crate) order: usize,
    pub(crate) settings: SettingValues,
    /// The nested pickers, printed.
    pub(crate) nested: Vec<(&'static str, String)>,
}

impl Assembly<'_> {
    /// The handle to read a slot that another plugin writes.
    #[must_use]
    pub fn reads<T: Slot>(&mut self) -> Reads<T> {
        let slot = self.blueprint.slot::<T>(None);
        self.record_use(slot, SlotAccess::Read);
        Reads::new(slot as u16, self.blueprint.profile)
    }

    /// The handle to read a slot, if the profile has a plugin that writes it.
    #[must_use]
    pub fn reads_if_written<T: Slot>(&mut self) -> Option<Reads<T>> {
        let reads = self.blueprint.reads_if_written::<T>()?;
        let slot = self.blueprint.slot::<T>(None);
        self.record_use(slot, SlotAccess::Read);
        Some(reads)
    }

    /// The handle to write a slot. A profile has one writer of each slot.
    #[must_use]
    pub fn writes<T: Slot>(&mut self) -> Writes<T> {
        let slot = self.blueprint.slot::<T>(None);
        self.record_use(slot, SlotAccess::Write);
        Writes::new(slot as u16, self.blueprint.profile)
    }

    /// The handle to read how many blocks of the prompt each pod holds. Reads [`BlockHashes`].
    #[must_use]
    pub fn held(&mut self) -> HeldDepth {
        HeldDepth { blocks: self.reads::<BlockHashes>() }
    }

    /// The handle to read the pod that an earlier step was bound to.
    #[must_use]
    pub fn picked(&mut self, step: &str) -> Reads<Picked> {
        let slot = self.blueprint.slot::<Picked>(Some(step));
        self.record_use(slot, SlotAccess::Read);
        Reads::new(slot as u16, self.blueprint.profile)
    }

    /// The models that are served.
    #[must_use]
    pub fn models(&self) -> Arc<Models> {
        Arc::clone(&self.blueprint.models)
    }

    /// The value of a parameter that is required or has a default.
    ///
    /// # Panics
    /// If the plugin does not declare it so, or as another type.
    #[must_use]
    pub fn get<T: FromValue>(&self, parameter: &'static str) -> T {
        self.maybe(parameter).unwrap_or_else(|| {
            panic!(
                "plugin `{}` must declare `{parameter}` as required or with a default",
                self.plugin
            )
        })
    }

    /// The value of an optional parameter.
    ///
    /// # Panics
    /// If the plugin declares it as another type.
    #[must_use]
    pub fn maybe<T: FromValue>(&self, parameter: &'static str) -> Option<T> {
        self.settings.maybe(parameter)
    }

    /// Refuses a value that has the right type but is wrong. `message` says what is wrong with it,
    /// `cure` what to write instead.
    #[must_use]
    pub fn refuse(
        &mut self,
        parameter: &'static str,
        message: &str,
        cure: &str,
    ) -> AssemblyRefused {
        let plugin = self.plugin;
        let span = self.span_of(parameter);
        let message = match self.settings.find(parameter) {
            Some(_) => format!("`{parameter}` of `{plugin}`: {message}"),
            None => format!("`{plugin}`: {message}"),
        };
        let problem = Problem::new(ProblemKind::BadParameter, span, message).cure(cure);
        self.blueprint.refuse(problem)
    }

    /// The role that a parameter names.
    ///
    /// # Errors
    /// If pods are known and none of them has the role; the problem has been recorded.
    pub fn role(&mut self, parameter: &'static str, name: &str) -> Result<Role, AssemblyRefused> {
        let role = Role::named(name);
        let span = self.span_of(parameter);
        let user = format!("`{}`", self.plugin);
        match self.blueprint.role_without_pods(&user, &role, span) {
            None => Ok(role),
            Some(problem) => Err(self.blueprint.refuse(problem)),
        }
    }

    /// The position of a parameter; of the plugin if the parameter is absent.
    fn span_of(&self, parameter: &str) -> Span {
        self.settings.find(parameter).map_or(self.span, |setting| setting.span)
    }

    fn record_use(&mut self, slot: usize, access: SlotAccess) {
        self.blueprint.uses.push(Use {
            slot,
            access,
            user: self.plugin.to_owned(),
            stage: self.stage,
            order: self.order,
            span: self.span,
        });
    }
}
