//! Why a well-formed batch cannot be translated.

/// An event contradicts itself or the configuration. The engine or the configuration is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TranslateError {
    /// The index cannot cut the engine's blocks into whole ones of its own.
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
    /// Tokens that do not fill the named blocks.
    #[error("token_ids: found {tokens}, expected {blocks} blocks of {engine_block}")]
    Tokens {
        /// Blocks named.
        blocks: usize,
        /// Tokens per block.
        engine_block: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// Lists of extra keys for some blocks and not for others.
    #[error("extra_keys: found {lists} lists, expected none or one for each of {blocks} blocks")]
    ExtraKeys {
        /// Blocks named.
        blocks: usize,
        /// Lists given.
        lists: usize,
    },
    /// More cache groups than any engine has.
    #[error("group_idx: found more than {limit} groups that keep a part of a prefix")]
    Groups {
        /// How many are remembered.
        limit: usize,
    },
}
