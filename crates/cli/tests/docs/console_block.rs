//! `console` blocks: `$ command`, and below it the output that is expected.
//!
//! `…` stands for any text within a line, and alone for any lines.

/// A command and its expected output.
pub(crate) struct ConsoleCommand {
    pub(crate) command: String,
    pub(crate) expected: String,
}

/// The commands of a `console` block.
pub(crate) fn parse(block: &str) -> Vec<ConsoleCommand> {
    let mut all: Vec<ConsoleCommand> = Vec::new();
    let mut is_open = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => {
                all.push(ConsoleCommand { command: command.to_owned(), expected: String::new() });
                is_open = command.ends_with('\\');
            }
            (None, Some(last)) if is_open => {
                last.command = format!("{}\n{line}", last.command);
                is_open = line.ends_with('\\');
            }
            (None, Some(last)) => last.expected = format!("{}{line}\n", last.expected),
            (None, None) => panic!("a console block begins with `$ command`, not with `{line}`"),
        }
    }
    all
}

/// Whether the output matches the expected one.
pub(crate) fn matches(expected: &str, output: &str) -> bool {
    let lines =
        |text: &'_ str| text.lines().map(str::trim_end).map(str::to_owned).collect::<Vec<_>>();
    lines_match(&lines(expected), &lines(output))
}

fn lines_match(expected: &[String], output: &[String]) -> bool {
    match (expected, output) {
        ([], output) => output.is_empty(),
        ([any, expected @ ..], output) if any == "…" => {
            (0..=output.len()).any(|skipped| lines_match(expected, &output[skipped..]))
        }
        ([first, expected @ ..], [line, output @ ..]) => {
            line_matches(first, line) && lines_match(expected, output)
        }
        _ => false,
    }
}

fn line_matches(expected: &str, output: &str) -> bool {
    let Some((before, after)) = expected.split_once('…') else { return expected == output };
    let Some(rest) = output.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| line_matches(after, &rest[at..]))
}

#[test]
fn an_ellipsis_matches_anything_and_other_text_only_itself() {
    let output = "one 12 ms\ntwo\nthree\n";
    for expected in [output, "one … ms\n…\n", "…\nthree\n", "…\n", "one …\ntwo\nt…e\n"]
    {
        assert!(matches(expected, output), "{expected}");
    }
    for expected in ["", "one … s\n…\ntwo\n", "two\nthree\n", "…\ntwo\n", "one 13 ms\n…\n"]
    {
        assert!(!matches(expected, output), "{expected}");
    }
}

#[test]
fn a_command_may_have_several_lines() {
    let all = parse("$ a \\\n  b\nsaid\n$ c\n");
    assert_eq!((all[0].command.as_str(), all[0].expected.as_str()), ("a \\\n  b", "said\n"));
    assert_eq!((all[1].command.as_str(), all[1].expected.as_str()), ("c", ""));
}
