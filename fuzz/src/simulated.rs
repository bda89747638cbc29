//! What simulations are made of: traces of traffic, profiles of engines, and what engines are sent.

use serde_json::{Map, Value};
use std::num::NonZeroUsize;
use std::time::Duration;
use wornpath_sim::replay::{Trace, TraceStart, TraceTurn};
use wornpath_sim::serve::{Faults, fuzzing};
use wornpath_sim::{EngineProfile, EngineSettings, RequestId, SimEngine, SimOutcome, SimRequest};

/// The first byte says how long blocks are. Turns follow turns that came before them, also in copies. A line of blocks
/// that a trace may have can also wait in a queue, as the same request.
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

/// An engine of any profile that is taken answers, in a time that can be told.
pub fn engine_profile(bytes: &[u8]) {
    /// More would be the fuzzer's memory rather than the engine's.
    const MOST_TOKENS: usize = 1 << 20;
    let Ok(profile) = EngineProfile::from_json("fuzzed", bytes) else { return };
    let kv_tokens = Some(profile.kv_tokens().min(MOST_TOKENS));
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

/// The first byte says which interface a simulated engine is asked by, or that its faults are set. What it takes is an
/// object, and has a prompt and an answer.
pub fn simulated_call(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    if choice % 5 == 4 {
        if let Ok(faults) = Faults::from_json(body) {
            let told = serde_json::to_vec(&faults).expect("faults are JSON");
            assert!(Faults::from_json(&told).is_ok(), "{faults:?}");
        }
        return;
    }
    if let Some((prompt, answer)) = fuzzing::lengths(choice % 5, body) {
        assert!(prompt > 0 && answer > 0);
        assert!(serde_json::from_slice::<Map<String, Value>>(body).is_ok());
    }
}
