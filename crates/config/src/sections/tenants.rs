//! `tenants`: API keys, priorities, weights and quotas; and `isolation` between tenants.

use std::path::PathBuf;

use wornpath_blocks::HashKey;
use wornpath_execution::transfer_fields;
use wornpath_routing::queue::Priority;
use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, Span, Takes};

use crate::diagnostics::Diagnostics;
use crate::secret::{DigestError, bytes};
use crate::section::{Section, maps};
use crate::settings::IsolationRules;
use crate::tenant::{ExpiringKey, TenantSettings};

const FURTHER_CURE: &str = "write `sha256:` and 64 hexadecimal digits, and if the key ends, ` until ` and a time such \
                            as `2026-12-31T00:00:00Z`";

#[rustfmt::skip]
pub(crate) const TENANT: &[Parameter] = &[
    Parameter::required("name", Takes::Text, "Its name in routes and logs."),
    Parameter::required("key_digest", Takes::Text, "`sha256:` and the digest of its API key; the key itself is never stored."),
    Parameter::with_default("further_digests", Takes::Texts, "[]", "Digests of its other keys, each followed by ` until ` and a time such as `2026-12-31T00:00:00Z` if it is to be refused from then on. To rotate a key without an outage, move its digest here with a time, and write that of the new one as `key_digest`."),
    Parameter::with_default("priority", Takes::Whole(0, 7), "4", "Priority of its requests; 7 is the highest."),
    Parameter::with_default("weight", Takes::Whole(1, 1000), "1", "Fair-queueing weight: twice the weight gets twice the share while requests wait."),
    Parameter::optional("quota", Takes::Whole(1, 1 << 20), "Maximum requests in flight or queued at a time; more get 429."),
    Parameter::optional("requests_per_minute", Takes::Whole(1, 1 << 32), "Requests a minute; more get 429, with the time to wait in `retry-after`. After a pause, a minute's worth may come at once. Of each router by itself."),
    Parameter::optional("tokens_per_minute", Takes::Whole(1, 1 << 40), "Tokens of prompts and answers a minute. They are estimated when a request arrives and counted when it ends; a request that takes more than is left is admitted, and the next ones get 429 until that is made up for."),
    Parameter::optional("engine_priority", Takes::Text, "Range of the `priority` that its requests may have in engines, such as `0..10`; values outside of it become the nearest end. Without a range the `priority` and `x-vllm-priority` of its clients are removed. Only for engines with priority scheduling: vLLM with `--scheduling-policy priority` (a lower number is served earlier)."),
];

#[rustfmt::skip]
pub(crate) const ISOLATION: &[Parameter] = &[
    Parameter::required("secret_file", Takes::Text, "File with 64 hexadecimal digits, the same for all routers of a cell; create one with `openssl rand -hex 32`."),
    Parameter::with_default("allow_fields", Takes::Texts, "[]", "Further body fields that tenants may send: `name`, or `vllm_xargs.name`. Name only fields by which engines keep nothing across requests. Fields that name blocks of a cache stay refused."),
    Parameter::with_default("allow_paths", Takes::Texts, "[]", "Further paths that tenants may use, such as `/v1/audio/transcriptions` of a model without a prefix cache. A form is forwarded as it is; a JSON body gets the salt, and may have any field except those that name blocks of a cache."),
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
        let further_keys = further_keys(&section, &mut keys, diagnostics);
        let Some(key) = diagnostics.digest(&section, "key_digest") else { continue };
        diagnostics.check_unique(&mut keys, "key", &key.to_string(), section.at("key_digest"));
        let priority: u32 = section.or("priority", 4);
        tenants.push(TenantSettings {
            name: name.into(),
            key,
            further_keys,
            priority: u8::try_from(priority).ok().and_then(Priority::new).unwrap_or_default(),
            weight: section.or("weight", 1),
            quota: section.maybe("quota"),
            requests_per_minute: section.maybe("requests_per_minute"),
            tokens_per_minute: section.maybe("tokens_per_minute"),
            engine_priority: section.parsed(
                "engine_priority",
                "write two whole numbers, such as `0..10`",
                &mut diagnostics.problems,
            ),
        });
    }
    tenants
}

fn further_keys(
    section: &Section<'_>,
    known: &mut Vec<(String, Span)>,
    diagnostics: &mut Diagnostics,
) -> Vec<ExpiringKey> {
    let mut keys = Vec::new();
    for (text, span) in section.texts("further_digests") {
        match further_key(&text) {
            Ok(key) => {
                diagnostics.check_unique(known, "key", &key.digest.to_string(), span);
                keys.push(key);
            }
            Err(why) => {
                diagnostics.mask(span);
                let message = format!("`further_digests` has an entry that is not a digest: {why}");
                let problem = Problem::new(ProblemKind::Unsafe, span, message);
                diagnostics.problems.push(problem.cure(FURTHER_CURE));
            }
        }
    }
    keys
}

/// `sha256:…` or `sha256:… until 2026-12-31T00:00:00Z`.
fn further_key(text: &str) -> Result<ExpiringKey, String> {
    let (digest, time) = match text.split_once(" until ") {
        Some((digest, time)) => (digest, Some(time.trim())),
        None => (text, None),
    };
    let digest = digest.trim().parse().map_err(|error: DigestError| error.to_string())?;
    let seconds = |time: &str| {
        let time = time.parse::<jiff::Timestamp>().ok()?;
        u64::try_from(time.as_second()).ok()
    };
    let until = match time {
        None => None,
        Some(time) => {
            Some(seconds(time).ok_or_else(|| format!("`{time}` is not a time with a time zone"))?)
        }
    };
    Ok(ExpiringKey { digest, until })
}

/// The section `isolation`, which enables it.
pub(crate) struct Isolation {
    /// Its position.
    pub(crate) span: Span,
    /// Its secret, if it is valid.
    pub(crate) key: Option<HashKey>,
    pub(crate) rules: IsolationRules,
}

pub(crate) fn isolation(root: &Node, diagnostics: &mut Diagnostics) -> Option<Isolation> {
    let node = root.get("isolation")?;
    let span = node.span;
    let section = Section::of(Some(node), "isolation", span, ISOLATION, &mut diagnostics.problems);
    let rules = IsolationRules {
        allow_fields: section.or("allow_fields", Vec::new()),
        allow_paths: section.or("allow_paths", Vec::new()),
    };
    for (path, span) in section.texts("allow_paths") {
        if !path.starts_with('/') {
            let message = format!("`allow_paths` of `isolation` has `{path}`, which is no path");
            let problem = Problem::new(ProblemKind::BadParameter, span, message);
            diagnostics.problems.push(problem.cure("begin it with a slash"));
        }
    }
    for (field, span) in section.texts("allow_fields") {
        if transfer_fields().contains(&field.as_str()) {
            let message = format!(
                "`allow_fields` of `isolation` has `{field}`, which can name another tenant's blocks"
            );
            let problem = Problem::new(ProblemKind::Unsafe, span, message);
            diagnostics.problems.push(problem.cure("remove it; only the router may send it"));
        }
    }
    Some(Isolation { span, key: secret(&section, diagnostics), rules })
}

fn secret(section: &Section<'_>, diagnostics: &mut Diagnostics) -> Option<HashKey> {
    let file: String = section.maybe("secret_file")?;
    let path = PathBuf::from(&file);
    diagnostics.note_secret("secret_file", &file);
    let secret = match diagnostics.environment.text(&path) {
        Ok(text) => bytes(text.trim())
            .map(HashKey::new)
            .map_err(|error| error.to_string().replace(" after `sha256:`", "")),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = &secret {
        let message = format!("invalid secret in `{file}`: {error}");
        diagnostics.problems.push(
            Problem::new(ProblemKind::BadParameter, section.at("secret_file"), message).cure(
                format!("write 64 hexadecimal digits to it: `openssl rand -hex 32 > {file}`"),
            ),
        );
    }
    secret.ok()
}
