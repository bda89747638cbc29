//! The routing profile: `--policy` for every request, else the routes of the file, else the
//! default, beside which models without a tokenizer are routed by the text of their prompts.
//!
//! `--policy` overrides the profile of every route, not only of those that match everything: a
//! comparison of two policies must not compare one with itself. The routes stay, because a path
//! that operates an engine is forwarded only if a route names it.

use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::fs;
use wornpath_config::{
    BUILTIN_PROFILES, DEFAULT_PROFILE, builtin_profile, needs_tokens, text_profile,
};
use wornpath_config::{NamedProfile, Settings};

use super::arguments::ServeArguments;
use crate::check::choice;

/// Applies the command line to profiles and routes, once pods and models are known.
pub(super) fn set(arguments: &ServeArguments, settings: &mut Settings) -> anyhow::Result<()> {
    let is_paired = !arguments.prefill.is_empty() && !arguments.decode.is_empty();
    ensure!(
        !is_paired
            || arguments.policy.is_some()
            || arguments.config.is_some()
            || !arguments.pods.is_empty(),
        "--prefill and --decode need a policy that uses both; give --policy prefill-decode"
    );
    let Some(policy) = &arguments.policy else {
        if arguments.config.is_none() {
            settings.profiles = vec![outside_file(DEFAULT_PROFILE, settings)?];
            settings.by_text = Some(text_profile());
        }
        return Ok(());
    };
    let of_file = settings.profiles.iter().find(|profile| profile.name == *policy).cloned();
    let profile = match of_file {
        Some(profile) => profile,
        None => outside_file(policy, settings)?,
    };
    ensure!(
        policy == DEFAULT_PROFILE || has_tokenizer(settings) || !needs_tokens(&profile),
        "--policy {policy} needs tokens, and no model has a tokenizer; give --tokenizer FOLDER and --model NAME, or \
         leave --policy out to compare prompts by their text"
    );
    for route in &mut settings.routes {
        route.profile.clone_from(&profile.name);
    }
    settings.by_text = (policy == DEFAULT_PROFILE).then(text_profile);
    settings.profiles = vec![profile];
    Ok(())
}

/// A profile that is not in the configuration: in a file of its own, or built in.
fn outside_file(policy: &str, settings: &Settings) -> anyhow::Result<NamedProfile> {
    let name = policy.to_owned();
    if policy.ends_with(".yaml") {
        let text = fs::read_to_string(policy).with_context(|| format!("cannot read {policy}"))?;
        return Ok(NamedProfile { name, file: policy.to_owned(), text });
    }
    let text = builtin_profile(policy).with_context(|| {
        let of_file = settings.profiles.iter().map(|profile| profile.name.as_str());
        let names: BTreeSet<_> =
            of_file.chain(BUILTIN_PROFILES.iter().map(|(name, _)| *name)).collect();
        let choice = choice(policy, names.iter().copied());
        format!("--policy: unknown profile `{policy}`; {choice}, or the path of a .yaml file")
    })?;
    Ok(NamedProfile { name, file: format!("built-in profile `{policy}`"), text: text.to_owned() })
}

fn has_tokenizer(settings: &Settings) -> bool {
    settings.models.iter().any(|model| model.tokenizer.is_some())
}
