//! Reads engines' own metrics, each at its own pace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::pace::{Pace, Reading};
use super::scrape;
use crate::config::Running;
use crate::metrics::Scrape;

/// How often it is looked for engines whose turn it is.
const TICK: Duration = Duration::from_millis(250);
const WITHIN: Duration = Duration::from_secs(2);
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
        due.retain(|url, _| urls.iter().any(|(known, _)| known == url));
        let mut reading = JoinSet::new();
        for (url, page) in &urls {
            let (at, _) = due.entry(url.clone()).or_insert((tick, Pace::default()));
            if *at <= tick && reading.len() < MOST {
                let (url, page) = (url.clone(), page.clone());
                reading.spawn(
                    async move { (url, timeout(WITHIN, fetch(&page)).await.ok().flatten()) },
                );
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

/// Every endpoint, and where its metrics are.
fn endpoints(running: &Running) -> Vec<(String, String)> {
    let mut urls: Vec<(String, String)> = Vec::new();
    for seat in running.gateway().roster().seats() {
        let url = &seat.settings.url;
        if urls.iter().all(|(known, _)| known != url) {
            let page = running.roll().metrics_at(url).unwrap_or_else(|| format!("{url}/metrics"));
            urls.push((url.clone(), page));
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

/// The page, if there is one.
async fn fetch(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.ok()?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    let request = Request::get(uri.path())
        .header(HOST, uri.authority()?.as_str())
        .header(ACCEPT, "text/plain")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let answer = async {
        let answer = sender.send_request(request).await.ok()?;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await.ok()?;
        String::from_utf8(body.to_bytes().into()).ok()
    };
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        page = &mut answer => page,
        // A connection may end as soon as everything has come.
        _ = &mut connection => answer.await,
    }
}
