//! `wornpath check`: says what is wrong with profiles and configurations, as a compiler would.

use crate::fleet::read_fleet;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wornpath_config::{Config, SHIPPED, is_configuration, shipped};
use wornpath_routing::{Problems, Profile, ProfileEnv};

/// What a configuration that cannot be used ends with: `EX_CONFIG` of `sysexits.h`.
pub(crate) const BAD_CONFIGURATION: u8 = 78;

/// Check profiles and configurations: every problem with its place and its cure
///
/// Exits with 78 if one of them cannot be used, else with 1 if one cannot be read.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Profiles and configurations (`wornpath.yaml`) to check; the name of a shipped profile stands for it
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Also check that some pod of this described fleet can play every role
    #[arg(long, value_name = "FILE")]
    fleet: Option<PathBuf>,
    /// Show problems as JSON
    #[arg(long)]
    json: bool,
    /// Print each good profile with all defaults filled in
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Draw the stages and slots of each good profile
    #[arg(long, conflicts_with = "json")]
    graph: bool,
}

/// Checks every file, whatever is wrong with those before it, and tells `out`.
pub(crate) fn run(arguments: &CheckArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let (mut reports, mut worst) = (Vec::new(), Verdict::Good);
    let mut tell = |report: CheckReport, out: &mut dyn Write| {
        worst = worst.max(report.verdict);
        reports.push(report.json);
        if arguments.json { Ok(()) } else { write!(out, "{}", report.text) }
    };
    let mut surroundings = ProfileEnv::default();
    if let Some(path) = &arguments.fleet {
        match read_fleet(path) {
            Ok(Ok(fleet)) => surroundings.roles = Some(fleet.roles()),
            Ok(Err(problems)) => tell(CheckReport::of_problems(path, &problems), out)?,
            Err(error) => tell(CheckReport::unreadable(path, &error), out)?,
        }
    }
    for path in &arguments.files {
        let report = match read(path) {
            Err(error) => CheckReport::unreadable(path, &error),
            Ok(text) if is_configuration(&text) => configuration(path),
            Ok(text) => profile(path, &text, &surroundings, arguments),
        };
        tell(report, out)?;
    }
    if arguments.json {
        writeln!(out, "{:#}", json!(reports))?;
    }
    Ok(worst.into())
}

/// How a file came off, from good to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    Unreadable,
    Unusable,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::SUCCESS,
            Verdict::Unreadable => Self::FAILURE,
            Verdict::Unusable => Self::from(BAD_CONFIGURATION),
        }
    }
}

/// What is said of one file, to people and to machines.
struct CheckReport {
    verdict: Verdict,
    text: String,
    json: Value,
}

/// As text, also where it is none.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

impl CheckReport {
    fn good(path: &Path, text: String, graph: &Value) -> Self {
        let json = json!({"file": shown(path), "good": true, "problems": [], "graph": graph});
        Self { verdict: Verdict::Good, text, json }
    }

    fn of_problems(path: &Path, problems: &Problems) -> Self {
        Self::bad(path, problems.to_string(), &problems.to_json())
    }

    fn bad(path: &Path, text: String, problems: &Value) -> Self {
        let json = json!({"file": shown(path), "good": false, "problems": problems});
        Self { verdict: Verdict::Unusable, text, json }
    }

    fn unreadable(path: &Path, error: &anyhow::Error) -> Self {
        let json = json!({"file": shown(path), "good": false, "problems": [], "error": format!("{error:#}")});
        Self { verdict: Verdict::Unreadable, text: format!("error: {error:#}\n"), json }
    }
}

fn profile(
    path: &Path,
    text: &str,
    surroundings: &ProfileEnv,
    arguments: &CheckArguments,
) -> CheckReport {
    let file = path.display();
    let profile = match Profile::check(&file.to_string(), text, surroundings) {
        Ok(profile) => profile,
        Err(problems) => return CheckReport::of_problems(path, &problems),
    };
    let mut text = String::new();
    if arguments.print {
        text.push_str(&format!("# {file}\n{}", profile.printed()));
    }
    if arguments.graph {
        text.push_str(&format!("# {file}\n{}", profile.graph()));
    }
    if text.is_empty() {
        text = format!("{file}: good\n");
    }
    CheckReport::good(path, text, &profile.graph().to_json())
}

fn configuration(path: &Path) -> CheckReport {
    match Config::read(path) {
        Ok(_) => CheckReport::good(path, format!("{}: good\n", path.display()), &Value::Null),
        Err(refused) => CheckReport::bad(path, refused.to_string(), &refused.to_json()),
    }
}

/// Reads and checks one profile: a file, or a shipped one by its name.
pub(crate) fn check(
    path: &Path,
    surroundings: &ProfileEnv,
) -> anyhow::Result<Result<Profile, Problems>> {
    Ok(Profile::check(&path.display().to_string(), &read(path)?, surroundings))
}

/// The text of a file, or of a shipped profile if there is no file of that name.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let refused = match fs::read_to_string(path) {
        Ok(text) => return Ok(text),
        Err(refused) => refused,
    };
    let Some(name) = path.to_str().filter(|name| !name.contains(['/', '.'])) else {
        return Err(refused).with_context(|| format!("cannot read {}", path.display()));
    };
    shipped(name).map(str::to_owned).ok_or(refused).with_context(|| {
        let names: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        format!("`{name}` is neither a file nor one of {}", names.join(", "))
    })
}
