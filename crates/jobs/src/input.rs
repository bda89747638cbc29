//! Reads an input once, line by line, into what planning and running need.
//!
//! An input may be far larger than memory. So of each line only its span is kept, its chain of
//! block hashes until the plan is made (on disk if there are too many), and a hash of its
//! `custom_id`, to detect duplicates.

use crate::external_sort::{ExternalSort, ExternalSortError};
use crate::identity::{Identical, identity};
use crate::line::{BatchLine, LineForm, LineProblem};
use crate::prompt_hash::{PromptHasher, rendered};
use crate::result_log::InputMark;
use std::collections::HashSet;
use std::io::{self, BufRead, Read};
use std::time::Duration;
use wornpath_execution::field;
use wornpath_planner::{Forest, Job, JobId, Queue};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The most bytes of a line besides its body: ids and other fields.
const MAX_ENVELOPE: usize = 64 << 10;
/// The UTF-8 byte order mark, which some programs write before the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The limits of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputRules {
    /// The accepted forms of its lines.
    pub form: LineForm,
    /// The most lines.
    pub most_lines: usize,
    /// The expected output tokens of a line without a limit of its own.
    pub output_tokens: usize,
    /// The most problems that are reported; all are counted.
    pub most_problems: usize,
    /// Whether identical lines are computed once.
    pub identical: Identical,
    /// When its lines are due.
    pub due: DueTime,
}

/// When the lines of an input are due, from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DueTime {
    /// The time left for lines without a deadline of their own; none if they can wait.
    pub left: Option<Duration>,
    /// How long ago the deadlines of lines began to count.
    pub elapsed: Duration,
}

impl DueTime {
    /// Lines that can wait, unless they have deadlines of their own.
    pub const OPEN: Self = Self { left: None, elapsed: Duration::ZERO };

    /// The time that is left for a line.
    fn of(self, line: Option<Duration>) -> Option<Duration> {
        let own = line.map(|deadline| deadline.saturating_sub(self.elapsed));
        own.into_iter().chain(self.left).min()
    }
}

/// The position of a line in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineSpan {
    /// The offset of its first byte.
    pub offset: u64,
    /// The length, without the newline.
    pub bytes: u32,
    /// The line number, from 1, including empty lines.
    pub number: u32,
}

/// An input after reading.
#[derive(Debug)]
pub struct Input {
    /// The span of each request.
    pub spans: Vec<LineSpan>,
    /// The planner's queue: lengths, and chains unless they are on disk. A job has the number of
    /// its line.
    pub queue: Queue,
    /// The identity of the input in its results.
    pub mark: InputMark,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Whether prefixes found in caches are counted on for any request.
    pub reuses_prefixes: bool,
    /// The chains that are on disk.
    pub(crate) chains: ExternalSort,
}

/// Why an input is refused.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("cannot read the input: {0}")]
    Read(#[from] io::Error),
    /// Its chains do not fit in memory, and cannot be kept on disk.
    #[error("{0}")]
    Spill(#[from] ExternalSortError),
    /// Some of its lines are invalid.
    #[error("{count} lines are invalid")]
    Lines {
        /// The number of invalid lines.
        count: usize,
        /// The first of them, by line number.
        first: Vec<(usize, LineProblem)>,
    },
}

impl Input {
    /// Reads an input whose chains fit in memory.
    ///
    /// # Errors
    /// If it cannot be read, has no request, too many requests, or invalid lines.
    pub fn read(
        input: impl BufRead,
        rules: &InputRules,
        hasher: &PromptHasher,
    ) -> Result<Self, InputError> {
        Self::read_long(input, rules, hasher, ExternalSort::default())
    }

    /// Reads an input of any length.
    ///
    /// # Errors
    /// As above, and if its chains cannot be kept on disk.
    pub fn read_long(
        input: impl BufRead,
        rules: &InputRules,
        hasher: &PromptHasher,
        chains: ExternalSort,
    ) -> Result<Self, InputError> {
        Self::read_bounded(input, rules, hasher, chains, usize::MAX)
    }

    /// Reads an input of any length whose bodies have at most `most_bytes`. A longer line is never
    /// in memory as a whole.
    ///
    /// # Errors
    /// As above, and if a body is longer.
    pub fn read_bounded(
        mut input: impl BufRead,
        rules: &InputRules,
        hasher: &PromptHasher,
        chains: ExternalSort,
        most_bytes: usize,
    ) -> Result<Self, InputError> {
        let mut reading = InputScan::new(rules, hasher, chains, most_bytes);
        let mut buffer = Vec::new();
        let mut hash = Xxh3::new();
        let mut offset = 0;
        let most_line = most_bytes.saturating_add(MAX_ENVELOPE);
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
            let mark = if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                BYTE_ORDER_MARK.len()
            } else {
                0
            };
            let line = &line[mark..];
            if !line.trim_ascii().is_empty() {
                if reading.input.spans.len() == rules.most_lines {
                    let message = format!(
                        "too many requests: the limit is {}; split the input",
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
                reading.input.relieve()?;
            }
            offset += read as u64;
        }
        if reading.input.spans.is_empty() && reading.count == 0 {
            let message = "input has no requests; write one JSON object per line".to_owned();
            reading.refuse(1, LineProblem { code: "empty_file", message, param: None });
        }
        if reading.count > 0 {
            return Err(InputError::Lines { count: reading.count, first: reading.problems });
        }
        // No longer needed: the lines have been compared.
        drop(reading.names);
        let mut input = reading.input;
        let lines = input.spans.len() as u32;
        input.mark = InputMark { bytes: offset, hash: hash.digest(), lines };
        input.chains.finish(&mut input.queue)?;
        Ok(input)
    }

    /// The prefix forest of the wanted lines.
    ///
    /// # Errors
    /// If chains on disk cannot be read back.
    pub fn forest(&self, wanted: impl Fn(u32) -> bool) -> Result<Forest, ExternalSortError> {
        self.chains.forest(&self.queue, |job: JobId| wanted(job.0))
    }

    fn relieve(&mut self) -> Result<(), ExternalSortError> {
        self.chains.relieve(&mut self.queue)
    }
}

fn too_long(most_bytes: usize) -> LineProblem {
    let message =
        format!("body too large: more than {most_bytes} bytes, the limit of a request (413)");
    LineProblem { code: "request_too_large", message, param: Some("body") }
}

struct InputScan<'a> {
    rules: &'a InputRules,
    most_bytes: usize,
    hasher: &'a PromptHasher,
    input: Input,
    names: HashSet<u64>,
    chain: Vec<wornpath_blocks::BlockHash>,
    problems: Vec<(usize, LineProblem)>,
    count: usize,
}

impl<'a> InputScan<'a> {
    fn new(
        rules: &'a InputRules,
        hasher: &'a PromptHasher,
        chains: ExternalSort,
        most_bytes: usize,
    ) -> Self {
        let input = Input {
            spans: Vec::new(),
            queue: Queue::new(hasher.block_size()),
            mark: InputMark { bytes: 0, hash: 0, lines: 0 },
            prompt_tokens: 0,
            reuses_prefixes: false,
            chains,
        };
        Self {
            rules,
            most_bytes,
            hasher,
            input,
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

    /// Whether the body of a line is longer than the limit.
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
            let message = format!("custom_id `{id}` is not unique: an earlier line has it");
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
            self.hasher.hash_prompt(&line.body, &prompt, &mut self.chain).map_err(invalid)?;
        if line.interface.reuses_prefixes() {
            self.input.reuses_prefixes = true;
        } else {
            self.chain.clear();
        }
        let job = Job {
            chain: &self.chain,
            prompt_tokens: lengths.prompt,
            output_tokens: lengths.output.unwrap_or(self.rules.output_tokens),
            identity: match self.rules.identical {
                Identical::Each => None,
                Identical::Once => identity(&line, text),
            },
        };
        let deadline = self.rules.due.of(line.deadline);
        self.input.queue.set_deadline(deadline);
        self.input.queue.push(&job).map_err(|error| invalid(error.to_string()))?;
        self.input.prompt_tokens += lengths.prompt as u64;
        let span = LineSpan { offset, bytes: text.len() as u32, number: number as u32 };
        self.input.spans.push(span);
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
            due: DueTime::OPEN,
        };
        let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        Input::read(text.as_bytes(), &rules, &hasher)
    }

    #[test]
    fn empty_lines_are_skipped_and_spans_are_exact() {
        let text = "{\"prompt\":\"abcd\"}\n\n  \n{\"prompt\":\"efgh\",\"max_tokens\":2}";
        let input = read(text).unwrap();
        assert_eq!(input.mark.lines, 2);
        let second = input.spans[1];
        assert_eq!((second.number, second.bytes), (4, 32));
        assert!(text[second.offset as usize..].starts_with("{\"prompt\":\"efgh\""));
        let outputs: Vec<_> =
            input.queue.jobs().map(|job| input.queue.output_tokens(job)).collect();
        assert_eq!(outputs, [9, 2]);
    }

    #[test]
    fn a_line_is_due_by_its_own_deadline_or_that_of_the_input_whichever_is_earlier() {
        let line = |id: u32, deadline: &str| {
            format!(
                r#"{{"custom_id":"{id}","url":"/v1/completions",{deadline}"body":{{"prompt":"p"}}}}"#
            )
        };
        let text = [line(1, ""), line(2, r#""deadline":"10m","#), line(3, r#""deadline":"2h","#)];
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let read = |due: DueTime| {
            let rules = InputRules {
                form: LineForm::Free,
                most_lines: 3,
                output_tokens: 9,
                most_problems: 2,
                identical: Identical::Each,
                due,
            };
            let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
            let queue = Input::read(text.join("\n").as_bytes(), &rules, &hasher).unwrap().queue;
            queue.jobs().map(|job| queue.deadline(job)).collect::<Vec<_>>()
        };
        let own = [None, Some(minutes(10)), Some(minutes(120))];
        assert_eq!(read(DueTime::OPEN), own);
        let due = DueTime { left: Some(minutes(45)), elapsed: minutes(15) };
        assert_eq!(read(due), [Some(minutes(45)), Some(Duration::ZERO), Some(minutes(45))]);
    }

    #[test]
    fn embeddings_share_nothing_in_a_plan_and_completions_do() {
        let computed = |url: &str, field: &str| {
            let line = |id: u32| {
                format!(
                    r#"{{"custom_id":"{id}","url":"{url}","body":{{"{field}":"{}{id}"}}}}"#,
                    "x".repeat(160)
                )
            };
            let input = read(&[line(1), line(2), line(3)].join("\n")).unwrap();
            let least = input.forest(|_| true).unwrap().least_tokens(&input.queue);
            (least < input.prompt_tokens, input.reuses_prefixes)
        };
        assert_eq!(computed("/v1/completions", "prompt"), (true, true));
        assert_eq!(computed("/v1/embeddings", "input"), (false, false));
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_line() {
        let text = "\u{feff}{\"prompt\":\"abcd\"}\n{\"prompt\":\"efgh\"}";
        let input = read(text).unwrap();
        let offsets: Vec<_> = input.spans.iter().map(|span| (span.offset, span.bytes)).collect();
        assert_eq!(offsets, [(3, 17), (21, 17)]);
        assert_eq!(input.mark.bytes, text.len() as u64);
    }

    #[test]
    fn a_line_whose_body_is_too_long_is_reported_and_the_lines_after_it_are_read() {
        const MOST: usize = 1_000;
        let rules = InputRules {
            form: LineForm::Free,
            most_lines: 9,
            output_tokens: 9,
            most_problems: 9,
            identical: Identical::Each,
            due: DueTime::OPEN,
        };
        let hasher = PromptHasher::new(&HashKey::DEFAULT, NonZeroUsize::new(4).unwrap(), None);
        let line = |custom_id: &str, body: usize| {
            let prompt = "p".repeat(body - r#"{"prompt":""}"#.len());
            format!(
                r#"{{"custom_id":"{custom_id}","url":"/v1/completions","body":{{"prompt":"{prompt}"}}}}"#
            )
        };
        let read = |text: &str| {
            Input::read_bounded(text.as_bytes(), &rules, &hasher, ExternalSort::default(), MOST)
        };
        let fits = read(&format!("{}\n{}", line("a", MOST), line("b", MOST))).unwrap();
        assert_eq!(fits.mark.lines, 2, "only the body counts");
        let long =
            [line("a", MOST + 1), line("b", MOST), line("c", MOST + 2 * MAX_ENVELOPE), "{".into()];
        let InputError::Lines { first, .. } = read(&long.join("\n")).unwrap_err() else {
            panic!("it was read");
        };
        let named: Vec<_> = first.iter().map(|(number, problem)| (*number, problem.code)).collect();
        let too_large = "request_too_large";
        assert_eq!(named, [(1, too_large), (3, too_large), (4, "invalid_json_line")]);
        assert!(first[1].1.message.contains("more than 1000 bytes"), "{}", first[1].1);
    }

    #[test]
    fn every_invalid_line_is_counted_and_the_first_are_reported() {
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
