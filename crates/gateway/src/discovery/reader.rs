//! Reads engines' own metrics, each at its own pace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use wornpath_execution::{BreakerRules, Endpoint, Reach, Timeouts, call};

use super::pace::{Pace, Reading};
use super::scrape;
use crate::config::Running;
use crate::metrics::Scrape;
use crate::probe::NOBODY;

/// How often it is looked for engines whose turn it is.
const TICK: Duration = Duration::from_millis(250);
const WITHIN: Duration = Duration::from_secs(2);
const PATIENCE: Timeouts =
    Timeouts { connect: WITHIN, first_byte: WITHIN, between_bytes: WITHIN, total: WITHIN };
/// Readings at a time.
const MOST: usize = 32;
/// A page is a few hundred kilobytes; this is no page.
const MOST_BYTES: usize = 8 << 20;

/// Reads the metrics of every engine into its vitals, for as long as it is polled.
pub async fn read_engines(running: Arc<Running>) {
    let mut due: HashMap<String, (Instant, Pace)> = HashMap::new();
    let mut tick = Instant::now();
    loop {
        sleep_until(tick).await;
        tick = Instant::now() + TICK;
        let urls = endpoints(&running);
        due.retain(|url, _| urls.iter().any(|(known, _, _)| known == url));
        let mut reading = JoinSet::new();
        for (url, page, pod) in &urls {
            let (at, _) = due.entry(url.clone()).or_insert((tick, Pace::default()));
            if *at <= tick && reading.len() < MOST {
                let (url, page, pod) = (url.clone(), page.clone(), Arc::clone(pod));
                let reach = Arc::clone(&running.gateway().settings().reach);
                reading.spawn(async move {
                    (url, timeout(WITHIN, fetch(&page, &reach, &pod)).await.ok().flatten())
                });
            }
        }
        while let Some(read) = reading.join_next().await {
            let Ok((url, page)) = read else { continue };
            let reading = take_in(&running, &url, page.as_deref());
            let Some((at, pace)) = due.get_mut(&url) else { continue };
            if pace.note(reading) {
                forget(&running, &url);
            }
            *at = Instant::now() + pace.wait(urls.len());
        }
    }
}

/// Every address, where its metrics are, and who is there.
fn endpoints(running: &Running) -> Vec<(String, String, Arc<Endpoint>)> {
    let mut urls: Vec<(String, String, Arc<Endpoint>)> = Vec::new();
    for seat in running.gateway().roster().seats() {
        let url = &seat.settings.url;
        if urls.iter().all(|(known, _, _)| known != url) {
            let page = running.roll().metrics_at(url).unwrap_or_else(|| format!("{url}/metrics"));
            urls.push((url.clone(), page, Arc::clone(&seat.endpoint)));
        }
    }
    urls
}

/// Reports what a page says to every pod behind the endpoint.
fn take_in(running: &Running, url: &str, page: Option<&str>) -> Reading {
    let (mut result, mut is_busy) = (Scrape::Missed, false);
    let roster = running.gateway().roster();
    for seat in roster.seats().iter().filter(|seat| seat.settings.url == url) {
        let facts = seat.pod.facts();
        let reported = page.and_then(|page| scrape::read(page, facts.rank));
        result = match reported {
            Some(reported) => {
                seat.pod.vitals().report(reported.waiting, reported.kv_usage);
                is_busy |=
                    reported.waiting + reported.running > 0 || seat.pod.vitals().requests() > 0;
                Scrape::Read
            }
            None => Scrape::Missed,
        };
        running.metrics().scraped(&facts.name, result);
    }
    match result {
        Scrape::Read if is_busy => Reading::Busy,
        Scrape::Read => Reading::Idle,
        Scrape::Missed => Reading::Missed,
    }
}

/// What was reported long ago says nothing any more.
fn forget(running: &Running, url: &str) {
    for seat in running.gateway().roster().seats().iter().filter(|seat| seat.settings.url == url) {
        seat.pod.vitals().report(0, 0.0);
    }
}

/// The page, if there is one. The pod's key is shown at the pod's own address only.
async fn fetch(url: &str, reach: &Arc<Reach>, pod: &Endpoint) -> Option<String> {
    let endpoint = Endpoint::new(url, BreakerRules::default(), 1).ok()?.within(reach).ok()?;
    let endpoint = Arc::new(endpoint);
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = endpoint.prefix().parse().unwrap_or_else(|_| Uri::from_static("/"));
    request.headers_mut().insert(HOST, endpoint.authority().clone());
    if endpoint.authority() == pod.authority() {
        pod.authorize(request.headers_mut());
    }
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/plain"));
    let answer = call(&endpoint, NOBODY, request, PATIENCE).await.ok()?;
    if answer.head.status != StatusCode::OK {
        return None;
    }
    let (_, body) = answer.whole(MOST_BYTES).await.ok()?;
    String::from_utf8(body.into()).ok()
}
