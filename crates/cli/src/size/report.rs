//! The report of `size`, as text and as JSON.

use super::{SizeArguments, Trials};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use wornpath_sim::sizing::{Figures, FleetSize, Measured, Objective, Sizing};

/// Signs of a bar up to the limit, and in all.
const LIMIT_AT: usize = 10;
const LONGEST_BAR: usize = 30;
const GIB: f64 = (1_u64 << 30) as f64;

pub(super) struct SizeReport<'a> {
    pub(super) file: String,
    pub(super) sizing: &'a Sizing<'a>,
    /// The KV cache of every fleet of the curve.
    pub(super) kv_tokens: usize,
    most: u16,
    price_per_hour: Option<f64>,
    /// The curve, by number of pods.
    pub(super) curve: Vec<Measured>,
    /// The smallest number of pods that meets the objectives.
    pub(super) found: Option<usize>,
    /// The smallest cache that does, and what one step less achieved.
    cache: Option<CacheNeed>,
}

struct CacheNeed {
    tokens: usize,
    less: Option<Measured>,
}

/// What the fleet costs.
struct Cost {
    requests_per_hour: f64,
    pods: f64,
}

impl Cost {
    fn pod_hours_per_thousand_requests(&self) -> f64 {
        1e3 * self.pods / self.requests_per_hour
    }
}

impl<'a> SizeReport<'a> {
    pub(super) fn of(
        arguments: &SizeArguments,
        sizing: &'a Sizing<'a>,
        trials: Trials<'a>,
        found: Option<usize>,
        cache: Option<usize>,
    ) -> Self {
        let kv_tokens = arguments.kv_tokens.unwrap_or(sizing.engine.kv_tokens());
        let of_cache = |size: &FleetSize| Some(size.pods) == found && size.kv_tokens < kv_tokens;
        let cache = cache.map(|tokens| {
            let smaller = trials.measured.iter().rev();
            let mut smaller = smaller.filter(|(size, _)| of_cache(size) && size.kv_tokens < tokens);
            let less = smaller.next().map(|(_, measured)| measured.clone());
            CacheNeed { tokens, less }
        });
        let of_curve = |measured: &Measured| measured.size.kv_tokens == kv_tokens;
        let curve = trials.measured.into_values().filter(of_curve).collect();
        Self {
            file: arguments.trace.display().to_string(),
            sizing,
            kv_tokens,
            most: arguments.max_pods,
            price_per_hour: arguments.price_per_hour,
            curve,
            found,
            cache,
        }
    }

    fn at(&self, pods: usize) -> Option<&Measured> {
        self.curve.iter().find(|measured| measured.size.pods == pods)
    }

    /// What the fleet that was found achieved.
    fn answer(&self) -> Option<(&Measured, &Figures)> {
        let measured = self.at(self.found?)?;
        Some((measured, measured.figures.as_ref()?))
    }

    fn cost(&self, pods: usize) -> Option<Cost> {
        let (_, figures) = self.answer()?;
        let requests = self.sizing.runs.first()?.turns.len() as f64;
        let hours = figures.span.as_secs_f64().max(1e-3) / 3_600.0;
        Some(Cost { requests_per_hour: requests / hours, pods: pods as f64 })
    }

    /// The traffic, the engines and the profile, in a sentence.
    pub(super) fn title(&self) -> String {
        let run = self.sizing.runs.first();
        let requests = run.map_or(0, |run| run.turns.len());
        let block = run.map_or(0, |run| run.block_size.get());
        format!(
            "{}: {requests} requests in blocks of {block} tokens, {} run(s); engines {} with {} tokens of KV cache, profile {}",
            self.file,
            self.sizing.runs.len(),
            self.sizing.engine.name(),
            self.kv_tokens,
            self.sizing.profile.name
        )
    }

    pub(super) fn objectives(&self) -> String {
        let all: Vec<String> = self.sizing.objectives.iter().map(ToString::to_string).collect();
        all.join(" and ")
    }

    /// The answer, a sentence each: how many pods, the neighbours, the cache and the cost.
    pub(super) fn sentences(&self) -> Vec<String> {
        let objectives = self.objectives();
        let Some((measured, _)) = self.answer() else {
            let best = self.at(usize::from(self.most)).map(|it| self.achieved(it));
            let best = best.map_or_else(String::new, |best| format!(": {best}"));
            return vec![format!(
                "No number of pods up to {} meets {objectives}; with {} it misses{best}. Give a larger --max-pods, a faster \
                 --engine, or a higher limit.",
                self.most, self.most
            )];
        };
        let pods = measured.size.pods;
        let mut all = vec![format!("{} {objectives}: {}.", meeting(pods), self.achieved(measured))];
        if let Some(less) = self.at(pods - 1) {
            all.push(format!("One pod less misses: {}.", self.achieved(less)));
        }
        if let Some(more) = self.at(pods + 1) {
            let verdict = if more.is_met { "One pod more" } else { "One pod more misses" };
            all.push(format!("{verdict}: {}.", self.achieved(more)));
        }
        all.extend(self.worse());
        all.extend(self.cache_sentence());
        all.extend(self.cost_sentence());
        all
    }

    /// Larger fleets that miss although the answer does not.
    fn worse(&self) -> Option<String> {
        let found = self.found?;
        let missed = self.curve.iter().filter(|tried| !tried.is_met && tried.size.pods > found);
        let missed: Vec<String> = missed.map(|tried| tried.size.pods.to_string()).collect();
        (!missed.is_empty()).then(|| {
            format!(
                "More is not always better here: {} pods miss, because shared prefixes are spread over more caches; leave \
                 room, and check with more --seeds.",
                missed.join(" and ")
            )
        })
    }

    fn cache_sentence(&self) -> Option<String> {
        let CacheNeed { tokens, less } = self.cache.as_ref()?;
        let (measured, _) = self.answer()?;
        let pods = measured.size.pods;
        let share = 100.0 * *tokens as f64 / self.kv_tokens as f64;
        let all = self.gib(tokens * pods);
        let each = self.gib(*tokens);
        let mut text = format!(
            "KV cache: {tokens} tokens in each pod are enough ({each:.1} GiB, {share:.0}% of what was assumed; {all:.1} GiB in all)"
        );
        if let Some(less) = less {
            let tokens = less.size.kv_tokens;
            text.push_str(&format!("; with {tokens} it misses: {}", self.achieved(less)));
        }
        text.push('.');
        Some(text)
    }

    fn gib(&self, tokens: usize) -> f64 {
        tokens as f64 * self.sizing.engine.kv_bytes_per_token() as f64 / GIB
    }

    fn cost_sentence(&self) -> Option<String> {
        let pods = self.found?;
        let cost = self.cost(pods)?;
        let each = cost.pod_hours_per_thousand_requests();
        let rate = cost.requests_per_hour / 3_600.0;
        Some(match self.price_per_hour {
            None => format!(
                "Cost: {each:.3} pod hours for 1000 requests, at the {rate:.1} requests/s of the trace; --price-per-hour shows money."
            ),
            Some(price) => {
                let hour = price * pods as f64;
                format!(
                    "Cost: {hour:.2} an hour, {:.2} a day, {:.3} for 1000 requests at the {rate:.1} requests/s of the trace; a pod more or less is {price:.2} an hour.",
                    24.0 * hour,
                    each * price
                )
            }
        })
    }

    /// The value of each objective.
    fn achieved(&self, measured: &Measured) -> String {
        let Some(figures) = &measured.figures else {
            let percent = 100.0 * measured.ended;
            return format!("known after {percent:.0}% of the requests");
        };
        let values = self.sizing.objectives.iter().zip(&figures.values);
        let value = |(objective, value): (&Objective, &Option<Duration>)| {
            format!("{} {}", objective.name(), shown(*value))
        };
        let all: Vec<String> = values.map(value).collect();
        let failed = match figures.failures {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{}{failed}", all.join(", "))
    }

    pub(super) fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        writeln!(out, "{}\n", self.title())?;
        write!(out, "{:>4}", "pods")?;
        for objective in &self.sizing.objectives {
            write!(out, "  {:>12}", objective.name())?;
        }
        let width = LONGEST_BAR + 2;
        writeln!(out, "  {:<width$} {:>8} {:>8} {:>7}", "", "hit rate", "busiest", "failed")?;
        for measured in &self.curve {
            self.write_row(measured, out)?;
        }
        writeln!(out)?;
        for sentence in self.sentences() {
            writeln!(out, "{sentence}")?;
        }
        Ok(())
    }

    /// A row of the curve; the bar is about the objective that is worst met.
    fn write_row(&self, measured: &Measured, out: &mut impl Write) -> anyhow::Result<()> {
        let pods = measured.size.pods;
        let Some(figures) = &measured.figures else {
            let percent = 100.0 * measured.ended;
            let verdict = if measured.is_met { "meets" } else { "misses" };
            return Ok(writeln!(
                out,
                "{pods:>4}  {verdict}; stopped after {percent:.0}% of the requests"
            )?);
        };
        write!(out, "{pods:>4}")?;
        for value in &figures.values {
            write!(out, "  {:>12}", shown(*value))?;
        }
        let of_limit = self.sizing.objectives.iter().zip(&figures.values);
        let of_limit = of_limit.map(|(objective, value)| {
            value.map_or(f64::INFINITY, |it| it.as_secs_f64() / objective.limit().as_secs_f64())
        });
        let bar = limit_bar(of_limit.fold(0.0, f64::max));
        let width = LONGEST_BAR + 2;
        let Figures { hit_rate, imbalance, failures, .. } = figures;
        Ok(writeln!(out, "  {bar:<width$} {hit_rate:>8.3} {imbalance:>7.2}x {failures:>7}")?)
    }

    pub(super) fn to_json(&self) -> Value {
        let milliseconds = |value: &Option<Duration>| value.map(|it| it.as_secs_f64() * 1e3);
        let values = |figures: &Figures| {
            let named = self.sizing.objectives.iter().zip(&figures.values);
            let value = |(objective, value): (&Objective, _)| json!({"name": objective.name(), "milliseconds": milliseconds(value)});
            named.map(value).collect::<Vec<_>>()
        };
        let point = |measured: &Measured| {
            let figures = measured.figures.as_ref();
            json!({
                "pods": measured.size.pods,
                "kv_tokens": measured.size.kv_tokens,
                "meets": measured.is_met,
                "ended": measured.ended,
                "values": figures.map(values),
                "hit_rate": figures.map(|it| it.hit_rate),
                "imbalance": figures.map(|it| it.imbalance),
                "failures": figures.map(|it| it.failures),
            })
        };
        let objective = |objective: &Objective| {
            let limit = objective.limit().as_secs_f64() * 1e3;
            json!({"name": objective.name(), "limit_milliseconds": limit})
        };
        let cost = self.found.and_then(|pods| self.cost(pods));
        let price = self.price_per_hour;
        json!({
            "file": self.file,
            "engine": self.sizing.engine.name(),
            "profile": self.sizing.profile.name,
            "runs": self.sizing.runs.len(),
            "objectives": self.sizing.objectives.iter().map(objective).collect::<Vec<_>>(),
            "pods": self.found,
            "kv_tokens_per_pod": self.cache.as_ref().map(|cache| cache.tokens),
            "kv_bytes_per_pod": self.cache.as_ref().map(|cache| {
                cache.tokens as u64 * self.sizing.engine.kv_bytes_per_token()
            }),
            "cost_per_hour": price.zip(self.found).map(|(price, pods)| price * pods as f64),
            "pod_hours_per_1000_requests": cost.map(|cost| cost.pod_hours_per_thousand_requests()),
            "curve": self.curve.iter().map(point).collect::<Vec<_>>(),
        })
    }
}

fn meeting(pods: usize) -> String {
    if pods == 1 { "1 pod meets".to_owned() } else { format!("{pods} pods meet") }
}

/// A latency in milliseconds; a request that failed has none.
pub(super) fn shown(value: Option<Duration>) -> String {
    match value.map(|value| value.as_secs_f64() * 1e3) {
        None => "failed".to_owned(),
        Some(ms) if ms < 100.0 => format!("{ms:.1} ms"),
        Some(ms) => format!("{ms:.0} ms"),
    }
}

/// A bar of a value in parts of its limit, with a mark at the limit.
fn limit_bar(of_limit: f64) -> String {
    let length = (of_limit * LIMIT_AT as f64).ceil().min(LONGEST_BAR as f64) as usize;
    let filled = |from: usize, to: usize| {
        let signs = length.clamp(from, to) - from;
        format!("{}{}", "#".repeat(signs), " ".repeat(to - from - signs))
    };
    let beyond = if of_limit > (LONGEST_BAR / LIMIT_AT) as f64 { "+" } else { "" };
    let bar = format!("{}|{}{beyond}", filled(0, LIMIT_AT), filled(LIMIT_AT, LONGEST_BAR));
    bar.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_marks_the_limit() {
        assert_eq!(limit_bar(0.5), "#####     |");
        assert_eq!(limit_bar(1.0), "##########|");
        assert_eq!(limit_bar(1.2), "##########|##");
        assert_eq!(limit_bar(99.0), format!("##########|{}+", "#".repeat(20)));
        assert_eq!(limit_bar(f64::INFINITY), limit_bar(99.0));
    }
}
