//! A profile as people and the dashboard see it: YAML with every default, and a graph of slots.

use std::fmt::{self, Write};

use serde_json::{Value, json};
use wornpath_yaml::writer::{quoted, word};

use crate::assembly::PluginView;
use crate::name::{Name, Role};
use crate::stage::Stage;
use crate::workflow::SelectorPlace;

/// The stages, the plugins in them, and the slots between them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SlotGraph {
    /// The preparers, in order.
    pub prepare: Vec<PluginView>,
    /// The steps, in order.
    pub steps: Vec<StepView>,
    /// The filters of `hold`, which the chosen pod must pass, or the request waits.
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

/// The printable parts of a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProfileView {
    pub(crate) description: Option<String>,
    pub(crate) graph: SlotGraph,
    /// The profile's own transfer protocols, with their key.
    pub(crate) transfers: String,
    pub(crate) hold: String,
    pub(crate) speculate: String,
    /// Only in profiles that hash prompts.
    pub(crate) without_events: Option<&'static str>,
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
                    let name = word(step.name.as_str());
                    let selector = step.selector_name();
                    let _ = writeln!(out, "    - {name}: {{selector: {selector}, {}}}", step.rules);
                }
            }
        }
        out.push_str(&self.transfers);
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
    /// The name in `selectors`; the top level has none, and only `single` uses it.
    fn selector_name(&self) -> String {
        match &self.selector {
            SelectorPlace::Named(name) => word(name),
            SelectorPlace::Top => word(self.name.as_str()),
        }
    }
}

fn stages(out: &mut String, indent: &str, views: &[PluginView]) {
    for stage in [Stage::Filter, Stage::Score] {
        let of_stage: Vec<_> = views.iter().filter(|view| view.stage == stage).cloned().collect();
        list(out, indent, stage.key(), &of_stage);
    }
    for view in views.iter().filter(|view| view.stage == Stage::Pick) {
        let line = &view.line;
        let line = if line.contains(':') { format!("{{{line}}}") } else { line.clone() };
        let _ = writeln!(out, "{indent}pick: {line}");
    }
}

fn list(out: &mut String, indent: &str, key: &str, views: &[PluginView]) {
    if views.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}{key}:");
    for view in views {
        let _ = writeln!(out, "{indent}  - {}", view.line);
    }
}

impl SlotGraph {
    /// The graph as data.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let views = |views: &[PluginView]| views.iter().map(PluginView::json).collect::<Vec<_>>();
        let steps = self.steps.iter().map(|step| {
            json!({
                "step": step.name.as_str(), "role": step.role.as_str(),
                "plugins": views(&step.plugins),
            })
        });
        json!({
            "prepare": views(&self.prepare),
            "steps": steps.collect::<Vec<_>>(),
            "hold": views(&self.hold),
        })
    }

    fn views(&self) -> impl Iterator<Item = &PluginView> {
        let of_steps = self.steps.iter().flat_map(|step| &step.plugins);
        self.prepare.iter().chain(of_steps).chain(&self.hold)
    }
}

/// As text, one line for each plugin: what it reads, its name, what it writes.
impl fmt::Display for SlotGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |view: &PluginView| match view.weight {
            Some(weight) => format!("{} × {weight}", view.plugin),
            None => view.plugin.to_owned(),
        };
        let width = self.views().map(|view| title(view).chars().count()).max().unwrap_or(0);
        let lines = |f: &mut fmt::Formatter<'_>, views: &[PluginView]| {
            for view in views {
                let mut slots = String::new();
                if !view.reads.is_empty() {
                    let _ = write!(slots, "  ← {}", view.reads.join(", "));
                }
                if !view.writes.is_empty() {
                    let _ = write!(slots, "  → {}", view.writes.join(", "));
                }
                let text = format!("  {:<8}{:<width$}{slots}", view.stage.key(), title(view));
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
