//! The scraper: reads the engines' metrics pages.
//!
//! The router counts its own requests exactly, so a scrape only adds the load of other routers and
//! the use of the cache. Scraping 100 pods every 50 ms would cost whole cores. A busy pod is
//! scraped every second, an idle one at doubling intervals, and the whole fleet at a bounded rate.
//! After several missed scrapes in a row the last report is discarded; one changes nothing, but
//! that the probe loop sees whether the pod is still there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::fleet::engine_calls::metrics_page;
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

/// Scrapes every engine and stores its load in the pods' state; never returns.
pub async fn scrape_engines(running: Arc<RunningConfig>) {
    let mut due: HashMap<String, (Instant, ScrapeSchedule)> = HashMap::new();
    let mut tick = Instant::now();
    loop {
        sleep_until(tick).await;
        tick = Instant::now() + TICK;
        let engines = engines(&running);
        due.retain(|url, _| engines.iter().any(|entry| entry.config.url() == *url));
        let mut scrapes = JoinSet::new();
        for entry in &engines {
            let url = entry.config.url().to_owned();
            let (at, _) = due.entry(url.clone()).or_insert((tick, ScrapeSchedule::default()));
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
            let Some((at, schedule)) = due.get_mut(&url) else { continue };
            if schedule.record(reading) {
                clear_report(&running, &url);
            }
            *at = Instant::now() + schedule.interval(engines.len());
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
        if page.is_none() {
            running.pods().check_requests.add(entry.endpoint.url());
        }
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

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(15);
/// Scrapes per second over all pods.
const MAX_PER_SECOND: u32 = 50;
/// Misses in a row after which the last report is discarded.
const MAX_MISSES: u32 = 5;

/// When one pod is scraped next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrapeSchedule {
    interval: Duration,
    missed: u32,
}

impl Default for ScrapeSchedule {
    fn default() -> Self {
        Self { interval: MIN_INTERVAL, missed: 0 }
    }
}

/// The result of one scrape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrapeReading {
    /// The pod has requests.
    Busy,
    /// The pod has no requests.
    Idle,
    /// The metrics could not be read.
    Missed,
}

impl ScrapeSchedule {
    /// Records the result of a scrape. Returns whether the last report is to be discarded now.
    pub fn record(&mut self, reading: ScrapeReading) -> bool {
        match reading {
            ScrapeReading::Busy => *self = Self::default(),
            ScrapeReading::Idle => {
                *self = Self { interval: (self.interval * 2).min(MAX_INTERVAL), missed: 0 };
            }
            ScrapeReading::Missed => {
                self.missed += 1;
                self.interval = (self.interval * 2).min(MAX_INTERVAL);
            }
        }
        self.missed == MAX_MISSES
    }

    /// The time until the next scrape, in a fleet of `pods`.
    #[must_use]
    pub fn interval(&self, pods: usize) -> Duration {
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        self.interval.max(Duration::from_secs(1).saturating_mul(pods) / MAX_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(readings: &[ScrapeReading]) -> Vec<u64> {
        let mut schedule = ScrapeSchedule::default();
        readings
            .iter()
            .map(|reading| {
                schedule.record(*reading);
                schedule.interval(8).as_secs()
            })
            .collect()
    }

    #[test]
    fn a_busy_pod_is_scraped_every_second_and_an_idle_one_at_doubling_intervals() {
        use ScrapeReading::{Busy, Idle, Missed};
        assert_eq!(intervals(&[Busy, Busy]), [1, 1]);
        assert_eq!(intervals(&[Idle, Idle, Idle, Idle, Idle, Busy]), [2, 4, 8, 15, 15, 1]);
        assert_eq!(intervals(&[Missed, Missed, Missed, Idle]), [2, 4, 8, 15]);
    }

    #[test]
    fn a_large_fleet_is_scraped_at_longer_intervals() {
        assert_eq!(ScrapeSchedule::default().interval(50), Duration::from_secs(1));
        assert_eq!(ScrapeSchedule::default().interval(1000), Duration::from_secs(20));
    }

    #[test]
    fn the_fifth_miss_in_a_row_discards_the_report_once() {
        let mut schedule = ScrapeSchedule::default();
        let discards: Vec<_> = (0..7).map(|_| schedule.record(ScrapeReading::Missed)).collect();
        assert_eq!(discards, [false, false, false, false, true, false, false]);
        schedule.record(ScrapeReading::Idle);
        assert!(!schedule.record(ScrapeReading::Missed));
    }
}
