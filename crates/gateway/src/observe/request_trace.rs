//! Request traces: how a sampled request was decided and called.
//!
//! A few decisions per second are explained for operators, and a share of all requests is traced
//! for a collector. All other requests cost one comparison.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use wornpath_config::Settings;
use wornpath_index::Moment;
use wornpath_routing::{Explanation, Name};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The trace of a sampled request: the decision, the calls and their times.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestTrace {
    /// Arrival of the request.
    pub arrived: Moment,
    /// Start of the preparation.
    pub prepared: Moment,
    /// Start of the decision.
    pub decided: Moment,
    /// The explanation of the decision; of the first one, if the request waited.
    pub explanation: Explanation,
    /// Whether it was in the wait queue.
    pub has_waited: bool,
    /// Its calls to pods, in order.
    pub calls: Vec<CallTrace>,
    /// The pods that continued its stream, in order.
    pub continuations: Vec<ContinuationTrace>,
    /// Its place in a distributed trace, if it is exported to a collector.
    pub context: Option<TraceContext>,
}

/// One call to a pod.
#[derive(Clone, PartialEq, Debug)]
pub struct CallTrace {
    /// The step of the plan.
    pub step: Name,
    /// The address of the pod.
    pub url: String,
    /// When the call was sent.
    pub started: Moment,
    /// When the response began, or the call failed.
    pub ended: Moment,
    /// The error, if the call failed.
    pub failure: Option<String>,
}

/// A stream that another pod continued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContinuationTrace {
    /// When the other pod answered.
    pub at: Moment,
    /// `lost`, `stalled`, `engine_error` or `drained`.
    pub cause: &'static str,
    /// Tokens that the client had.
    pub tokens: u64,
    /// The pod that it was on.
    pub from: Option<Name>,
    /// The pod that continued it.
    pub to: Option<Name>,
}

/// A W3C trace context: the trace of a request, its parent span and its own span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The trace id.
    pub trace: u128,
    /// The span id of the caller, if it sent one.
    pub parent: Option<u64>,
    /// The span id of this request.
    pub span: u64,
}

impl TraceContext {
    /// Reads `traceparent`; none if it is absent, malformed or not sampled.
    fn read(headers: &HeaderMap, span: u64) -> Option<Self> {
        let parent = TraceParent::parse(headers)?;
        parent.is_sampled.then_some(Self { trace: parent.trace, parent: Some(parent.span), span })
    }

    /// Removes a malformed `traceparent` and its `tracestate`, as if there were none.
    pub(crate) fn drop_malformed(headers: &mut HeaderMap) {
        if headers.contains_key(TRACEPARENT) && TraceParent::parse(headers).is_none() {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
        }
    }

    /// Writes `traceparent`, so that the spans of the pod become children of this one.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let text = format!("00-{:032x}-{:016x}-01", self.trace, self.span);
        if let Ok(value) = HeaderValue::from_maybe_shared(text.into_bytes()) {
            headers.insert(TRACEPARENT, value);
        }
    }
}

/// A parsed `traceparent` header.
struct TraceParent {
    trace: u128,
    span: u64,
    is_sampled: bool,
}

impl TraceParent {
    fn parse(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(TRACEPARENT)?.to_str().ok()?;
        let mut parts = text.split('-');
        let version = parts.next()?;
        let trace = parts.next()?;
        let span = parts.next()?;
        let flags = parts.next()?;
        let is_hex = |part: &str, length: usize| {
            part.len() == length
                && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_valid = is_hex(version, 2)
            && version != "ff"
            && is_hex(trace, 32)
            && is_hex(span, 16)
            && is_hex(flags, 2)
            && (version != "00" || parts.next().is_none());
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        is_valid.then_some(Self { trace, span, is_sampled })
    }
}

/// Samples the requests whose decisions are explained or traced.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Microseconds since the start before which no decision is explained.
    next: AtomicU64,
    /// The second of the last refusal, and how many of that second were explained in the lowest
    /// byte.
    refusals: AtomicU64,
}

/// Refusals that are explained each second, beside the decisions that are sampled.
const EXPLAINED_REFUSALS: u64 = 10;

impl Sampler {
    /// Whether a refusal is to be explained: the first ten of each second, unless recording is
    /// disabled.
    pub(crate) fn explains_refusal(&self, settings: &Settings, now: Moment) -> bool {
        let second = now.since_zero().as_secs();
        let seen = self.refusals.load(Relaxed);
        let explained = if seen >> 8 == second { seen & 0xFF } else { 0 };
        if settings.explained <= 0.0 || explained == EXPLAINED_REFUSALS {
            return false;
        }
        let counted = second << 8 | (explained + 1);
        self.refusals.compare_exchange(seen, counted, Relaxed, Relaxed).is_ok()
    }

    /// Explains the next decision: new settings take effect at once.
    pub(crate) fn reset(&self) {
        self.next.store(0, Relaxed);
    }

    /// An empty trace for a request that is sampled.
    pub(crate) fn sample(
        &self,
        settings: &Settings,
        headers: &HeaderMap,
        now: Moment,
        random: impl Fn() -> u64,
    ) -> Option<Box<RequestTrace>> {
        let exported = settings.telemetry.as_ref().filter(|telemetry| telemetry.traces.is_some());
        let context = exported.and_then(|telemetry| {
            let continued = TraceContext::read(headers, 0);
            // A caller that opts out is not traced; one without a context is traced at random.
            let is_drawn = || {
                !headers.contains_key(TRACEPARENT)
                    && (random() as f64) < telemetry.share * u64::MAX as f64
            };
            let new = || is_drawn().then_some(TraceContext { trace: 0, parent: None, span: 0 });
            continued.or_else(new)
        });
        let context = context.map(|context| {
            let own = || u128::from(random()) << 64 | u128::from(random() | 1);
            let trace = if context.trace == 0 { own() } else { context.trace };
            TraceContext { trace, span: random() | 1, ..context }
        });
        if context.is_none() && !self.explains(settings, now) {
            return None;
        }
        Some(Box::new(RequestTrace { arrived: now, context, ..RequestTrace::default() }))
    }

    fn explains(&self, settings: &Settings, now: Moment) -> bool {
        if settings.epp.as_ref().is_some_and(|epp| epp.sends_scores) {
            return true;
        }
        settings.explained > 0.0 && takes_turn(&self.next, settings.explained, now)
    }
}

/// Whether this is the first of `per_second` turns in its time. `next` is the time of the next one
/// in microseconds.
pub(crate) fn takes_turn(next: &AtomicU64, per_second: f64, now: Moment) -> bool {
    let micros = u64::try_from(now.since_zero().as_micros()).unwrap_or(u64::MAX - 1);
    let due = next.load(Relaxed);
    if micros < due {
        return false;
    }
    let pause = Duration::try_from_secs_f64(1.0 / per_second).unwrap_or(Duration::MAX);
    let pause = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
    let later = micros.saturating_add(pause.max(1));
    next.compare_exchange(due, later, Relaxed, Relaxed).is_ok()
}

/// A finished trace, for the summary.
pub(crate) fn kept(trace: Option<Box<RequestTrace>>) -> Option<Arc<RequestTrace>> {
    trace.map(|trace| Arc::new(*trace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_config::{OtlpTarget, TelemetrySettings};

    fn headers(traceparent: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, traceparent.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_ten_refusals_of_each_second_are_explained_unless_none_is_to_be() {
        let explained = |share: f64| {
            let settings = Settings { explained: share, ..Settings::default() };
            let sampler = Sampler::default();
            let at = |millis| sampler.explains_refusal(&settings, Moment::from_millis(millis));
            (0..3000).filter(|millis| at(*millis)).count()
        };
        assert_eq!((explained(0.001), explained(0.0)), (30, 0));
    }

    #[test]
    fn the_configured_number_of_decisions_per_second_is_explained() {
        let sampled = |explained: f64| {
            let settings = Settings { explained, ..Settings::default() };
            let sampler = Sampler::default();
            let at = |millis| {
                let now = Moment::from_millis(millis);
                sampler.sample(&settings, &HeaderMap::new(), now, || 1).is_some()
            };
            (0..1000).filter(|millis| at(*millis)).count()
        };
        assert_eq!((sampled(0.0), sampled(2.0), sampled(10.0)), (0, 2, 10));
    }

    #[test]
    fn a_callers_trace_is_continued_and_others_are_sampled_at_random() {
        let telemetry = TelemetrySettings {
            share: 0.5,
            traces: Some(OtlpTarget::default()),
            ..TelemetrySettings::default()
        };
        let settings =
            Settings { explained: 0.0, telemetry: Some(telemetry), ..Settings::default() };
        let sampler = Sampler::default();
        let sample = |headers: &HeaderMap, random| {
            sampler.sample(&settings, headers, Moment::ZERO, || random)?.context
        };
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = sample(&headers(given), 8).unwrap();
        assert_eq!(
            (context.trace >> 64, context.parent),
            (0x4bf9_2f35_77b3_4da6, Some(0x00f0_67aa_0ba9_02b7))
        );
        let mut sent = HeaderMap::new();
        context.write(&mut sent);
        let expected = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000009-01";
        assert_eq!(sent[TRACEPARENT], expected);
        assert!(sample(&HeaderMap::new(), 1).is_some(), "a low draw");
        assert_eq!(sample(&HeaderMap::new(), u64::MAX), None, "a high one");
        let unwanted = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(sample(&headers(unwanted), 1), None);
        for malformed in [
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "nonsense",
        ] {
            let mut headers = headers(malformed);
            headers.insert(TRACESTATE, HeaderValue::from_static("theirs=1"));
            TraceContext::drop_malformed(&mut headers);
            assert!(headers.is_empty(), "{malformed}");
        }
        for good in [given, unwanted] {
            let mut headers = headers(good);
            TraceContext::drop_malformed(&mut headers);
            assert_eq!(headers.len(), 1, "{good}");
        }
    }
}
