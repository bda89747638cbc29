//! Counters of finished requests.

use super::*;
use crate::observe::summary::{Computed, Speculative, Usage};
use std::time::Duration;
use wornpath_blocks::BlockHash;
use wornpath_config::OFFLINE;
use wornpath_index::{Index, IndexLimits};

fn record(predicted: Option<u64>, cached: Option<u64>) -> RequestSummary {
    let pod = Index::new(IndexLimits::default(), 1).add_pod().unwrap();
    RequestSummary {
        profile: "cache-aware".into(),
        model: "m".into(),
        pod: Some((pod, "a".into())),
        status: 200,
        ended: RequestEnd::Whole,
        first_byte: Some(Duration::from_millis(3)),
        total: Duration::from_millis(40),
        retries: 1,
        predicted_tokens: predicted,
        unique_tokens: 32,
        usage: Usage { prompt_tokens: Some(100), cached_tokens: cached, output_tokens: Some(7) },
        ..RequestSummary::new("r", Api::CHAT)
    }
}

fn page(metrics: &Metrics) -> String {
    let mut page = MetricsPage::default();
    metrics.write_counters(&mut page);
    text::text(&page)
}

#[test]
fn a_request_counts_under_its_profile_and_its_pod() {
    let metrics = Metrics::default();
    metrics.ended(&record(Some(64), Some(48)));
    metrics.ended(&record(None, Some(48)));
    let text = page(&metrics);
    for line in [
        r#"wornpath_requests_total{api="chat",profile="cache-aware",pod="a",status="200",end="whole"} 2"#,
        r#"wornpath_request_seconds_bucket{profile="cache-aware",pod="a",le="0.05"} 2"#,
        r#"wornpath_request_seconds_bucket{profile="cache-aware",pod="a",le="0.025"} 0"#,
        r#"wornpath_first_byte_seconds_count{profile="cache-aware",pod="a"} 2"#,
        r#"wornpath_prompt_tokens_total{profile="cache-aware",pod="a",source="engine"} 200"#,
        r#"wornpath_prompt_tokens_told_total{profile="cache-aware",pod="a"} 200"#,
        r#"wornpath_cached_tokens_total{profile="cache-aware",pod="a"} 96"#,
        r#"wornpath_cached_tokens_unique_total{profile="cache-aware",pod="a"} 64"#,
        r#"wornpath_cached_tokens_predicted_total{profile="cache-aware",pod="a"} 64"#,
        r#"wornpath_cached_tokens_actual_total{profile="cache-aware",pod="a"} 48"#,
        r#"wornpath_cached_tokens_misjudged_total{profile="cache-aware",pod="a"} 16"#,
        r#"wornpath_predictions_checked_total{profile="cache-aware",pod="a"} 1"#,
        r#"wornpath_retries_total{profile="cache-aware",pod="a"} 2"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_transferred_prefix_is_no_cache_hit_of_the_decode_pod() {
    let reported = Usage { prompt_tokens: Some(100), cached_tokens: Some(32), ..Usage::default() };
    for (usage, expected) in [(reported, (100, 32, 1)), (Usage::default(), (0, 0, 0))] {
        let metrics = Metrics::default();
        let computed = Some(Box::new(Computed { pod: Some("p".into()), usage }));
        for _ in 0..30 {
            // The decode engine reports the whole transferred prefix as cached.
            metrics.ended(&RequestSummary {
                computed: computed.clone(),
                ..record(Some(32), Some(99))
            });
        }
        let totals = metrics.totals();
        let of = |pod: &str| totals.get(pod).copied().unwrap_or_default();
        assert_eq!((of("a").requests, of("a").prompt_tokens), (30, 3000));
        assert_eq!((of("a").hit_rate(), of("a").checked), (None, 0));
        let prefill = of("p");
        let counted = (prefill.reported_tokens, prefill.cached_tokens, prefill.checked);
        assert_eq!(counted, (30 * expected.0, 30 * expected.1, 30 * expected.2));
        metrics.update_verdicts();
        assert_eq!(metrics.verdict(&"a".into()), AccuracyVerdict::Unknown);
        assert!(!metrics.verdict(&"p".into()).is_broken());
    }
}

#[test]
fn a_speculative_prediction_is_counted_separately_and_never_judged() {
    let metrics = Metrics::default();
    let pod = Index::new(IndexLimits::default(), 1).add_pod().unwrap();
    let speculative = Some(Speculative { pod, last: BlockHash(1) });
    for _ in 0..30 {
        metrics.ended(&RequestSummary { speculative, ..record(Some(64), Some(64)) });
        // Nothing to compare with.
        metrics.ended(&RequestSummary { speculative, ..record(Some(64), None) });
    }
    let text = page(&metrics);
    for (name, count) in [
        ("predictions_speculative_total", 30),
        ("predictions_checked_total", 0),
        ("predictions_wrong_total", 0),
        ("cached_tokens_predicted_total", 0),
        ("cached_tokens_actual_total", 0),
        ("cached_tokens_total", 30 * 64),
    ] {
        let line = format!("wornpath_{name}{{profile=\"cache-aware\",pod=\"a\"}} {count}");
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let figures = metrics.totals()["a"];
    assert_eq!((figures.checked, figures.speculative), (0, 30));
    assert_eq!(
        (metrics.update_verdicts(), metrics.verdict(&"a".into())),
        (vec![], AccuracyVerdict::Unknown)
    );
}

#[test]
fn the_first_byte_of_batch_requests_does_not_count() {
    let metrics = Metrics::default();
    metrics.ended(&record(None, None));
    let slow = Some(Duration::from_secs(9));
    for _ in 0..99 {
        let batch = record(None, None);
        metrics.ended(&RequestSummary { profile: OFFLINE.into(), first_byte: slow, ..batch });
    }
    let figures = metrics.totals()["a"];
    assert_eq!((figures.requests, figures.prompt_tokens), (100, 10_000), "the work counts");
    assert!(figures.first_byte_quantile(0.99).unwrap() < 0.004, "{figures:?}");
}

#[test]
fn a_request_without_a_pod_has_an_empty_label() {
    let metrics = Metrics::default();
    metrics.ended(&RequestSummary {
        pod: None,
        status: 503,
        ended: RequestEnd::Refused,
        ..record(None, None)
    });
    let line = r#"wornpath_requests_total{api="chat",profile="cache-aware",pod="",status="503",end="refused"} 1"#;
    assert!(page(&metrics).contains(line));
}

#[test]
fn the_verdict_on_a_pod_is_reported_once() {
    let metrics = Metrics::default();
    for _ in 0..30 {
        metrics.ended(&record(Some(64), Some(0)));
    }
    assert_eq!(metrics.update_verdicts(), [("a".into(), AccuracyVerdict::Optimistic)]);
    assert_eq!(metrics.update_verdicts(), []);
    assert_eq!(metrics.verdict(&"a".into()), AccuracyVerdict::Optimistic);
}

#[test]
fn the_series_of_a_removed_pod_are_pruned_later_and_its_sum_stays() {
    let metrics = Metrics::default();
    let is_exported = || page(&metrics).contains("pod=\"a\"");
    let prune = |seconds| metrics.prune(Moment::from_secs(seconds), |pod| pod.as_str() != "a");
    metrics.ended(&record(Some(64), Some(0)));
    metrics.scraped(&"a".into(), Scrape::Read);
    prune(100);
    metrics.ended(&RequestSummary { ended: RequestEnd::Broken, ..record(None, None) });
    prune(699);
    assert!(
        is_exported() && page(&metrics).contains("end=\"broken\""),
        "also requests that finished later"
    );
    prune(700);
    assert!(!is_exported());
    assert_eq!(metrics.totals().get("a"), None);
    prune(701);
    assert_eq!((metrics.total().requests, metrics.total().predicted), (2, 64), "once, in the sum");
}

#[test]
fn a_pod_is_not_judged_by_a_removed_pod_of_the_same_name() {
    let metrics = Metrics::default();
    let respond = || (0..30).for_each(|_| metrics.ended(&record(Some(64), Some(0))));
    respond();
    metrics.prune(Moment::from_secs(1), |_| false);
    assert_eq!((metrics.update_verdicts(), metrics.responses()[&Name::from("a")]), (vec![], 0));
    metrics.prune(Moment::from_secs(2), |_| true);
    assert_eq!((metrics.update_verdicts(), metrics.responses()[&Name::from("a")]), (vec![], 0));
    respond();
    assert_eq!(metrics.update_verdicts(), [(Name::from("a"), AccuracyVerdict::Optimistic)]);
    assert_eq!(metrics.responses()[&Name::from("a")], 30);
    metrics.prune(Moment::from_secs(9000), |_| true);
    assert_eq!(metrics.totals()["a"].requests, 60);
}
