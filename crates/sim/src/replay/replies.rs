//! The blocks that replies fill, as far as a trace shows them.
//!
//! An engine caches what it generates, so the next turn of a conversation finds the last answer
//! cached. A trace has no answers, only their lengths. But the prompt of the next turn contains the
//! last answer, and the ids of its blocks name the answer's blocks.
//!
//! A reply is known if the next turn of its session begins with all full blocks of the prompt, at
//! least one, and is long enough to contain the reply: then what comes after the prompt is taken for
//! the reply, up to its length. Requests without a session are never linked: equal ids may as well
//! mean two questions about one document, and a wrong guess would make caches look better than they
//! are. Nor is a prompt that does not continue the one before, such as a compacted conversation.
//! Where a template rewrites an answer, for instance without its reasoning, the first block that it
//! changes is still counted as the reply's, and so are all after it.

use super::trace::{Trace, TraceStart, TraceTurn};
use std::num::NonZeroUsize;

impl Trace {
    /// For each turn, the blocks that follow its prompt's full blocks and that its reply fills;
    /// none if the trace does not show them.
    #[must_use]
    pub fn replies(&self) -> Vec<&[u64]> {
        let mut replies = vec![&[][..]; self.turns.len()];
        for next in &self.turns {
            if let TraceStart::After { turn, .. } = next.start
                && replies[turn].is_empty()
            {
                replies[turn] = reply_in(next, &self.turns[turn], self.block_size);
            }
        }
        replies
    }
}

/// The blocks of the prompt `next` that the reply to `turn` has filled.
fn reply_in<'a>(next: &'a TraceTurn, turn: &TraceTurn, block_size: NonZeroUsize) -> &'a [u64] {
    let prompt = turn.full_blocks(block_size);
    let end = turn.prompt_tokens.saturating_add(turn.output_tokens);
    let blocks = next.full_blocks(block_size);
    if prompt.is_empty() || next.prompt_tokens < end || !blocks.starts_with(prompt) {
        return &[];
    }
    // The last token is returned and never computed, so it is in no cache.
    let filled = (end - 1) / block_size;
    &blocks[prompt.len()..filled.clamp(prompt.len(), blocks.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    /// The replies of a session of two turns.
    fn replies(first: &str, second: &str) -> Vec<Vec<u64>> {
        let text = format!(
            "{{\"session_id\": 1, \"timestamp\": 0, {first}}}\n\
             {{\"session_id\": 1, \"delay\": 0, {second}}}\n"
        );
        let trace = Trace::read("t", &text, FOUR).unwrap();
        trace.replies().into_iter().map(<[u64]>::to_vec).collect()
    }

    const FIRST: &str = "\"input_length\": 6, \"output_length\": 7, \"hash_ids\": [1, 2]";

    #[test]
    fn a_reply_fills_the_blocks_that_the_next_turn_shows_but_for_its_last_token() {
        let next = "\"input_length\": 18, \"output_length\": 1, \"hash_ids\": [1, 3, 4, 5, 6]";
        assert_eq!(replies(FIRST, next), [vec![3, 4], vec![]], "6 + 7 - 1 tokens fill 3 blocks");
        let longer = FIRST.replace("\"output_length\": 7", "\"output_length\": 10");
        assert_eq!(replies(&longer, next)[0], [3, 4], "the last of 16 tokens is never computed");
        let longer = FIRST.replace("\"output_length\": 7", "\"output_length\": 11");
        assert_eq!(replies(&longer, next)[0], [3, 4, 5]);
    }

    #[test]
    fn a_reply_is_unknown_if_the_next_turn_does_not_continue_the_prompt() {
        let none = |next: &str| assert_eq!(replies(FIRST, next)[0], [0; 0], "{next}");
        none("\"input_length\": 18, \"output_length\": 1, \"hash_ids\": [9, 3, 4, 5, 6]");
        none("\"input_length\": 12, \"output_length\": 1, \"hash_ids\": [1, 3, 4]");
        let short = "\"input_length\": 3, \"output_length\": 9, \"hash_ids\": [7]";
        let next = "\"input_length\": 18, \"output_length\": 1, \"hash_ids\": [1, 3, 4, 5, 6]";
        assert_eq!(replies(short, next)[0], [0; 0], "no full block shows that it is continued");
    }

    #[test]
    fn requests_without_a_session_are_not_linked() {
        let text = "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 7, \"hash_ids\": [1, 2]}\n\
            {\"timestamp\": 9, \"input_length\": 18, \"output_length\": 1, \"hash_ids\": [1, 3, 4, 5, 6]}\n";
        let trace = Trace::read("t", text, FOUR).unwrap();
        assert!(trace.replies().iter().all(|reply| reply.is_empty()));
    }
}
