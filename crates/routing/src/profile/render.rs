//! A profile as people and the dashboard see it: printed with every default, and as a graph.

use std::fmt::{self, Write};

use serde_json::{Value, json};
use wornpath_yaml::writer::{quoted, word};

use crate::name::{Name, Role};
use crate::plugin::Stage;
use crate::workflow::SelectorPlace;

/// One plugin in its place.
#[derive(Clone, PartialEq, Debug)]
pub struct PluginView {
    /// Where it stands.
    pub stage: Stage,
    /// Its name.
    pub plugin: &'static str,
    /// As it would be written, with all defaults.
    pub line: String,
    /// Its weight, if it is a scorer.
    pub weight: Option<f64>,
    /// The slots that it reads.
    pub reads: Vec<String>,
    /// The slots that it writes.
    pub writes: Vec<String>,
}

/// The stages, the plugins in them, and the slots between them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SlotGraph {
    /// The preparers, in order.
    pub prepare: Vec<PluginView>,
    /// The steps, in order.
    pub steps: Vec<StepView>,
    /// The filters that the chosen pod must pass, or the request waits.
    pub hold: Vec<PluginView>,
}

/// One step and its plugins.
#[derive(Clone, PartialEq, Debug)]
pub struct StepView {
    /// Its name.
    pub name: Name,
    /// The role that it fills.
    pub role: Role,
    /// Its filters, scorers and picker, in order.
    pub plugins: Vec<PluginView>,
    pub(crate) selector: SelectorPlace,
    pub(crate) rules: String,
}

/// What there is to print.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProfileView {
    pub(crate) description: Option<String>,
    pub(crate) graph: SlotGraph,
    pub(crate) hold: String,
    pub(crate) speculate: String,
    /// Only of profiles that it concerns.
    pub(crate) without_events: Option<&'static str>,
}

impl PluginView {
    /// Adds a setting that the stage reads.
    pub(crate) fn add(&mut self, name: &str, value: impl fmt::Display) {
        match self.line.strip_suffix('}') {
            Some(start) => self.line = format!("{start}, {name}: {value}}}"),
            None => self.line = format!("{}: {{{name}: {value}}}", self.line),
        }
    }

    fn json(&self) -> Value {
        json!({
            "stage": self.stage.key(), "plugin": self.plugin, "weight": self.weight,
            "reads": self.reads, "writes": self.writes,
        })
    }
}

impl ProfileView {
    /// The profile as YAML. Checking it again gives the same profile.
    pub(crate) fn printed(&self) -> String {
        let mut out = String::new();
        if let Some(description) = &self.description {
            let _ = writeln!(out, "description: {}", quoted(description));
        }
        list(&mut out, "", "prepare", &self.graph.prepare);
        match &self.graph.steps[..] {
            [step] if step.selector == SelectorPlace::Top => {
                stages(&mut out, "", &step.plugins);
                let _ = writeln!(out, "workflow:\n  single: {{{}}}", step.rules);
            }
            steps => {
                out.push_str("selectors:\n");
                for (at, step) in steps.iter().enumerate() {
                    if steps[..at].iter().all(|other| other.selector != step.selector) {
                        let _ = writeln!(out, "  {}:", step.selector_name());
                        stages(&mut out, "    ", &step.plugins);
                    }
                }
                out.push_str("workflow:\n  steps:\n");
                for step in steps {
                    let (name, selector) = (word(step.name.as_str()), step.selector_name());
                    let _ = writeln!(out, "    - {name}: {{selector: {selector}, {}}}", step.rules);
                }
            }
        }
        let _ = writeln!(out, "hold:");
        list(&mut out, "  ", "unless", &self.graph.hold);
        out.push_str(&self.hold);
        let _ = writeln!(out, "speculate: {}", self.speculate);
        if let Some(without_events) = self.without_events {
            let _ = writeln!(out, "without_events: {without_events}");
        }
        out
    }
}

impl StepView {
    /// As `selectors` has it; the top level has no name, and only `single` uses it.
    fn selector_name(&self) -> String {
        match &self.selector {
            SelectorPlace::Named(name) => word(name),
            SelectorPlace::Top => word(self.name.as_str()),
        }
    }
}

fn stages(out: &mut String, indent: &str, cards: &[PluginView]) {
    for stage in [Stage::Filter, Stage::Score] {
        let of_stage: Vec<_> = cards.iter().filter(|card| card.stage == stage).cloned().collect();
        list(out, indent, stage.key(), &of_stage);
    }
    for card in cards.iter().filter(|card| card.stage == Stage::Pick) {
        let line = &card.line;
        let line = if line.contains(':') { format!("{{{line}}}") } else { line.clone() };
        let _ = writeln!(out, "{indent}pick: {line}");
    }
}

fn list(out: &mut String, indent: &str, key: &str, cards: &[PluginView]) {
    if cards.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}{key}:");
    for card in cards {
        let _ = writeln!(out, "{indent}  - {}", card.line);
    }
}

impl SlotGraph {
    /// The graph as data.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let cards = |cards: &[PluginView]| cards.iter().map(PluginView::json).collect::<Vec<_>>();
        let steps = self.steps.iter().map(|step| {
            let (name, role) = (step.name.as_str(), step.role.as_str());
            json!({"step": name, "role": role, "plugins": cards(&step.plugins)})
        });
        json!({
            "prepare": cards(&self.prepare),
            "steps": steps.collect::<Vec<_>>(),
            "hold": cards(&self.hold),
        })
    }

    fn cards(&self) -> impl Iterator<Item = &PluginView> {
        let of_steps = self.steps.iter().flat_map(|step| &step.plugins);
        self.prepare.iter().chain(of_steps).chain(&self.hold)
    }
}

/// As text, one line for each plugin: what it reads, its name, what it writes.
impl fmt::Display for SlotGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |card: &PluginView| match card.weight {
            Some(weight) => format!("{} × {weight}", card.plugin),
            None => card.plugin.to_owned(),
        };
        let width = self.cards().map(|card| title(card).chars().count()).max().unwrap_or(0);
        let lines = |f: &mut fmt::Formatter<'_>, cards: &[PluginView]| {
            for card in cards {
                let mut slots = String::new();
                if !card.reads.is_empty() {
                    let _ = write!(slots, "  ← {}", card.reads.join(", "));
                }
                if !card.writes.is_empty() {
                    let _ = write!(slots, "  → {}", card.writes.join(", "));
                }
                let text = format!("  {:<8}{:<width$}{slots}", card.stage.key(), title(card));
                writeln!(f, "{}", text.trim_end())?;
            }
            Ok(())
        };
        writeln!(f, "every request")?;
        lines(f, &self.prepare)?;
        for step in &self.steps {
            writeln!(f, "step {} (role {})", step.name, step.role)?;
            lines(f, &step.plugins)?;
        }
        if !self.hold.is_empty() {
            writeln!(f, "hold unless the chosen pod passes")?;
            lines(f, &self.hold)?;
        }
        let steps: Vec<_> = self.steps.iter().map(|step| step.name.as_str()).collect();
        writeln!(f, "plan: {}", steps.join(" → "))
    }
}
