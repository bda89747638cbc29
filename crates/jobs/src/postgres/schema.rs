//! The tables, and the sweep of what has expired.

use super::files;
use super::rows::signed;
use crate::batch::UnixTime;
use crate::store_error::StoreError;
use tokio_postgres::Client;

/// Entries are JSON as in the journal of [`crate::FsStore`]; the other columns are queried, or
/// updated by several gateways.
const TABLES: &str = "\
CREATE TABLE IF NOT EXISTS wornpath_files (
  id text PRIMARY KEY, owner text NOT NULL, created_at bigint NOT NULL, expires_at bigint,
  batch text, entry text NOT NULL);
CREATE INDEX IF NOT EXISTS wornpath_files_by_owner ON wornpath_files (owner, created_at DESC, id DESC);
CREATE TABLE IF NOT EXISTS wornpath_pieces (
  file text NOT NULL, number int NOT NULL, content bytea NOT NULL,
  came timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (file, number));
CREATE TABLE IF NOT EXISTS wornpath_batches (
  id text PRIMARY KEY, owner text NOT NULL, input text NOT NULL, created_at bigint NOT NULL,
  expires_at bigint NOT NULL, is_cancelled boolean NOT NULL, ended_at bigint, entry text NOT NULL,
  mark text, total int NOT NULL DEFAULT 0, completed int NOT NULL DEFAULT 0, failed int NOT NULL DEFAULT 0,
  input_tokens bigint NOT NULL DEFAULT 0, cached_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  output_end bigint NOT NULL DEFAULT 0, error_end bigint NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS wornpath_batches_by_owner ON wornpath_batches (owner, created_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS wornpath_batches_unfinished ON wornpath_batches (id) WHERE ended_at IS NULL;
CREATE TABLE IF NOT EXISTS wornpath_segments (
  batch text NOT NULL, number int NOT NULL, epoch bigint NOT NULL DEFAULT 0, holder text,
  until timestamptz, is_settled boolean NOT NULL DEFAULT false, PRIMARY KEY (batch, number));
CREATE TABLE IF NOT EXISTS wornpath_records (
  batch text NOT NULL, line int NOT NULL, kind smallint NOT NULL, begins bigint NOT NULL,
  content bytea NOT NULL, PRIMARY KEY (batch, line));
CREATE UNIQUE INDEX IF NOT EXISTS wornpath_records_in_order ON wornpath_records (batch, kind, begins);
CREATE TABLE IF NOT EXISTS wornpath_runners (name text PRIMARY KEY, until timestamptz NOT NULL);
CREATE SEQUENCE IF NOT EXISTS wornpath_epochs;
";

/// The advisory lock under which gateways that start together create the tables one after another.
const SCHEMA_LOCK: i64 = 0x776f_726e;

pub(super) async fn make(client: &mut Client) -> Result<(), StoreError> {
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&SCHEMA_LOCK]).await?;
    transaction.batch_execute(TABLES).await?;
    Ok(transaction.commit().await?)
}

/// Removes expired files, and batches that ended `keep` seconds ago or earlier. Returns how many.
pub(super) async fn sweep(
    client: &mut Client,
    now: UnixTime,
    keep: u64,
) -> Result<usize, StoreError> {
    let transaction = client.transaction().await?;
    let before = signed(now.saturating_sub(keep));
    let old = "SELECT id FROM wornpath_batches WHERE ended_at <= $1 FOR UPDATE SKIP LOCKED";
    let old: Vec<String> =
        transaction.query(old, &[&before]).await?.iter().map(|row| row.get(0)).collect();
    for table in ["records", "segments", "files"] {
        let text = format!("DELETE FROM wornpath_{table} WHERE batch = ANY($1)");
        transaction.execute(&text, &[&old]).await?;
    }
    transaction.execute("DELETE FROM wornpath_batches WHERE id = ANY($1)", &[&old]).await?;
    let files = "DELETE FROM wornpath_files f WHERE expires_at <= $1 AND NOT EXISTS \
                 (SELECT 1 FROM wornpath_batches b WHERE b.input = f.id AND b.ended_at IS NULL) RETURNING batch";
    let files = transaction.query(files, &[&signed(now)]).await?;
    let batches: Vec<String> = files.iter().filter_map(|row| row.get(0)).collect();
    files::remove_results(&transaction, &batches).await?;
    transaction.commit().await?;
    // Pieces of uploads that were never finished, and of removed files. An upload may take hours.
    let pieces = "DELETE FROM wornpath_pieces p WHERE came < clock_timestamp() - interval '1 day' \
                  AND NOT EXISTS (SELECT 1 FROM wornpath_files f WHERE f.id = p.file)";
    client.execute(pieces, &[]).await?;
    client.execute("DELETE FROM wornpath_runners WHERE until < clock_timestamp()", &[]).await?;
    Ok(old.len() + files.len())
}
