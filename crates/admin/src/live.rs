//! Streams a snapshot every second to all viewers.
//!
//! A snapshot is computed once for all viewers, and only while there are any: the first viewer
//! starts the task, and it ends after the last one disconnects. A slow viewer misses snapshots and
//! delays no other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::admin::Admin;
use crate::snapshot::snapshot;
use crate::viewers::{LiveStream, TooManyViewers};
use wornpath_gateway::watchdog::heartbeat::named;

/// Interval between snapshots.
const INTERVAL: Duration = Duration::from_secs(1);

/// Connects a viewer.
pub(crate) fn watch(admin: &Arc<Admin>) -> Result<LiveStream, TooManyViewers> {
    admin.viewers.connect(|| {
        let background = admin.gateway.pods().background();
        background.spawn(named("dashboard snapshots", run(Arc::clone(admin))));
    })
}

async fn run(admin: Arc<Admin>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let source = Arc::clone(&admin);
        // It locks the event ledgers one after another, so it runs on a blocking thread.
        let made = tokio::task::spawn_blocking(move || {
            let text = snapshot(&source);
            Bytes::from(format!("event: snapshot\ndata: {text}\n\n"))
        });
        let Ok(snapshot) = made.await else {
            // The next viewer starts the task again.
            admin.viewers.clear();
            return;
        };
        if !admin.viewers.send(&snapshot) {
            return;
        }
    }
}
