//! `wornpath check`: says what is wrong with profiles and configurations, as a compiler would.

use crate::fleet::read_fleet;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wornpath_gateway::config::{Config, Refused, is_configuration};
use wornpath_routing::{Profile, Surroundings};

/// What a configuration that cannot be used ends with: `EX_CONFIG` of `sysexits.h`.
pub(crate) const BAD_CONFIGURATION: u8 = 78;

/// Check profiles and configurations: every problem with its place and its cure
///
/// Exits with 78 if one of them cannot be used.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Profiles and configurations (`wornpath.yaml`) to check
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

/// Checks the profiles and tells `out`.
pub(crate) fn run(arguments: &CheckArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let roles = match &arguments.fleet {
        Some(path) => Some(read_fleet(path)?.roles()),
        None => None,
    };
    let surroundings = Surroundings { roles, ..Surroundings::default() };
    let (mut reports, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for path in &arguments.files {
        if is_configuration(&read(path)?) {
            let report = configuration(path, arguments, out)?;
            if report["good"] == false {
                code = ExitCode::from(BAD_CONFIGURATION);
            }
            reports.push(report);
            continue;
        }
        let checked = check(path, &surroundings)?;
        let file = path.display();
        match &checked {
            Err(problems) => {
                code = ExitCode::from(BAD_CONFIGURATION);
                if !arguments.json {
                    write!(out, "{problems}")?;
                }
            }
            Ok(profile) if arguments.print || arguments.graph => {
                if arguments.print {
                    write!(out, "# {file}\n{}", profile.printed())?;
                }
                if arguments.graph {
                    write!(out, "# {file}\n{}", profile.graph())?;
                }
            }
            Ok(_) if !arguments.json => writeln!(out, "{file}: good")?,
            Ok(_) => {}
        }
        reports.push(match checked {
            Ok(profile) => {
                json!({"file": path, "good": true, "problems": [], "graph": profile.graph().to_json()})
            }
            Err(problems) => json!({"file": path, "good": false, "problems": problems.to_json()}),
        });
    }
    if arguments.json {
        writeln!(out, "{:#}", json!(reports))?;
    }
    Ok(code)
}

/// Reads and checks one profile.
pub(crate) fn check(
    path: &Path,
    surroundings: &Surroundings,
) -> anyhow::Result<Result<Profile, wornpath_routing::Problems>> {
    Ok(Profile::check(&path.display().to_string(), &read(path)?, surroundings))
}

/// Checks one configuration and tells `out`.
fn configuration(
    path: &Path,
    arguments: &CheckArguments,
    out: &mut dyn Write,
) -> anyhow::Result<Value> {
    let refused = Config::read(path).err();
    match &refused {
        _ if arguments.json => {}
        Some(refused) => write!(out, "{refused}")?,
        None => writeln!(out, "{}: good", path.display())?,
    }
    let problems = refused.as_ref().map_or_else(|| json!([]), Refused::to_json);
    Ok(json!({"file": path, "good": refused.is_none(), "problems": problems}))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
