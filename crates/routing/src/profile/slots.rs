//! Checks a profile as a whole: every slot is written before it is read, by one plugin, and plugins
//! have what they need and nothing that they exclude.

use std::collections::BTreeSet;

use wornpath_yaml::{Problem, ProblemKind, Span, parse};

use crate::assembly::make;
use crate::plugin::{Blueprint, LATE, Plugin, SlotAccess, Use};
use crate::slot::Slot;
use crate::stage::Stage;

/// Records that the pipeline itself reads a slot.
pub(super) fn pipeline_reads<T: Slot>(blueprint: &mut Blueprint, user: &str, span: Span) {
    let slot = blueprint.slot::<T>(None);
    blueprint.uses.push(Use {
        slot,
        access: SlotAccess::Read,
        user: user.to_owned(),
        stage: Stage::Pick,
        order: usize::MAX,
        span,
    });
}

/// Whether some plugin writes a slot.
pub(super) fn is_written<T: Slot>(blueprint: &mut Blueprint) -> bool {
    blueprint.reads_if_written::<T>().is_some()
}

/// Checks every use of every slot.
pub(super) fn check(blueprint: &mut Blueprint) {
    let mut problems = Vec::new();
    let mut cycles = Vec::new();
    for slot in 0..blueprint.slots.len() {
        let uses = blueprint.uses.iter().filter(|used| used.slot == slot);
        let (readers, writers): (Vec<_>, Vec<_>) =
            uses.partition(|used| used.access == SlotAccess::Read);
        let name = blueprint.slots[slot].to_string();
        if let [first, others @ ..] = &writers[..] {
            for second in others {
                problems.push(two_writers(&name, first, second));
            }
        }
        for reader in readers {
            match writers.iter().find(|writer| writer.order < reader.order).or(writers.first()) {
                None => problems.push(no_writer(blueprint, slot, reader)),
                Some(writer) if writer.order < reader.order => {}
                Some(writer) => match cycle(blueprint, reader, writer) {
                    Some(path) => {
                        // Each plugin in a cycle finds it; one report is enough.
                        let members: BTreeSet<_> = path.iter().cloned().collect();
                        if !cycles.contains(&members) {
                            problems.push(in_a_cycle(reader, &path));
                            cycles.push(members);
                        }
                    }
                    None => problems.push(wrong_order(blueprint, reader, writer)),
                },
            }
        }
    }
    blueprint.problems.append(&mut problems);
}

fn two_writers(slot: &str, first: &Use, second: &Use) -> Problem {
    let message = format!("`{}` and `{}` both write `{slot}`", first.user, second.user);
    Problem::new(ProblemKind::TwoWriters, second.span, message)
        .also(first.span, "the first writer")
        .cure("remove one of them; a slot has one writer")
}

fn wrong_order(blueprint: &Blueprint, reader: &Use, writer: &Use) -> Problem {
    let reads = &reader.user;
    let writes = &writer.user;
    let slot = &blueprint.slots[writer.slot];
    let message = format!("`{reads}` reads `{slot}` before `{writes}` writes it");
    let (note, cure) = if writer.order > LATE && reader.order < LATE {
        let cure =
            format!("remove `bind: late` from `{writes}`, or bind the step of `{reads}` late too");
        ("bound only when it starts", cure)
    } else {
        ("written here", format!("move `{writes}` before `{reads}`"))
    };
    Problem::new(ProblemKind::WrongOrder, reader.span, message).also(writer.span, note).cure(cure)
}

fn in_a_cycle(reader: &Use, path: &[String]) -> Problem {
    let path = path.join(" → ");
    Problem::new(ProblemKind::Cycle, reader.span, format!("plugins depend on each other: {path}"))
        .cure("no order can satisfy all of them; remove one")
}

fn no_writer(blueprint: &Blueprint, slot: usize, reader: &Use) -> Problem {
    let kind = &blueprint.slots[slot];
    let message = format!("`{}` reads `{kind}`, which no earlier plugin writes", reader.user);
    let cure = match &kind.of {
        Some(step) => {
            format!("put a step called `{step}` before this one, or name one that exists")
        }
        None => match &writers_of(blueprint, slot)[..] {
            [] => format!("register a plugin that writes `{kind}`"),
            names => format!("add {} to `prepare`", names.join(" or ")),
        },
    };
    Problem::new(ProblemKind::NoWriter, reader.span, message).cure(cure)
}

/// The registered plugins that write a slot, found by making each from its example.
fn writers_of(blueprint: &Blueprint, slot: usize) -> Vec<String> {
    let mut names = Vec::new();
    for plugin in blueprint.registry.plugins() {
        let Ok(node) = parse(plugin.example) else { continue };
        let mut draft = Blueprint::new(&blueprint.registry, &blueprint.models);
        draft.slots = blueprint.slots.clone();
        let _ = make(&mut draft, &node, plugin.stage(), 0);
        if draft.uses.iter().any(|used| used.slot == slot && used.access == SlotAccess::Write) {
            names.push(format!("`{}`", plugin.name));
        }
    }
    names
}

/// The path from the writer back to the reader, if the writer itself depends on the reader.
fn cycle(blueprint: &Blueprint, reader: &Use, writer: &Use) -> Option<Vec<String>> {
    let mut search = DependencySearch {
        blueprint,
        to: reader.order,
        path: vec![reader.user.clone()],
        tried: vec![],
    };
    search.leads_from(writer.order).then_some(search.path)
}

/// A search for a preparer that depends, directly or not, on another.
struct DependencySearch<'a> {
    blueprint: &'a Blueprint,
    to: usize,
    path: Vec<String>,
    tried: Vec<usize>,
}

impl DependencySearch<'_> {
    fn leads_from(&mut self, from: usize) -> bool {
        let uses = &self.blueprint.uses;
        let at = |used: &&Use| used.order == from && used.stage == Stage::Prepare;
        let Some(user) = uses.iter().find(at) else { return false };
        if self.tried.contains(&from) {
            return false;
        }
        self.tried.push(from);
        self.path.push(user.user.clone());
        if from == self.to {
            return true;
        }
        for read in uses.iter().filter(at).filter(|used| used.access == SlotAccess::Read) {
            let writers = uses.iter().filter(|used| {
                used.slot == read.slot
                    && used.access == SlotAccess::Write
                    && used.stage == Stage::Prepare
            });
            for writer in writers {
                if self.leads_from(writer.order) {
                    return true;
                }
            }
        }
        self.path.pop();
        false
    }
}

/// Checks the plugins that a plugin needs and excludes.
pub(super) fn check_relations(blueprint: &mut Blueprint) {
    let mut problems = Vec::new();
    for (at, (plugin, span)) in blueprint.plugins.iter().enumerate() {
        for (stage, needed) in plugin.needs {
            let is_it = |other: &Plugin| other.stage() == *stage && other.name == *needed;
            if !blueprint.plugins.iter().any(|(other, _)| is_it(other)) {
                problems.push(missing(plugin, *stage, needed, *span));
            }
        }
        for (other, other_span) in &blueprint.plugins[..at] {
            let excludes =
                |one: &Plugin, other: &Plugin| one.conflicts.contains(&(other.stage(), other.name));
            if excludes(plugin, other) || excludes(other, plugin) {
                let message = format!("`{}` and `{}` exclude each other", other.name, plugin.name);
                problems.push(
                    Problem::new(ProblemKind::Conflict, *span, message)
                        .also(*other_span, "the other one")
                        .cure("remove one of them"),
                );
            }
        }
    }
    blueprint.problems.append(&mut problems);
}

fn missing(plugin: &Plugin, stage: Stage, needed: &str, span: Span) -> Problem {
    let message = format!("`{}` needs `{needed}`, which is missing", plugin.name);
    let cure = format!("add `{needed}` to `{}`", stage.key());
    Problem::new(ProblemKind::MissingDependency, span, message).cure(cure)
}
