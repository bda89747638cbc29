//! The viewers of the live stream, and the rates that they see.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use wornpath_gateway::observe::metrics::ByOrigin;
use wornpath_gateway::observe::metrics::totals::{Figures, Totals};
use wornpath_index::Moment;

/// Half of the connections, so that other requests of operators still get one.
const MOST_VIEWERS: usize = 32;
/// Snapshots that may wait for a viewer.
const WAITING: usize = 2;
/// The window of rates: long enough to be steady, short enough to show changes.
const WINDOW: Duration = Duration::from_secs(5);
/// A rate over less says nothing.
const SHORTEST: Duration = Duration::from_millis(500);

/// The connected viewers.
#[derive(Default)]
pub(crate) struct LiveViewers(Mutex<LiveState>);

#[derive(Default)]
struct LiveState {
    viewers: Vec<mpsc::Sender<Bytes>>,
    /// The last snapshot, for the next viewer.
    last: Option<Bytes>,
    is_running: bool,
}

/// The limit of viewers is reached.
#[derive(Debug)]
pub(crate) struct TooManyViewers;

/// An endless response: server-sent events.
pub(crate) struct LiveStream(mpsc::Receiver<Bytes>);

impl Body for LiveStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|snapshot| snapshot.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl LiveViewers {
    /// Connects a viewer, and calls `start` if it is the first one.
    pub(crate) fn connect(&self, start: impl FnOnce()) -> Result<LiveStream, TooManyViewers> {
        let mut inner = self.inner();
        inner.viewers.retain(|viewer| !viewer.is_closed());
        if inner.viewers.len() >= MOST_VIEWERS {
            return Err(TooManyViewers);
        }
        let (viewer, snapshots) = mpsc::channel(WAITING);
        if let Some(last) = &inner.last {
            // The channel is new and has room.
            let _ = viewer.try_send(last.clone());
        }
        inner.viewers.push(viewer);
        if !std::mem::replace(&mut inner.is_running, true) {
            start();
        }
        Ok(LiveStream(snapshots))
    }

    /// Disconnects all viewers.
    pub(crate) fn clear(&self) {
        *self.inner() = LiveState::default();
    }

    fn inner(&self) -> MutexGuard<'_, LiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a snapshot to all viewers; whether any is still connected.
    pub(crate) fn send(&self, snapshot: &Bytes) -> bool {
        let mut inner = self.inner();
        inner.viewers.retain(|viewer| {
            !matches!(viewer.try_send(snapshot.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
        inner.last = Some(snapshot.clone());
        inner.is_running = !inner.viewers.is_empty();
        if !inner.is_running {
            inner.last = None;
        }
        inner.is_running
    }
}

/// The totals of the last seconds, kept also without viewers, so that the first snapshot has
/// rates.
#[derive(Default)]
pub(crate) struct RateWindow(Mutex<VecDeque<TotalsAt>>);

/// Totals at one moment.
struct TotalsAt {
    at: Moment,
    by_pod: Totals,
    by_origin: ByOrigin,
}

/// The difference of two totals.
pub(crate) struct Between {
    pub(crate) seconds: f64,
    pub(crate) by_pod: Totals,
    pub(crate) by_origin: ByOrigin,
}

impl RateWindow {
    /// Adds totals, once per second.
    pub(crate) fn add(&self, now: Moment, by_pod: Totals, by_origin: ByOrigin) {
        let mut all = self.all();
        while all.len() > 1 && all[1].at + WINDOW <= now {
            all.pop_front();
        }
        all.push_back(TotalsAt { at: now, by_pod, by_origin });
    }

    /// The difference between these totals and those at the start of the window; none just after
    /// the start of the router.
    pub(crate) fn between(
        &self,
        now: Moment,
        by_pod: &Totals,
        by_origin: &ByOrigin,
    ) -> Option<Between> {
        let all = self.all();
        let before = all.iter().rev().find(|before| before.at + WINDOW <= now).or(all.front())?;
        if now < before.at + SHORTEST {
            return None;
        }
        Some(Between {
            seconds: now.since(before.at).as_secs_f64(),
            by_pod: since(by_pod, &before.by_pod),
            by_origin: since(by_origin, &before.by_origin),
        })
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<TotalsAt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn since<K: Ord + Clone>(
    now: &BTreeMap<K, Figures>,
    before: &BTreeMap<K, Figures>,
) -> BTreeMap<K, Figures> {
    let none = Figures::default();
    let figures = |(key, figures): (&K, &Figures)| {
        (key.clone(), figures.since(before.get(key).unwrap_or(&none)))
    };
    now.iter().map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_only_the_last_seconds() {
        let window = RateWindow::default();
        let none = ByOrigin::new();
        let requests = |count| {
            Totals::from([("a".to_owned(), Figures { requests: count, ..Figures::default() })])
        };
        let at = Moment::from_secs;
        assert!(window.between(at(100), &requests(50), &none).is_none(), "nothing came before");
        window.add(at(100), requests(50), none.clone());
        assert!(window.between(at(100), &requests(51), &none).is_none(), "no time has passed");
        for second in 1..=20 {
            let totals = requests(50 + 10 * second);
            let between = window.between(at(100 + second), &totals, &none).unwrap();
            let rate = between.by_pod["a"].requests as f64 / between.seconds;
            assert!((rate - 10.0).abs() < 1e-9, "{rate}");
            assert!(between.seconds <= 5.0, "{}", between.seconds);
            window.add(at(100 + second), totals, none.clone());
        }
        assert!(window.all().len() <= 6, "{}", window.all().len());
    }

    #[test]
    fn a_slow_viewer_misses_snapshots_and_a_disconnected_one_is_removed() {
        let viewers = LiveViewers::default();
        let (slow, mut snapshots) = mpsc::channel(WAITING);
        viewers.inner().viewers.push(slow);
        for number in 0..5_u8 {
            assert!(viewers.send(&Bytes::from(vec![number])));
        }
        assert_eq!(snapshots.try_recv().unwrap()[0], 0);
        assert!(viewers.send(&Bytes::from_static(&[9])));
        assert_eq!((snapshots.try_recv().unwrap()[0], snapshots.try_recv().unwrap()[0]), (1, 9));
        drop(snapshots);
        assert!(!viewers.send(&Bytes::from_static(&[10])), "no viewer is left");
        assert!(viewers.inner().last.is_none(), "no stale snapshot is sent to the next viewer");
    }
}
