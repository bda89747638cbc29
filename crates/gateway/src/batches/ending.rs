//! The end of a batch: records for lines that nobody computes any more, the files of its results, and its last state.

use super::stored::StoredLines;
use super::{Batches, unix_time};
use std::io;
use std::sync::Arc;
use wornpath_jobs::{
    Batch, FileEntry, Form, Kind, Lease, Line, Owner, Source, Status, Store, StoreError,
};

/// Whether a batch has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Yes,
    /// Others run parts of it, or lines are left to compute.
    NotYet,
}

/// Gives every line that is left its record, and the batch its end.
pub(super) async fn end(
    batches: &Arc<Batches>,
    lease: Lease,
    source: Arc<StoredLines>,
) -> Result<Ended, StoreError> {
    let (output, errors) = (batches.new_id("file-"), batches.new_id("file-"));
    batches
        .ask(move |store| {
            let batch = store.batch(&lease.batch)?;
            let is_cancelled = batch.status() == Status::Cancelling;
            if batch.counts.pending() > 0 && !lease.is_whole() {
                return Ok(Ended::NotYet);
            }
            if batch.counts.pending() > 0 {
                let (code, message) = match is_cancelled {
                    true => (
                        "batch_cancelled",
                        "This request was not executed before the batch was cancelled.",
                    ),
                    false if unix_time() < batch.expires_at => return Ok(Ended::NotYet),
                    false => (
                        "batch_expired",
                        "This request could not be executed before the completion window expired.",
                    ),
                };
                leave(store, &lease, &source, (code, message))?;
            }
            let is_expired = batch.counts.pending() > 0 && !is_cancelled;
            let batch = store.batch(&lease.batch)?;
            let mut files = [None, None];
            for (at, (id, kind)) in
                [(output, Kind::Output), (errors, Kind::Error)].into_iter().enumerate()
            {
                let count = [batch.counts.completed, batch.counts.failed][at];
                if count > 0 {
                    files[at] = Some(add_results(store, &batch, id, kind)?.id);
                }
            }
            let ended = store.change_leased(&lease, &mut |batch| {
                [batch.output_file_id, batch.error_file_id] = files.clone();
                let now = unix_time();
                match batch.status() {
                    Status::Cancelling => batch.reach(Status::Cancelled, now),
                    Status::InProgress if is_expired => batch.reach(Status::Expired, now),
                    Status::InProgress => {
                        batch.reach(Status::Finalizing, now)?;
                        batch.reach(Status::Completed, now)
                    }
                    _ => batch.reach(Status::Completed, now),
                }
            });
            if matches!(ended, Err(StoreError::Fenced(_))) {
                // Another has ended it, and has named files of its own.
                for file in files.iter().flatten() {
                    let _ = store.remove_file(file);
                }
            }
            ended?;
            Ok(Ended::Yes)
        })
        .await
}

/// Records for lines that nobody will compute any more.
fn leave(
    store: &dyn Store,
    lease: &Lease,
    source: &StoredLines,
    (code, message): (&str, &str),
) -> Result<(), StoreError> {
    let batch = store.batch(&lease.batch)?;
    let lines = source.spans.len() as u32;
    let mut group = Vec::new();
    for line in 0..lines {
        let bytes =
            source.line(line).map_err(|error| StoreError::Unreachable(error.to_string()))?;
        let parsed = Line::parse(&bytes, Form::Free).ok().and_then(|line| line.custom_id);
        let custom_id = serde_json::Value::from(parsed).to_string().into_bytes();
        let name = batch.id.trim_start_matches("batch_").to_owned();
        group.push(Owner { line, custom_id, name }.error(code, message));
        if group.len() == 1_024 || line + 1 == lines {
            // Lines that have a record keep it.
            store.publish(lease, &group)?;
            group.clear();
        }
    }
    Ok(())
}

fn add_results(
    store: &dyn Store,
    batch: &Batch,
    id: String,
    kind: Kind,
) -> Result<FileEntry, StoreError> {
    let now = unix_time();
    let word = if kind == Kind::Output { "output" } else { "error" };
    let entry = FileEntry {
        id,
        owner: batch.owner.clone(),
        filename: format!("{}_{word}.jsonl", batch.id),
        purpose: "batch_output".to_owned(),
        bytes: store.result_bytes(&batch.id, kind)?,
        created_at: now,
        expires_at: batch.output_expires_after.map(|seconds| now.saturating_add(seconds)),
        of: Some((batch.id.clone(), kind)),
    };
    store.add_file(entry, &mut io::empty())
}
