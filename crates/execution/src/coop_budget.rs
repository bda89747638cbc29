//! The cooperative budget of a task, charged by bytes.
//!
//! tokio lets a task do 128 operations before it must yield. A read or a write counts as one of
//! them, however long it is: moving a prompt of half a megabyte would delay the tokens of every
//! other stream on the thread. So each kilobyte counts as one operation.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use tokio::task::coop;

/// Bytes that count as one operation.
const BYTES_PER_OPERATION: usize = 1 << 10;

/// Charges the task for so many bytes; pending if its budget is spent. More than 128 KiB never fit.
pub(crate) fn poll_spend(context: &mut Context<'_>, bytes: usize) -> Poll<()> {
    for _ in 0..bytes / BYTES_PER_OPERATION {
        ready!(coop::poll_proceed(context)).made_progress();
    }
    Poll::Ready(())
}

/// Charges the task for so many bytes that it has moved, and yields as often as they exceed its
/// budget.
pub async fn spend_coop_budget(bytes: usize) {
    for _ in 0..bytes / BYTES_PER_OPERATION {
        poll_fn(|context| poll_spend(context, BYTES_PER_OPERATION)).await;
    }
}
