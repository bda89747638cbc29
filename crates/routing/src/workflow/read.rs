//! Reads `workflow`: `single`, `prefill_decode` or `steps`. Dead settings, which have no effect or
//! contradict another setting, are refused.

use wornpath_yaml::{
    Node, Parameter, Problem, ProblemKind, Quoted, SettingEntry, SettingValues, Span, Takes, Yaml,
};

use super::{Bind, SelectorPlace, StepDraft, StepRules, parts};
use crate::name::Role;
use crate::plan::{AfterFailure, FailurePolicy, Mutation, Start};
use crate::transfer::Transfers;

/// Every decision selects a pod for every step, so their number is bounded.
const MOST_STEPS: usize = 32;

/// The parameters of a step.
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
        Takes::Text,
        "Keep the computed prompt for a later step, by this transfer protocol.",
    ),
    Parameter::optional(
        "takes",
        Takes::Text,
        "Take the computed prompt of an earlier step, by this transfer protocol.",
    ),
    Parameter::optional("set", Takes::Fields, "Body fields to set for this step."),
    Parameter::optional(
        "brings",
        Takes::Fields,
        "Parts of its response for later steps: a name for each, and where it is as a JSON pointer, such as `{text: /choices/0/message/content}`. The \
         response is then not streamed.",
    ),
    Parameter::optional(
        "needs",
        Takes::Trees,
        "Body fields to set to what earlier steps brought: in the value, the text `<name>` stands for that part. If its step was skipped, the client's \
         field stays.",
    ),
    Parameter::optional(
        "cache_hint",
        Takes::Text,
        "Body field to set to what the pod is believed to hold: `tokens`, and `runs` of `blocks` with their `tier` and `location`.",
    ),
    Parameter::optional(
        "speculate",
        Takes::Flag,
        "Whether the pod will hold the prompt afterwards; by default yes for the roles `serve`, `prefill` and `decode`, unless the step has `needs`.",
    ),
];

/// The parameters of `prefill_decode`, besides its two steps.
pub(crate) const PREFILL_DECODE: &[Parameter] = &[
    Parameter::with_default(
        "min_uncached_tokens",
        Takes::Whole(1, u64::MAX),
        "2048",
        "Stay with one step if the decode pod has fewer tokens of the prompt to compute.",
    ),
    Parameter::with_default(
        "transfer",
        Takes::Text,
        "nixl",
        "How the computed prompt gets from one engine to the other: one of the transfer protocols.",
    ),
];

/// Reads `workflow`; a profile without one has a single step.
pub(crate) fn read(
    node: Option<&Node>,
    whole: Span,
    transfers: &Transfers,
    problems: &mut Vec<Problem>,
) -> Vec<StepDraft> {
    let single =
        Node { span: whole, value: Yaml::Scalar { text: "single".to_owned(), quoted: Quoted::No } };
    let node = node.unwrap_or(&single);
    if let Some(steps) = node.get("steps")
        && let Yaml::Map(entries) = &node.value
        && entries.len() == 1
    {
        return read_steps(steps, transfers, problems);
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
            let settings = SettingValues::read(&entry, STEP, &[], problems);
            check_neighbours(&entry, SettingScope { before: 0, after: 0 }, problems);
            let drafts = vec![draft(&entry, &settings, SelectorPlace::Top, transfers, problems)];
            parts::check(&drafts, problems);
            drafts
        }
        "prefill_decode" => prefill_decode(&entry, transfers, problems),
        other => {
            let message = format!("unknown workflow `{other}`");
            problems.push(
                Problem::new(ProblemKind::UnknownPlugin, entry.span, message)
                    .cure("use `single`, `prefill_decode` or `steps`"),
            );
            Vec::new()
        }
    }
}

fn read_steps(node: &Node, transfers: &Transfers, problems: &mut Vec<Problem>) -> Vec<StepDraft> {
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
        let message = format!("`steps` has {} steps; the limit is {MOST_STEPS}", items.len());
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
                let settings = SettingValues::read(&entry, STEP, &[], problems);
                let after = items.len() - 1 - before;
                check_neighbours(&entry, SettingScope { before, after }, problems);
                steps.push(draft(
                    &entry,
                    &settings,
                    SelectorPlace::Named(entry.name.to_owned()),
                    transfers,
                    problems,
                ));
            }
        }
    }
    check_late_binding(&steps, problems);
    parts::check(&steps, problems);
    steps
}

/// Reads `prefill_decode`: two steps with the mutations of the transfer protocol.
fn prefill_decode(
    entry: &SettingEntry<'_>,
    transfers: &Transfers,
    problems: &mut Vec<Problem>,
) -> Vec<StepDraft> {
    let steps = [Role::PREFILL, Role::DECODE];
    let settings = SettingValues::read(entry, PREFILL_DECODE, &steps, problems);
    let transfer = transfers.find(&settings, "transfer", problems);
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
        let settings = SettingValues::read(&step, STEP, &[], problems);
        check_transfer(&step, problems);
        if name == Role::DECODE {
            check_neighbours(&step, SettingScope { before: 1, after: 0 }, problems);
        }
        drafts.push(draft(
            &step,
            &settings,
            SelectorPlace::Named(name.to_owned()),
            transfers,
            problems,
        ));
    }
    if let ([prefill, decode], Some(transfer)) = (&mut drafts[..], transfer) {
        let least = settings.maybe("min_uncached_tokens");
        prefill.rules.min_uncached_tokens = prefill.rules.min_uncached_tokens.or(least);
        prefill.rules.mutations.insert(0, Mutation::OfferKv(transfer.clone()));
        if transfer.cuts_prefill_short() {
            prefill.rules.mutations.insert(0, Mutation::PrefillOnly);
        }
        decode.rules.start = transfer.start();
        decode.rules.mutations.insert(0, Mutation::TakeKv(transfer));
    }
    check_late_binding(&drafts, problems);
    parts::check(&drafts, problems);
    drafts
}

fn draft(
    entry: &SettingEntry<'_>,
    settings: &SettingValues,
    selector: SelectorPlace,
    transfers: &Transfers,
    problems: &mut Vec<Problem>,
) -> StepDraft {
    let span_of = |name| settings.find(name).map_or(entry.span, |setting| setting.span);
    let role = settings.maybe::<String>("role").unwrap_or_else(|| entry.name.to_owned());
    let selector = settings.maybe("selector").map_or(selector, SelectorPlace::Named);
    let mut mutations = Vec::new();
    if settings.or("prefill_only", false) {
        mutations.push(Mutation::PrefillOnly);
    }
    mutations.extend(transfers.find(settings, "offers", problems).map(Mutation::OfferKv));
    mutations.extend(transfers.find(settings, "takes", problems).map(Mutation::TakeKv));
    let fields: Vec<(String, serde_json::Value)> = settings.maybe("set").unwrap_or_default();
    mutations.extend(fields.into_iter().map(|(field, value)| Mutation::Set { field, value }));
    mutations.extend(parts::mutations(settings));
    let is_rewritten = settings.find("needs").is_some();
    let computes =
        !is_rewritten && [Role::SERVE, Role::PREFILL, Role::DECODE].contains(&role.as_str());
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
        parts_span: if is_rewritten { span_of("needs") } else { span_of("brings") },
        role_span: span_of("role"),
        selector_span: span_of("selector"),
        selector,
        rules,
    }
}

/// The number of steps before and after a step.
#[derive(Clone, Copy)]
struct SettingScope {
    before: usize,
    after: usize,
}

/// Refuses settings that need a step before or after this one.
fn check_neighbours(step: &SettingEntry<'_>, around: SettingScope, problems: &mut Vec<Problem>) {
    for (key, value) in step.settings {
        let missing = match (key.text().unwrap_or_default(), value.text()) {
            ("takes", _) | ("start", Some("together")) if around.before == 0 => "before",
            ("min_uncached_tokens" | "lease", _) | ("then", Some("skip")) if around.after == 0 => {
                "after"
            }
            _ => continue,
        };
        let name = key.text().unwrap_or_default();
        let message =
            format!("`{name}` of `{}` has no effect: no step comes {missing} it", step.name);
        problems.push(
            Problem::new(ProblemKind::BadParameter, key.span, message)
                .cure(format!("remove it, or put a step {missing} `{}`", step.name)),
        );
    }
}

/// Refuses `min_uncached_tokens` before a late-bound step: the condition needs the next step's pod.
fn check_late_binding(steps: &[StepDraft], problems: &mut Vec<Problem>) {
    for pair in steps.windows(2) {
        let [step, next] = pair else { continue };
        let least = step.rules.min_uncached_tokens.filter(|least| *least > 0);
        if let (Some(least), Bind::Late) = (least, next.rules.bind) {
            let name = &step.name;
            let next = &next.name;
            let message = format!(
                "`min_uncached_tokens` of `{name}` ({least}) has no effect: `{next}` is bound late, so its \
                 uncached tokens are unknown when the plan is made"
            );
            problems.push(Problem::new(ProblemKind::BadParameter, step.span, message).cure(
                format!("write `min_uncached_tokens: 0`, or remove `bind: late` of `{next}`"),
            ));
        }
    }
}

/// Refuses settings of `prefill_decode`'s steps that `transfer` determines.
fn check_transfer(step: &SettingEntry<'_>, problems: &mut Vec<Problem>) {
    for (key, _) in step.settings {
        let name = key.text().unwrap_or_default();
        if ["prefill_only", "offers", "takes", "start"].contains(&name) {
            let message = format!("`{name}` of `{}` is determined by `transfer`", step.name);
            problems.push(
                Problem::new(ProblemKind::BadParameter, key.span, message)
                    .cure("remove it, or write the two steps out under `steps`"),
            );
        }
    }
}
