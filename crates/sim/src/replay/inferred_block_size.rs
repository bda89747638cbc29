//! The block size of a trace: its lines give lengths and numbers of blocks, and each pair leaves a
//! range.

use super::block_sizes::{BlockSizes, USUAL};
use super::trace::{BadLine, TraceError, TraceLine};
use std::num::NonZeroUsize;

/// What the lines of a trace say about its block size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InferredBlockSize {
    /// The size to use.
    pub size: NonZeroUsize,
    /// All sizes that fit; none if the trace has texts only, which can be cut at any size.
    pub fitting: Option<BlockSizes>,
}

impl InferredBlockSize {
    /// Infers the block size of a trace; errors name `file`. Lines that are no requests are skipped
    /// here, and refused when the trace is read.
    ///
    /// # Errors
    /// If no size fits all lines.
    pub fn of(file: &str, text: &str) -> Result<Self, TraceError> {
        let mut fitting: Option<BlockSizes> = None;
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let Ok(TraceLine { hash_ids: Some(ids), input_length: Some(tokens @ 1..), .. }) =
                serde_json::from_str(line)
            else {
                continue;
            };
            let sizes = BlockSizes::fitting(tokens, ids.len());
            let before = fitting.unwrap_or(BlockSizes::ALL);
            let both = before.and(sizes);
            if both.is_empty() {
                let others = match sizes.is_empty() {
                    true => String::new(),
                    false => format!(", and the lines before it have blocks of {before}"),
                };
                let problem = format!(
                    "`input_length` is {tokens} and there are {} `hash_ids`; {}{others}; all blocks of a trace have one size",
                    ids.len(),
                    sizes.hint()
                );
                let lines = vec![BadLine { number, problem }];
                return Err(TraceError::BadLines { file: file.to_owned(), count: 1, lines });
            }
            fitting = Some(both);
        }
        let size = fitting.map_or(USUAL, BlockSizes::roundest);
        Ok(Self { size, fitting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(lines: &[(usize, usize)]) -> Result<InferredBlockSize, TraceError> {
        let line = |(tokens, blocks): &(usize, usize)| {
            let ids: Vec<usize> = (0..*blocks).collect();
            format!(
                "{{\"timestamp\": 0, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}"
            )
        };
        InferredBlockSize::of("t", &lines.iter().map(line).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn the_size_of_a_trace_is_the_usual_or_the_roundest_that_fits_all_its_lines() {
        let size = |lines: &[(usize, usize)]| inferred(lines).unwrap().size.get();
        assert_eq!(size(&[(4_000, 8), (513, 2)]), 512);
        assert_eq!(size(&[(100, 7), (33, 3)]), 16);
        assert_eq!(size(&[(1_000, 21), (480, 10)]), 48);
        assert_eq!(size(&[(10, 1)]), 512, "one block says little");
        let texts = "{\"timestamp\": 1, \"prompt\": \"a\", \"output_length\": 3}";
        let of_texts = InferredBlockSize::of("t", texts).unwrap();
        assert_eq!(of_texts, InferredBlockSize { size: USUAL, fitting: None });
    }

    #[test]
    fn lines_of_different_block_sizes_are_named() {
        let error = inferred(&[(4_000, 8), (4_000, 250)]).unwrap_err().to_string();
        assert!(error.contains("line 2: `input_length` is 4000 and there are 250"), "{error}");
        assert!(error.contains("the lines before it have blocks of 445 to 571 tokens"), "{error}");
        let error = inferred(&[(3, 9)]).unwrap_err().to_string();
        assert!(
            error.contains("line 1: ") && error.contains("no block size fits this line"),
            "{error}"
        );
    }
}
