//! Makes plugins from the entries of a profile.
//!
//! An entry names a plugin and gives its parameters. A plugin that cannot be made is a problem at
//! its position, and assembly goes on with the next one, so that a profile reports all its
//! problems.

use std::fmt;

use serde_json::{Value, json};
use wornpath_yaml::{
    GivenSetting, Node, Problem, ProblemKind, Setting, SettingEntry, SettingValues, Span, nearest,
    parse,
};

use crate::plugin::{Assembly, AssemblyRefused, Blueprint, Make, Registry, SlotAccess, Use};
use crate::stage::{Filter, Pick, Prepare, Score, Stage};

/// An instance of a plugin, of any stage.
pub(crate) enum BuiltPlugin {
    Prepare(Box<dyn Prepare>),
    Filter(Box<dyn Filter>),
    Score(Box<dyn Score>),
    Pick(Box<dyn Pick>),
}

/// A plugin made from an entry of a profile.
pub(crate) struct NamedPlugin {
    pub(crate) span: Span,
    pub(crate) plugin: BuiltPlugin,
    pub(crate) view: PluginView,
    /// SettingValues of the stage, not of the plugin: `weight`, `scale_ms`, `on_empty`.
    pub(crate) reserved: Vec<(&'static str, Node)>,
}

/// A plugin of a profile, for people and for the dashboard.
#[derive(Clone, PartialEq, Debug)]
pub struct PluginView {
    /// Its stage.
    pub stage: Stage,
    /// Its name.
    pub plugin: &'static str,
    /// As YAML, with all defaults.
    pub line: String,
    /// Its weight, if it is a scorer.
    pub weight: Option<f64>,
    /// The slots that it reads.
    pub reads: Vec<String>,
    /// The slots that it writes.
    pub writes: Vec<String>,
}

impl PluginView {
    /// Adds a setting of the stage to the YAML.
    pub(crate) fn add(&mut self, name: &str, value: impl fmt::Display) {
        match self.line.strip_suffix('}') {
            Some(start) => self.line = format!("{start}, {name}: {value}}}"),
            None => self.line = format!("{}: {{{name}: {value}}}", self.line),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "stage": self.stage.key(), "plugin": self.plugin, "weight": self.weight,
            "reads": self.reads, "writes": self.writes,
        })
    }
}

impl Assembly<'_> {
    /// Makes the picker that a parameter names.
    ///
    /// # Errors
    /// If it cannot be made; the problem has been recorded.
    ///
    /// # Panics
    /// If the plugin does not declare the parameter as a picker that is required or has a default.
    pub fn picker(&mut self, parameter: &'static str) -> Result<Box<dyn Pick>, AssemblyRefused> {
        let setting = self.settings.find(parameter).cloned();
        let Some(Setting { value: GivenSetting::Nested(node), .. }) = setting else {
            panic!("plugin `{}` must declare `{parameter}` as a picker", self.plugin);
        };
        let made = make(self.blueprint, &node, Stage::Pick, self.order)?;
        let BuiltPlugin::Pick(pick) = made.plugin else {
            unreachable!("a plugin found under `pick` makes a picker")
        };
        self.nested.push((parameter, made.view.line));
        Ok(pick)
    }
}

/// The settings of a stage, which every plugin of it takes.
const fn reserved(stage: Stage) -> &'static [&'static str] {
    match stage {
        Stage::Filter => &["on_empty"],
        Stage::Score => &["weight", "scale_ms"],
        Stage::Prepare | Stage::Pick => &[],
    }
}

/// Makes the plugin that `node` names, or records every problem with it. `order` is that of its
/// uses of slots.
pub(crate) fn make(
    blueprint: &mut Blueprint,
    node: &Node,
    stage: Stage,
    order: usize,
) -> Result<NamedPlugin, AssemblyRefused> {
    let entry = plugin_entry(node, stage).map_err(|problem| blueprint.refuse(problem))?;
    let first_use = blueprint.uses.len();
    let made = make_entry(blueprint, &entry, stage, order);
    if made.is_err() {
        // It may have taken handles before it was refused.
        blueprint.uses.truncate(first_use);
        assume_uses(blueprint, stage, &entry, order);
    }
    made
}

fn make_entry(
    blueprint: &mut Blueprint,
    entry: &SettingEntry<'_>,
    stage: Stage,
    order: usize,
) -> Result<NamedPlugin, AssemblyRefused> {
    let Some(plugin) = blueprint.registry.find(stage, entry.name).copied() else {
        let problem = unknown_plugin(&blueprint.registry, stage, entry);
        return Err(blueprint.refuse(problem));
    };
    blueprint.add_plugin(plugin, entry.span);
    let before = blueprint.problems.len();
    let reserved = reserved(stage);
    let settings = SettingValues::read(entry, plugin.parameters, reserved, &mut blueprint.problems);
    if blueprint.problems.len() > before {
        return Err(AssemblyRefused::recorded());
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
        order,
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
    let reads = touched(SlotAccess::Read);
    let writes = touched(SlotAccess::Write);
    let line = settings.line(plugin.name, &nested);
    let view = PluginView { stage, plugin: plugin.name, line, weight: None, reads, writes };
    Ok(NamedPlugin { span: entry.span, plugin: made, view, reserved })
}

fn plugin_entry(node: &Node, stage: Stage) -> Result<SettingEntry<'_>, Problem> {
    let key = stage.key();
    let cure = format!("write `{key}` plugins as `name` or `name: {{parameter: value}}`");
    SettingEntry::read(node, "plugin").map_err(|problem| problem.cure(cure))
}

/// Records the uses of slots that a refused plugin would have had, or the plugin nearest to its
/// name: one mistake is one problem, and not one more for each of its readers.
fn assume_uses(blueprint: &mut Blueprint, stage: Stage, entry: &SettingEntry<'_>, order: usize) {
    let known = blueprint.registry.plugins().iter().filter(|plugin| plugin.stage() == stage);
    let Some(meant) = nearest(entry.name, known.map(|plugin| plugin.name)) else { return };
    let Some(plugin) = blueprint.registry.find(stage, meant).copied() else { return };
    blueprint.add_plugin(plugin, entry.span);
    let mut draft = Blueprint::new(&blueprint.registry, &blueprint.models);
    std::mem::swap(&mut draft.slots, &mut blueprint.slots);
    let example = parse(plugin.example);
    if let Some(entry) = example.as_ref().ok().and_then(|node| plugin_entry(node, stage).ok()) {
        // Only the handles that it takes matter, not whether it can be made here.
        let _ = make_entry(&mut draft, &entry, stage, order);
    }
    blueprint.slots = draft.slots;
    blueprint.uses.extend(draft.uses.into_iter().map(|used| Use { span: entry.span, ..used }));
}

fn unknown_plugin(registry: &Registry, stage: Stage, entry: &SettingEntry<'_>) -> Problem {
    let name = entry.name;
    let key = stage.key();
    let elsewhere = registry.plugins().iter().find(|plugin| plugin.name == name);
    let message = format!("unknown `{key}` plugin `{name}`");
    let known = || {
        registry.plugins().iter().filter(|plugin| plugin.stage() == stage).map(|plugin| plugin.name)
    };
    let cure = match (elsewhere, nearest(name, known())) {
        (Some(plugin), _) => {
            format!("`{name}` belongs to `{}`; move it there", plugin.stage().key())
        }
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => format!("use one of: {}", known().collect::<Vec<_>>().join(", ")),
    };
    Problem::new(ProblemKind::UnknownPlugin, entry.span, message).cure(cure)
}
