//! `batch`: enables the Files and Batches APIs; the store, its limits and quotas.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::batch_rules::{BatchQuota, BatchRules, BatchStoreSettings};
use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::sections::tls;

#[rustfmt::skip]
pub(crate) const BATCH: &[Parameter] = &[
    Parameter::optional("folder", Takes::Text, "Folder for files and batches; only one gateway may use it at a time."),
    Parameter::optional("postgres_file", Takes::Text, "File with the address of a PostgreSQL database to use instead, which several gateways can share: `postgres://user:password@host:5432/name`."),
    Parameter::with_default("lines", Takes::Whole(1, 10_000_000), "1000000", "Maximum number of lines in an input file."),
    Parameter::with_default("file", Takes::Size(1 << 10, 1 << 40), "4GiB", "Maximum size of an upload; larger ones get 413."),
    Parameter::with_default("window", Takes::Whole(1, 4096), "128", "Maximum batch requests in flight on one pod while it has no online requests."),
    Parameter::optional("priority", Takes::Whole(0, 1_000_000), "Sent to engines as `priority` of batch requests. Only for engines with priority scheduling, because others reject the field: vLLM with `--scheduling-policy priority` (a higher number waits longer)."),
    Parameter::with_default("keep", Takes::Time, "720h", "Retention time of a finished batch and its results."),
    Parameter::with_default("quota_bytes", Takes::Size(1 << 10, 1 << 50), "64GiB", "Storage quota: total size of one tenant's files; an upload beyond it gets 403."),
    Parameter::with_default("quota_batches", Takes::Whole(1, 1_000_000), "1000", "Maximum unfinished batches of one tenant; another one gets 429."),
    Parameter::with_default("quota_entries", Takes::Size(1 << 10, 1 << 40), "64MiB", "Total size of the entries of one tenant's files and batches, finished ones included: names, metadata, states. They are in memory and in the journal; a new file or batch beyond it gets 403."),
    Parameter::with_default("answers", Takes::Size(1 << 20, 1 << 40), "256MiB", "Memory for the responses of all batches, from their first byte until they are written; requests wait for it. A response of more than half of it fails its line."),
    Parameter::with_default("planning_memory", Takes::Size(1 << 10, 1 << 40), "64MiB", "Memory for block hashes while a batch is planned; the rest spills to a file in `folder`, or in the system's temporary folder."),
];

pub(crate) fn batch(root: &Node, diagnostics: &mut Diagnostics) -> Option<BatchRules> {
    let node = root.get("batch")?;
    let section = Section::map(node, "batch", BATCH, &["tls"], &mut diagnostics.problems);
    diagnostics.check_nonzero(&section, "keep");
    let tls = tls::server(section.node("tls"), diagnostics);
    let mut store = store(&section, diagnostics)?;
    match &mut store {
        BatchStoreSettings::Postgres(database) => database.tls = tls,
        BatchStoreSettings::Folder(_) => tls_without_database(&section, diagnostics),
    }
    let plain = BatchRules::kept(store);
    Some(BatchRules {
        most_lines: section.or("lines", plain.most_lines),
        most_bytes: section.or("file", plain.most_bytes as usize) as u64,
        window: NonZeroUsize::new(section.or("window", 0)).unwrap_or(plain.window),
        priority: section.maybe::<usize>("priority").and_then(|it| it.try_into().ok()),
        quota: BatchQuota {
            bytes: section.or("quota_bytes", plain.quota.bytes as usize) as u64,
            batches: section.or("quota_batches", plain.quota.batches),
            entries: section.or("quota_entries", plain.quota.entries as usize) as u64,
        },
        answers: section.or("answers", plain.answers),
        planning_memory: section.or("planning_memory", plain.planning_memory),
        keep: section.or("keep", plain.keep),
        ..plain
    })
}

/// Reports a `tls` that has no connection to encrypt.
fn tls_without_database(section: &Section<'_>, diagnostics: &mut Diagnostics) {
    let Some(node) = section.node("tls") else { return };
    let message = "`tls` of `batch` is for a database, but the store is a folder";
    let problem = Problem::new(ProblemKind::BadParameter, node.span, message);
    diagnostics.problems.push(problem.cure("remove `tls`, or set `postgres_file`"));
}

fn store(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<BatchStoreSettings> {
    let folder = section.maybe::<String>("folder");
    let file = section.maybe::<String>("postgres_file");
    let file = match (folder, file) {
        (Some(folder), None) => {
            if diagnostics.environment.is_folder(Path::new(&folder)) == Some(false) {
                let message = format!("`folder` of `batch` is `{folder}`, which is a file");
                let problem =
                    Problem::new(ProblemKind::BadParameter, section.at("folder"), message);
                diagnostics
                    .problems
                    .push(problem.cure("give a folder; it is created if it does not exist"));
                return None;
            }
            return Some(BatchStoreSettings::Folder(PathBuf::from(folder)));
        }
        (None, Some(file)) => file,
        (folder, _) => {
            let message = if folder.is_some() {
                "`batch` sets both `folder` and `postgres_file`"
            } else {
                "`batch` sets neither `folder` nor `postgres_file`"
            };
            let problem = Problem::new(ProblemKind::BadParameter, section.span(), message);
            diagnostics.problems.push(problem.cure("set exactly one of them"));
            return None;
        }
    };
    diagnostics.note_secret("postgres_file", &file);
    let read = diagnostics.environment.text(Path::new(&file)).map_err(|error| error.to_string());
    let address = read.and_then(|text| match BatchStoreSettings::at(text.trim()) {
        address @ BatchStoreSettings::Postgres(_) => Ok(address),
        // The text may be a secret, so it is not shown.
        BatchStoreSettings::Folder(_) => Err("it does not start with `postgres://`".to_owned()),
    });
    match address {
        Ok(address) => Some(address),
        Err(error) => {
            let message = format!("invalid database address in `{file}`: {error}");
            let problem =
                Problem::new(ProblemKind::BadParameter, section.at("postgres_file"), message);
            diagnostics
                .problems
                .push(problem.cure("write `postgres://user:password@host:5432/name` to the file"));
            None
        }
    }
}
