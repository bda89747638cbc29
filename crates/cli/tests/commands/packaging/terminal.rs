//! Completions and manual pages, as the tools that read them see them.

use super::{folder, has, wornpath};
use std::fs;
use std::process::Command;

#[test]
fn bash_completes_commands_and_their_options() {
    let folder = folder("bash");
    let script = folder.join("wornpath.bash");
    fs::write(&script, wornpath(&["completions", "bash"]).stdout).unwrap();
    let complete = |words: &str, last: &str| {
        let ask = format!(
            ". {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _wornpath wornpath '{last}' x; echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let answer = Command::new("bash").args(["-c", &ask]).output().unwrap();
        String::from_utf8(answer.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("wornpath ser", "ser"), "serve");
    assert_eq!(complete("wornpath serve --po", "--po"), "--pod --policy --port --pod-key-file");
    assert_eq!(complete("wornpath serve --nothing", "--nothing"), "");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_shell_gets_a_script_that_names_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(wornpath(&["completions", shell]).stdout).unwrap();
        for command in ["serve", "check", "explain", "replay", "engine", "relay"] {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    assert!(!wornpath(&["completions", "cmd"]).status.success());
}

#[test]
fn every_command_has_a_manual_page_without_a_fault() {
    let folder = folder("man");
    let answer = wornpath(&["man", "--folder", folder.to_str().unwrap()]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let help = String::from_utf8(wornpath(&["--help"]).stdout).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands =
        commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut names: Vec<String> = commands
        .map(|line| format!("wornpath-{}", line.split_whitespace().next().unwrap()))
        .collect();
    names.retain(|name| name != "wornpath-help");
    assert!(names.len() > 8, "{names:?}");
    names.extend(["wornpath".to_owned(), "wornpath-events-tail".to_owned()]);
    for name in names {
        let path = folder.join(format!("{name}.1"));
        let page =
            fs::read_to_string(&path).unwrap_or_else(|_| panic!("there is no page {name}.1"));
        for section in [".TH ", ".SH NAME", ".SH SYNOPSIS"] {
            assert!(page.contains(section), "{name}.1 has no {section}");
        }
        if has("groff") {
            let read = Command::new("groff")
                .args(["-man", "-Tutf8", "-ww", "-Wbreak", "-z"])
                .arg(&path)
                .output()
                .unwrap();
            let faults = String::from_utf8_lossy(&read.stderr).into_owned();
            assert!(faults.is_empty(), "{name}.1: {faults}");
        }
    }
    let serve = fs::read_to_string(folder.join("wornpath-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-isolate\\-tenants"), "the page of serve lacks an option");
    fs::remove_dir_all(folder).unwrap();
}
