//! Leases on segments: who runs what, by the database's clock.

use super::batches;
use super::unsigned;
use crate::batch::Batch;
use crate::problem::StoreError;
use crate::store::Lease;
use tokio_postgres::{Client, GenericClient, Transaction};

/// A segment that anybody may take; `$2` is who asks.
const IS_FREE: &str =
    "NOT is_settled AND (holder IS NULL OR holder = $2 OR until < clock_timestamp())";

/// Says that a runner is there.
pub(super) async fn attend(
    client: &impl GenericClient,
    runner: &str,
    term: f64,
) -> Result<(), StoreError> {
    let text = "INSERT INTO wornpath_runners (name, until) \
                VALUES ($1, clock_timestamp() + make_interval(secs => $2)) \
                ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until";
    client.execute(text, &[&runner, &term]).await?;
    Ok(())
}

pub(super) async fn take(
    client: &mut Client,
    batch: &str,
    (runner, term): (&str, f64),
) -> Result<Option<Lease>, StoreError> {
    attend(client, runner, term).await?;
    let transaction = client.transaction().await?;
    let state = "SELECT ended_at IS NOT NULL, \
                 is_cancelled OR expires_at <= extract(epoch FROM clock_timestamp()), \
                 (SELECT count(*) FROM wornpath_segments WHERE batch = $1), \
                 (SELECT count(*) FROM wornpath_runners WHERE until > clock_timestamp()), \
                 (SELECT count(*) FROM wornpath_segments WHERE batch = $1 AND NOT is_settled) \
                 FROM wornpath_batches WHERE id = $1";
    let state = transaction.query_opt(state, &[&batch]).await?;
    let state = state.ok_or_else(|| StoreError::Missing(format!("batch `{batch}`")))?;
    if state.get(0) {
        return Err(has_ended(batch));
    }
    let (is_over, of, runners, open): (bool, i64, i64, i64) =
        (state.get(1), state.get(2), state.get(3), state.get(4));
    let taken = match open {
        0 => reopen(&transaction, batch, (runner, term)).await?,
        _ => {
            let free = free(&transaction, batch, runner).await?;
            // Alone: all of it. Else a part, so that whoever is done first takes more.
            let part = 2 * runners.max(1);
            let share = (free + part - 1) / part;
            let most = if runners <= 1 || is_over { free } else { share };
            claim(&transaction, batch, (runner, term), most).await?
        }
    };
    transaction.commit().await?;
    let Some((epoch, segments)) = taken else { return Ok(None) };
    Ok(Some(Lease { batch: batch.to_owned(), epoch, segments, of: of as u32 }))
}

async fn free(client: &Transaction<'_>, batch: &str, runner: &str) -> Result<i64, StoreError> {
    let text = format!("SELECT count(*) FROM wornpath_segments WHERE batch = $1 AND {IS_FREE}");
    Ok(client.query_one(&text, &[&batch, &runner]).await?.get(0))
}

type TakenLease = Option<(u64, Vec<u32>)>;

async fn claim(
    client: &Transaction<'_>,
    batch: &str,
    (runner, term): (&str, f64),
    most: i64,
) -> Result<TakenLease, StoreError> {
    // One number for all of them: the sequence is asked once, before the rows.
    let text = format!(
        "WITH fresh AS MATERIALIZED (SELECT nextval('wornpath_epochs') AS epoch), \
         mine AS (SELECT number FROM wornpath_segments WHERE batch = $1 AND {IS_FREE} \
                  ORDER BY number LIMIT $4 FOR UPDATE SKIP LOCKED) \
         UPDATE wornpath_segments s SET epoch = fresh.epoch, holder = $2, \
         until = clock_timestamp() + make_interval(secs => $3) \
         FROM fresh, mine WHERE s.batch = $1 AND s.number = mine.number \
         RETURNING s.epoch, s.number"
    );
    Ok(taken(&client.query(&text, &[&batch, &runner, &term, &most]).await?))
}

/// Everything was settled and the batch has not ended: somebody died on the way there, or lines are left. None as long as one
/// of those who settled still has its lease, for it may be about to end the batch.
async fn reopen(
    client: &Transaction<'_>,
    batch: &str,
    (runner, term): (&str, f64),
) -> Result<TakenLease, StoreError> {
    // Of several who come at once, the others see what the first has taken.
    if batches::find_locked(client, batch).await?.status().is_final() {
        return Err(has_ended(batch));
    }
    let text = "WITH fresh AS MATERIALIZED (SELECT nextval('wornpath_epochs') AS epoch) \
                UPDATE wornpath_segments s SET epoch = fresh.epoch, holder = $2, \
                is_settled = false, until = clock_timestamp() + make_interval(secs => $3) \
                FROM fresh WHERE s.batch = $1 AND NOT EXISTS \
                (SELECT 1 FROM wornpath_segments o WHERE o.batch = $1 AND (NOT o.is_settled OR \
                 o.holder IS NOT NULL AND o.holder <> $2 AND o.until >= clock_timestamp())) \
                RETURNING s.epoch, s.number";
    Ok(taken(&client.query(text, &[&batch, &runner, &term]).await?))
}

fn has_ended(batch: &str) -> StoreError {
    StoreError::Conflict(format!("batch `{batch}` has ended"))
}

fn taken(rows: &[tokio_postgres::Row]) -> TakenLease {
    let first = rows.first()?;
    let mut segments: Vec<_> = rows.iter().map(|row| row.get::<_, i32>(1) as u32).collect();
    segments.sort_unstable();
    Some((unsigned(first.get(0)), segments))
}

/// Prolongs a lease if it is the latest of all its segments.
pub(super) async fn hold(
    client: &impl GenericClient,
    lease: &Lease,
    term: f64,
) -> Result<(), StoreError> {
    let text = "UPDATE wornpath_segments SET until = clock_timestamp() + make_interval(secs => $3) \
                WHERE batch = $1 AND epoch = $2";
    let held = client.execute(text, &[&lease.batch, &super::signed(lease.epoch), &term]).await?;
    match held == lease.segments.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Fenced(lease.batch.clone())),
    }
}

/// The batch of a lease that is the latest, locked until the transaction is over.
pub(super) async fn held(
    client: &Transaction<'_>,
    (lease, term): (&Lease, f64),
) -> Result<Batch, StoreError> {
    let batch = batches::find_locked(client, &lease.batch).await?;
    if batch.status().is_final() {
        return Err(StoreError::Fenced(lease.batch.clone()));
    }
    hold(client, lease, term).await?;
    Ok(batch)
}

pub(super) async fn change(
    client: &mut Client,
    lease: (&Lease, f64),
    change: &mut dyn FnMut(&mut Batch) -> Result<(), StoreError>,
) -> Result<Batch, StoreError> {
    let transaction = client.transaction().await?;
    let mut batch = held(&transaction, lease).await?;
    change(&mut batch)?;
    batches::write(&transaction, &batch).await?;
    transaction.commit().await?;
    Ok(batch)
}

pub(super) async fn settle(client: &Client, lease: &Lease) -> Result<(), StoreError> {
    let text = "UPDATE wornpath_segments SET is_settled = true WHERE batch = $1 AND epoch = $2";
    let settled = client.execute(text, &[&lease.batch, &super::signed(lease.epoch)]).await?;
    match settled == lease.segments.len() as u64 {
        true => Ok(()),
        false => Err(StoreError::Fenced(lease.batch.clone())),
    }
}

pub(super) async fn release(client: &Client, lease: &Lease) -> Result<(), StoreError> {
    // A number that was never a lease's: what its holder still has under way is refused from now on.
    let text = "UPDATE wornpath_segments SET holder = NULL, until = NULL, epoch = 0 \
                WHERE batch = $1 AND epoch = $2";
    client.execute(text, &[&lease.batch, &super::signed(lease.epoch)]).await?;
    Ok(())
}
