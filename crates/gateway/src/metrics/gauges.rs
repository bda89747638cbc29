//! What is read from where it lives when the page is asked for: pods, index, events, queue.

use wornpath_events::{FeedCounters, PodStatus};
use wornpath_routing::{Breaker, EventTrust, Health, Pod};

use super::text::Page;
use super::{Family, Metrics, family};
use crate::state::Gateway;

type Figure = fn(&Pod) -> f64;
type State = fn(&Pod) -> &'static str;
type Counter = fn(&FeedCounters) -> u64;

/// The page, in Prometheus' text format.
#[must_use]
pub fn page(gateway: &Gateway, metrics: &Metrics) -> String {
    let mut page = Page::default();
    let roster = gateway.roster();
    let pods = roster.fleet().pods();
    metrics.forget(|name| pods.iter().any(|pod| pod.facts().name == *name));
    metrics.counted(&mut page);
    loads(&mut page, pods);
    states(&mut page, pods);
    let mut broken = page.family(family::PREDICTIONS_BROKEN);
    for pod in pods {
        let name = &pod.facts().name;
        broken.value(&[name.as_str()], u8::from(metrics.verdict(name).is_broken()));
    }
    index(&mut page, gateway, pods);
    events(&mut page, &gateway.events().status(gateway.now()));
    page.family(family::STRANGERS).value(&[], gateway.events().strangers());
    page.family(family::WAITING).value(&[], gateway.waiting());
    page.finish()
}

fn loads(page: &mut Page, pods: &[Pod]) {
    let figures: [(Family, Figure); 5] = [
        (family::POD_REQUESTS, |pod| f64::from(pod.vitals().requests())),
        (family::POD_PREFILL, |pod| pod.vitals().prefill_tokens() as f64),
        (family::POD_DECODE, |pod| pod.vitals().decode_tokens() as f64),
        (family::POD_WAITING, |pod| f64::from(pod.vitals().waiting())),
        (family::POD_KV_USAGE, |pod| pod.vitals().kv_usage()),
    ];
    for (family, figure) in figures {
        let mut lines = page.family(family);
        for pod in pods {
            lines.value(&[pod.facts().name.as_str()], figure(pod));
        }
    }
}

fn states(page: &mut Page, pods: &[Pod]) {
    let states: [(Family, &[&str], State); 3] = [
        (family::POD_HEALTH, &["up", "draining", "down"], |pod| health(pod.vitals().health())),
        (family::POD_BREAKER, &["closed", "half_open", "open"], |pod| {
            breaker(pod.vitals().breaker())
        }),
        (family::POD_TRUST, &["exact", "unsure", "partial", "guessed"], |pod| {
            trust(pod.vitals().trust())
        }),
    ];
    for (family, all, state) in states {
        let mut lines = page.family(family);
        for pod in pods {
            lines.state(pod.facts().name.as_str(), all, state(pod));
        }
    }
}

fn index(page: &mut Page, gateway: &Gateway, pods: &[Pod]) {
    let stats = gateway.index().stats();
    for (family, figure) in [
        (family::INDEX_PODS, stats.pods),
        (family::INDEX_BLOCKS, stats.blocks),
        (family::INDEX_ENTRIES, stats.entries),
        (family::INDEX_SETS, stats.sets),
        (family::INDEX_BYTES, stats.table_bytes),
        (family::INDEX_SUSPECTS, stats.suspects),
    ] {
        page.family(family).value(&[], figure);
    }
    let mut lines = page.family(family::POD_BLOCKS);
    for pod in pods {
        // A pod that is just leaving has none to tell.
        if let Ok(stats) = gateway.index().pod_stats(pod.id()) {
            lines.value(&[pod.facts().name.as_str()], stats.blocks);
        }
    }
}

fn events(page: &mut Page, all: &[PodStatus]) {
    let mut lines = page.family(family::EVENT_LAG);
    for pod in all {
        lines.value(&[&*pod.pod], pod.status.lag);
    }
    let mut lines = page.family(family::EVENT_AGE);
    for pod in all {
        if let Some(age) = pod.status.age {
            lines.value(&[&*pod.pod], age.as_secs_f64());
        }
    }
    let mut lines = page.family(family::EVENT_BATCHES);
    for pod in all {
        let FeedCounters { batches, repeated, outdated, unnumbered, malformed, dropped, .. } =
            pod.status.counters;
        for (fate, count) in [
            ("applied", batches),
            ("repeated", repeated),
            ("outdated", outdated),
            ("unnumbered", unnumbered),
            ("malformed", malformed),
            ("dropped", dropped),
        ] {
            lines.value(&[&*pod.pod, fate], count);
        }
    }
    let counters: [(Family, Counter); 3] = [
        (family::EVENT_GAPS, |counters| counters.gaps),
        (family::EVENT_RESTARTS, |counters| counters.restarts),
        (family::EVENT_DISAGREEMENTS, |counters| counters.disagreements),
    ];
    for (family, counter) in counters {
        let mut lines = page.family(family);
        for pod in all {
            lines.value(&[&*pod.pod], counter(&pod.status.counters));
        }
    }
}

/// The word for it in metrics and JSON.
pub(crate) const fn health(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Draining => "draining",
        Health::Down => "down",
    }
}

/// The word for it in metrics and JSON.
pub(crate) const fn breaker(breaker: Breaker) -> &'static str {
    match breaker {
        Breaker::Closed => "closed",
        Breaker::HalfOpen => "half_open",
        Breaker::Open => "open",
    }
}

/// The word for it in metrics and JSON.
pub(crate) const fn trust(trust: EventTrust) -> &'static str {
    match trust {
        EventTrust::Exact => "exact",
        EventTrust::Unsure => "unsure",
        EventTrust::Partial => "partial",
        EventTrust::Guessed => "guessed",
    }
}
