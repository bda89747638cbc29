//! The scraper: reads the engines' metrics pages, each at the interval of its own backoff.

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

/// Interval between two checks for engines that are due.
const TICK: Duration = Duration::from_millis(250);
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Concurrent scrapes.
const MAX_CONCURRENT: usize = 32;

/// Scrapes every engine and stores its load in the pods' pod_state; never returns.
pub async fn scrape_engines(running: Arc<RunningConfig>) {
    let mut due: HashMap<String, (Instant, ScrapeBackoff)> = HashMap::new();
    let mut tick = Instant::now();
    loop {
        sleep_until(tick).await;
        tick = Instant::now() + TICK;
        let engines = engines(&running);
        due.retain(|url, _| engines.iter().any(|entry| entry.config.url() == *url));
        let mut scrapes = JoinSet::new();
        for entry in &engines {
            let url = entry.config.url().to_owned();
            let (at, _) = due.entry(url.clone()).or_insert((tick, ScrapeBackoff::default()));
            if *at <= tick && scrapes.len() < MAX_CONCURRENT {
                let url = url.clone();
                let entry = entry.clone();
                let reach = Arc::clone(&running.pods().settings().egress_policy);
                scrapes.spawn(named("engine metrics", async move {
                    (
                        url,
                        timeout(SCRAPE_TIMEOUT, metrics_page(&entry, &reach)).await.ok().flatten(),
                    )
                }));
            }
        }
        while let Some(scraped) = scrapes.join_next().await {
            let Ok((url, page)) = scraped else { continue };
            let reading = apply_page(&running, &url, page.as_deref());
            let Some((at, backoff)) = due.get_mut(&url) else { continue };
            if backoff.record(reading) {
                clear_report(&running, &url);
            }
            *at = Instant::now() + backoff.interval(engines.len());
        }
    }
}

/// One pod for each address.
fn engines(running: &RunningConfig) -> Vec<PodEntry> {
    let mut engines: Vec<PodEntry> = Vec::new();
    for entry in running.pods().snapshot().entries() {
        if engines.iter().all(|known| known.config.url() != entry.config.url()) {
            engines.push(entry.clone());
        }
    }
    engines
}

/// Applies a metrics page to all pods behind an address; the ranks of an engine share one.
fn apply_page(running: &RunningConfig, url: &str, page: Option<&str>) -> ScrapeReading {
    let mut result = Scrape::Missed;
    let mut is_busy = false;
    if let Some(page) = page {
        // The engine may have been restarted with another block size.
        running.pods().record_block_size(url, Some(page));
    }
    let snapshot = running.pods().snapshot();
    for entry in snapshot.entries().iter().filter(|entry| entry.config.url() == url) {
        let facts = entry.pod.facts();
        let reported = page.and_then(|page| scrape::read(page, facts.rank));
        result = match reported {
            Some(reported) => {
                entry.pod.state().report(reported.waiting, reported.kv_usage);
                is_busy |=
                    reported.waiting + reported.running > 0 || entry.pod.state().requests() > 0;
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

/// Discards a report that is too old to be useful.
fn clear_report(running: &RunningConfig, url: &str) {
    for entry in
        running.pods().snapshot().entries().iter().filter(|entry| entry.config.url() == url)
    {
        entry.pod.state().report(0, 0.0);
    }
}
