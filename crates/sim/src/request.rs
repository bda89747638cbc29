//! What goes into an engine and what comes out of it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wornpath_index::{EngineHash, Tier};

/// The caller's name for a request, unique among those in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// How the key/value vectors of a prompt come about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PromptSource {
    /// The engine computes what it has not cached.
    #[default]
    Computed,
    /// Another engine has computed them and sends what this one has not cached.
    Transferred,
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimRequest {
    /// Its name.
    pub id: RequestId,
    /// Tokens of the prompt, at least one.
    pub prompt_tokens: usize,
    /// Tokens to generate. None at all makes it an embedding: it ends with its prefill.
    pub output_tokens: usize,
    /// The names of its full blocks, each of the whole prefix up to its end. A chain may go on into the
    /// output, where that is known; blocks beyond its end are never cached.
    pub chain: Arc<[EngineHash]>,
    /// Where the prompt's key/value vectors come from.
    pub source: PromptSource,
    /// How long the blocks stay in use after the end, for another engine that will fetch them.
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

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// When, since the engine's start.
    pub at: Duration,
    /// What.
    pub outcome: SimOutcome,
}

/// What can happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimOutcome {
    /// A request left the waiting queue for the first time.
    Admitted {
        /// Which.
        request: RequestId,
        /// Tokens of its prompt that need not be computed.
        cached_tokens: usize,
    },
    /// A token was generated.
    Token {
        /// Whose.
        request: RequestId,
        /// Its place in the output, from 0.
        index: usize,
    },
    /// A request has all its tokens.
    Finished {
        /// Which.
        request: RequestId,
    },
    /// A request lost its blocks to one that came earlier, and waits to be computed again.
    Preempted {
        /// Which.
        request: RequestId,
    },
    /// Blocks of a chain entered the cache.
    Stored {
        /// The request that brought them.
        request: RequestId,
        /// Its chain.
        chain: Arc<[EngineHash]>,
        /// Which of the chain's blocks.
        blocks: Range<usize>,
        /// Where they now are.
        tier: Tier,
    },
    /// Copies left the cache, first to go first.
    Removed {
        /// Their names; a name leaves once for every copy.
        blocks: Vec<EngineHash>,
        /// Where they were.
        tier: Tier,
    },
    /// The whole cache was emptied.
    Cleared,
}

/// A request that an engine cannot serve at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SimRefused {
    /// There is nothing to compute.
    #[error("the prompt has no tokens; send at least one")]
    EmptyPrompt,
    /// It would never fit.
    #[error(
        "prompt and output have {tokens} tokens; this engine holds {capacity}, so shorten the prompt or ask for less output"
    )]
    TooLong {
        /// Of prompt and output.
        tokens: usize,
        /// What the engine's cache holds.
        capacity: usize,
    },
}
