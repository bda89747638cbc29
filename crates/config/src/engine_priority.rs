//! The `priority` that engines schedule by, and the range of it that a tenant may use.

use std::str::FromStr;

/// The engine priorities of a tenant's requests, both ends included. In vLLM a lower number is
/// scheduled earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PriorityRange {
    low: i64,
    high: i64,
}

/// A text that is no range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PriorityRangeError {
    /// Not two numbers.
    #[error("a range is two whole numbers with `..` between them")]
    Form,
    /// The first number is the larger one.
    #[error("the first number of a range must not be larger than the second")]
    Order,
}

impl PriorityRange {
    /// The priority of a request whose client asks for `asked`. Without a wish it is 0, as for
    /// engines, or the end of the range that is nearest to 0.
    #[must_use]
    pub fn clamp(self, asked: Option<i64>) -> i64 {
        asked.unwrap_or(0).clamp(self.low, self.high)
    }
}

impl FromStr for PriorityRange {
    type Err = PriorityRangeError;

    fn from_str(text: &str) -> Result<Self, PriorityRangeError> {
        let (low, high) = text.split_once("..").ok_or(PriorityRangeError::Form)?;
        let number = |text: &str| text.trim().parse().map_err(|_| PriorityRangeError::Form);
        let range = Self { low: number(low)?, high: number(high)? };
        if range.low > range.high { Err(PriorityRangeError::Order) } else { Ok(range) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_clamped_to_the_range_and_is_the_engines_default_without_a_wish() {
        let range: PriorityRange = "-5 .. 10".parse().unwrap();
        let clamped = [None, Some(7), Some(-9), Some(i64::MAX)].map(|asked| range.clamp(asked));
        assert_eq!(clamped, [0, 7, -5, 10]);
        assert_eq!("3..3".parse::<PriorityRange>().unwrap().clamp(None), 3);
    }

    #[test]
    fn a_text_that_is_no_range_is_refused() {
        for text in ["", "5", "..", "1..", "..1", "1..2..3", "a..b", "1.5..2"] {
            assert_eq!(text.parse::<PriorityRange>(), Err(PriorityRangeError::Form), "{text}");
        }
        assert_eq!("2..1".parse::<PriorityRange>(), Err(PriorityRangeError::Order));
    }
}
