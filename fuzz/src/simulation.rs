//! Inputs of simulations: traces, engine profiles, and requests to served engines.

use serde_json::{Map, Value};
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};
use wornpath_sim::serve::{Faults, fuzzing};
use wornpath_sim::{EngineProfile, EngineSettings, RequestId, SimEngine, SimOutcome, SimRequest};

/// The first byte chooses the block size. Turns follow earlier turns, also in copies of sessions. A
/// line that is valid in a trace and in a queue is the same request in both.
pub fn trace(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else { return };
    let size = NonZeroUsize::MIN.saturating_add(usize::from(choice % 32));
    let text = String::from_utf8_lossy(text);
    for line in text.lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
        let queued = TraceTurn::queued(&value, size);
        if let (Ok(queued), Ok(read)) = (&queued, Trace::read("fuzzed", line, size)) {
            let [turn] = &read.turns[..] else { panic!("{} turns", read.turns.len()) };
            let facts =
                |turn: &TraceTurn| (turn.prompt_tokens, turn.output_tokens, turn.blocks.clone());
            assert_eq!(facts(queued), facts(turn));
        }
    }
    let Ok(trace) = Trace::read("fuzzed", &text, size) else { return };
    assert!(trace.ideal_hit_tokens() <= trace.prompt_tokens());
    let originals = trace.turns.len();
    let trace = trace.cloned(3, 7).jittered(Duration::from_secs(1), 7).faster(0.001);
    assert!(trace.turns.len() >= originals);
    assert!(trace.ideal_hit_tokens() <= trace.prompt_tokens());
    for (at, turn) in trace.turns.iter().enumerate() {
        let TraceStart::After { turn: before, .. } = turn.start else { continue };
        assert!(before < at && trace.turns[before].session == turn.session, "turn {at}");
    }
}

/// An engine with any valid profile finishes a request, at a time that fits a `Duration`.
pub fn engine_profile(bytes: &[u8]) {
    /// More would only use the fuzzer's memory.
    const MAX_TOKENS: usize = 1 << 20;
    let Ok(profile) = EngineProfile::from_json("fuzzed", bytes) else { return };
    let kv_tokens = Some(profile.kv_tokens().min(MAX_TOKENS));
    let mut engine =
        SimEngine::new(&profile, &EngineSettings { kv_tokens, ..EngineSettings::default() });
    let request = SimRequest::anonymous(RequestId(1), 100, 3);
    if engine.submit(Duration::ZERO, request).is_err() {
        return;
    }
    let mut outputs = Vec::new();
    for _ in 0..1000 {
        let Some(time) = engine.next_event_time() else { break };
        engine.advance(time, &mut outputs);
    }
    let last = outputs.last().map(|output| &output.outcome);
    assert_eq!(last, Some(&SimOutcome::Finished { request: RequestId(1) }));
    let _ = (profile.host_time(100), profile.network_time(100));
}

/// The first byte chooses the API of a request to a simulated engine, or its faults. An accepted
/// body is an object with a prompt and an output.
pub fn simulated_call(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    if choice % 5 == 4 {
        if let Ok(faults) = Faults::from_json(body) {
            let json = serde_json::to_vec(&faults).expect("faults are JSON");
            assert!(Faults::from_json(&json).is_ok(), "{faults:?}");
        }
        return;
    }
    if let Some((prompt, output)) = fuzzing::lengths(choice % 5, body) {
        assert!(prompt > 0 && output > 0);
        assert!(serde_json::from_slice::<Map<String, Value>>(body).is_ok());
    }
}
