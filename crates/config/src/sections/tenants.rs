//! `tenants`: API keys, priorities, weights and quotas; and `isolation` between tenants.

use std::path::PathBuf;

use wornpath_blocks::HashKey;
use wornpath_routing::queue::Priority;
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes};

use crate::diagnostics::Diagnostics;
use crate::secret::bytes;
use crate::section::{Section, maps};
use crate::settings::TenantSettings;

#[rustfmt::skip]
pub(crate) const TENANT: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name in routes and logs."),
    Parameter::required("key_digest", Takes::Text, "`sha256:` and the digest of its API key; the key itself is never stored."),
    Parameter::with_default("priority", Takes::Whole(0, 7), "4", "Priority of its requests; 7 is the highest."),
    Parameter::with_default("weight", Takes::Whole(1, 1000), "1", "Fair-queueing weight: twice the weight gets twice the share while requests wait."),
    Parameter::optional("quota", Takes::Whole(1, 1 << 20), "Maximum requests in flight or queued at a time; more get 429."),
];

#[rustfmt::skip]
pub(crate) const ISOLATION: &[Parameter] = &[
    Parameter::required("secret_file", Takes::Text, "File with 64 hexadecimal digits, the same for all routers of a cell; create one with `openssl rand -hex 32`."),
];

pub(crate) fn tenants(root: &Node, diagnostics: &mut Diagnostics) -> Vec<TenantSettings> {
    let mut tenants = Vec::new();
    let mut names = Vec::new();
    let mut keys = Vec::new();
    for entry in maps(root, "tenants", &mut diagnostics.problems) {
        let section = Section::read(entry, TENANT, &[], &mut diagnostics.problems);
        let name: String = section.or("name", String::new());
        diagnostics.check_unique(&mut names, "tenant", &name, section.at("name"));
        let cure = "give a name for routes and logs";
        diagnostics.check_section_name(&section, "tenants", cure);
        let Some(key) = diagnostics.digest(&section, "key_digest") else { continue };
        diagnostics.check_unique(&mut keys, "key", &key.to_string(), section.at("key_digest"));
        let priority: u32 = section.or("priority", 4);
        tenants.push(TenantSettings {
            name: name.into(),
            key,
            priority: u8::try_from(priority).ok().and_then(Priority::new).unwrap_or_default(),
            weight: section.or("weight", 1),
            quota: section.maybe("quota"),
        });
    }
    tenants
}

/// The position of `isolation`, if it is enabled, and its secret, if it is valid.
pub(crate) fn isolation(
    root: &Node,
    diagnostics: &mut Diagnostics,
) -> Option<(Span, Option<HashKey>)> {
    let node = root.get("isolation")?;
    let span = node.span;
    let section = Section::of(Some(node), "isolation", span, ISOLATION, &mut diagnostics.problems);
    let Some(file) = section.maybe::<String>("secret_file") else { return Some((span, None)) };
    let path = PathBuf::from(&file);
    diagnostics.note_secret("secret_file", &file);
    let secret = match diagnostics.environment.text(&path) {
        Ok(text) => bytes(text.trim())
            .map(HashKey::new)
            .map_err(|error| error.to_string().replace(" after `sha256:`", "")),
        Err(error) => Err(error.to_string()),
    };
    match secret {
        Ok(key) => Some((span, Some(key))),
        Err(error) => {
            let message = format!("invalid secret in `{file}`: {error}");
            diagnostics.problems.push(
                Problem::new(ProblemKind::BadParameter, section.at("secret_file"), message).cure(
                    format!("write 64 hexadecimal digits to it: `openssl rand -hex 32 > {file}`"),
                ),
            );
            Some((span, None))
        }
    }
}
