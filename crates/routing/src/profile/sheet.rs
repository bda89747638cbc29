//! A profile as people and the dashboard see it: printed with every default, and as a graph.

use std::fmt::{self, Write};

use serde_json::{Value, json};

use crate::name::{Name, Role};
use crate::plugin::Stage;
use crate::workflow::TOP;

/// One plugin in its place.
#[derive(Clone, PartialEq, Debug)]
pub struct Card {
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
pub struct Graph {
    /// The preparers, in order.
    pub prepare: Vec<Card>,
    /// The steps, in order.
    pub steps: Vec<StepCard>,
}

/// One step and its plugins.
#[derive(Clone, PartialEq, Debug)]
pub struct StepCard {
    /// Its name.
    pub name: Name,
    /// The role that it fills.
    pub role: Role,
    /// Its filters, scorers and picker, in order.
    pub plugins: Vec<Card>,
    pub(crate) selector: String,
    pub(crate) rules: String,
}

/// What there is to print.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    pub(crate) description: Option<String>,
    pub(crate) graph: Graph,
    pub(crate) hold: String,
    pub(crate) unless: Vec<Card>,
    pub(crate) speculate: String,
}

impl Card {
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

impl Sheet {
    /// The profile as YAML. Checking it again gives the same profile.
    pub(crate) fn printed(&self) -> String {
        let mut out = String::new();
        if let Some(description) = &self.description {
            let _ = writeln!(out, "description: {}", Value::from(description.as_str()));
        }
        list(&mut out, "", "prepare", &self.graph.prepare);
        match &self.graph.steps[..] {
            [step] if step.selector == TOP => {
                stages(&mut out, "", &step.plugins);
                let _ = writeln!(out, "workflow:\n  single: {{{}}}", step.rules);
            }
            steps => {
                out.push_str("selectors:\n");
                for (at, step) in steps.iter().enumerate() {
                    if steps[..at].iter().all(|other| other.selector != step.selector) {
                        let _ = writeln!(out, "  {}:", step.selector);
                        stages(&mut out, "    ", &step.plugins);
                    }
                }
                out.push_str("workflow:\n  steps:\n");
                for step in steps {
                    let (name, selector, rules) = (&step.name, &step.selector, &step.rules);
                    let _ = writeln!(out, "    - {name}: {{selector: {selector}, {rules}}}");
                }
            }
        }
        let _ = writeln!(out, "hold:");
        list(&mut out, "  ", "unless", &self.unless);
        out.push_str(&self.hold);
        let _ = writeln!(out, "speculate: {}", self.speculate);
        out
    }
}

fn stages(out: &mut String, indent: &str, cards: &[Card]) {
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

fn list(out: &mut String, indent: &str, key: &str, cards: &[Card]) {
    if cards.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}{key}:");
    for card in cards {
        let _ = writeln!(out, "{indent}  - {}", card.line);
    }
}

impl Graph {
    /// The graph as data.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let cards = |cards: &[Card]| cards.iter().map(Card::json).collect::<Vec<_>>();
        let steps = self.steps.iter().map(|step| {
            let (name, role) = (step.name.as_str(), step.role.as_str());
            json!({"step": name, "role": role, "plugins": cards(&step.plugins)})
        });
        json!({"prepare": cards(&self.prepare), "steps": steps.collect::<Vec<_>>()})
    }
}

/// As text, one line for each plugin: what it reads, its name, what it writes.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = || self.prepare.iter().chain(self.steps.iter().flat_map(|step| &step.plugins));
        let title = |card: &Card| match card.weight {
            Some(weight) => format!("{} × {weight}", card.plugin),
            None => card.plugin.to_owned(),
        };
        let width = cards().map(|card| title(card).chars().count()).max().unwrap_or(0);
        let line = |f: &mut fmt::Formatter<'_>, card: &Card, extra: Option<String>| {
            let mut slots = String::new();
            if !card.reads.is_empty() {
                let _ = write!(slots, "  ← {}", card.reads.join(", "));
            }
            let writes: Vec<_> = card.writes.iter().cloned().chain(extra).collect();
            if !writes.is_empty() {
                let _ = write!(slots, "  → {}", writes.join(", "));
            }
            let text = format!("  {:<8}{:<width$}{slots}", card.stage.key(), title(card));
            writeln!(f, "{}", text.trim_end())
        };
        writeln!(f, "every request")?;
        for card in &self.prepare {
            line(f, card, None)?;
        }
        for step in &self.steps {
            writeln!(f, "step {} (role {})", step.name, step.role)?;
            for card in &step.plugins {
                let picked = (card.stage == Stage::Pick).then(|| format!("Picked({})", step.name));
                line(f, card, picked)?;
            }
        }
        let steps: Vec<_> = self.steps.iter().map(|step| step.name.as_str()).collect();
        writeln!(f, "plan: {}", steps.join(" → "))
    }
}
