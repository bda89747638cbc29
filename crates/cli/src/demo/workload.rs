//! The demo's traffic: assistants with several turns, and questions about documents.
//!
//! All sessions of an assistant begin with its instructions, and all questions about a document
//! with the document; some documents are more popular than others. A seed determines the sessions,
//! and prompts determine the engines' answers, so every policy receives the same requests.

use serde_json::{Value, json};
use wornpath_routing::Rng;

const ASSISTANTS: usize = 3;
const DOCUMENTS: usize = 40;
/// Lengths in letters, each of which is a token for the simulated engines.
const INSTRUCTIONS: usize = 2_000;
const DOCUMENT: usize = 6_000;
const QUESTION: usize = 160;

const WORDS: &str = "account answer branch build cache change check cluster contract customer day delivery \
    engine error event field file graph house index invoice key letter limit market memory model month \
    name network note number order page part path people place plan point price question reason record \
    region report request result room rule server shelf signal site state step store system table term \
    test thread time token trace train unit user value version water window word work year";

/// The messages of one user.
pub(super) struct DemoSession {
    /// Messages before the first turn.
    pub(super) opening: Vec<Value>,
    /// Each is sent with all messages before it, answers included.
    pub(super) turns: Vec<String>,
    /// Think time before each turn, in seconds of the engines' time.
    pub(super) pauses: Vec<f64>,
}

/// An endless sequence of sessions.
pub(super) fn endless(seed: u64) -> impl Iterator<Item = DemoSession> + Send {
    let mut rng = Rng::new(seed);
    let instructions: Vec<_> = (0..ASSISTANTS).map(|_| text(INSTRUCTIONS, &mut rng)).collect();
    let documents: Vec<_> = (0..DOCUMENTS).map(|_| text(DOCUMENT, &mut rng)).collect();
    std::iter::repeat_with(move || {
        let is_chat = rng.below(2) == 0;
        let (opening, turns) = if is_chat {
            let instructions = &instructions[rng.below(ASSISTANTS)];
            (instructions.clone(), 3 + rng.below(4))
        } else {
            let document = &documents[popular(&mut rng)];
            (format!("Answer from this document alone.\n\n{document}"), 1 + rng.below(2))
        };
        DemoSession {
            opening: vec![json!({"role": "system", "content": opening})],
            turns: (0..turns).map(|_| text(QUESTION, &mut rng)).collect(),
            pauses: (0..turns).map(|_| -(1.0 - rng.unit()).ln()).collect(),
        }
    })
}

/// Sessions with `requests` turns in total.
pub(super) fn sessions(requests: usize, seed: u64) -> Vec<DemoSession> {
    let mut sessions = Vec::new();
    let mut left = requests;
    let mut all = endless(seed);
    while left > 0 {
        let Some(mut session) = all.next() else { break };
        session.turns.truncate(left);
        left -= session.turns.len();
        sessions.push(session);
    }
    sessions
}

/// A prompt of about `letters` that shares no prefix with any session.
pub(super) fn cold_prompt(letters: usize, seed: u64) -> Vec<Value> {
    vec![json!({"role": "user", "content": text(letters, &mut Rng::new(seed))})]
}

/// A document's number; the square makes the first ones popular.
fn popular(rng: &mut Rng) -> usize {
    let unit = rng.unit();
    (unit * unit * DOCUMENTS as f64) as usize
}

fn text(letters: usize, rng: &mut Rng) -> String {
    let words: Vec<_> = WORDS.split_whitespace().collect();
    let mut text = String::with_capacity(letters + 16);
    while text.len() < letters {
        text.push_str(words[rng.below(words.len())]);
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sessions_and_their_turns_are_as_many_as_requested() {
        let [one, two] = [sessions(100, 7), sessions(100, 7)];
        let all = |sessions: &[DemoSession]| {
            let turns =
                sessions.iter().map(|session| (session.opening.clone(), session.turns.clone()));
            turns.collect::<Vec<_>>()
        };
        assert_eq!(all(&one), all(&two));
        assert_eq!(one.iter().map(|session| session.turns.len()).sum::<usize>(), 100);
        assert_ne!(all(&one), all(&sessions(100, 8)));
    }

    #[test]
    fn sessions_share_their_openings() {
        let sessions = sessions(400, 7);
        let mut openings: Vec<_> = sessions.iter().map(|one| one.opening[0].to_string()).collect();
        openings.sort();
        let count = openings.len();
        openings.dedup();
        assert!(openings.len() <= ASSISTANTS + DOCUMENTS && openings.len() * 2 < count);
    }
}
