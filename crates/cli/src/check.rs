//! `wornpath check`: reports problems of profiles and configurations, as a compiler does.

use crate::fleet::read_fleet;
use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wornpath_config::{BUILTIN_PROFILES, Config, builtin_profile, is_configuration};
use wornpath_routing::{Problems, Profile, ProfileEnv, nearest};

/// Exit status for an invalid configuration: `EX_CONFIG` of `sysexits.h`.
pub(crate) const BAD_CONFIGURATION: u8 = 78;

/// Check profiles and configurations; report every problem with its location and its cure
///
/// Exits with 78 if one of them is invalid, else with 1 if one cannot be read or its pods cannot be
/// discovered.
#[derive(Args)]
pub(crate) struct CheckArguments {
    /// Profiles and configurations (`wornpath.yaml`) to check: files, or names of built-in profiles
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Fleet description; also check that it has a pod for every role
    #[arg(long, value_name = "FILE")]
    fleet: Option<PathBuf>,
    /// Print problems as JSON
    #[arg(long)]
    json: bool,
    /// Print each valid profile with all defaults filled in
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Draw the stages and slots of each valid profile
    #[arg(long, conflicts_with = "json")]
    graph: bool,
    /// Also ask the API servers of `discovery` what the router may do there, and what it would find
    #[arg(long)]
    kubernetes: bool,
}

/// Checks every file, also after one with problems.
pub(crate) fn run(arguments: &CheckArguments, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut reports = Vec::new();
    let mut worst = Verdict::Good;
    let mut add = |report: CheckReport, out: &mut dyn Write| {
        worst = worst.max(report.verdict);
        reports.push(report.json);
        if arguments.json { Ok(()) } else { write!(out, "{}", report.text) }
    };
    let mut env = ProfileEnv::default();
    if let Some(path) = &arguments.fleet {
        match read_fleet(path) {
            Ok(Ok(fleet)) => env.roles = Some(fleet.roles()),
            Ok(Err(problems)) => add(CheckReport::of_problems(path, &problems), out)?,
            Err(error) => add(CheckReport::unreadable(path, &error), out)?,
        }
    }
    for path in &arguments.files {
        let report = match read(path) {
            Err(error) => CheckReport::unreadable(path, &error),
            Ok(text) if is_configuration(&text) => configuration(path, arguments),
            Ok(text) => profile(path, &text, &env, arguments),
        };
        add(report, out)?;
    }
    if arguments.json {
        writeln!(out, "{:#}", json!(reports))?;
    }
    Ok(worst.into())
}

/// The result for a file, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    Unreadable,
    Invalid,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::SUCCESS,
            Verdict::Unreadable => Self::FAILURE,
            Verdict::Invalid => Self::from(BAD_CONFIGURATION),
        }
    }
}

/// The report on one file, as text and as JSON.
struct CheckReport {
    verdict: Verdict,
    text: String,
    json: Value,
}

/// The path as text, lossy where it is not UTF-8.
fn display(path: &Path) -> String {
    path.display().to_string()
}

impl CheckReport {
    fn good(path: &Path, text: String, graph: &Value) -> Self {
        let json = json!({"file": display(path), "good": true, "problems": [], "graph": graph});
        Self { verdict: Verdict::Good, text, json }
    }

    fn of_problems(path: &Path, problems: &Problems) -> Self {
        Self::bad(path, problems.to_string(), &problems.to_json())
    }

    fn bad(path: &Path, text: String, problems: &Value) -> Self {
        let json = json!({"file": display(path), "good": false, "problems": problems});
        Self { verdict: Verdict::Invalid, text, json }
    }

    fn unreadable(path: &Path, error: &anyhow::Error) -> Self {
        let json = json!({"file": display(path), "good": false, "problems": [], "error": format!("{error:#}")});
        Self { verdict: Verdict::Unreadable, text: format!("error: {error:#}\n"), json }
    }
}

/// What the sources of pods in Kubernetes clusters lack, and what they find.
struct ClusterAccess {
    found: Vec<String>,
    missing: Vec<String>,
}

#[cfg(feature = "kubernetes")]
fn kubernetes(path: &Path, config: &Config) -> ClusterAccess {
    use wornpath_config::DiscoveryConfig;
    use wornpath_gateway::fleet::discovery::kubernetes::check_access;

    let mut access = ClusterAccess { found: Vec::new(), missing: Vec::new() };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            access.missing.push(format!("cannot start a runtime: {error}"));
            return access;
        }
    };
    let mut sources = 0;
    for source in config.discovery() {
        let DiscoveryConfig::Kubernetes(source) = source else { continue };
        sources += 1;
        let report = runtime.block_on(check_access(source, config, path));
        access.found.extend(report.found);
        access.missing.extend(report.missing);
    }
    if sources == 0 {
        let message = "no entry of `discovery` has `kubernetes`; omit --kubernetes, or add one";
        access.missing.push(message.to_owned());
    }
    access
}

#[cfg(not(feature = "kubernetes"))]
fn kubernetes(_: &Path, _: &Config) -> ClusterAccess {
    let message =
        "this build has no support for `kubernetes`; build it with `--features kubernetes`";
    ClusterAccess { found: Vec::new(), missing: vec![message.to_owned()] }
}

impl CheckReport {
    fn add_access(&mut self, access: ClusterAccess) {
        let ClusterAccess { found, missing } = access;
        for line in &found {
            self.text.push_str(&format!("kubernetes: {line}\n"));
        }
        for line in &missing {
            self.text.push_str(&format!("error: kubernetes: {line}\n"));
        }
        if !missing.is_empty() {
            self.verdict = Verdict::Unreadable;
            self.json["good"] = json!(false);
        }
        self.json["kubernetes"] = json!({"found": found, "missing": missing});
    }
}

fn profile(path: &Path, text: &str, env: &ProfileEnv, arguments: &CheckArguments) -> CheckReport {
    let file = path.display();
    let profile = match Profile::check(&file.to_string(), text, env) {
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

fn configuration(path: &Path, arguments: &CheckArguments) -> CheckReport {
    match Config::read(path) {
        Ok(config) => {
            let exposed = config.exposed_secrets();
            let deprecated = config.deprecated().iter().map(ToString::to_string);
            let warnings: Vec<_> =
                exposed.iter().map(ToString::to_string).chain(deprecated).collect();
            let lines = warnings.iter().map(|warning| format!("warning: {warning}\n"));
            let text = lines.chain([format!("{}: good\n", path.display())]).collect();
            let mut report = CheckReport::good(path, text, &Value::Null);
            report.json["warnings"] = json!(warnings);
            if arguments.kubernetes {
                report.add_access(kubernetes(path, &config));
            }
            report
        }
        Err(refused) => CheckReport::bad(path, refused.to_string(), &refused.to_json()),
    }
}

/// Reads and checks one profile: a file, or a built-in one by its name.
pub(crate) fn check(path: &Path, env: &ProfileEnv) -> anyhow::Result<Result<Profile, Problems>> {
    Ok(Profile::check(&path.display().to_string(), &read(path)?, env))
}

/// The text of a file, or of a built-in profile if there is no file of that name.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let error = match fs::read_to_string(path) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    let names = BUILTIN_PROFILES.iter().map(|(name, _)| *name);
    let Some(name) = path.to_str().filter(|name| !name.contains(['/', '.'])) else {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let near = nearest(stem, names).filter(|_| error.kind() == ErrorKind::NotFound);
        let near = near.map(|near| format!("; did you mean the built-in profile `{near}`?"));
        let near = near.unwrap_or_default();
        return Err(error).with_context(|| format!("cannot read {}{near}", path.display()));
    };
    builtin_profile(name).map(str::to_owned).ok_or(error).with_context(|| {
        format!("`{name}` is neither a file nor a built-in profile; {}", choice(name, names))
    })
}

/// What an unknown name of a profile may mean, and all names that there are.
pub(crate) fn choice<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = nearest(name, known.clone());
    let near = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    format!("{near}available: {}", known.collect::<Vec<_>>().join(", "))
}
