//! `discovery`: sources of pods that the configuration does not list.

use std::path::PathBuf;
use std::time::Duration;

use wornpath_yaml::{Node, Parameter, Problem, ProblemKind, SettingEntry, Takes};

use super::kubernetes::{KubernetesConfig, kubernetes};
use super::pods::{FACTS, PodScope, facts};
use crate::diagnostics::Diagnostics;
use crate::pod::PodConfig;
use crate::section::{Section, maps};

/// A discovery source.
#[derive(Clone, PartialEq, Debug)]
pub enum DiscoveryConfig {
    /// A file with `pods`, reloaded when it changes.
    File {
        /// The file.
        path: PathBuf,
        /// Polling interval.
        every: Duration,
    },
    /// All addresses of a DNS name.
    Dns {
        /// The name.
        host: String,
        /// The port of every pod.
        port: u16,
        /// `http` or `https`.
        scheme: &'static str,
        /// Interval between DNS lookups.
        every: Duration,
        /// Properties of every pod.
        pod: Box<PodConfig>,
    },
    /// Pods of a Kubernetes cluster, as its API server reports them.
    Kubernetes(Box<KubernetesConfig>),
}

/// The kinds of sources: the key that tells them apart, and an example.
const KINDS: [(&str, &str); 3] = [
    ("file", "- file: pods.yaml"),
    ("dns", "- {dns: name, port: 8000}"),
    ("kubernetes", "- kubernetes: {selector: app=vllm}"),
];

#[rustfmt::skip]
pub(crate) const FILE: &[Parameter] = &[
    Parameter::required("file", Takes::Text, "File with a `pods` section in the format of this file; reloaded when it changes."),
    Parameter::with_default("every", Takes::Time, "2s", "Polling interval."),
];

#[rustfmt::skip]
pub(crate) const DNS: &[Parameter] = &[
    Parameter::required("dns", Takes::Text, "DNS name; each of its addresses is a pod, as with a headless service."),
    Parameter::required("port", Takes::Whole(1, 65_535), "The port of every pod."),
    Parameter::with_default("every", Takes::Time, "5s", "Interval between DNS lookups."),
    Parameter::with_default("scheme", Takes::OneOf(&["http", "https"]), "http", "URL scheme of the pods; for `https`, set `pod_tls.server_name` to the name in their certificates."),
];

/// The discovery sources under `discovery`.
pub(crate) fn discovery(
    root: &Node,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> Vec<DiscoveryConfig> {
    let mut sources = Vec::new();
    for entry in maps(root, "discovery", &mut diagnostics.problems) {
        let has = |key: &&str| entry.settings.iter().any(|(name, _)| name.text() == Some(key));
        let kinds: Vec<_> = KINDS.iter().map(|(key, _)| *key).filter(has).collect();
        match kinds[..] {
            ["file"] => sources.extend(file(entry, diagnostics)),
            ["dns"] => sources.extend(dns(entry, scope, diagnostics)),
            ["kubernetes"] => {
                let source = kubernetes(entry, scope, diagnostics).map(Box::new);
                sources.extend(source.map(DiscoveryConfig::Kubernetes));
            }
            _ => {
                let message = "an entry of `discovery` needs one of `file`, `dns` and `kubernetes`";
                let examples = KINDS.map(|(_, example)| format!("`{example}`"));
                diagnostics.problems.push(
                    Problem::new(ProblemKind::Syntax, entry.span, message)
                        .cure(format!("write {}", examples.join(" or "))),
                );
            }
        }
    }
    sources
}

fn file(entry: SettingEntry<'_>, diagnostics: &mut Diagnostics) -> Option<DiscoveryConfig> {
    let section = Section::read(entry, FILE, &[], &mut diagnostics.problems);
    diagnostics.check_nonzero(&section, "every");
    let every = section.or("every", Duration::ZERO);
    Some(DiscoveryConfig::File { path: section.maybe::<String>("file")?.into(), every })
}

fn dns(
    entry: SettingEntry<'_>,
    scope: PodScope<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<DiscoveryConfig> {
    let section = Section::read(entry, &[DNS, FACTS].concat(), &[], &mut diagnostics.problems);
    let host: String = section.maybe("dns")?;
    if host.contains(['@', '/', '?']) {
        diagnostics.mask(section.at("dns"));
        let message = "`dns` is not a host name: it contains `@`, `/` or `?`";
        let problem = Problem::new(ProblemKind::Unsafe, section.at("dns"), message);
        diagnostics
            .problems
            .push(problem.cure("give a host name alone, such as `dns: engines.default.svc`"));
    }
    diagnostics.check_nonzero(&section, "every");
    let pod = Box::new(facts(&section, scope, diagnostics));
    let port = u16::try_from(section.maybe::<u32>("port")?).ok()?;
    let every = section.or("every", Duration::ZERO);
    let scheme = section.or("scheme", "http");
    if section.maybe::<String>("dns").is_some_and(|host| host.trim().is_empty()) {
        let message = "`dns` is empty; it must be a host name";
        let problem = Problem::new(ProblemKind::Syntax, section.span(), message);
        diagnostics
            .problems
            .push(problem.cure("give a host name, such as `dns: engines.default.svc`"));
    }
    Some(DiscoveryConfig::Dns { host, port, scheme, every, pod })
}
