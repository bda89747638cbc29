//! Reads an input once, line by line, into what planning and running need of it.
//!
//! An input may be far larger than memory. So of each line only its place is kept, its chain of hashes until
//! the plan is made, on disk if there are too many, and a hash of its owner's name for it, to find one that is given twice.

use crate::external_sort::{ExternalSort, ExternalSortError};
use crate::identity::{Identical, identity};
use crate::line::{BatchLine, LineForm, LineProblem};
use crate::prompt_hash::{PromptHasher, rendered};
use crate::results::InputMark;
use std::collections::HashSet;
use std::io::{self, BufRead, Read};
use wornpath_execution::field;
use wornpath_planner::{Forest, Job, JobId, Queue};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What a line may have beside its body: names, and what else its owner wants to remember.
const BESIDE: usize = 64 << 10;
/// The byte order mark, which some programs write before the first line.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// What is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputRules {
    /// Which lines.
    pub form: LineForm,
    /// Lines at most.
    pub most_lines: usize,
    /// Tokens that an answer is expected to have, where a line does not say.
    pub output_tokens: usize,
    /// Problems that are kept at most; all are counted.
    pub most_problems: usize,
    /// Whether equal lines are computed once.
    pub identical: Identical,
}

/// Where a request's line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineSpan {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes, without the newline.
    pub bytes: u32,
    /// Its number, from 1, empty lines counted.
    pub number: u32,
}

/// An input that was read.
#[derive(Debug)]
pub struct Input {
    /// Where each request is.
    pub spans: Vec<LineSpan>,
    /// What the planner takes: lengths, and chains unless they are on disk. A request has the number of its line.
    pub queue: Queue,
    /// What results refer to.
    pub mark: InputMark,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Chains that are on disk.
    pub(crate) spill: ExternalSort,
}

/// Why an input cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is too long for memory, and for the disk.
    #[error("{0}")]
    Spill(#[from] ExternalSortError),
    /// Some of its lines are wrong.
    #[error("{count} of its lines cannot be taken")]
    Lines {
        /// How many.
        count: usize,
        /// The first of them, by number.
        first: Vec<(usize, LineProblem)>,
    },
}

impl Input {
    /// Reads an input whose chains memory holds.
    ///
    /// # Errors
    /// If it cannot be read, has no request, too many, or lines that are none.
    pub fn read(
        input: impl BufRead,
        rules: &InputRules,
        sketcher: &PromptHasher,
    ) -> Result<Self, InputError> {
        Self::read_long(input, rules, sketcher, ExternalSort::default())
    }

    /// Reads an input of any length.
    ///
    /// # Errors
    /// If it cannot be read, has no request, too many, or lines that are none, or its chains have no room.
    pub fn read_long(
        input: impl BufRead,
        rules: &InputRules,
        sketcher: &PromptHasher,
        spill: ExternalSort,
    ) -> Result<Self, InputError> {
        Self::read_bounded(input, rules, sketcher, spill, usize::MAX)
    }

    /// Reads an input of any length, in which a body has `most_bytes` at most. Of a line that is longer, no more than
    /// that is in memory.
    ///
    /// # Errors
    /// As above, and if a body is longer.
    pub fn read_bounded(
        mut input: impl BufRead,
        rules: &InputRules,
        sketcher: &PromptHasher,
        spill: ExternalSort,
        most_bytes: usize,
    ) -> Result<Self, InputError> {
        let mut reading = InputScan::new(rules, sketcher, spill, most_bytes);
        let (mut buffer, mut hash) = (Vec::new(), Xxh3::new());
        let mut offset = 0;
        let most_line = most_bytes.saturating_add(BESIDE);
        for number in 1.. {
            buffer.clear();
            let mut read = input
                .by_ref()
                .take((most_line as u64).saturating_add(1))
                .read_until(b'\n', &mut buffer)?;
            if read == 0 {
                break;
            }
            if read > most_line && !buffer.ends_with(b"\n") {
                read += input.skip_until(b'\n')?;
                reading.refuse(number, too_long(most_bytes));
                offset += read as u64;
                continue;
            }
            hash.update(&buffer);
            let line = buffer.strip_suffix(b"\n").unwrap_or(&buffer);
            let mark = if number == 1 && line.starts_with(MARK) { MARK.len() } else { 0 };
            let line = &line[mark..];
            if !line.trim_ascii().is_empty() {
                if reading.intake.spans.len() == rules.most_lines {
                    let message = format!(
                        "there are more than {} requests, the most that are taken",
                        rules.most_lines
                    );
                    reading.refuse(
                        number,
                        LineProblem { code: "too_many_tasks", message, param: None },
                    );
                    break;
                }
                if let Err(problem) = reading.line(number, offset + mark as u64, line) {
                    reading.refuse(number, problem);
                }
                reading.intake.relieve()?;
            }
            offset += read as u64;
        }
        if reading.intake.spans.is_empty() && reading.count == 0 {
            let message = "no requests; there must be one JSON object a line".to_owned();
            reading.refuse(1, LineProblem { code: "empty_file", message, param: None });
        }
        if reading.count > 0 {
            return Err(InputError::Lines { count: reading.count, first: reading.problems });
        }
        // They have been told apart.
        drop(reading.names);
        let mut intake = reading.intake;
        let lines = intake.spans.len() as u32;
        intake.mark = InputMark { bytes: offset, hash: hash.digest(), lines };
        intake.spill.finish(&mut intake.queue)?;
        Ok(intake)
    }

    /// The forest of those lines that are wanted.
    ///
    /// # Errors
    /// If chains on disk cannot be read back.
    pub fn forest(&self, wanted: impl Fn(u32) -> bool) -> Result<Forest, ExternalSortError> {
        self.spill.forest(&self.queue, |job: JobId| wanted(job.0))
    }

    fn relieve(&mut self) -> Result<(), ExternalSortError> {
        self.spill.relieve(&mut self.queue)
    }
}

fn too_long(most_bytes: usize) -> LineProblem {
    let message = format!(
        "this line's body has more than {most_bytes} bytes, the most that a request may have (413)"
    );
    LineProblem { code: "request_too_large", message, param: Some("body") }
}

struct InputScan<'a> {
    rules: &'a InputRules,
    most_bytes: usize,
    sketcher: &'a PromptHasher,
    intake: Input,
    names: HashSet<u64>,
    chain: Vec<wornpath_blocks::BlockHash>,
    problems: Vec<(usize, LineProblem)>,
    count: usize,
}

impl<'a> InputScan<'a> {
    fn new(
        rules: &'a InputRules,
        sketcher: &'a PromptHasher,
        spill: ExternalSort,
        most_bytes: usize,
    ) -> Self {
        let intake = Input {
            spans: Vec::new(),
            queue: Queue::new(sketcher.block_size()),
            mark: InputMark { bytes: 0, hash: 0, lines: 0 },
            prompt_tokens: 0,
            spill,
        };
        Self {
            rules,
            most_bytes,
            sketcher,
            intake,
            names: HashSet::new(),
            chain: Vec::new(),
            problems: Vec::new(),
            count: 0,
        }
    }

    fn refuse(&mut self, number: usize, problem: LineProblem) {
        self.count += 1;
        if self.problems.len() < self.rules.most_problems {
            self.problems.push((number, problem));
        }
    }

    /// Whether what would be sent of a line is longer than it may be.
    fn is_too_long(&self, text: &[u8]) -> bool {
        let body = || field(text, "body").ok().flatten().unwrap_or(text);
        text.len() > self.most_bytes && body().len() > self.most_bytes
    }

    fn line(&mut self, number: usize, offset: u64, text: &[u8]) -> Result<(), LineProblem> {
        if self.is_too_long(text) {
            return Err(too_long(self.most_bytes));
        }
        let line = BatchLine::parse(text, self.rules.form)?;
        if let Some(id) = &line.custom_id
            && !self.names.insert(xxh3_64(id.as_bytes()))
        {
            let message =
                format!("the custom_id `{id}` is that of an earlier line; each must be its own");
            return Err(LineProblem {
                code: "duplicate_custom_id",
                message,
                param: Some("custom_id"),
            });
        }
        let invalid =
            |message| LineProblem { code: "invalid_request", message, param: Some("body") };
        let prompt = rendered(&line.body).map_err(invalid)?;
        let lengths =
            self.sketcher.sketch(&line.body, &prompt, &mut self.chain).map_err(invalid)?;
        let job = Job {
            chain: &self.chain,
            prompt_tokens: lengths.prompt,
            output_tokens: lengths.output.unwrap_or(self.rules.output_tokens),
            identity: match self.rules.identical {
                Identical::Each => None,
                Identical::Once => identity(&line, text),
            },
        };
        self.intake.queue.push(&job).map_err(|error| invalid(error.to_string()))?;
        self.intake.prompt_tokens += lengths.prompt as u64;
        let (bytes, number) = (text.len() as u32, number as u32);
        self.intake.spans.push(LineSpan { offset, bytes, number });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use wornpath_blocks::HashKey;

    fn read(text: &str) -> Result<Input, InputError> {
        let rules = InputRules {
            form: LineForm::Free,
            most_lines: 3,
            output_tokens: 9,
            most_problems: 2,
            identical: Identical::Each,
        };
        let sketcher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        Input::read(text.as_bytes(), &rules, &sketcher)
    }

    #[test]
    fn empty_lines_are_passed_over_and_places_are_exact() {
        let text = "{\"prompt\":\"abcd\"}\n\n  \n{\"prompt\":\"efgh\",\"max_tokens\":2}";
        let intake = read(text).unwrap();
        assert_eq!(intake.mark.lines, 2);
        let second = intake.spans[1];
        assert_eq!((second.number, second.bytes), (4, 32));
        assert!(text[second.offset as usize..].starts_with("{\"prompt\":\"efgh\""));
        let outputs: Vec<_> =
            intake.queue.jobs().map(|job| intake.queue.output_tokens(job)).collect();
        assert_eq!(outputs, [9, 2]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let text = "\u{feff}{\"prompt\":\"abcd\"}\n{\"prompt\":\"efgh\"}";
        let intake = read(text).unwrap();
        let offsets: Vec<_> = intake.spans.iter().map(|span| (span.offset, span.bytes)).collect();
        assert_eq!(offsets, [(3, 17), (21, 17)]);
        assert_eq!(intake.mark.bytes, text.len() as u64);
    }

    #[test]
    fn a_line_whose_body_is_too_long_is_named_and_those_after_it_are_read() {
        const MOST: usize = 1_000;
        let rules = InputRules {
            form: LineForm::Free,
            most_lines: 9,
            output_tokens: 9,
            most_problems: 9,
            identical: Identical::Each,
        };
        let sketcher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        let line = |custom_id: &str, body: usize| {
            let prompt = "p".repeat(body - r#"{"prompt":""}"#.len());
            format!(
                r#"{{"custom_id":"{custom_id}","url":"/v1/completions","body":{{"prompt":"{prompt}"}}}}"#
            )
        };
        let read = |text: &str| {
            Input::read_bounded(text.as_bytes(), &rules, &sketcher, ExternalSort::default(), MOST)
        };
        let fits = read(&format!("{}\n{}", line("a", MOST), line("b", MOST))).unwrap();
        assert_eq!(fits.mark.lines, 2, "what stands beside the body does not count");
        let long = [line("a", MOST + 1), line("b", MOST), line("c", MOST + 2 * BESIDE), "{".into()];
        let InputError::Lines { first, .. } = read(&long.join("\n")).unwrap_err() else {
            panic!("it was read");
        };
        let named: Vec<_> = first.iter().map(|(number, problem)| (*number, problem.code)).collect();
        let too_large = "request_too_large";
        assert_eq!(named, [(1, too_large), (3, too_large), (4, "invalid_json_line")]);
        assert!(first[1].1.message.contains("more than 1000 bytes"), "{}", first[1].1);
    }

    #[test]
    fn every_wrong_line_is_counted_and_the_first_are_named() {
        let named = |text: &str| match read(text).unwrap_err() {
            InputError::Lines { count, first } => {
                (count, first.iter().map(|(number, problem)| (*number, problem.code)).collect())
            }
            other => panic!("{other}"),
        };
        let wrong = "{\nx\n{\"prompt\":\"\"}\n";
        assert_eq!(named(wrong), (3, vec![(1, "invalid_json_line"), (2, "invalid_json_line")]));
        assert_eq!(named(""), (1, vec![(1, "empty_file")]));
        let line = "{\"prompt\":\"a\"}\n".repeat(4);
        assert_eq!(named(&line), (1, vec![(4, "too_many_tasks")]));
        let twice = r#"{"custom_id":"a","url":"/v1/completions","body":{"prompt":"p"}}"#;
        assert_eq!(named(&format!("{twice}\n{twice}")), (1, vec![(2, "duplicate_custom_id")]));
    }
}
