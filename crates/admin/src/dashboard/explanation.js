// Why one request went where it went, or why no pod could take it.

import { clock, count, h, micros, table, cell } from "./draw.js";
import { CAUSES } from "./failures.js";
import { PASSED_OVER } from "./figures.js";

const plain = (value) => value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2).replace("-", "−");

// How a step's scores read: where a scorer counts milliseconds the total is a cost, and less is better.
function scale({ scorers }) {
  if (!scorers.some((scorer) => scorer.scale === "milliseconds")) return { isCost: false, as: plain, head: "Score: more is better" };
  const as = (added) => `${plain(added === 0 ? 0 : -added)} ms`;
  return { isCost: true, as, head: "Cost in ms: less is better" };
}

// One candidate: what each scorer added, as parts of a bar that all candidates share the scale of.
function candidate(step, pod, { most, as }) {
  const isPicked = step.pick?.pod === pod.pod;
  const parts = pod.contributions.map((added, at) =>
    h("i", { class: `part s${at % 5}`, title: `${step.scorers[at].name} ${as(added)}`, vars: { "--share": (Math.abs(added) / most).toFixed(4) } }));
  const words = pod.contributions.map((added, at) => `${step.scorers[at].name} ${as(added)}`).join(", ");
  return h("tr", { "data-key": pod.pod, class: isPicked ? "picked" : pod.dropped ? "dropped" : null },
    h("th", { scope: "row" }, h("span", { class: "name" }, isPicked ? "→ " : "", pod.pod), h("small", {}, `${count(pod.blocks)} blocks cached`)),
    pod.dropped
      ? h("td", { colspan: 2, "data-label": "Outcome" }, h("span", {}, `dropped by ${pod.dropped.by}`), h("small", {}, pod.dropped.why))
      : [cell("Scores", "scores", h("span", { class: "stack", "aria-hidden": "true" }, parts), h("small", {}, words)),
        cell("Total", "number", pod.total === null ? "–" : as(pod.total))]);
}

function stepOf(step) {
  const sums = step.candidates.map((pod) => pod.contributions.reduce((sum, added) => sum + Math.abs(added), 0));
  const { isCost, as, head } = scale(step);
  const most = Math.max(1e-9, ...sums);
  const order = step.candidates.slice().sort((a, b) =>
    Number(Boolean(a.dropped)) - Number(Boolean(b.dropped)) || (b.total ?? -Infinity) - (a.total ?? -Infinity));
  const filters = step.filters.map((filter) => h("li", {}, h("b", {}, filter.name),
    ` dropped ${filter.dropped}`, filter.on_empty ? `, none left: ${filter.on_empty}` : "", h("small", {}, micros(filter.took_us))));
  const scorers = step.scorers.map((scorer, at) => h("li", {}, h("i", { class: `part key s${at % 5}` }), h("b", {}, scorer.name),
    ` × ${scorer.weight}`, scorer.scale_ms ? ` × ${scorer.scale_ms} ms` : "", h("small", {}, micros(scorer.took_us))));
  const pick = step.pick && h("li", {}, h("b", {}, step.pick.name), ` picked ${step.pick.pod}`,
    step.pick.ties > 1 ? `, one of ${step.pick.ties} with that total` : "", step.pick.mark ? `, ${step.pick.mark}` : "", h("small", {}, micros(step.pick.took_us)));
  const stage = (name, items) => (items.length ? h("div", { class: "stage" }, h("h4", {}, name), h("ul", {}, items)) : null);
  const none = step.pick ? null : h("p", { class: "bad" }, `None of the ${step.candidates.length} pods could take it:`);
  return h("section", { class: "step" },
    h("h3", {}, `Step ${step.step}`, step.role === step.step ? null : h("small", {}, ` role ${step.role}`)),
    h("div", { class: "stages" }, stage("Filter", filters), stage("Score", scorers), stage("Pick", pick ? [pick] : [])),
    none,
    table([["Pod"], [step.pick ? head : "Why not"], [isCost ? "Cost" : step.pick ? "Total" : "", "number"]], order.map((pod) => candidate(step, pod, { most, as })), "candidates"));
}

// What went wrong, in words.
function refusal(record) {
  if (!record.cause) return null;
  return [h("dt", {}, "Failed"), h("dd", { class: record.status >= 500 ? "bad" : "warn" }, `${record.status}: ${CAUSES[record.cause] ?? record.cause}`,
    record.reason ? h("small", {}, record.reason) : null)];
}

// The pod that held more of the prompt, if one did.
function best({ best: other, cached_tokens: { predicted } }) {
  if (!other) return null;
  return [h("dt", {}, "Given away"), h("dd", {}, `${count(other.tokens - predicted)} tokens: `, h("b", {}, other.pod), ` held ${count(other.tokens)}, and ${PASSED_OVER[other.why] ?? other.why}`)];
}

function shadow({ shadow: other }) {
  if (!other) return null;
  const words = { held: "would have held it", refused: "would have refused it", agreed: `agrees on ${other.pod}`, differed: `would choose ${other.pod}` }[other.result];
  return [h("dt", {}, "Shadow"), h("dd", {}, h("b", {}, other.profile), ` ${words}`,
    other.pod ? `: ${count(other.cached_tokens)} tokens cached, first token after ${micros(other.first_token_us)}` : "")];
}

function facts(record) {
  const told = record.explanation;
  const prepare = told?.prepare.map((part) => `${part.name} ${micros(part.took_us)}`) ?? [];
  if (told && told.lookup_us !== null) prepare.push(`index ${micros(told.lookup_us)}`);
  return h("dl", { class: "facts" },
    h("dt", {}, "Ended"), h("dd", {}, clock(record.ended_at)),
    refusal(record),
    h("dt", {}, "Model"), h("dd", {}, record.model || "–"),
    record.tenant ? [h("dt", {}, "Tenant"), h("dd", {}, record.tenant)] : null,
    h("dt", {}, "Profile"), h("dd", {}, record.profile || "–"),
    told ? [h("dt", {}, "Prepared by"), h("dd", {}, prepare.join(", ") || "nothing")] : null,
    record.decided_us ? [h("dt", {}, "Decided after"), h("dd", {}, `${micros(record.decided_us)}${record.has_waited ? ", having waited for a pod" : ""}`)] : null,
    record.has_waited && !record.decided_us ? [h("dt", {}, "Waited"), h("dd", {}, micros(record.total_us))] : null,
    record.prompt_tokens === null ? null : [h("dt", {}, "Cached"), h("dd", {}, `predicted ${count(record.cached_tokens.predicted)}${record.cached_tokens.speculative ? " (speculative: no event had confirmed it)" : ""}, actually ${count(record.cached_tokens.actual)} of ${count(record.prompt_tokens)} tokens`)],
    best(record), shadow(record));
}

function untold(record) {
  if (record.cause === "request" || record.cause === "saturated") return h("p", { class: "quiet" }, "It was refused before any pod was considered.");
  return h("p", { class: "quiet" }, "The candidates of this one were not recorded. More are with a higher ", h("code", {}, "explained"), " in the configuration; of refusals, the first ten a second are.");
}

export function explanation({ calls = [], ...record }) {
  const told = record.explanation;
  return [
    facts(record),
    told?.steps.length ? told.steps.map(stepOf) : untold(record),
    told?.hold.length ? h("section", { class: "step" }, h("h3", {}, "Hold unless"), h("ul", { class: "plain" }, told.hold.map((judge) =>
      h("li", {}, h("b", {}, judge.name), judge.objection ? ` objects to ${judge.pod}: ${judge.objection}` : ` lets ${judge.pod} pass`)))) : null,
    calls.length ? h("section", { class: "step" }, h("h3", {}, "Calls"), h("ol", { class: "plain" }, calls.map((call) =>
      h("li", {}, h("b", {}, call.step), ` ${call.url} after ${micros(call.sent_us)}, first answer in ${micros(call.took_us)}`,
        call.failure ? h("span", { class: "bad" }, ` ${call.failure}`) : "")))) : null,
  ];
}
