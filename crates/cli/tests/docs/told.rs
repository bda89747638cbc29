//! Blocks that show a command and what it says: `$ command`, and below it the lines that must come.
//!
//! `…` stands for any text within a line, and alone for any lines.

/// A command and what it must say.
pub(crate) struct Told {
    pub(crate) command: String,
    pub(crate) says: String,
}

/// The commands of a `console` block.
pub(crate) fn told(block: &str) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
    let mut is_open = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => {
                all.push(Told { command: command.to_owned(), says: String::new() });
                is_open = command.ends_with('\\');
            }
            (None, Some(last)) if is_open => {
                last.command = format!("{}\n{line}", last.command);
                is_open = line.ends_with('\\');
            }
            (None, Some(last)) => last.says = format!("{}{line}\n", last.says),
            (None, None) => panic!("a console block begins with `$ command`, not with `{line}`"),
        }
    }
    all
}

/// Whether the lines that came are those that must come.
pub(crate) fn agrees(says: &str, came: &str) -> bool {
    let lines =
        |text: &'_ str| text.lines().map(str::trim_end).map(str::to_owned).collect::<Vec<_>>();
    lines_agree(&lines(says), &lines(came))
}

fn lines_agree(says: &[String], came: &[String]) -> bool {
    match (says, came) {
        ([], came) => came.is_empty(),
        ([any, says @ ..], came) if any == "…" => {
            (0..=came.len()).any(|skipped| lines_agree(says, &came[skipped..]))
        }
        ([first, says @ ..], [line, came @ ..]) => {
            line_agrees(first, line) && lines_agree(says, came)
        }
        _ => false,
    }
}

fn line_agrees(says: &str, came: &str) -> bool {
    let Some((before, after)) = says.split_once('…') else { return says == came };
    let Some(rest) = came.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| line_agrees(after, &rest[at..]))
}

#[test]
fn what_is_left_out_may_be_anything_and_the_rest_may_not() {
    let came = "one 12 ms\ntwo\nthree\n";
    for says in [came, "one … ms\n…\n", "…\nthree\n", "…\n", "one …\ntwo\nt…e\n"] {
        assert!(agrees(says, came), "{says}");
    }
    for says in ["", "one … s\n…\ntwo\n", "two\nthree\n", "…\ntwo\n", "one 13 ms\n…\n"] {
        assert!(!agrees(says, came), "{says}");
    }
}

#[test]
fn a_command_may_have_several_lines() {
    let all = told("$ a \\\n  b\nsaid\n$ c\n");
    assert_eq!((all[0].command.as_str(), all[0].says.as_str()), ("a \\\n  b", "said\n"));
    assert_eq!((all[1].command.as_str(), all[1].says.as_str()), ("c", ""));
}
