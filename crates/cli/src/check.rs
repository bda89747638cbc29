//! `wornpath check`: says what is wrong with profiles, as a compiler would.

use crate::fleet::read_fleet;
use anyhow::Context;
use clap::Args;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wornpath_routing::{Profile, Surroundings};

/// What a configuration that cannot be used ends with: `EX_CONFIG` of `sysexits.h`.
pub(crate) const BAD_CONFIGURATION: u8 = 78;

/// Check profiles: every problem with its place and its cure
///
/// Exits with 78 if a profile cannot be used.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Profiles to check
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
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Profile::check(&path.display().to_string(), &text, surroundings))
}
