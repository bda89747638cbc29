//! How much a task does before others have their turn.
//!
//! tokio lets a task do 128 things before it must wait for a turn of its own, in which sockets are looked at again. A
//! read or a write is one of them, however long: moving a prompt of half a megabyte would keep everybody else's tokens
//! waiting. So each kilobyte counts as one.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use tokio::task::coop;

/// Bytes that count as one thing done.
const SHARE: usize = 1 << 10;

/// Waits for another turn if there is no room for so many bytes in this one; they must fit in one.
pub(crate) fn poll_turn(context: &mut Context<'_>, bytes: usize) -> Poll<()> {
    for _ in 0..bytes / SHARE {
        ready!(coop::poll_proceed(context)).made_progress();
    }
    Poll::Ready(())
}

/// Counts so many bytes that were moved, and waits for as many turns as they should have taken.
pub async fn take_turn(bytes: usize) {
    for _ in 0..bytes / SHARE {
        poll_fn(|context| poll_turn(context, SHARE)).await;
    }
}
