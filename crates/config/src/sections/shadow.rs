//! `shadow`: a profile that decides beside the first one, without effect.

use wornpath_yaml::{Node, Parameter, Takes};

use super::profiles::resolve;
use crate::builtin::BUILTIN_PROFILES;
use crate::diagnostics::Diagnostics;
use crate::section::Section;
use crate::settings::{NamedProfile, ShadowSettings};

#[rustfmt::skip]
pub(crate) const SHADOW: &[Parameter] = &[
    Parameter::required("profile", Takes::Text, "The profile: a name in `profiles`, or a built-in one."),
    Parameter::with_default("per_second", Takes::Number(0.01, 1000.0), "20", "Most requests per second that it decides. Each costs the tokenization of its prompt once more; prompts above 64 KiB are left out."),
];

pub(crate) fn shadow(
    root: &Node,
    profiles: &[NamedProfile],
    diagnostics: &mut Diagnostics,
) -> Option<ShadowSettings> {
    let node = root.get("shadow")?;
    let section = Section::of(Some(node), "shadow", node.span, SHADOW, &mut diagnostics.problems);
    let name: String = section.maybe("profile")?;
    let mut known = profiles.to_vec();
    if !resolve(&name, &mut known) {
        let own = profiles.iter().map(|profile| profile.name.as_str());
        let all = own.chain(BUILTIN_PROFILES.iter().map(|(name, _)| *name));
        diagnostics.check_known("profile", &name, section.at("profile"), all);
        return None;
    }
    let profile = known.into_iter().find(|profile| profile.name == name)?;
    Some(ShadowSettings { profile, per_second: section.or("per_second", 20.0) })
}
