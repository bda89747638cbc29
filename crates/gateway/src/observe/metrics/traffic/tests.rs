//! Series by model and tenant: what they count, and that they are bounded.

use super::*;
use crate::dialect::Api;
use crate::observe::buckets::GapCounts;
use crate::observe::metrics::openmetrics::openmetrics;
use crate::observe::metrics::text::text;
use crate::observe::request_trace::{RequestTrace, TraceContext};
use crate::observe::summary::Usage;
use std::sync::Arc;
use std::time::Duration;

fn record(model: &str, tenant: &str) -> RequestSummary {
    let mut gaps = GapCounts::default();
    gaps.record(Duration::from_millis(20), 1);
    RequestSummary {
        profile: "p".into(),
        model: model.into(),
        tenant: Some(tenant.into()),
        status: 200,
        ended: RequestEnd::Whole,
        decided: Duration::from_micros(90),
        waited: Duration::from_millis(30),
        first_token: Some(Duration::from_millis(40)),
        total: Duration::from_millis(60),
        gaps,
        usage: Usage { prompt_tokens: Some(100), cached_tokens: Some(64), output_tokens: Some(2) },
        ..RequestSummary::new("r", Api::CHAT)
    }
}

fn page(metrics: &TrafficMetrics) -> MetricsPage {
    let mut page = MetricsPage::default();
    metrics.write(&mut page);
    page
}

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|found| found == line)
}

#[test]
fn a_request_counts_under_its_model_and_tenant_whether_or_not_it_was_looked_up_before() {
    let metrics = TrafficMetrics::default();
    let mut looked_up = record("m", "gold");
    looked_up.series = metrics.index(&"p".into(), &"m".into(), Some(&"gold".into()));
    assert!(looked_up.series.is_some());
    assert!(metrics.count(&looked_up) && metrics.count(&record("m", "gold")));
    let refused = RequestSummary {
        status: 429,
        ended: RequestEnd::Refused,
        tenant: Some("gold".into()),
        ..RequestSummary::new("r", Api::CHAT)
    };
    metrics.count(&refused);
    let text = text(&page(&metrics));
    let labels = r#"profile="p",model="m",tenant="gold""#;
    for line in [
        format!("wornpath_traffic_requests_total{{{labels},status=\"200\",end=\"whole\"}} 2"),
        format!("wornpath_traffic_prompt_tokens_total{{{labels},source=\"engine\"}} 200"),
        format!("wornpath_traffic_output_tokens_total{{{labels},source=\"engine\"}} 4"),
        format!("wornpath_traffic_prompt_tokens_told_total{{{labels}}} 200"),
        format!("wornpath_traffic_cached_tokens_total{{{labels}}} 128"),
        format!("wornpath_traffic_first_token_seconds_bucket{{{labels},le=\"0.05\"}} 2"),
        format!("wornpath_traffic_first_token_seconds_bucket{{{labels},le=\"0.025\"}} 0"),
        format!("wornpath_traffic_inter_token_seconds_bucket{{{labels},le=\"0.025\"}} 2"),
        format!("wornpath_traffic_inter_token_seconds_sum{{{labels}}} 0.04"),
        format!("wornpath_traffic_queue_seconds_bucket{{{labels},le=\"0.05\"}} 2"),
        format!("wornpath_traffic_request_seconds_count{{{labels}}} 2"),
    ] {
        assert!(has(&text, &line), "{line} is not in\n{text}");
    }
    let refused = r#"{profile="",model="",tenant="gold",status="429",end="refused"} 1"#;
    assert!(has(&text, &format!("wornpath_traffic_requests_total{refused}")), "{text}");
    let waited = r#"wornpath_traffic_queue_seconds_count{profile="",model="",tenant="gold"} 0"#;
    assert!(has(&text, waited), "a request that was not routed has not waited");
}

#[test]
fn names_beyond_the_limit_share_other_and_known_ones_keep_their_series() {
    let metrics = TrafficMetrics::default();
    metrics.set_limits(MetricLimits { models: 1, tenants: 2 });
    for tenant in 0..50 {
        metrics.count(&record("m", &format!("t{tenant}")));
    }
    metrics.count(&record("later", "t0"));
    metrics.count(&record("m", ""));
    let shown = text(&page(&metrics));
    for (model, tenant, count) in
        [("m", "t0", 1), ("m", "t1", 1), ("m", "other", 48), ("other", "t0", 1), ("m", "", 1)]
    {
        let labels = format!("profile=\"p\",model=\"{model}\",tenant=\"{tenant}\"");
        let line = format!("wornpath_traffic_request_seconds_count{{{labels}}} {count}");
        assert!(has(&shown, &line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("tenant=\"t2\""));
    metrics.set_limits(MetricLimits { models: 1, tenants: 3 });
    metrics.count(&record("m", "new"));
    assert!(text(&page(&metrics)).contains("tenant=\"new\""), "a raised limit takes effect");
}

#[test]
fn the_number_of_series_is_bounded_and_what_finds_no_room_is_told() {
    let metrics = TrafficMetrics::default();
    metrics.set_limits(MetricLimits { models: 1000, tenants: 1000 });
    let counted = (0..MAX_SERIES + 5)
        .filter(|at| metrics.count(&record(&format!("m{}", at % 90), &format!("t{}", at / 90))));
    assert_eq!(counted.count(), MAX_SERIES);
    assert!(metrics.count(&record("m0", "t0")), "existing series still count");
}

#[test]
fn more_pairs_of_status_and_end_than_there_are_places_count_together() {
    let ends = EndCounts::default();
    for status in 400..440 {
        ends.count(status, RequestEnd::Refused);
    }
    ends.count(400, RequestEnd::Refused);
    let all = ends.all();
    assert_eq!(all.len(), MAX_ENDS + 1);
    assert!(all.contains(&("400".to_owned(), "refused", 2)));
    assert!(all.contains(&(OTHER.to_owned(), OTHER, 16)));
}

#[test]
fn openmetrics_names_the_trace_of_the_last_request_in_a_bucket() {
    let metrics = TrafficMetrics::default();
    let context = Some(TraceContext { trace: 0xABC, parent: None, span: 2 });
    let trace = Some(Arc::new(RequestTrace { context, ..RequestTrace::default() }));
    metrics.count(&RequestSummary { trace, ..record("m", "gold") });
    metrics.count(&record("m", "gold"));
    let text = openmetrics(&page(&metrics));
    let start = "wornpath_traffic_first_token_seconds_bucket{profile=\"p\",model=\"m\",tenant=\"gold\",le=\"0.05\"} 2 \
                 # {trace_id=\"00000000000000000000000000000abc\"} 0.04 ";
    assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    assert!(text.contains("le=\"1.0\"} 2\n"), "{text}");
    assert!(text.contains("# TYPE wornpath_traffic_requests counter\n"), "{text}");
    assert!(text.ends_with("\n# EOF\n"));
}

#[test]
fn the_dashboard_gets_figures_by_model_and_tenant_over_all_profiles() {
    let metrics = TrafficMetrics::default();
    metrics.count(&record("m", "a"));
    metrics.count(&RequestSummary { profile: "other".into(), ..record("m", "a") });
    for status in [429, 503] {
        let gaps = GapCounts::default();
        metrics.count(&RequestSummary { status, gaps, ..record("m", "b") });
    }
    let figures = metrics.by_origin();
    let of = |tenant: &str| figures[&Origin { model: "m".into(), tenant: tenant.into() }];
    assert_eq!((of("a").requests, of("a").client_errors, of("a").server_errors), (2, 0, 0));
    assert_eq!((of("b").requests, of("b").client_errors, of("b").server_errors), (2, 1, 1));
    assert_eq!((of("a").output_tokens, of("a").hit_rate()), (4, Some(0.64)));
    assert_eq!(of("a").inter_token(), Some(Duration::from_millis(20)));
    assert_eq!(of("b").inter_token(), None);
}
