//! The snapshot that the dashboard shows: fleet, rates, index, recent decisions, batches.

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::viewers::{Between, RateWindow};
use crate::{pods, recent};
use wornpath_gateway::observe::metrics::totals::Figures;
use wornpath_gateway::proxy::gateway::{Gateway, Readiness};

/// Number of decisions in a snapshot.
const DECISIONS: usize = 40;

/// The current state. Rates are available from the second snapshot on.
pub(crate) fn snapshot(admin: &Admin, window: &mut RateWindow) -> Value {
    let running = &admin.running;
    let gateway = &admin.gateway;
    let now = gateway.now();
    let totals = running.metrics().totals();
    let all = running.metrics().total();
    let events = gateway.pods().events().status(now);
    let snapshot = gateway.snapshot();
    let between = window.observe(now, totals.clone());
    let pods = snapshot.entries().iter().map(|entry| {
        let name = entry.pod.facts().name.as_str();
        let mut shown = pods::shown(running, entry, &events);
        shown["blocks"] =
            gateway.pods().index().pod_stats(entry.pod.id()).map_or(0, |it| it.blocks).into();
        let figures = totals.get(name).copied().unwrap_or_default();
        shown["predictions"]["checked"] = figures.checked.into();
        shown["predictions"]["speculative"] = figures.speculative.into();
        shown["predictions"]["predicted_tokens"] = figures.predicted.into();
        shown["predictions"]["actual_tokens"] = figures.actual.into();
        shown["hit_rate"] = figures.hit_rate().into();
        shown["requests_per_second"] = between
            .as_ref()
            .map(|between| {
                between.by_pod.get(name).map_or(0.0, |it| it.requests as f64 / between.seconds)
            })
            .into();
        shown
    });
    let pods: Vec<_> = pods.collect();
    let decisions: Vec<_> =
        admin.recent.notable(DECISIONS).iter().map(|record| recent::line(record)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": now.since_zero().as_secs_f64(),
        "readiness": readiness(gateway),
        // Changes with every applied configuration and every added or removed pod.
        "generation": *running.changes().borrow(),
        "is_config_refused": !running.status()["refused"].is_null(),
        "rates": between.as_ref().map(rates),
        "totals": totals_shown(gateway, &all),
        "pods": pods,
        "strangers": gateway.pods().events().unknown_pod_messages(),
        "index": index(gateway),
        "decisions": decisions,
        "explained_per_second": gateway.settings().explained,
        "batches": gateway.local_api().map(|batches| batches.overview(now)),
    })
}

fn readiness(gateway: &Gateway) -> &'static str {
    match gateway.readiness() {
        Readiness::Starting => "starting",
        Readiness::Ready => "ready",
        Readiness::Draining => "draining",
    }
}

fn rates(between: &Between) -> Value {
    let all = between.by_pod.values().fold(Figures::default(), |sum, figures| sum.and(figures));
    let each = |count: u64| count as f64 / between.seconds;
    json!({
        "seconds": between.seconds,
        "requests": each(all.requests),
        "failed": each(all.failed),
        "prompt_tokens": each(all.prompt_tokens),
        "saved_tokens": each(all.cached_tokens),
        "output_tokens": each(all.output_tokens),
        "hit_rate": all.hit_rate(),
        "first_byte_seconds": {
            "p50": all.first_byte_quantile(0.5),
            "p90": all.first_byte_quantile(0.9),
            "p99": all.first_byte_quantile(0.99),
        },
    })
}

fn totals_shown(gateway: &Gateway, all: &Figures) -> Value {
    json!({
        "requests": all.requests,
        "failed": all.failed,
        "retries": all.retries,
        "prompt_tokens": all.prompt_tokens,
        "saved_tokens": all.cached_tokens,
        "output_tokens": all.output_tokens,
        "hit_rate": all.hit_rate(),
        "waiting": gateway.waiting(),
        "connections": gateway.connections(),
    })
}

fn index(gateway: &Gateway) -> Value {
    let stats = gateway.pods().index().stats();
    json!({
        "blocks": stats.blocks, "entries": stats.entries, "sets": stats.sets,
        "suspects": stats.suspects, "table_bytes": stats.table_bytes,
    })
}
