//! Reads engines' own metrics, each at its own pace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::fleet::discovery::backoff::{ScrapeBackoff, ScrapeReading};
use crate::fleet::probe::metrics_page;
use crate::fleet::reload::RunningConfig;
use crate::fleet::scrape;
use crate::fleet::snapshot::PodEntry;
use crate::observe::metrics::Scrape;
use crate::watchdog::heartbeat::named;

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
        due.retain(|url, _| engines.iter().any(|entry| entry.settings.url == *url));
        let mut reading = JoinSet::new();
        for entry in &engines {
            let url = &entry.settings.url;
            let (at, _) = due.entry(url.clone()).or_insert((tick, ScrapeBackoff::default()));
            if *at <= tick && reading.len() < MOST {
                let (url, entry) = (url.clone(), entry.clone());
                let reach = Arc::clone(&running.pods().settings().reach);
                reading.spawn(named("engine metrics", async move {
                    (url, timeout(WITHIN, metrics_page(&entry, &reach)).await.ok().flatten())
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
    for entry in running.pods().snapshot().entries() {
        if engines.iter().all(|known| known.settings.url != entry.settings.url) {
            engines.push(entry.clone());
        }
    }
    engines
}

/// Reports what a page says to every pod behind the endpoint.
fn take_in(running: &RunningConfig, url: &str, page: Option<&str>) -> ScrapeReading {
    let (mut result, mut is_busy) = (Scrape::Missed, false);
    if let Some(page) = page {
        // The engine may have been restarted with another.
        running.pods().note_block_size(url, Some(page));
    }
    let snapshot = running.pods().snapshot();
    for entry in snapshot.entries().iter().filter(|entry| entry.settings.url == url) {
        let facts = entry.pod.facts();
        let reported = page.and_then(|page| scrape::read(page, facts.rank));
        result = match reported {
            Some(reported) => {
                entry.pod.vitals().report(reported.waiting, reported.kv_usage);
                is_busy |=
                    reported.waiting + reported.running > 0 || entry.pod.vitals().requests() > 0;
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
    for entry in
        running.pods().snapshot().entries().iter().filter(|entry| entry.settings.url == url)
    {
        entry.pod.vitals().report(0, 0.0);
    }
}
