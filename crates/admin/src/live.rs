//! What happens, once a second, for everybody who watches.
//!
//! A picture is made once for all viewers, and only while there are any: the first who comes starts the making and
//! it ends after the last has gone. A viewer that does not keep up misses pictures and delays nobody.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use wornpath_index::Moment;

use crate::admin::Admin;
use crate::snapshot::snapshot;
use wornpath_gateway::observe::metrics::totals::{Figures, Totals};
use wornpath_gateway::watchdog::heartbeat::named;

/// How often a picture is made.
const EVERY: Duration = Duration::from_secs(1);
/// Half of the connections: operators get in, however many watch.
const MOST_VIEWERS: usize = 32;
/// Pictures that may wait for a viewer.
const WAITING: usize = 2;
/// What rates are taken over: long enough to be calm, short enough to see something happen.
const WINDOW: Duration = Duration::from_secs(5);

/// Who watches.
#[derive(Default)]
pub(crate) struct LiveViewers(Mutex<LiveState>);

#[derive(Default)]
struct LiveState {
    viewers: Vec<mpsc::Sender<Bytes>>,
    /// The last picture, for whoever comes next.
    last: Option<Bytes>,
    is_running: bool,
}

/// Too many watch.
#[derive(Debug)]
pub(crate) struct TooManyViewers;

/// An endless answer: server-sent events.
pub(crate) struct LiveStream(mpsc::Receiver<Bytes>);

impl Body for LiveStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|picture| picture.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl LiveViewers {
    fn inner(&self) -> MutexGuard<'_, LiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a picture to all; whether anybody is still there.
    fn show(&self, picture: &Bytes) -> bool {
        let mut inner = self.inner();
        inner.viewers.retain(|viewer| {
            !matches!(viewer.try_send(picture.clone()), Err(mpsc::error::TrySendError::Closed(_)))
        });
        inner.last = Some(picture.clone());
        inner.is_running = !inner.viewers.is_empty();
        if !inner.is_running {
            inner.last = None;
        }
        inner.is_running
    }
}

/// Lets somebody watch from now on.
pub(crate) fn watch(admin: &Arc<Admin>) -> Result<LiveStream, TooManyViewers> {
    let mut inner = admin.viewers.inner();
    inner.viewers.retain(|viewer| !viewer.is_closed());
    if inner.viewers.len() >= MOST_VIEWERS {
        return Err(TooManyViewers);
    }
    let (viewer, pictures) = mpsc::channel(WAITING);
    if let Some(last) = &inner.last {
        // The channel is new and has room.
        let _ = viewer.try_send(last.clone());
    }
    inner.viewers.push(viewer);
    if !std::mem::replace(&mut inner.is_running, true) {
        let background = admin.gateway.pods().background();
        background.spawn(named("dashboard snapshots", run(Arc::clone(admin))));
    }
    Ok(LiveStream(pictures))
}

async fn run(admin: Arc<Admin>) {
    let mut window = RateWindow::default();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked = Arc::clone(&admin);
        // Ledgers are locked one after another: that may wait, and nothing else should.
        let made = tokio::task::spawn_blocking(move || {
            let picture = snapshot(&asked, &mut window);
            (Bytes::from(format!("event: snapshot\ndata: {picture}\n\n")), window)
        });
        let Ok((picture, kept)) = made.await else {
            // Whoever comes next starts it again.
            *admin.viewers.inner() = LiveState::default();
            return;
        };
        window = kept;
        if !admin.viewers.show(&picture) {
            return;
        }
    }
}

/// What was counted at the last few looks.
#[derive(Default)]
pub(crate) struct RateWindow(VecDeque<(Moment, Totals)>);

/// What was counted between two looks.
pub(crate) struct Between {
    pub(crate) seconds: f64,
    pub(crate) by_pod: Totals,
}

impl RateWindow {
    /// Looks again; what came within the window, if there was a look before.
    pub(crate) fn look(&mut self, now: Moment, totals: Totals) -> Option<Between> {
        while self.0.len() > 1 && self.0[1].0 + WINDOW <= now {
            self.0.pop_front();
        }
        let between = self.0.front().map(|(then, before)| Between {
            seconds: now.saturating_sub(*then).as_secs_f64().max(1e-3),
            by_pod: since(&totals, before),
        });
        self.0.push_back((now, totals));
        between
    }
}

fn since(now: &Totals, before: &Totals) -> Totals {
    let none = Figures::default();
    let figures = |(pod, figures): (&String, &Figures)| {
        (pod.clone(), figures.since(before.get(pod).unwrap_or(&none)))
    };
    now.iter().map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_last_seconds_and_forget_what_was_before() {
        let mut window = RateWindow::default();
        let requests = |count| {
            Totals::from([("a".to_owned(), Figures { requests: count, ..Figures::default() })])
        };
        let at = Duration::from_secs;
        assert!(window.look(at(100), requests(50)).is_none(), "one look tells no rate");
        for second in 1..=20 {
            let between = window.look(at(100 + second), requests(50 + 10 * second)).unwrap();
            let rate = between.by_pod["a"].requests as f64 / between.seconds;
            assert!((rate - 10.0).abs() < 1e-9, "{rate}");
            assert!(between.seconds <= 5.0, "{}", between.seconds);
        }
    }

    #[test]
    fn a_viewer_that_does_not_keep_up_misses_pictures_and_one_that_has_gone_is_forgotten() {
        let viewers = LiveViewers::default();
        let (slow, mut pictures) = mpsc::channel(WAITING);
        viewers.inner().viewers.push(slow);
        for number in 0..5_u8 {
            assert!(viewers.show(&Bytes::from(vec![number])));
        }
        assert_eq!(pictures.try_recv().unwrap()[0], 0);
        assert!(viewers.show(&Bytes::from_static(&[9])));
        assert_eq!((pictures.try_recv().unwrap()[0], pictures.try_recv().unwrap()[0]), (1, 9));
        drop(pictures);
        assert!(!viewers.show(&Bytes::from_static(&[10])), "nobody is left");
        assert!(viewers.inner().last.is_none(), "and nothing old is shown to the next");
    }
}
