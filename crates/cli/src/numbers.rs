//! Parsers for numbers and durations on the command line.

use std::num::NonZeroUsize;
use std::time::Duration;

/// The limit that configurations have.
const MAX_BLOCK_TOKENS: usize = 1 << 16;

pub(crate) fn block_size(text: &str) -> Result<NonZeroUsize, String> {
    let size = text.parse::<NonZeroUsize>().ok().filter(|size| size.get() <= MAX_BLOCK_TOKENS);
    size.ok_or_else(|| format!("`{text}` is not a number of tokens from 1 to {MAX_BLOCK_TOKENS}"))
}

pub(crate) fn tokens(text: &str) -> Result<usize, String> {
    let tokens = text.parse::<NonZeroUsize>().map(NonZeroUsize::get);
    tokens.map_err(|_| format!("`{text}` is not a number of tokens; give 1 or more"))
}

pub(crate) fn price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| format!("`{text}` is not a price; give a number of zero or more"))
}

/// A duration in milliseconds or seconds: `100ms`, `1.5s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let invalid = || format!("`{text}` is not a duration; write 100ms or 1.5s");
    if number == text {
        return Err(invalid());
    }
    let seconds: f64 = number.parse().map_err(|_| invalid())?;
    Duration::try_from_secs_f64(seconds * unit).map_err(|_| invalid())
}

/// A duration in whole seconds, minutes, hours or days: `90s`, `30m`, `2h`, `1d`.
pub(crate) fn long_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("`{text}` is not a duration; write it like 90s, 30m, 2h or 1d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(invalid)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(invalid()),
    };
    let number: u64 = number.parse().map_err(|_| invalid())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_refused() {
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
