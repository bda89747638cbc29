//! Finalizes a batch: error records for lines that were not executed, the result files, and the
//! final status.

use crate::batches::Batches;
use crate::file_reader::StoredLines;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use wornpath_gateway::proxy::unix_time;
use wornpath_jobs::{
    Batch, BatchLine, BatchStatus, FileEntry, InputMark, Lease, LineForm, LineProblem, Owner,
    RecordKind, Store, StoreError,
};

/// The error code of a batch, and of its lines, whose input is not as it was stored.
const INPUT_DAMAGED: &str = "input_file_damaged";
/// Records of one write.
const LOST_PIECE: usize = 1_024;

/// Why a line was not executed, in OpenAI's words.
#[derive(Clone, Copy)]
struct Unexecuted {
    code: &'static str,
    message: &'static str,
}

const CANCELLED: Unexecuted = Unexecuted {
    code: "batch_cancelled",
    message: "This request was not executed before the batch was cancelled.",
};
const EXPIRED: Unexecuted = Unexecuted {
    code: "batch_expired",
    message: "This request could not be executed before the completion window expired.",
};

/// Whether a batch is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FinishedBatch {
    Yes,
    /// Other gateways run parts of it, or lines are left to compute.
    NotYet,
    /// No pod of this gateway can serve it; those of another gateway may.
    Unserved,
}

/// Records the lines that were not executed, adds the result files, and sets the final status.
pub(crate) async fn finalize(
    batches: &Arc<Batches>,
    lease: Lease,
    source: Arc<StoredLines>,
    mark: InputMark,
) -> Result<FinishedBatch, StoreError> {
    batches
        .with_store(move |store| {
            let batch = store.batch(&lease.batch)?;
            let is_cancelled = batch.status() == BatchStatus::Cancelling;
            if batch.counts.pending() > 0 && !lease.is_whole() {
                return Ok(FinishedBatch::NotYet);
            }
            if batch.counts.pending() > 0 {
                let reason = match is_cancelled {
                    true => CANCELLED,
                    false if unix_time() < batch.expires_at => return Ok(FinishedBatch::NotYet),
                    false => EXPIRED,
                };
                record_unexecuted(store, &lease, &source, mark, reason)?;
            }
            let is_expired = batch.counts.pending() > 0 && !is_cancelled;
            close(store, &lease, if is_expired { Ending::Expired } else { Ending::Done })
        })
        .await
}

/// Whether all lines were executed in time.
#[derive(Clone, Copy)]
enum Ending {
    Done,
    Expired,
}

/// Adds the result files of a batch whose lines all have their record, and sets the final status.
fn close(store: &dyn Store, lease: &Lease, ending: Ending) -> Result<FinishedBatch, StoreError> {
    let batch = store.batch(&lease.batch)?;
    let mut files = [None, None];
    for (at, kind) in [RecordKind::Output, RecordKind::Error].into_iter().enumerate() {
        let count = [batch.counts.completed, batch.counts.failed][at];
        if count > 0 {
            files[at] = Some(add_results(store, &batch, kind)?.id);
        }
    }
    store.change_leased(lease, &mut |batch| {
        [batch.output_file_id, batch.error_file_id] = files.clone();
        let now = unix_time();
        match (batch.status(), ending) {
            (BatchStatus::Cancelling, _) => batch.reach(BatchStatus::Cancelled, now),
            (BatchStatus::InProgress, Ending::Expired) => batch.reach(BatchStatus::Expired, now),
            (BatchStatus::InProgress, Ending::Done) => {
                batch.reach(BatchStatus::Finalizing, now)?;
                batch.reach(BatchStatus::Completed, now)
            }
            _ => batch.reach(BatchStatus::Completed, now),
        }
    })?;
    Ok(FinishedBatch::Yes)
}

/// Ends a batch whose input or results are damaged in the store. If only the input is, what was
/// published stays, and every other line gets an error record; if there is nothing to publish to,
/// the batch fails.
pub(crate) async fn end_damaged(
    batches: &Arc<Batches>,
    lease: &Lease,
    error: StoreError,
) -> Result<FinishedBatch, StoreError> {
    let lease = lease.clone();
    batches.damage.note(&error);
    batches
        .with_store(move |store| {
            let (code, message) = match &error {
                StoreError::Damaged { .. } => (
                    "results_damaged",
                    "results of the batch are damaged in the store; create it again".to_owned(),
                ),
                StoreError::DamagedFile { .. } => (INPUT_DAMAGED, error.to_string()),
                // The error names a path of this machine.
                _ => {
                    let file = store.batch(&lease.batch)?.input_file_id;
                    let what = "it is not the one that the batch was begun with".to_owned();
                    let name = format!("file `{file}`");
                    (INPUT_DAMAGED, StoreError::DamagedFile { name, what }.to_string())
                }
            };
            let begun = store.begun(&lease.batch)?.filter(|_| code == INPUT_DAMAGED);
            if let Some(mark) = begun {
                if !lease.is_whole() {
                    store.settle(&lease)?;
                    return Ok(FinishedBatch::NotYet);
                }
                match record_lost(store, &lease, mark, &message) {
                    Err(StoreError::Damaged { .. }) => {}
                    recorded => {
                        recorded?;
                        store.settle(&lease)?;
                        return close(store, &lease, Ending::Done);
                    }
                }
            }
            let problem = LineProblem { code, message, param: Some("input_file_id") };
            store.change_leased(&lease, &mut |batch| match batch.status() {
                BatchStatus::Cancelling => batch.reach(BatchStatus::Cancelled, unix_time()),
                _ => batch.fail(&[(None, problem.clone())], unix_time()),
            })?;
            Ok(FinishedBatch::Yes)
        })
        .await
}

/// Publishes an error record for every line without a record, of an input that cannot be read.
fn record_lost(
    store: &dyn Store,
    lease: &Lease,
    mark: InputMark,
    message: &str,
) -> Result<(), StoreError> {
    let name = lease.batch.trim_start_matches("batch_");
    for lines in store.standing(lease, mark)?.missing.chunks(LOST_PIECE) {
        let record = |line: &u32| {
            let custom_id = b"null".to_vec();
            let owner = Owner { line: *line, custom_id, name: name.to_owned() };
            owner.error(INPUT_DAMAGED, message)
        };
        store.publish(lease, &lines.iter().map(record).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Publishes an error record for every line without a record.
fn record_unexecuted(
    store: &dyn Store,
    lease: &Lease,
    source: &StoredLines,
    mark: InputMark,
    reason: Unexecuted,
) -> Result<(), StoreError> {
    let name = lease.batch.trim_start_matches("batch_");
    let missing = store.standing(lease, mark)?.missing;
    for lines in source.pieces(&missing) {
        let read = match source.piece(lines) {
            // A line that is lost has an error record, too, but without its name.
            Err(error) if !error.is_passing() => vec![Bytes::new(); lines.len()],
            read => read?,
        };
        let records: Vec<_> = lines
            .iter()
            .zip(read)
            .map(|(line, bytes)| {
                let parsed =
                    BatchLine::parse(&bytes, LineForm::Free).ok().and_then(|line| line.custom_id);
                let custom_id = serde_json::Value::from(parsed).to_string().into_bytes();
                let owner = Owner { line: *line, custom_id, name: name.to_owned() };
                owner.error(reason.code, reason.message)
            })
            .collect();
        store.publish(lease, &records)?;
    }
    Ok(())
}

/// Adds a result file. Its id follows from the batch's, so a second attempt after an interruption
/// writes the same file.
fn add_results(
    store: &dyn Store,
    batch: &Batch,
    kind: RecordKind,
) -> Result<FileEntry, StoreError> {
    let now = unix_time();
    let word = if kind == RecordKind::Output { "output" } else { "error" };
    let entry = FileEntry {
        id: format!("file-{}-{word}", batch.id.trim_start_matches("batch_")),
        owner: batch.owner.clone(),
        filename: format!("{}_{word}.jsonl", batch.id),
        purpose: "batch_output".to_owned(),
        bytes: store.result_bytes(&batch.id, kind)?,
        created_at: now,
        expires_at: batch.output_expires_after.map(|seconds| now.saturating_add(seconds)),
        crc: None,
        of: Some((batch.id.clone(), kind)),
    };
    store.add_file(entry, &mut io::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_jobs::{FsStore, Interface, LineSpan, NewBatch, RealDisk};

    #[test]
    fn unexecuted_lines_get_error_records_and_executed_ones_keep_theirs() {
        let folder = std::env::temp_dir().join(format!("wornpath-ending-{}", std::process::id()));
        let store: Arc<dyn Store> = Arc::new(FsStore::open(Arc::new(RealDisk), &folder).unwrap());
        let line = |number: u32| {
            format!(
                "{{\"custom_id\":\"id-{number}\",\"url\":\"/v1/chat/completions\",\"body\":{{}}}}"
            )
        };
        let text: Vec<_> = (0..3_000).map(line).collect();
        let mut offset = 0;
        let span = |(number, line): (usize, &String)| {
            let span = LineSpan { offset, bytes: line.len() as u32, number: number as u32 + 1 };
            offset += line.len() as u64 + 1;
            span
        };
        let spans: Vec<_> = text.iter().enumerate().map(span).collect();
        let new = NewBatch {
            id: "batch_a".into(),
            owner: String::new(),
            interface: Interface::Chat,
            input_file_id: "file-a".into(),
            window: ("24h".into(), 86_400),
            metadata: None,
        };
        let batch = Batch::new(new, unix_time());
        let entry = FileEntry {
            id: "file-a".into(),
            owner: String::new(),
            filename: "in.jsonl".into(),
            purpose: "batch".into(),
            bytes: 0,
            created_at: 1,
            expires_at: None,
            crc: None,
            of: None,
        };
        store.add_file(entry, &mut text.join("\n").as_bytes()).unwrap();
        store.add_batch(batch).unwrap();
        let lease = store.lease("batch_a").unwrap().unwrap();
        let mark = InputMark { bytes: offset, hash: 1, lines: 3_000 };
        store.standing(&lease, mark).unwrap();
        let owner = |line| Owner { line, custom_id: b"\"mine\"".to_vec(), name: "a".into() };
        let answered: Vec<_> =
            (0..3_000).step_by(2).map(|line| owner(line).error("x", "")).collect();
        store.publish(&lease, &answered).unwrap();
        let source = StoredLines { store: Arc::clone(&store), file: "file-a".into(), spans };
        record_unexecuted(&*store, &lease, &source, mark, CANCELLED).unwrap();
        assert_eq!(store.batch("batch_a").unwrap().counts.pending(), 0);
        let mut errors = vec![0; 1 << 20];
        let read = store.read_results("batch_a", RecordKind::Error, 0, &mut errors).unwrap();
        let errors = std::str::from_utf8(&errors[..read]).unwrap();
        assert_eq!(errors.matches("\"mine\"").count(), 1_500);
        let left: Vec<_> = errors.lines().filter(|line| line.contains("batch_cancelled")).collect();
        assert_eq!(left.len(), 1_500);
        assert!((0..1_500).all(|at| left[at].contains(&format!("\"id-{}\"", 2 * at + 1))));
        let _ = std::fs::remove_dir_all(folder);
    }
}
