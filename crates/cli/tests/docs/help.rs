//! What the binary itself says it can: its commands and their options.

use std::cell::RefCell;
use std::collections::HashMap;
use std::process::Command;

/// The help of every command that was asked for.
#[derive(Default)]
pub(crate) struct Help(RefCell<HashMap<Vec<String>, String>>);

impl Help {
    /// What is wrong with a command line that begins with `wornpath`, if anything is.
    pub(crate) fn objects(&self, line: &str) -> Option<String> {
        let mut words = line.split_whitespace().skip(1).peekable();
        let mut command = Vec::new();
        while let Some(word) = words.peek().copied()
            && is_name(word)
            && self.of(&command).contains(&format!("\n  {word} "))
        {
            command.push(word.to_owned());
            words.next();
        }
        let help = self.of(&command);
        if help.contains("\nCommands:\n")
            && let Some(word) = words.peek().filter(|word| is_name(word))
        {
            return Some(format!("`wornpath {}` has no command `{word}`", command.join(" ")));
        }
        let unknown = words.find(|word| is_option(word) && !has(&help, word))?;
        Some(format!("`wornpath {}` has no option `{unknown}`", command.join(" ")))
    }

    /// Whether `wornpath serve` takes it.
    pub(crate) fn serve_takes(&self, option: &str) -> bool {
        has(&self.of(&["serve".to_owned()]), option)
    }

    fn of(&self, command: &[String]) -> String {
        let ask = || {
            let mut binary = Command::new(env!("CARGO_BIN_EXE_wornpath"));
            let answer = binary.args(command).arg("--help").output().unwrap();
            assert!(answer.status.success(), "wornpath {command:?} --help");
            String::from_utf8(answer.stdout).unwrap()
        };
        self.0.borrow_mut().entry(command.to_vec()).or_insert_with(ask).clone()
    }
}

fn is_name(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word.starts_with("-d")
}

/// Options stand in the help with a blank or a comma before and something else than a letter
/// behind.
fn has(help: &str, option: &str) -> bool {
    let option = option.split('=').next().unwrap_or(option);
    let is_whole = |(at, _): (usize, &str)| {
        let after = help[at + option.len()..].chars().next();
        let before = help[..at].chars().next_back();
        before.is_some_and(|sign| " [".contains(sign))
            && !after.is_some_and(|sign| sign.is_alphanumeric() || sign == '-')
    };
    help.match_indices(option).any(is_whole)
}

#[test]
fn an_option_or_command_that_does_not_exist_is_noticed() {
    let help = Help::default();
    for good in [
        "wornpath serve --pod a --worker-urls b -c f",
        "wornpath events tail --from x",
        "wornpath --version",
    ] {
        assert_eq!(help.objects(good), None, "{good}");
    }
    for bad in [
        "wornpath serve --pods a",
        "wornpath event tail",
        "wornpath check --po",
        "wornpath batch sumbit",
    ] {
        assert!(help.objects(bad).is_some(), "{bad}");
    }
}
