//! The table of records: each line has one, and readers see two files.

use super::batches;
use super::leases::{self, HeldLease};
use super::rows::{missing_batch, signed, unsigned};
use crate::record::{Counts, LineRecord, RecordKind, TokenUsage};
use crate::result_log::InputMark;
use crate::store::BatchState;
use crate::store_error::StoreError;
use std::collections::BTreeSet;
use tokio_postgres::{Client, GenericClient, Transaction};

/// The most records of one query.
const RECORDS_PER_QUERY: i64 = 256;

const fn number(kind: RecordKind) -> i16 {
    match kind {
        RecordKind::Output => 0,
        RecordKind::Error => 1,
    }
}

pub(super) async fn bytes(
    client: &Client,
    batch: &str,
    kind: RecordKind,
) -> Result<u64, StoreError> {
    let text = "SELECT output_end, error_end FROM wornpath_batches WHERE id = $1";
    let row = client.query_opt(text, &[&batch]).await?;
    let row = row.ok_or_else(|| missing_batch(batch))?;
    Ok(unsigned(row.get(usize::from(kind == RecordKind::Error))))
}

/// Where the records end that are there. Those of an ended batch may have been removed.
pub(super) async fn end(client: &Client, batch: &str, kind: RecordKind) -> Result<u64, StoreError> {
    let text = "SELECT begins + octet_length(content) + 1 FROM wornpath_records \
                WHERE batch = $1 AND kind = $2 ORDER BY begins DESC LIMIT 1";
    let last = client.query_opt(text, &[&batch, &number(kind)]).await?;
    Ok(last.map_or(0, |row| unsigned(row.get(0))))
}

/// The input that the results were begun with.
pub(super) async fn begun(client: &Client, batch: &str) -> Result<Option<InputMark>, StoreError> {
    let text = "SELECT mark FROM wornpath_batches WHERE id = $1";
    let row = client.query_opt(text, &[&batch]).await?.ok_or_else(|| missing_batch(batch))?;
    let mark: Option<&str> = row.get(0);
    mark.map(serde_json::from_str).transpose().map_err(|error| {
        StoreError::Refused(format!("mark of batch `{batch}` is unreadable: {error}"))
    })
}

pub(super) async fn standing(
    client: &mut Client,
    held: HeldLease<'_>,
    input: InputMark,
) -> Result<BatchState, StoreError> {
    let transaction = client.transaction().await?;
    leases::lock_batch(&transaction, held).await?;
    let id = &held.lease.batch;
    begin(&transaction, id, input).await?;
    let batch = batches::find(&transaction, id).await?;
    let text = "SELECT line FROM wornpath_records WHERE batch = $1";
    let mut is_done = vec![false; input.lines as usize];
    for row in transaction.query(text, &[id]).await? {
        if let Some(done) = is_done.get_mut(row.get::<_, i32>(0) as usize) {
            *done = true;
        }
    }
    transaction.commit().await?;
    let missing = (0..input.lines).filter(|line| !is_done[*line as usize]).collect();
    Ok(BatchState { counts: batch.counts, usage: batch.usage, missing })
}

/// Stores the mark of the input with the first results, and compares it later.
async fn begin(client: &Transaction<'_>, batch: &str, input: InputMark) -> Result<(), StoreError> {
    let json = serde_json::to_string(&input).expect("numbers are always JSON");
    let text = "UPDATE wornpath_batches SET mark = $2, total = $3 WHERE id = $1 AND mark IS NULL";
    let lines = i32::try_from(input.lines).unwrap_or(i32::MAX);
    client.execute(text, &[&batch, &json, &lines]).await?;
    let text = "SELECT mark FROM wornpath_batches WHERE id = $1";
    let mark: String = client.query_one(text, &[&batch]).await?.get(0);
    if mark != json {
        let what = "it was started with another input".to_owned();
        return Err(StoreError::OtherInput { path: "the database".into(), what });
    }
    Ok(())
}

pub(super) async fn publish(
    client: &mut Client,
    held: HeldLease<'_>,
    records: &[LineRecord],
) -> Result<usize, StoreError> {
    let transaction = client.transaction().await?;
    let batch = leases::lock_batch(&transaction, held).await?;
    let row = "SELECT output_end, error_end FROM wornpath_batches WHERE id = $1";
    let row = transaction.query_one(row, &[&batch.id]).await?;
    let mut group = ResultRows::new([row.get(0), row.get(1)]);
    let lines: Vec<i32> = records.iter().map(|record| record.line as i32).collect();
    let there = "SELECT line FROM wornpath_records WHERE batch = $1 AND line = ANY($2)";
    for row in transaction.query(there, &[&batch.id, &lines]).await? {
        group.seen.insert(row.get(0));
    }
    records.iter().for_each(|record| group.add(record));
    if group.lines.is_empty() {
        return Ok(0);
    }
    let text = "INSERT INTO wornpath_records (batch, line, kind, begins, content) SELECT $1, * FROM \
                unnest($2::int[], $3::smallint[], $4::bigint[], $5::bytea[])";
    transaction
        .execute(text, &[&batch.id, &group.lines, &group.kinds, &group.begins, &group.contents])
        .await?;
    let text = "UPDATE wornpath_batches SET completed = completed + $2, failed = failed + $3, \
                input_tokens = input_tokens + $4, cached_tokens = cached_tokens + $5, \
                output_tokens = output_tokens + $6, output_end = $7, error_end = $8 WHERE id = $1";
    let Counts { completed, failed, .. } = group.counts;
    let completed = completed as i32;
    let failed = failed as i32;
    let TokenUsage { input, cached, output } = group.usage;
    let input = signed(input);
    let cached = signed(cached);
    let output = signed(output);
    let [outputs, errors] = group.ends;
    transaction
        .execute(
            text,
            &[&batch.id, &completed, &failed, &input, &cached, &output, &outputs, &errors],
        )
        .await?;
    transaction.commit().await?;
    Ok(group.lines.len())
}

/// New records, column by column.
struct ResultRows<'a> {
    /// Lines that have a record already.
    seen: BTreeSet<i32>,
    lines: Vec<i32>,
    kinds: Vec<i16>,
    begins: Vec<i64>,
    contents: Vec<&'a [u8]>,
    ends: [i64; 2],
    counts: Counts,
    usage: TokenUsage,
}

impl<'a> ResultRows<'a> {
    fn new(ends: [i64; 2]) -> Self {
        Self {
            seen: BTreeSet::new(),
            lines: Vec::new(),
            kinds: Vec::new(),
            begins: Vec::new(),
            contents: Vec::new(),
            ends,
            counts: Counts::default(),
            usage: TokenUsage::default(),
        }
    }

    fn add(&mut self, record: &'a LineRecord) {
        if !self.seen.insert(record.line as i32) {
            return;
        }
        let kind = number(record.kind);
        let end = &mut self.ends[kind as usize];
        self.begins.push(*end);
        // The newline is not stored, but counts: readers see a file.
        *end += record.bytes.len() as i64 + 1;
        self.lines.push(record.line as i32);
        self.kinds.push(kind);
        self.contents.push(&record.bytes);
        self.counts.add(record.kind);
        self.usage += record.usage;
    }
}

/// A position in the output or the errors of a batch.
#[derive(Clone, Copy)]
pub(super) struct ResultRange<'a> {
    pub(super) batch: &'a str,
    pub(super) kind: RecordKind,
    pub(super) offset: u64,
}

pub(super) async fn read(
    client: &impl GenericClient,
    ResultRange { batch, kind, offset }: ResultRange<'_>,
    buffer: &mut [u8],
) -> Result<usize, StoreError> {
    let there = client.query_opt("SELECT 1 FROM wornpath_batches WHERE id = $1", &[&batch]).await?;
    if there.is_none() {
        return Err(missing_batch(batch));
    }
    let text = "SELECT begins, content FROM wornpath_records WHERE batch = $1 AND kind = $2 \
                AND begins >= (SELECT coalesce(max(begins), 0) FROM wornpath_records \
                               WHERE batch = $1 AND kind = $2 AND begins <= $3) \
                AND begins < $4 ORDER BY begins LIMIT $5";
    let kind = number(kind);
    let mut read = 0;
    while read < buffer.len() {
        let at = offset + read as u64;
        let until = signed(offset + buffer.len() as u64);
        let rows =
            client.query(text, &[&batch, &kind, &signed(at), &until, &RECORDS_PER_QUERY]).await?;
        let before = read;
        for row in &rows {
            let begins: i64 = row.get(0);
            let content: &[u8] = row.get(1);
            let skipped = (offset + read as u64).saturating_sub(unsigned(begins)) as usize;
            let line = content.iter().chain(b"\n").skip(skipped);
            for (to, byte) in buffer[read..].iter_mut().zip(line) {
                *to = *byte;
                read += 1;
            }
        }
        if read == before {
            break;
        }
    }
    Ok(read)
}
