//! The snapshot that the dashboard shows: fleet, rates, index, recent decisions, batches.

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::viewers::Between;
use crate::{pods, recent, sampling};
use std::collections::BTreeMap;
use wornpath_gateway::observe::metrics::totals::Figures;
use wornpath_gateway::observe::metrics::{ByOrigin, Metrics, Origin};
use wornpath_gateway::observe::timestamp::Timestamp;
use wornpath_gateway::proxy::gateway::{Gateway, Readiness};
use wornpath_gateway::proxy::shadow::Comparison;
use wornpath_routing::PassedOver;

/// Number of decisions in a snapshot.
const DECISIONS: usize = 40;

/// Changes in a snapshot, the latest; `/history` has more.
const CHANGES: usize = 64;

/// The current state.
pub(crate) fn snapshot(admin: &Admin) -> Value {
    let running = &admin.running;
    let gateway = &admin.gateway;
    let now = gateway.now();
    let totals = running.metrics().totals();
    let all = running.metrics().total();
    let events = gateway.pods().events().status(now);
    let snapshot = gateway.snapshot();
    let by_origin = running.metrics().by_origin();
    let between = admin.rates.between(now, &totals, &by_origin);
    // What has just happened is told at once, and not with the next sample of the charts.
    admin.history.look(|| sampling::observe(admin, sampling::restarts(&events)));
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
        let recent = between.as_ref().map(|between| {
            let figures = between.by_pod.get(name).copied().unwrap_or_default();
            speeds(&figures, between.seconds)
        });
        shown["requests_per_second"] =
            recent.as_ref().map(|recent| recent["requests"].clone()).into();
        shown["recent"] = recent.into();
        shown
    });
    let pods: Vec<_> = pods.collect();
    let decisions: Vec<_> =
        admin.recent.notable(DECISIONS).iter().map(|record| recent::line(record)).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now": Timestamp::now().0 / 1000,
        "uptime_seconds": now.since_zero().as_secs_f64(),
        "readiness": readiness(gateway),
        // Changes with every applied configuration and every added or removed pod.
        "generation": *running.changes().borrow(),
        "is_config_refused": !running.status()["refused"].is_null(),
        "rates": between.as_ref().map(rates),
        "totals": totals_shown(gateway, &all),
        "pods": pods,
        "changes": admin.history.changes(CHANGES),
        "strangers": gateway.pods().events().unknown_pod_messages(),
        "index": index(gateway),
        "decisions": decisions,
        "failures": admin.recent.failures(),
        "explained_per_second": gateway.settings().explained,
        "models": origins(between.as_ref(), &by_origin, |origin| &origin.model),
        "tenants": origins(between.as_ref(), &by_origin, |origin| &origin.tenant),
        "given_away": given_away(running.metrics()),
        "shadows": shadows(gateway),
        "batches": gateway.local_api().map(|batches| batches.overview(now)),
    })
}

/// What a pod, a model or a tenant does now.
fn speeds(figures: &Figures, seconds: f64) -> Value {
    let each = |count: u64| count as f64 / seconds;
    json!({
        "requests": each(figures.requests),
        "client_errors": each(figures.client_errors),
        "server_errors": each(figures.server_errors),
        "output_tokens": each(figures.output_tokens),
        "given_away_tokens": each(figures.given_away),
        "inter_token_seconds": figures.inter_token().map(|time| time.as_secs_f64()),
        "first_byte_seconds": figures.first_byte_quantile(0.5),
        "first_byte_p99_seconds": figures.first_byte_quantile(0.99),
        "hit_rate": figures.hit_rate(),
    })
}

/// The figures of each model, or of each tenant: now, and since the start.
fn origins(
    between: Option<&Between>,
    all: &ByOrigin,
    name: impl Fn(&Origin) -> &String,
) -> Vec<Value> {
    let sums = |figures: &ByOrigin| {
        let mut sums = BTreeMap::<String, Figures>::new();
        for (origin, figures) in figures {
            let sum = sums.entry(name(origin).clone()).or_default();
            *sum = sum.and(figures);
        }
        sums
    };
    let recent = between.map(|between| (sums(&between.by_origin), between.seconds));
    let shown = |(name, total): (&String, &Figures)| {
        let recent = recent
            .as_ref()
            .map(|(sums, seconds)| speeds(&sums.get(name).copied().unwrap_or_default(), *seconds));
        json!({
            "name": name, "recent": recent, "requests": total.requests,
            "client_errors": total.client_errors, "server_errors": total.server_errors,
            "prompt_tokens": total.prompt_tokens, "output_tokens": total.output_tokens,
            "saved_tokens": total.cached_tokens, "given_away_tokens": total.given_away,
            "hit_rate": total.hit_rate(),
        })
    };
    sums(all).iter().map(shown).collect()
}

/// Cached tokens that were given away since the start, by reason.
fn given_away(metrics: &Metrics) -> Value {
    let reasons = PassedOver::ALL.iter().zip(metrics.given_away());
    reasons.map(|(why, tokens)| json!({"why": why.word(), "tokens": tokens})).collect()
}

fn shadows(gateway: &Gateway) -> Vec<Value> {
    let shown = |((profile, shadow), counts): &((String, String), Comparison)| {
        json!({
            "profile": profile, "shadow": shadow, "agreed": counts.agreed,
            "differed": counts.differed, "held": counts.held, "refused": counts.refused,
            "valued": counts.valued, "chosen_tokens": counts.chosen_tokens,
            "shadow_tokens": counts.shadow_tokens, "timed": counts.timed,
            "chosen_seconds": counts.chosen_first_token.as_secs_f64(),
            "shadow_seconds": counts.shadow_first_token.as_secs_f64(),
        })
    };
    gateway.shadow_comparisons().iter().map(shown).collect()
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
        "client_errors": each(all.client_errors),
        "server_errors": each(all.server_errors),
        "given_away_tokens": each(all.given_away),
        "inter_token_seconds": all.inter_token().map(|time| time.as_secs_f64()),
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
        "client_errors": all.client_errors,
        "server_errors": all.server_errors,
        "given_away_tokens": all.given_away,
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
