//! `batch`: enables the Files and Batches APIs; the store, its limits and quotas.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Takes};

use crate::batch_rules::{BatchQuota, BatchRules, BatchStoreSettings, DatabaseSettings};
use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::sections::password::{PASSWORD, password, refuse_in_address};
use crate::sections::tls;

#[rustfmt::skip]
pub(crate) const BATCH: &[Parameter] = &[
    Parameter::optional("folder", Takes::Text, "Folder for files and batches; only one gateway may use it at a time."),
    Parameter::optional("postgres", Takes::Text, "Address of a PostgreSQL database to use instead, which several gateways can share: `postgres://user@host:5432/name`; its password is in `password_file` or `password_env`."),
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
    let keys = [BATCH, PASSWORD].concat();
    let section = Section::map(node, "batch", &keys, &["tls"], &mut diagnostics.problems);
    diagnostics.check_nonzero(&section, "keep");
    let store = store(&section, diagnostics)?;
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

fn store(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<BatchStoreSettings> {
    let message = match (section.maybe("folder"), section.maybe("postgres")) {
        (Some(folder), None) => return self::folder(section, folder, diagnostics),
        (None, Some(address)) => return database(section, address, diagnostics),
        (Some::<String>(_), Some::<String>(_)) => "`batch` sets both `folder` and `postgres`",
        (None, None) => "`batch` sets neither `folder` nor `postgres`",
    };
    let problem = Problem::new(ProblemKind::BadParameter, section.span(), message);
    diagnostics.problems.push(problem.cure("set exactly one of them"));
    None
}

fn folder(
    section: &Section<'_>,
    folder: String,
    diagnostics: &mut Diagnostics,
) -> Option<BatchStoreSettings> {
    for key in ["tls", "password_file", "password_env"] {
        let Some(node) = section.node(key) else { continue };
        let message = format!("`{key}` of `batch` is for a database, but the store is a folder");
        let problem = Problem::new(ProblemKind::BadParameter, node.span, message);
        diagnostics.problems.push(problem.cure(format!("remove `{key}`, or set `postgres`")));
    }
    if diagnostics.environment.is_folder(Path::new(&folder)) == Some(false) {
        let message = format!("`folder` of `batch` is `{folder}`, which is a file");
        let problem = Problem::new(ProblemKind::BadParameter, section.at("folder"), message);
        diagnostics
            .problems
            .push(problem.cure("give a folder; it is created if it does not exist"));
        return None;
    }
    Some(BatchStoreSettings::Folder(PathBuf::from(folder)))
}

fn database(
    section: &Section<'_>,
    address: String,
    diagnostics: &mut Diagnostics,
) -> Option<BatchStoreSettings> {
    refuse_in_address(section, "postgres", diagnostics);
    let password = password(section, diagnostics);
    let tls = tls::server(section.node("tls"), diagnostics);
    if !BatchStoreSettings::is_database(&address) {
        let shown = diagnostics.shown_address(&address, section.at("postgres"));
        let message = format!("`postgres` of `batch` is `{shown}`, which is no database address");
        let problem = Problem::new(ProblemKind::BadParameter, section.at("postgres"), message);
        diagnostics.problems.push(problem.cure("write `postgres://user@host:5432/name`"));
        return None;
    }
    Some(BatchStoreSettings::Postgres(DatabaseSettings { address, password, tls }))
}
