//! The input and output of an engine: requests in, outcomes with their times out.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{EngineHash, Tier};

/// A request's id, chosen by the caller and unique among those in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// Where the key/value vectors of a prompt come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PromptSource {
    /// The engine computes what is not cached.
    #[default]
    Computed,
    /// Another engine has computed them and sends what is not cached here.
    Transferred,
}

/// One request to an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimRequest {
    /// Its id.
    pub id: RequestId,
    /// Tokens of the prompt, at least one.
    pub prompt_tokens: usize,
    /// Tokens to generate. Zero makes it an embedding request: it finishes with its prefill.
    pub output_tokens: usize,
    /// The chained hashes of its full blocks. A chain may continue into the output, where that is
    /// known; blocks beyond its end are never cached.
    pub chain: Arc<[EngineHash]>,
    /// Where the prompt's key/value vectors come from.
    pub source: PromptSource,
    /// How long the blocks stay in use after the request has finished, so that another engine can
    /// fetch them.
    pub lease: Option<Duration>,
}

impl SimRequest {
    /// A request that shares nothing with any other.
    #[must_use]
    pub fn anonymous(id: RequestId, prompt_tokens: usize, output_tokens: usize) -> Self {
        Self {
            id,
            prompt_tokens,
            output_tokens,
            chain: Arc::from([]),
            source: PromptSource::Computed,
            lease: None,
        }
    }
}

/// An outcome and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Virtual time since the engine's start.
    pub at: Duration,
    /// What happened.
    pub outcome: SimOutcome,
}

/// What an engine reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimOutcome {
    /// A request left the waiting queue for the first time.
    Admitted {
        /// The admitted request.
        request: RequestId,
        /// Tokens of its prompt that are not computed: cached here or loaded.
        cached_tokens: usize,
    },
    /// A token was generated.
    Token {
        /// The request that the token belongs to.
        request: RequestId,
        /// Its position in the output, from 0.
        index: usize,
    },
    /// A request has all its tokens.
    Finished {
        /// The finished request.
        request: RequestId,
    },
    /// A request lost its blocks to one that arrived earlier, and waits to be recomputed.
    Preempted {
        /// The preempted request.
        request: RequestId,
    },
    /// Blocks of a chain entered the cache.
    Stored {
        /// The request that computed or loaded them.
        request: RequestId,
        /// The chain of that request.
        chain: Arc<[EngineHash]>,
        /// The positions of the stored blocks in the chain.
        blocks: Range<usize>,
        /// The tier that holds them now.
        tier: Tier,
    },
    /// Copies of blocks were evicted, in this order.
    Removed {
        /// Their hashes; a hash is listed once for every copy.
        blocks: Vec<EngineHash>,
        /// The tier that held them.
        tier: Tier,
    },
    /// The whole cache was cleared.
    Cleared,
}

/// Why an engine can never serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SimRefused {
    /// The prompt has no tokens.
    #[error("the prompt has no tokens; send at least one")]
    EmptyPrompt,
    /// Prompt and output exceed the engine's KV cache.
    #[error(
        "prompt and output have {tokens} tokens; this engine's KV cache holds {capacity}; shorten the prompt or lower `max_tokens`"
    )]
    TooLong {
        /// Tokens of prompt and output.
        tokens: usize,
        /// Tokens that the engine's KV cache holds.
        capacity: usize,
    },
}
