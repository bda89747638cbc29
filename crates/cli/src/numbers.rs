//! Numbers on the command line, and what they may be.

use std::num::NonZeroUsize;

/// As many as a configuration may have.
const MOST_BLOCK_TOKENS: usize = 1 << 16;

/// Tokens of a block.
pub(crate) fn block_size(text: &str) -> Result<NonZeroUsize, String> {
    let size = text.parse::<NonZeroUsize>().ok().filter(|size| size.get() <= MOST_BLOCK_TOKENS);
    size.ok_or_else(|| format!("`{text}` is no number of tokens from 1 to {MOST_BLOCK_TOKENS}"))
}

/// Tokens that there are some of.
pub(crate) fn tokens(text: &str) -> Result<usize, String> {
    let tokens = text.parse::<NonZeroUsize>().map(NonZeroUsize::get);
    tokens.map_err(|_| format!("`{text}` is no number of tokens; give 1 or more"))
}

/// What something costs.
pub(crate) fn price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| format!("`{text}` is no price; give a number of zero or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_can_be_computed_with_is_refused() {
        assert_eq!(block_size("65536").unwrap().get(), 65_536);
        for wrong in ["0", "65537", "18446744073709551615", "-1", "x"] {
            assert!(block_size(wrong).unwrap_err().contains(wrong));
        }
        assert_eq!((tokens("1"), tokens("0").is_err()), (Ok(1), true));
        assert_eq!((price("0"), price("2.5")), (Ok(0.0), Ok(2.5)));
        for wrong in ["nan", "-1", "inf", "-inf"] {
            assert!(price(wrong).unwrap_err().contains(wrong));
        }
    }
}
