//! Errors of translation.

/// Why a well-formed batch cannot be translated. The engine or the configuration is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TranslateError {
    /// The engine's blocks do not split into whole blocks of the index.
    #[error(
        "block_size: found {engine_block}, expected a multiple of {index_block}, the index's block \
         size for this model; set that to a common divisor of its engines' block sizes"
    )]
    BlockSize {
        /// Tokens per block of the engine.
        engine_block: usize,
        /// Tokens per block of the index.
        index_block: usize,
    },
    /// The number of tokens does not match the number of blocks.
    #[error("token_ids: found {tokens}, expected {blocks} blocks of {engine_block}")]
    Tokens {
        /// Blocks in the event.
        blocks: usize,
        /// Tokens per block.
        engine_block: usize,
        /// Tokens in the event.
        tokens: usize,
    },
    /// Some blocks have a list of extra keys and others none.
    #[error("extra_keys: found {lists} lists, expected none or one for each of {blocks} blocks")]
    ExtraKeys {
        /// Blocks in the event.
        blocks: usize,
        /// Lists in the event.
        lists: usize,
    },
    /// More cache groups than any engine has.
    #[error("group_idx: found more than {limit} groups that keep a part of a prefix")]
    Groups {
        /// The limit.
        limit: usize,
    },
}
