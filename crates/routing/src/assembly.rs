//! What a plugin is made with: its parameters, and the handles to the slots it will use.
//!
//! Every handle that is asked for is taken down with the place of the plugin in the YAML. When all
//! plugins are made, the notes are checked as a whole (`profile/slots.rs`).

use std::sync::Arc;

use wornpath_yaml::{
    FromValue, GivenSetting, Node, Problem, ProblemKind, Setting, SettingEntry, Settings, Span,
    nearest, parse,
};

use crate::models::Models;
use crate::name::Role;
use crate::plugin::{Make, Plugin, Registry, Stage};
use crate::profile::PluginView;
use crate::slot::{ProfileId, Reads, Slot, SlotKind, Writes};
use crate::stage::{HeldDepth, Pick};
use crate::values::{BlockHashes, Picked};

/// The profile has been told why this plugin cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AssemblyRefused(());

/// What is known of the profile while it is being assembled.
pub(crate) struct Blueprint {
    pub(crate) profile: ProfileId,
    pub(crate) registry: Registry,
    pub(crate) models: Arc<Models>,
    /// The roles that pods can play, if pods are known.
    pub(crate) roles: Option<Vec<Role>>,
    pub(crate) slots: Vec<SlotKind>,
    pub(crate) uses: Vec<Use>,
    /// Every plugin that was met and where, nested pickers and judges too.
    pub(crate) present: Vec<(Plugin, Span)>,
    pub(crate) problems: Vec<Problem>,
}

/// The turns from here on come when a step starts, after all that is decided with the plan.
pub(crate) const LATE: usize = usize::MAX / 2;

/// Somebody reads or writes a slot.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) slot: usize,
    pub(crate) access: SlotAccess,
    pub(crate) user: String,
    pub(crate) stage: Stage,
    /// When in the life of a request it happens.
    pub(crate) turn: usize,
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
            present: Vec::new(),
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

    /// Takes down that a plugin stands there. Two steps may share a selector, and so its plugins.
    fn meet(&mut self, plugin: Plugin, span: Span) {
        let is_known =
            |(known, place): &(Plugin, Span)| known.name == plugin.name && *place == span;
        if !self.present.iter().any(is_known) {
            self.present.push((plugin, span));
        }
    }

    /// That no pod can play the role which `user` needs, if pods are known and none can.
    pub(crate) fn unplayable(&self, user: &str, role: &Role, span: Span) -> Option<Problem> {
        let roles = self.roles.as_ref().filter(|roles| !roles.contains(role))?;
        let known: Vec<_> = roles.iter().map(|role| format!("`{role}`")).collect();
        let known = known.join(", ");
        let message = format!("{user} needs the role `{role}`, which no pod can play");
        let cure = format!("give a pod the role `{role}`, or use one that pods have: {known}");
        Some(Problem::new(ProblemKind::NoPodForRole, span, message).cure(cure))
    }

    /// The handle to a slot that somebody writes, for the pipeline itself.
    pub(crate) fn reads_if_written<T: Slot>(&mut self) -> Option<Reads<T>> {
        let slot = self.slot::<T>(None);
        let written =
            self.uses.iter().any(|used| used.slot == slot && used.access == SlotAccess::Write);
        written.then(|| Reads::new(slot as u16, self.profile))
    }

    /// A step's pick becomes readable for the steps after it.
    pub(crate) fn writes_pick(&mut self, step: &str, turn: usize, span: Span) -> Writes<Picked> {
        let slot = self.slot::<Picked>(Some(step));
        self.uses.push(Use {
            slot,
            access: SlotAccess::Write,
            user: step.to_owned(),
            stage: Stage::Pick,
            turn,
            span,
        });
        Writes::new(slot as u16, self.profile)
    }
}

/// What a plugin is made with.
pub struct Assembly<'a> {
    pub(crate) blueprint: &'a mut Blueprint,
    pub(crate) plugin: &'static str,
    pub(crate) stage: Stage,
    pub(crate) span: Span,
    pub(crate) turn: usize,
    pub(crate) settings: Settings,
    /// Pickers made for it, as they would be printed.
    pub(crate) nested: Vec<(&'static str, String)>,
}

impl Assembly<'_> {
    /// The right to read what another plugin writes.
    #[must_use]
    pub fn reads<T: Slot>(&mut self) -> Reads<T> {
        let slot = self.blueprint.slot::<T>(None);
        self.note(slot, SlotAccess::Read);
        Reads::new(slot as u16, self.blueprint.profile)
    }

    /// The right to read what another plugin writes, if the profile has one that does.
    #[must_use]
    pub fn reads_if_written<T: Slot>(&mut self) -> Option<Reads<T>> {
        let reads = self.blueprint.reads_if_written::<T>()?;
        let slot = self.blueprint.slot::<T>(None);
        self.note(slot, SlotAccess::Read);
        Some(reads)
    }

    /// The right to write a slot. A profile can have one writer of each.
    #[must_use]
    pub fn writes<T: Slot>(&mut self) -> Writes<T> {
        let slot = self.blueprint.slot::<T>(None);
        self.note(slot, SlotAccess::Write);
        Writes::new(slot as u16, self.blueprint.profile)
    }

    /// The right to know how much of the prompt each pod holds. Reads [`BlockHashes`].
    #[must_use]
    pub fn held(&mut self) -> HeldDepth {
        HeldDepth { blocks: self.reads::<BlockHashes>() }
    }

    /// The right to know which pod the step of that name was given.
    #[must_use]
    pub fn picked(&mut self, step: &str) -> Reads<Picked> {
        let slot = self.blueprint.slot::<Picked>(Some(step));
        self.note(slot, SlotAccess::Read);
        Reads::new(slot as u16, self.blueprint.profile)
    }

    /// The models that are served.
    #[must_use]
    pub fn models(&self) -> Arc<Models> {
        Arc::clone(&self.blueprint.models)
    }

    /// A parameter that is required or has a default.
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

    /// A parameter that may be left out.
    ///
    /// # Panics
    /// If the plugin declares it as another type.
    #[must_use]
    pub fn maybe<T: FromValue>(&self, parameter: &'static str) -> Option<T> {
        self.settings.maybe(parameter)
    }

    /// The picker that a parameter names.
    ///
    /// # Errors
    /// If it cannot be made; the profile has been told.
    ///
    /// # Panics
    /// If the plugin does not declare the parameter as a picker that is required or has a default.
    pub fn picker(&mut self, parameter: &'static str) -> Result<Box<dyn Pick>, AssemblyRefused> {
        let setting = self.settings.find(parameter).cloned();
        let Some(Setting { value: GivenSetting::Nested(node), .. }) = setting else {
            panic!("plugin `{}` must declare `{parameter}` as a picker", self.plugin);
        };
        let made = make(self.blueprint, &node, Stage::Pick, self.turn)?;
        let BuiltPlugin::Pick(pick) = made.plugin else {
            unreachable!("a plugin found under `pick` makes a picker")
        };
        self.nested.push((parameter, made.card.line));
        Ok(pick)
    }

    /// Refuses a value that has the right type and is wrong all the same.
    ///
    /// `message` says what is wrong with it, `cure` what to write instead.
    #[must_use]
    pub fn refuse(
        &mut self,
        parameter: &'static str,
        message: &str,
        cure: &str,
    ) -> AssemblyRefused {
        let (plugin, span) = (self.plugin, self.place(parameter));
        let message = match self.settings.find(parameter) {
            Some(_) => format!("`{parameter}` of `{plugin}`: {message}"),
            // What is not there cannot be what is wrong.
            None => format!("`{plugin}`: {message}"),
        };
        let problem = Problem::new(ProblemKind::BadParameter, span, message).cure(cure);
        refused(self.blueprint, problem)
    }

    /// The role that a parameter names.
    ///
    /// # Errors
    /// If pods are known and none of them can play it; the profile has been told.
    pub fn role(&mut self, parameter: &'static str, name: &str) -> Result<Role, AssemblyRefused> {
        let (role, span) = (Role::named(name), self.place(parameter));
        let user = format!("`{}`", self.plugin);
        match self.blueprint.unplayable(&user, &role, span) {
            None => Ok(role),
            Some(problem) => Err(refused(self.blueprint, problem)),
        }
    }

    /// Where a parameter stands; the plugin's own place if it is not given.
    fn place(&self, parameter: &str) -> Span {
        self.settings.find(parameter).map_or(self.span, |setting| setting.span)
    }

    fn note(&mut self, slot: usize, access: SlotAccess) {
        let (user, stage) = (self.plugin.to_owned(), self.stage);
        let (turn, span) = (self.turn, self.span);
        self.blueprint.uses.push(Use { slot, access, user, stage, turn, span });
    }
}

/// A plugin of any stage, made.
pub(crate) enum BuiltPlugin {
    Prepare(Box<dyn crate::stage::Prepare>),
    Filter(Box<dyn crate::stage::Filter>),
    Score(Box<dyn crate::stage::Score>),
    Pick(Box<dyn Pick>),
}

pub(crate) struct NamedPlugin {
    pub(crate) span: Span,
    pub(crate) plugin: BuiltPlugin,
    pub(crate) card: PluginView,
    /// Settings that the stage reads, not the plugin: `weight`, `scale_ms`, `on_empty`.
    pub(crate) reserved: Vec<(&'static str, Node)>,
}

/// Keys that the stage reads itself.
const fn reserved(stage: Stage) -> &'static [&'static str] {
    match stage {
        Stage::Filter => &["on_empty"],
        Stage::Score => &["weight", "scale_ms"],
        Stage::Prepare | Stage::Pick => &[],
    }
}

/// Makes the plugin that `node` names, or takes down every reason why not.
pub(crate) fn make(
    blueprint: &mut Blueprint,
    node: &Node,
    stage: Stage,
    turn: usize,
) -> Result<NamedPlugin, AssemblyRefused> {
    let entry = plugin_entry(node, stage).map_err(|problem| refused(blueprint, problem))?;
    let first_use = blueprint.uses.len();
    let made = make_entry(blueprint, &entry, stage, turn);
    if made.is_err() {
        // It may have asked for some of its slots before it was refused.
        blueprint.uses.truncate(first_use);
        assume(blueprint, stage, &entry, turn);
    }
    made
}

fn make_entry(
    blueprint: &mut Blueprint,
    entry: &SettingEntry<'_>,
    stage: Stage,
    turn: usize,
) -> Result<NamedPlugin, AssemblyRefused> {
    let Some(plugin) = blueprint.registry.find(stage, entry.name).copied() else {
        let problem = unknown_plugin(&blueprint.registry, stage, entry);
        return Err(refused(blueprint, problem));
    };
    blueprint.meet(plugin, entry.span);
    let before = blueprint.problems.len();
    let reserved = reserved(stage);
    let settings = Settings::read(entry, plugin.parameters, reserved, &mut blueprint.problems);
    if blueprint.problems.len() > before {
        return Err(AssemblyRefused(()));
    }
    let kept = entry.settings.iter().filter_map(|(key, value)| {
        let name = reserved.iter().find(|word| key.text() == Some(word))?;
        Some((*name, value.clone()))
    });
    let reserved = kept.collect();
    let first_use = blueprint.uses.len();
    let mut assembly = Assembly {
        blueprint,
        plugin: plugin.name,
        stage,
        span: entry.span,
        turn,
        settings,
        nested: Vec::new(),
    };
    let made = match plugin.make {
        Make::Prepare(make) => BuiltPlugin::Prepare(make(&mut assembly)?),
        Make::Filter(make) => BuiltPlugin::Filter(make(&mut assembly)?),
        Make::Score(make) => BuiltPlugin::Score(make(&mut assembly)?),
        Make::Pick(make) => BuiltPlugin::Pick(make(&mut assembly)?),
    };
    let Assembly { settings, nested, .. } = assembly;
    let touched = |access| {
        let uses = blueprint.uses[first_use..].iter().filter(move |used| used.access == access);
        uses.map(|used| blueprint.slots[used.slot].to_string()).collect()
    };
    let (reads, writes) = (touched(SlotAccess::Read), touched(SlotAccess::Write));
    let line = settings.line(plugin.name, &nested);
    let card = PluginView { stage, plugin: plugin.name, line, weight: None, reads, writes };
    Ok(NamedPlugin { span: entry.span, plugin: made, card, reserved })
}

fn plugin_entry(node: &Node, stage: Stage) -> Result<SettingEntry<'_>, Problem> {
    let key = stage.key();
    let cure = format!("write `{key}` plugins as `name` or `name: {{parameter: value}}`");
    SettingEntry::read(node, "plugin").map_err(|problem| problem.cure(cure))
}

/// Takes down the slots that a plugin would use if it could be made, or the one that was probably
/// meant: so that one slip is one problem, and not a problem for each of its readers too.
fn assume(blueprint: &mut Blueprint, stage: Stage, entry: &SettingEntry<'_>, turn: usize) {
    let known = blueprint.registry.plugins().iter().filter(|plugin| plugin.stage() == stage);
    let Some(meant) = nearest(entry.name, known.map(|plugin| plugin.name)) else { return };
    let Some(plugin) = blueprint.registry.find(stage, meant).copied() else { return };
    blueprint.meet(plugin, entry.span);
    let mut draft = Blueprint::new(&blueprint.registry, &blueprint.models);
    std::mem::swap(&mut draft.slots, &mut blueprint.slots);
    let example = parse(plugin.example);
    if let Some(entry) = example.as_ref().ok().and_then(|node| plugin_entry(node, stage).ok()) {
        // Whether the example can be made here does not matter: only which slots it asks for.
        let _ = make_entry(&mut draft, &entry, stage, turn);
    }
    blueprint.slots = draft.slots;
    blueprint.uses.extend(draft.uses.into_iter().map(|used| Use { span: entry.span, ..used }));
}

fn refused(blueprint: &mut Blueprint, problem: Problem) -> AssemblyRefused {
    blueprint.problems.push(problem);
    AssemblyRefused(())
}

fn unknown_plugin(registry: &Registry, stage: Stage, entry: &SettingEntry<'_>) -> Problem {
    let (name, key) = (entry.name, stage.key());
    let elsewhere = registry.plugins().iter().find(|plugin| plugin.name == name);
    let message = format!("no `{key}` plugin is called `{name}`");
    let known = || {
        registry.plugins().iter().filter(|plugin| plugin.stage() == stage).map(|plugin| plugin.name)
    };
    let cure = match (elsewhere, nearest(name, known())) {
        (Some(plugin), _) => {
            format!("`{name}` belongs to `{}`; move it there", plugin.stage().key())
        }
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => format!("there are: {}", known().collect::<Vec<_>>().join(", ")),
    };
    Problem::new(ProblemKind::UnknownPlugin, entry.span, message).cure(cure)
}
