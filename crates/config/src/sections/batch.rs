//! `batch`: whether files and batches are served, where they are kept, and how much of it there may be.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use wornpath_routing::document::Node;
use wornpath_routing::{Parameter, Problem, ProblemKind, Takes};

use crate::batch_rules::{BatchQuota, BatchRules, BatchStoreSettings};
use crate::diagnostics::Diagnostics;
use crate::section::Section;

#[rustfmt::skip]
pub(crate) const BATCH: &[Parameter] = &[
    Parameter::optional("folder", Takes::Text, "Where files and batches are kept; it belongs to one gateway at a time."),
    Parameter::optional("postgres_file", Takes::Text, "A file with the address of a PostgreSQL database that keeps them instead, for several gateways: `postgres://user:password@host:5432/name`."),
    Parameter::with_default("lines", Takes::Whole(1, 10_000_000), "1000000", "Lines of an input at most."),
    Parameter::with_default("file", Takes::Size(1 << 10, 1 << 40), "4GiB", "Bytes of an upload at most; more are answered with 413."),
    Parameter::with_default("window", Takes::Whole(1, 4096), "128", "Offline requests on one pod at once, when no client wants it."),
    Parameter::optional("priority", Takes::Whole(0, 1_000_000), "Sent to engines as `priority` of offline requests. Only for engines that schedule by it, as others refuse it: vLLM with `--scheduling-policy priority` (a higher number waits longer)."),
    Parameter::with_default("keep", Takes::Time, "720h", "How long an ended batch and its results are kept."),
    Parameter::with_default("quota_bytes", Takes::Size(1 << 10, 1 << 50), "64GiB", "Bytes of all files of one tenant; more are answered with 403."),
    Parameter::with_default("quota_batches", Takes::Whole(1, 1_000_000), "1000", "Batches of one tenant that have not ended; more are answered with 429."),
    Parameter::with_default("planning_memory", Takes::Size(1 << 10, 1 << 40), "64MiB", "Bytes of hashes that planning a batch keeps in memory; what is more goes to a file in `folder`, or where the system has its temporary ones."),
];

pub(crate) fn batch(root: &Node, notes: &mut Diagnostics) -> Option<BatchRules> {
    let node = root.get("batch")?;
    let section = Section::of(Some(node), ("batch", node.span), BATCH, &mut notes.problems);
    notes.must_not_be_zero(&section, "keep");
    let kept = kept(&section, notes)?;
    let plain = BatchRules::kept(kept);
    Some(BatchRules {
        most_lines: section.or("lines", plain.most_lines),
        most_bytes: section.or("file", plain.most_bytes as usize) as u64,
        window: NonZeroUsize::new(section.or("window", 0)).unwrap_or(plain.window),
        priority: section.maybe::<usize>("priority").and_then(|it| it.try_into().ok()),
        quota: BatchQuota {
            bytes: section.or("quota_bytes", plain.quota.bytes as usize) as u64,
            batches: section.or("quota_batches", plain.quota.batches),
        },
        planning_memory: section.or("planning_memory", plain.planning_memory),
        keep: section.or("keep", plain.keep),
        ..plain
    })
}

fn kept(section: &Section<'_>, notes: &mut Diagnostics) -> Option<BatchStoreSettings> {
    let (folder, file) =
        (section.maybe::<String>("folder"), section.maybe::<String>("postgres_file"));
    let file = match (folder, file) {
        (Some(folder), None) => {
            if notes.outside.is_folder(Path::new(&folder)) == Some(false) {
                let message = format!("`folder` of `batch` is `{folder}`, and that is a file");
                let problem =
                    Problem::new(ProblemKind::BadParameter, section.at("folder"), message);
                notes.problems.push(problem.cure("name a folder; it is made if it is not there"));
                return None;
            }
            return Some(BatchStoreSettings::Folder(PathBuf::from(folder)));
        }
        (None, Some(file)) => file,
        (folder, _) => {
            let found = if folder.is_some() { "both" } else { "neither" };
            let message = format!("`batch` has {found} of `folder` and `postgres_file`");
            let problem = Problem::new(ProblemKind::BadParameter, section.span(), message);
            notes.problems.push(problem.cure("give one of them: there is one place for batches"));
            return None;
        }
    };
    let read = notes.outside.text(Path::new(&file)).map_err(|error| error.to_string());
    let address = read.and_then(|text| match BatchStoreSettings::at(text.trim()) {
        address @ BatchStoreSettings::Postgres(_) => Ok(address),
        // What stands there may be a secret: nobody is shown it.
        BatchStoreSettings::Folder(_) => Err("it does not begin with `postgres://`".to_owned()),
    });
    match address {
        Ok(address) => Some(address),
        Err(error) => {
            let message = format!("the address in `{file}` cannot be used: {error}");
            let problem =
                Problem::new(ProblemKind::BadParameter, section.at("postgres_file"), message);
            notes
                .problems
                .push(problem.cure("write `postgres://user:password@host:5432/name` there"));
            None
        }
    }
}
