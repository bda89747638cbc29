//! Reads engines' own metrics, each at its own pace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::backoff::{ScrapeBackoff, ScrapeReading};
use crate::fleet::PodEntry;
use crate::metrics::Scrape;
use crate::probe::metrics_page;
use crate::reload::RunningConfig;
use crate::scrape;
use crate::watchdog::named;

/// How often it is looked for engines whose turn it is.
const TICK: Duration = Duration::from_millis(250);
const WITHIN: Duration = Duration::from_secs(2);
/// Readings at a time.
const MOST: usize = 32;

/// Reads the metrics of every engine into its vitals, for as long as it is polled.
pub async fn read_engines(running: Arc<RunningConfig>) {
    let mut due: HashMap<String, (Instant, ScrapeBackoff)> = HashMap::new();
    let mut tick = Instant::now();
    loop {
        sleep_until(tick).await;
        tick = Instant::now() + TICK;
        let engines = engines(&running);
        due.retain(|url, _| engines.iter().any(|seat| seat.settings.url == *url));
        let mut reading = JoinSet::new();
        for seat in &engines {
            let url = &seat.settings.url;
            let (at, _) = due.entry(url.clone()).or_insert((tick, ScrapeBackoff::default()));
            if *at <= tick && reading.len() < MOST {
                let (url, seat) = (url.clone(), seat.clone());
                let reach = Arc::clone(&running.gateway().settings().reach);
                reading.spawn(named("engine metrics", async move {
                    (url, timeout(WITHIN, metrics_page(&seat, &reach)).await.ok().flatten())
                }));
            }
        }
        while let Some(read) = reading.join_next().await {
            let Ok((url, page)) = read else { continue };
            let reading = take_in(&running, &url, page.as_deref());
            let Some((at, pace)) = due.get_mut(&url) else { continue };
            if pace.note(reading) {
                forget(&running, &url);
            }
            *at = Instant::now() + pace.wait(engines.len());
        }
    }
}

/// One pod of every address.
fn engines(running: &RunningConfig) -> Vec<PodEntry> {
    let mut engines: Vec<PodEntry> = Vec::new();
    for seat in running.gateway().roster().seats() {
        if engines.iter().all(|known| known.settings.url != seat.settings.url) {
            engines.push(seat.clone());
        }
    }
    engines
}

/// Reports what a page says to every pod behind the endpoint.
fn take_in(running: &RunningConfig, url: &str, page: Option<&str>) -> ScrapeReading {
    let (mut result, mut is_busy) = (Scrape::Missed, false);
    if let Some(page) = page {
        // The engine may have been restarted with another.
        running.gateway().note_block_size(url, Some(page));
    }
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
        Scrape::Read if is_busy => ScrapeReading::Busy,
        Scrape::Read => ScrapeReading::Idle,
        Scrape::Missed => ScrapeReading::Missed,
    }
}

/// What was reported long ago says nothing any more.
fn forget(running: &RunningConfig, url: &str) {
    for seat in running.gateway().roster().seats().iter().filter(|seat| seat.settings.url == url) {
        seat.pod.vitals().report(0, 0.0);
    }
}
