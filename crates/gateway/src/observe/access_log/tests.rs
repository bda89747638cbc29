//! The access log: what its lines say, and that it never waits.

use super::*;
use crate::dialect::Api;
use crate::observe::request_trace::{RequestTrace, TraceContext};
use crate::observe::summary::Usage;
use serde_json::Value;
use std::sync::Arc;
use wornpath_config::LogFormat;
use wornpath_index::{Index, IndexLimits};

fn served(id: &str) -> RequestSummary {
    let pod = Index::new(IndexLimits::default(), 1).add_pod().unwrap();
    let context = Some(TraceContext { trace: 0xABC, parent: None, span: 2 });
    RequestSummary {
        tenant: Some("gold".into()),
        model: "m".into(),
        profile: "cache-aware".into(),
        pod: Some((pod, "a".into())),
        status: 200,
        ended: RequestEnd::Whole,
        first_token: Some(Duration::from_micros(12_345)),
        total: Duration::from_millis(90),
        retries: 1,
        usage: Usage { prompt_tokens: Some(100), cached_tokens: Some(64), output_tokens: Some(7) },
        trace: Some(Arc::new(RequestTrace { context, ..RequestTrace::default() })),
        ..RequestSummary::new(id, Api::CHAT)
    }
}

fn line(record: &RequestSummary, format: LogFormat) -> String {
    let mut text = String::new();
    AccessRecord::new(record, Timestamp(1_709_251_199_999)).write(format, &mut text);
    text
}

fn sampler(share: f64, failures: LoggedFailures) -> LineSampler {
    LineSampler { share, failures, count: AtomicU64::new(0) }
}

#[test]
fn a_line_says_who_asked_for_what_and_what_became_of_it() {
    let text = line(&served("r-1"), LogFormat::Text);
    assert_eq!(
        text,
        "2024-02-29T23:59:59.999Z id=r-1 api=chat tenant=gold model=m profile=cache-aware pod=a \
         status=200 end=whole reason=- prompt_tokens=100 cached_tokens=64 output_tokens=7 \
         waited_ms=0.0 ttft_ms=12.345 total_ms=90.0 retries=1 \
         trace=00000000000000000000000000000abc\n"
    );
    let object: Value = serde_json::from_str(&line(&served("r-1"), LogFormat::Json)).unwrap();
    assert_eq!((&object["tenant"], &object["cached_tokens"]), (&"gold".into(), &64.into()));
    assert_eq!(object["reason"], Value::Null);
}

#[test]
fn what_a_client_chose_cannot_forge_a_line_or_a_field() {
    let forged = "x\" status=200\n2024-01-01 id=y";
    let reason = Some(Arc::from("é".repeat(600)));
    let record = RequestSummary { reason, ..served(forged) };
    for format in [LogFormat::Text, LogFormat::Json] {
        let text = line(&record, format);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(text.contains(r#""x\" status=200\n2024-01-01 id=y""#), "{text}");
        assert!(text.len() < 1200, "a reason is cut: {text}");
    }
    assert!(line(&served("-"), LogFormat::Text).contains("id=\"-\""), "a dash is no absent value");
}

#[test]
fn a_share_is_exact_and_failures_are_logged_beside_it() {
    let count = |sampler: &LineSampler, record: &RequestSummary| {
        (0..1000).filter(|_| sampler.has_line(record)).count()
    };
    let failed = RequestSummary { status: 503, ended: RequestEnd::Refused, ..served("r") };
    let left = RequestSummary { ended: RequestEnd::ClientLeft, ..served("r") };
    for (share, lines) in [(0.0, 0), (0.01, 10), (0.3, 300), (1.0, 1000)] {
        assert_eq!(count(&sampler(share, LoggedFailures::All), &served("r")), lines);
        assert_eq!(count(&sampler(share, LoggedFailures::All), &failed), 1000);
        assert_eq!(count(&sampler(share, LoggedFailures::All), &left), 1000);
        assert_eq!(count(&sampler(share, LoggedFailures::Sampled), &failed), lines);
    }
}

#[test]
fn lines_that_find_no_room_are_dropped_and_counted() {
    let counts = Arc::<ExportCounts>::default();
    let (queue, lines) = sync_channel(2);
    let sampler = sampler(1.0, LoggedFailures::All);
    let log = AccessLog { queue, sampler, counts: Arc::clone(&counts) };
    (0..5).for_each(|_| log.ended(&served("r")));
    assert_eq!((counts.dropped.load(Relaxed), lines.try_iter().count()), (3, 2));
}

#[tokio::test]
async fn a_file_that_was_renamed_is_opened_anew_and_no_line_is_lost() {
    let folder = std::env::temp_dir().join(format!("wornpath-access-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("access.log");
    let settings = AccessLogSettings {
        to: wornpath_config::AccessLogTarget::File(file.clone()),
        format: LogFormat::Json,
        share: 1.0,
        failures: LoggedFailures::All,
    };
    let counts = Arc::<ExportCounts>::default();
    let log = AccessLog::counted(&settings, &counts).unwrap();
    log.ended(&served("before"));
    log.finish().await;
    let rotated = folder.join("access.log.1");
    std::fs::rename(&file, &rotated).unwrap();
    log.ended(&served("still there"));
    log.reopen();
    log.ended(&served("after"));
    log.finish().await;
    let ids = |file| -> Vec<String> {
        let text = std::fs::read_to_string(file).unwrap();
        let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].to_string();
        text.lines().map(id).collect()
    };
    assert_eq!(ids(&rotated), ["\"before\"", "\"still there\""]);
    assert_eq!(ids(&file), ["\"after\""]);
    assert_eq!(counts.exported.load(Relaxed), 3);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_target_that_refuses_lines_is_counted_and_refuses_no_request() {
    let full = std::path::Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let settings = AccessLogSettings {
        to: wornpath_config::AccessLogTarget::File(full.to_owned()),
        format: LogFormat::Text,
        share: 1.0,
        failures: LoggedFailures::All,
    };
    let counts = Arc::<ExportCounts>::default();
    let log = AccessLog::counted(&settings, &counts).unwrap();
    log.ended(&served("lost"));
    log.finish().await;
    assert_eq!((counts.failed.load(Relaxed), counts.exported.load(Relaxed)), (1, 0));
}
