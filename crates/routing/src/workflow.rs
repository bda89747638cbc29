//! Workflows: which steps answer a request, and which selector finds the pod of each.
//!
//! There is one machine, a list of steps; `single` and `prefill_decode` are lists that need no
//! writing down. A step may be left out when too little of the prompt is uncached to be worth it.

mod dead_settings;

use std::time::Duration;

use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, Quoted, SettingEntry, Settings, Span, Takes, Value,
    Yaml, writer,
};

use dead_settings::{SettingScope, before_late, said_by_transfer, says_nothing};

use crate::name::{Name, Role};
use crate::plan::{AfterFailure, FailurePolicy, Mutation, Start, Transfer};
use crate::selector::Selector;
use crate::slot::Writes;
use crate::values::Picked;

/// More steps are no workflow that anybody has; every one is selected for with every decision.
const MOST_STEPS: usize = 32;

/// Where a step's selector is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SelectorPlace {
    /// At the top level of the profile.
    Top,
    /// In `selectors`, under this name.
    Named(String),
}

const TRANSFERS: &[&str] = &["nixl", "bootstrap", "shared_storage", "mooncake", "tensorrt"];

/// What can be said of a step.
pub(crate) const STEP: &[Parameter] = &[
    Parameter::optional(
        "selector",
        Takes::Text,
        "Which of `selectors` finds its pod; by default the one of the step's name, for `single` the top level.",
    ),
    Parameter::optional(
        "role",
        Takes::Text,
        "The role that a pod must have; by default the step's name, for `single` `serve`.",
    ),
    Parameter::with_default(
        "attempts",
        Takes::Whole(1, 10),
        "3",
        "How many pods are tried before the step has failed.",
    ),
    Parameter::with_default(
        "then",
        Takes::OneOf(&["fail", "skip", "restart"]),
        "fail",
        "What comes when it has failed: the request fails, the next step does its work too, or the plan starts again.",
    ),
    Parameter::with_default(
        "fallbacks",
        Takes::Whole(0, 16),
        "2",
        "How many other pods the plan names, best first.",
    ),
    Parameter::optional("deadline", Takes::Time, "How long the step may take."),
    Parameter::optional(
        "lease",
        Takes::Time,
        "How long what it leaves for the next step surely lasts.",
    ),
    Parameter::with_default(
        "bind",
        Takes::OneOf(&["early", "late"]),
        "early",
        "Whether its pod is chosen with the plan, or when the step starts.",
    ),
    Parameter::with_default(
        "start",
        Takes::OneOf(&["after", "together"]),
        "after",
        "Whether it starts when the step before has ended, or together with it.",
    ),
    Parameter::optional(
        "min_uncached_tokens",
        Takes::Whole(1, u64::MAX),
        "Leave the step out if the next step's pod has fewer tokens of the prompt to compute.",
    ),
    Parameter::optional(
        "prefill_only",
        Takes::Flag,
        "Only compute the prompt: one token, no stream.",
    ),
    Parameter::optional(
        "offers",
        Takes::OneOf(TRANSFERS),
        "Keep the computed prompt for the next step, in the words of this protocol.",
    ),
    Parameter::optional(
        "takes",
        Takes::OneOf(TRANSFERS),
        "Take the computed prompt from the step before, in the words of this protocol.",
    ),
    Parameter::optional("set", Takes::Fields, "Body fields to set for this step."),
    Parameter::optional(
        "cache_hint",
        Takes::Text,
        "Body field to set to what the pod is believed to hold: `tokens`, and `runs` of `blocks` with their `tier` and `location`.",
    ),
    Parameter::optional(
        "speculate",
        Takes::Flag,
        "Whether the pod will hold the prompt afterwards; by default yes for the roles `serve`, `prefill` and `decode`.",
    ),
];

/// What can be said of `prefill_decode`, besides its two steps.
pub(crate) const PREFILL_DECODE: &[Parameter] = &[
    Parameter::with_default(
        "min_uncached_tokens",
        Takes::Whole(1, u64::MAX),
        "1024",
        "Stay with one step if the decode pod has fewer tokens of the prompt to compute.",
    ),
    Parameter::with_default(
        "transfer",
        Takes::OneOf(TRANSFERS),
        "nixl",
        "How the computed prompt gets from one engine to the other.",
    ),
];

/// A step of a workflow as it was written; its selector is made later.
pub(crate) struct StepDraft {
    pub(crate) name: Name,
    pub(crate) span: Span,
    pub(crate) role_span: Span,
    pub(crate) selector: SelectorPlace,
    pub(crate) selector_span: Span,
    pub(crate) rules: StepRules,
}

/// What a plan says of a step, whoever is chosen for it.
#[derive(Clone, Debug)]
pub(crate) struct StepRules {
    pub(crate) role: Role,
    pub(crate) failure: FailurePolicy,
    pub(crate) fallbacks: usize,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lease: Option<Duration>,
    pub(crate) bind: Bind,
    pub(crate) start: Start,
    pub(crate) min_uncached_tokens: Option<u64>,
    pub(crate) mutations: Vec<Mutation>,
    /// The body field that tells the pod what it is believed to hold.
    pub(crate) cache_hint: Option<String>,
    pub(crate) speculates: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bind {
    Early,
    Late,
}

/// A step with everything it needs.
pub(crate) struct WorkflowStep {
    pub(crate) name: Name,
    pub(crate) selector: Selector,
    pub(crate) rules: StepRules,
    pub(crate) picked: Writes<Picked>,
}

/// Reads `workflow`, or the one step of a profile that has none.
pub(crate) fn read(
    node: Option<&Node>,
    whole: Span,
    problems: &mut Vec<Problem>,
) -> Vec<StepDraft> {
    let nothing =
        Node { span: whole, value: Yaml::Scalar { text: "single".to_owned(), quoted: Quoted::No } };
    let node = node.unwrap_or(&nothing);
    if let Some(steps) = node.get("steps")
        && let Yaml::Map(entries) = &node.value
        && entries.len() == 1
    {
        return read_steps(steps, problems);
    }
    let entry = match SettingEntry::read(node, "workflow") {
        Ok(entry) => entry,
        Err(problem) => {
            problems.push(problem);
            return Vec::new();
        }
    };
    match entry.name {
        "single" => {
            let entry = SettingEntry { name: Role::SERVE, ..entry };
            let settings = Settings::read(&entry, STEP, &[], problems);
            says_nothing(&entry, SettingScope { before: 0, after: 0 }, problems);
            vec![draft(&entry, &settings, SelectorPlace::Top)]
        }
        "prefill_decode" => prefill_decode(&entry, problems),
        other => {
            let message = format!("there is no workflow `{other}`");
            problems.push(
                Problem::new(ProblemKind::UnknownPlugin, entry.span, message)
                    .cure("use `single`, `prefill_decode` or `steps`"),
            );
            Vec::new()
        }
    }
}

fn read_steps(node: &Node, problems: &mut Vec<Problem>) -> Vec<StepDraft> {
    let Yaml::List(items) = &node.value else {
        let message = format!("`steps` is {}, not a list", node.kind());
        problems.push(
            Problem::new(ProblemKind::Syntax, node.span, message)
                .cure("write `- name: {parameter: value}`"),
        );
        return Vec::new();
    };
    if items.is_empty() {
        let problem = Problem::new(ProblemKind::Syntax, node.span, "`steps` is empty");
        problems.push(problem.cure("give at least one step"));
    }
    if let Some(beyond) = items.get(MOST_STEPS) {
        let message = format!("`steps` has {} steps; {MOST_STEPS} are the most", items.len());
        let problem = Problem::new(ProblemKind::Syntax, beyond.span, message);
        problems.push(problem.cure("remove this one and those after it"));
        return Vec::new();
    }
    let mut steps: Vec<StepDraft> = Vec::new();
    for (before, item) in items.iter().enumerate() {
        match SettingEntry::read(item, "step") {
            Err(problem) => problems.push(problem),
            Ok(entry) => {
                if let Some(first) = steps.iter().find(|step| step.name == *entry.name) {
                    let message = format!("two steps are called `{}`", entry.name);
                    problems.push(
                        Problem::new(ProblemKind::Syntax, entry.span, message)
                            .also(first.span, "the first one")
                            .cure("give each step a name of its own"),
                    );
                }
                let settings = Settings::read(&entry, STEP, &[], problems);
                let after = items.len() - 1 - before;
                says_nothing(&entry, SettingScope { before, after }, problems);
                steps.push(draft(&entry, &settings, SelectorPlace::Named(entry.name.to_owned())));
            }
        }
    }
    before_late(&steps, problems);
    steps
}

/// Two steps with the protocol's mutations filled in.
fn prefill_decode(entry: &SettingEntry<'_>, problems: &mut Vec<Problem>) -> Vec<StepDraft> {
    let steps = [Role::PREFILL, Role::DECODE];
    let settings = Settings::read(entry, PREFILL_DECODE, &steps, problems);
    let transfer = transfer(settings.or("transfer", "nixl"));
    let mut drafts = Vec::new();
    for name in steps {
        let given = entry.settings.iter().find(|(key, _)| key.text() == Some(name));
        let step = match given.map(|(key, value)| SettingEntry::named(key, value)) {
            None => SettingEntry { name, span: entry.span, settings: &[] },
            Some(Ok(step)) => step,
            Some(Err(problem)) => {
                problems.push(problem);
                continue;
            }
        };
        let settings = Settings::read(&step, STEP, &[], problems);
        said_by_transfer(&step, problems);
        if name == Role::DECODE {
            says_nothing(&step, SettingScope { before: 1, after: 0 }, problems);
        }
        drafts.push(draft(&step, &settings, SelectorPlace::Named(name.to_owned())));
    }
    if let [prefill, decode] = &mut drafts[..] {
        let least = settings.maybe("min_uncached_tokens");
        prefill.rules.min_uncached_tokens = prefill.rules.min_uncached_tokens.or(least);
        prefill.rules.mutations.insert(0, Mutation::OfferKv(transfer));
        if transfer.cuts_prefill_short() {
            prefill.rules.mutations.insert(0, Mutation::PrefillOnly);
        }
        decode.rules.mutations.insert(0, Mutation::TakeKv(transfer));
        decode.rules.start = transfer.start();
    }
    before_late(&drafts, problems);
    drafts
}

fn draft(entry: &SettingEntry<'_>, settings: &Settings, selector: SelectorPlace) -> StepDraft {
    let span_of = |name| settings.find(name).map_or(entry.span, |setting| setting.span);
    let role = settings.maybe::<String>("role").unwrap_or_else(|| entry.name.to_owned());
    let selector = settings.maybe("selector").map_or(selector, SelectorPlace::Named);
    let mut mutations = Vec::new();
    if settings.or("prefill_only", false) {
        mutations.push(Mutation::PrefillOnly);
    }
    mutations.extend(settings.maybe("offers").map(|word| Mutation::OfferKv(transfer(word))));
    mutations.extend(settings.maybe("takes").map(|word| Mutation::TakeKv(transfer(word))));
    let fields: Vec<(String, serde_json::Value)> = settings.maybe("set").unwrap_or_default();
    mutations.extend(fields.into_iter().map(|(field, value)| Mutation::Set { field, value }));
    let computes = [Role::SERVE, Role::PREFILL, Role::DECODE].contains(&role.as_str());
    let rules = StepRules {
        role: Role::named(&role),
        failure: FailurePolicy {
            attempts: settings.or("attempts", 3),
            then: match settings.or("then", "fail") {
                "skip" => AfterFailure::Skip,
                "restart" => AfterFailure::Restart,
                _ => AfterFailure::Fail,
            },
        },
        fallbacks: settings.or("fallbacks", 2),
        deadline: settings.maybe("deadline"),
        lease: settings.maybe("lease"),
        bind: if settings.or("bind", "early") == "late" { Bind::Late } else { Bind::Early },
        start: if settings.or("start", "after") == "together" {
            Start::Together
        } else {
            Start::After
        },
        min_uncached_tokens: settings.maybe("min_uncached_tokens"),
        mutations,
        cache_hint: settings.maybe("cache_hint"),
        speculates: settings.maybe("speculate").unwrap_or(computes),
    };
    StepDraft {
        name: entry.name.into(),
        span: entry.span,
        role_span: span_of("role"),
        selector_span: span_of("selector"),
        selector,
        rules,
    }
}

impl StepRules {
    /// Whether the step is left out when the next one has little to compute.
    pub(crate) const fn may_be_needless(&self) -> bool {
        self.min_uncached_tokens.is_some()
    }

    /// Whether it keeps one computed prompt for a later step.
    pub(crate) fn hands_over(&self) -> bool {
        self.mutations.iter().any(|mutation| matches!(mutation, Mutation::OfferKv(_)))
    }

    /// As it would be written in `steps`, without the name.
    pub(crate) fn written(&self) -> String {
        let mut all = vec![
            format!("role: {}", writer::word(self.role.as_str())),
            format!("attempts: {}", self.failure.attempts),
            format!("then: {}", self.failure.then.word()),
            format!("fallbacks: {}", self.fallbacks),
        ];
        all.extend(self.deadline.map(|time| format!("deadline: {}", writer::time(time))));
        all.extend(self.lease.map(|time| format!("lease: {}", writer::time(time))));
        all.push(format!("bind: {}", if self.bind == Bind::Late { "late" } else { "early" }));
        let start = if self.start == Start::Together { "together" } else { "after" };
        all.push(format!("start: {start}"));
        all.extend(self.min_uncached_tokens.map(|least| format!("min_uncached_tokens: {least}")));
        let mut fields = Vec::new();
        for mutation in &self.mutations {
            match mutation {
                Mutation::PrefillOnly => all.push("prefill_only: true".to_owned()),
                Mutation::OfferKv(transfer) => all.push(format!("offers: {}", transfer.word())),
                Mutation::TakeKv(transfer) => all.push(format!("takes: {}", transfer.word())),
                Mutation::Set { field, value } => fields.push((field.clone(), value.clone())),
            }
        }
        if !fields.is_empty() {
            all.push(format!("set: {}", Value::Fields(fields)));
        }
        all.extend(self.cache_hint.iter().map(|field| format!("cache_hint: {field}")));
        all.push(format!("speculate: {}", self.speculates));
        all.join(", ")
    }
}

fn transfer(word: &str) -> Transfer {
    let all = [
        Transfer::Nixl,
        Transfer::Bootstrap,
        Transfer::SharedStorage,
        Transfer::Mooncake,
        Transfer::TensorRt,
    ];
    all.into_iter().find(|transfer| transfer.word() == word).unwrap_or_default()
}
