//! What must go on for as long as the gateway does.
//!
//! Nobody waits for such a task, so nobody would see that it broke off: pods would never come back, or files never be
//! read again. A panic is a bug, and its message is logged as every panic's is; the task begins anew.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::watchdog::heartbeat::named;

/// How soon a task that broke off begins again.
const RESTART: Duration = Duration::from_millis(50);

/// Runs what `begin` makes of `shared`, and begins it again if it panics.
pub fn tend<S, F>(
    handle: &Handle,
    what: &'static str,
    shared: &Arc<S>,
    begin: impl Fn(Arc<S>) -> F + Send + 'static,
) where
    S: Send + Sync + 'static,
    F: Future<Output: Send> + Send + 'static,
{
    let shared = Arc::clone(shared);
    handle.spawn(async move {
        loop {
            match tokio::spawn(named(what, begin(Arc::clone(&shared)))).await {
                Err(error) if error.is_panic() => {
                    tracing::error!(task = what, "task panicked; restarting");
                    tokio::time::sleep(RESTART).await;
                }
                _ => return,
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn what_panics_begins_again_and_what_ends_does_not() {
        let shared = Arc::<(AtomicUsize, Notify)>::default();
        tend(&Handle::current(), "a test", &shared, |shared| async move {
            assert!(shared.0.fetch_add(1, Relaxed) >= 2, "on purpose");
            shared.1.notify_one();
        });
        shared.1.notified().await;
        tokio::time::sleep(10 * RESTART).await;
        assert_eq!(shared.0.load(Relaxed), 3);
    }
}
