//! The dashboard: static files in the binary, and their security headers.
//!
//! The page connects only to this listener, runs only its scripts, and cannot be framed. It
//! contains no secret, so it is served without a token; every request that it then makes needs one.

use hyper::HeaderMap;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};

use crate::call::{AdminCall, AdminError, AdminReply, AdminResult, Asset};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! assets {
    ($($name:literal $kind:ident;)*) => {
        const ASSETS: &[(&str, Asset)] =
            &[$(($name, Asset { kind: $kind, text: include_str!(concat!("dashboard/", $name)) })),*];
    };
}

assets! {
    "index.html" HTML;
    "style.css" CSS;
    "icon.svg" IMAGE;
    "main.js" SCRIPT;
    "draw.js" SCRIPT;
    "stream.js" SCRIPT;
    "address.js" SCRIPT;
    "fleet.js" SCRIPT;
    "figures.js" SCRIPT;
    "failures.js" SCRIPT;
    "gaps.js" SCRIPT;
    "heat.js" SCRIPT;
    "speeds.js" SCRIPT;
    "origins.js" SCRIPT;
    "pod.js" SCRIPT;
    "icicle.js" SCRIPT;
    "prefixes.js" SCRIPT;
    "decisions.js" SCRIPT;
    "explanation.js" SCRIPT;
    "filters.js" SCRIPT;
    "shadow.js" SCRIPT;
    "history.js" SCRIPT;
    "profiles.js" SCRIPT;
    "batches.js" SCRIPT;
    "events.js" SCRIPT;
    "setup.js" SCRIPT;
    "effective.js" SCRIPT;
}

/// The dashboard's style sheet, for pages that look like it.
pub const DASHBOARD_STYLE: &str = include_str!("dashboard/style.css");

/// No other origin, nothing inline, no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn page(_: &AdminCall<'_>) -> AdminResult {
    asset("index.html")
}

pub(crate) fn file(call: &AdminCall<'_>) -> AdminResult {
    asset(call.name)
}

fn asset(name: &str) -> AdminResult {
    let found = ASSETS.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, asset)| AdminReply::Asset(*asset))
        .ok_or_else(|| AdminError::new(404, format!("unknown dashboard file `{name}`; open GET /")))
}

/// Adds the security headers.
pub(crate) fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_its_scripts_refer_only_to_existing_files_and_to_no_other_host() {
        for (name, asset) in ASSETS {
            let named = asset
                .text
                .split(['"', '\''])
                .filter(|word| word.starts_with("./") || word.starts_with("/dashboard/"));
            for word in named {
                let file = word.trim_start_matches("./").trim_start_matches("/dashboard/");
                assert!(ASSETS.iter().any(|(known, _)| *known == file), "{name} wants {word}");
            }
            let hosts = asset.text.match_indices("://").map(|(at, _)| &asset.text[at..]);
            for host in hosts {
                let is_name_of_a_format = host.starts_with("://www.w3.org/");
                assert!(is_name_of_a_format, "{name} names another host: {host:.40}");
            }
            assert!(!asset.text.contains("style=\""), "{name}: the policy forbids inline styles");
            assert!(!asset.text.contains("innerHTML"), "{name}: text is never read as markup");
        }
    }
}
