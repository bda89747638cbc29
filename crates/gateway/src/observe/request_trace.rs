//! What is taken down of the few requests that somebody wants to look at: how they were decided and
//! called.
//!
//! Decisions a second are taken down for operators, and a share of all requests for a collector of
//! traces. All others cost a comparison.

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

/// What is known of a request beside its record.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RequestTrace {
    /// When it came.
    pub arrived: Moment,
    /// When it began to be prepared.
    pub prepared: Moment,
    /// When it began to be decided.
    pub decided: Moment,
    /// How it was decided: first, if it had to wait.
    pub explanation: Explanation,
    /// Whether it had to wait for a pod.
    pub has_waited: bool,
    /// The calls that were made for it, in order.
    pub calls: Vec<CallTrace>,
    /// Where it belongs, if a collector is to know of it.
    pub trace: Option<TraceContext>,
}

/// One call to a pod.
#[derive(Clone, PartialEq, Debug)]
pub struct CallTrace {
    /// The step.
    pub step: Name,
    /// Its address.
    pub url: String,
    /// When it was sent.
    pub started: Moment,
    /// When its answer began, or it failed.
    pub ended: Moment,
    /// What went wrong.
    pub failure: Option<String>,
}

/// W3C's trace context: where a request belongs, and what it is called there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// Who called, if they said so.
    pub parent: Option<u64>,
    /// This request.
    pub span: u64,
}

impl TraceContext {
    /// Reads `traceparent`. None if there is none, it is malformed, or the caller does not want it
    /// traced.
    fn read(headers: &HeaderMap, span: u64) -> Option<Self> {
        let (trace, parent, is_sampled) = Self::said(headers)?;
        is_sampled.then_some(Self { trace, parent: Some(parent), span })
    }

    /// The trace, who called, and whether they want it traced.
    fn said(headers: &HeaderMap) -> Option<(u128, u64, bool)> {
        let text = headers.get(TRACEPARENT)?.to_str().ok()?;
        let mut parts = text.split('-');
        let (version, trace, parent, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |part: &str, length: usize| {
            part.len() == length
                && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_good = is_hex(version, 2)
            && version != "ff"
            && is_hex(trace, 32)
            && is_hex(parent, 16)
            && is_hex(flags, 2)
            && (version != "00" || parts.next().is_none());
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent != 0)?;
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        is_good.then_some((trace, parent, is_sampled))
    }

    /// Takes out a `traceparent` that says nothing, and the `tracestate` that belongs to it: as if
    /// there were none.
    pub(crate) fn drop_malformed(headers: &mut HeaderMap) {
        if headers.contains_key(TRACEPARENT) && Self::said(headers).is_none() {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
        }
    }

    /// Tells a pod where its own part belongs.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let text = format!("00-{:032x}-{:016x}-01", self.trace, self.span);
        if let Ok(value) = HeaderValue::from_maybe_shared(text.into_bytes()) {
            headers.insert(TRACEPARENT, value);
        }
    }
}

/// Chooses the requests whose decisions are explained or traced.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Microseconds since the start until which no decision is explained.
    next: AtomicU64,
    /// The configured rate that `next` was computed with, as bits: another rate takes effect at
    /// once.
    rate: AtomicU64,
}

impl Sampler {
    /// Somewhere to take a request down, if it is one to look at.
    pub(crate) fn look(
        &self,
        settings: &Settings,
        headers: &HeaderMap,
        now: Moment,
        random: impl Fn() -> u64,
    ) -> Option<Box<RequestTrace>> {
        let trace = settings.telemetry.as_ref().and_then(|telemetry| {
            let drawn = TraceContext::read(headers, 0);
            // Whoever asks not to be traced is not; who says nothing is, by chance.
            let is_chosen = || {
                !headers.contains_key(TRACEPARENT)
                    && (random() as f64) < telemetry.share * u64::MAX as f64
            };
            let by_chance =
                || is_chosen().then_some(TraceContext { trace: 0, parent: None, span: 0 });
            drawn.or_else(by_chance)
        });
        let trace = trace.map(|context| {
            let own = || u128::from(random()) << 64 | u128::from(random() | 1);
            let trace = if context.trace == 0 { own() } else { context.trace };
            TraceContext { trace, span: random() | 1, ..context }
        });
        if trace.is_none() && !self.explains(settings, now) {
            return None;
        }
        Some(Box::new(RequestTrace { arrived: now, trace, ..RequestTrace::default() }))
    }

    fn explains(&self, settings: &Settings, now: Moment) -> bool {
        if settings.explained <= 0.0 {
            return false;
        }
        let rate = settings.explained.to_bits();
        if self.rate.load(Relaxed) != rate {
            self.rate.store(rate, Relaxed);
            self.next.store(0, Relaxed);
        }
        let micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX - 1);
        let next = self.next.load(Relaxed);
        if micros < next {
            return false;
        }
        let pause = Duration::try_from_secs_f64(1.0 / settings.explained).unwrap_or(Duration::MAX);
        let pause = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        let later = micros.saturating_add(pause.max(1));
        self.next.compare_exchange(next, later, Relaxed, Relaxed).is_ok()
    }
}

/// What was seen, for a record.
pub(crate) fn kept(seen: Option<Box<RequestTrace>>) -> Option<Arc<RequestTrace>> {
    seen.map(|seen| Arc::new(*seen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wornpath_config::TelemetrySettings;

    fn headers(traceparent: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, traceparent.parse().unwrap());
        headers
    }

    #[test]
    fn so_many_decisions_a_second_are_taken_down_and_none_if_none_are_wanted() {
        let look = |explained: f64| {
            let settings = Settings { explained, ..Settings::default() };
            let sampler = Sampler::default();
            let at = |millis| {
                let now = Duration::from_millis(millis);
                sampler.look(&settings, &HeaderMap::new(), now, || 1).is_some()
            };
            (0..1000).filter(|millis| at(*millis)).count()
        };
        assert_eq!((look(0.0), look(2.0), look(10.0)), (0, 2, 10));
    }

    #[test]
    fn a_trace_goes_on_where_the_caller_left_it_and_others_begin_by_chance() {
        let telemetry = TelemetrySettings { share: 0.5, ..TelemetrySettings::default() };
        let settings =
            Settings { explained: 0.0, telemetry: Some(telemetry), ..Settings::default() };
        let sampler = Sampler::default();
        let look = |headers: &HeaderMap, random| {
            sampler.look(&settings, headers, Duration::ZERO, || random)?.trace
        };
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = look(&headers(given), 8).unwrap();
        assert_eq!(
            (context.trace >> 64, context.parent),
            (0x4bf9_2f35_77b3_4da6, Some(0x00f0_67aa_0ba9_02b7))
        );
        let mut sent = HeaderMap::new();
        context.write(&mut sent);
        let expected = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000009-01";
        assert_eq!(sent[TRACEPARENT], expected);
        assert!(look(&HeaderMap::new(), 1).is_some(), "a low draw");
        assert_eq!(look(&HeaderMap::new(), u64::MAX), None, "a high one");
        let unwanted = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(look(&headers(unwanted), 1), None);
        for not in [
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "nonsense",
        ] {
            let mut headers = headers(not);
            headers.insert(TRACESTATE, HeaderValue::from_static("theirs=1"));
            TraceContext::drop_malformed(&mut headers);
            assert!(headers.is_empty(), "{not}");
        }
        for good in [given, unwanted] {
            let mut headers = headers(good);
            TraceContext::drop_malformed(&mut headers);
            assert_eq!(headers.len(), 1, "{good}");
        }
    }
}
