// Requests as they end, and why each went where it went.

import { bar, cell, count, empty, focusSoon, h, micros, table } from "./draw.js";
import { get } from "./stream.js";

// Which one is open stands in the address, so that the link can be shared: `#decisions/…`, as it is escaped there.
const asked = () => location.hash.split("/")[1];
const addressOf = (id) => `#decisions/${encodeURIComponent(id)}`;

function enter(state) {
  const { ui } = state;
  const id = asked();
  if (ui.decision?.id === id) return;
  const before = ui.decision?.id;
  ui.decision = id ? { id } : undefined;
  // Back to where it was opened, unless the user came from elsewhere on the page.
  if (id || document.querySelector(".panel")?.contains(document.activeElement)) {
    focusSoon(id ? ".panel" : `.link[href="#decisions/${CSS.escape(before)}"]`);
  }
  if (!id) return;
  get(`/decisions/${id}`).then(
    (found) => { if (ui.decision?.id === id) ui.decision = { id, found }; },
    (error) => { if (ui.decision?.id === id) ui.decision = { id, error: error.message }; },
  ).finally(state.redraw);
}

const close = () => { location.hash = "#decisions"; };

const statusKind = (record) => (record.status >= 500 || record.end === "broken" ? "bad" : record.status >= 400 ? "warn" : "");

function row(state, record) {
  const { predicted, actual, speculative } = record.cached_tokens;
  const isOpen = state.ui.decision?.id === encodeURIComponent(record.id);
  const name = h("span", { class: "name" }, record.id.slice(0, 13));
  return h("tr", { "data-key": record.id, class: isOpen ? "open" : null },
    h("th", { scope: "row" },
      record.explained
        ? h("a", { class: "link", href: addressOf(record.id), "aria-current": isOpen ? "true" : null }, name)
        : name,
      h("small", {}, `${record.api} · ${record.profile}${record.tenant ? ` · ${record.tenant}` : ""}`)),
    cell("Pod", null, h("span", {}, record.pod ?? "–"), h("small", {}, record.retries ? `${record.retries} tried again` : null)),
    cell("Status", "number", h("span", { class: statusKind(record) }, record.status), h("small", {}, record.end === "whole" ? null : record.end.replace("_", " "))),
    cell("First byte", "number", micros(record.first_byte_us)),
    cell("Total", "number", micros(record.total_us)),
    cell("Cached of prompt", "with-bar", h("span", {}, `${count(actual)} / ${count(record.prompt_tokens)}`), bar(actual / record.prompt_tokens, "saved")),
    cell("Predicted", "number", h("span", {}, count(predicted)), h("small", {}, speculative ? "speculative" : null)));
}

const score = (value) => value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2).replace("-", "−");

// One candidate: what each scorer added, as parts of a bar that all candidates share the scale of.
function candidate(step, pod, most) {
  const isPicked = step.pick?.pod === pod.pod;
  const parts = pod.contributions.map((added, at) =>
    h("i", { class: `part s${at % 5}`, title: `${step.scorers[at].name} ${score(added)}`, vars: { "--share": (Math.abs(added) / most).toFixed(4) } }));
  const words = pod.contributions.map((added, at) => `${step.scorers[at].name} ${score(added)}`).join(", ");
  return h("tr", { "data-key": pod.pod, class: isPicked ? "picked" : pod.dropped ? "dropped" : null },
    h("th", { scope: "row" }, h("span", { class: "name" }, isPicked ? "→ " : "", pod.pod), h("small", {}, `${count(pod.blocks)} blocks cached`)),
    pod.dropped
      ? h("td", { colspan: 2, "data-label": "Outcome" }, h("span", {}, `dropped by ${pod.dropped.by}`), h("small", {}, pod.dropped.why))
      : [cell("Scores", "scores", h("span", { class: "stack" }, parts), h("small", {}, words)),
        cell("Total", "number", pod.total === null ? "–" : score(pod.total))]);
}

function stepOf(step) {
  const sums = step.candidates.map((pod) => pod.contributions.reduce((sum, added) => sum + Math.abs(added), 0));
  const most = Math.max(1e-9, ...sums);
  const order = step.candidates.slice().sort((a, b) =>
    Number(Boolean(a.dropped)) - Number(Boolean(b.dropped)) || (b.total ?? -Infinity) - (a.total ?? -Infinity));
  const filters = step.filters.map((filter) => h("li", {}, h("b", {}, filter.name),
    ` dropped ${filter.dropped}`, filter.on_empty ? `, none left: ${filter.on_empty}` : "", h("small", {}, micros(filter.took_us))));
  const scorers = step.scorers.map((scorer, at) => h("li", {}, h("i", { class: `part key s${at % 5}` }), h("b", {}, scorer.name),
    ` × ${scorer.weight}`, h("small", {}, micros(scorer.took_us))));
  const pick = step.pick && h("li", {}, h("b", {}, step.pick.name), ` picked ${step.pick.pod}`,
    step.pick.ties > 1 ? `, one of ${step.pick.ties} with that total` : "", step.pick.mark ? `, ${step.pick.mark}` : "", h("small", {}, micros(step.pick.took_us)));
  const isCost = step.candidates.some((pod) => pod.total < 0);
  const stage = (name, items) => (items.length ? h("div", { class: "stage" }, h("h4", {}, name), h("ul", {}, items)) : null);
  return h("section", { class: "step" },
    h("h3", {}, `Step ${step.step}`, step.role === step.step ? null : h("small", {}, ` role ${step.role}`)),
    h("div", { class: "stages" }, stage("Filter", filters), stage("Score", scorers), stage("Pick", pick ? [pick] : [])),
    table([["Pod"], [isCost ? "Scores (costs: shorter is better)" : "Scores"], ["Total", "number"]], order.map((pod) => candidate(step, pod, most)), "candidates"));
}

function explanation({ explanation: told, calls = [], ...record }) {
  const prepare = told.prepare.map((part) => `${part.name} ${micros(part.took_us)}`);
  if (told.lookup_us !== null) prepare.push(`index ${micros(told.lookup_us)}`);
  return [
    h("dl", { class: "facts" },
      h("dt", {}, "Model"), h("dd", {}, record.model || "–"),
      h("dt", {}, "Prepared by"), h("dd", {}, prepare.join(", ") || "nothing"),
      h("dt", {}, "Decided after"), h("dd", {}, `${micros(record.decided_us)}${record.has_waited ? ", having waited for a pod" : ""}`),
      h("dt", {}, "Cached"), h("dd", {}, `predicted ${count(record.cached_tokens.predicted)}${record.cached_tokens.speculative ? " (speculative: no event had confirmed it)" : ""}, actually ${count(record.cached_tokens.actual)} of ${count(record.prompt_tokens)} tokens`)),
    told.steps.map(stepOf),
    told.hold.length ? h("section", { class: "step" }, h("h3", {}, "Hold unless"), h("ul", { class: "plain" }, told.hold.map((judge) =>
      h("li", {}, h("b", {}, judge.name), judge.objection ? ` objects to ${judge.pod}: ${judge.objection}` : ` lets ${judge.pod} pass`)))) : null,
    calls.length ? h("section", { class: "step" }, h("h3", {}, "Calls"), h("ol", { class: "plain" }, calls.map((call) =>
      h("li", {}, h("b", {}, call.step), ` ${call.url} after ${micros(call.sent_us)}, first answer in ${micros(call.took_us)}`,
        call.failure ? h("span", { class: "bad" }, ` ${call.failure}`) : "")))) : null,
  ];
}

function panel(state) {
  const { id, found, error } = state.ui.decision;
  const body = error ? empty(error) : !found ? empty("Asking…") : found.explanation ? explanation(found)
    : empty("This one was not taken down. More are with a higher ", h("code", {}, "explained"), " in the configuration.");
  return h("aside", { class: "panel", "aria-label": "Explanation", "data-key": "panel", tabindex: -1 },
    h("div", { class: "title" }, h("h2", {}, "Why ", h("code", {}, id.slice(0, 13)), found?.pod ? ` went to ${found.pod}` : ""),
      h("button", { class: "chip", title: "Escape", onclick: close }, "close")),
    body);
}

// The list stands still while the user points at it: new rows would take the one away that is aimed at. A finger that
// was lifted is still "hovering", so only a mouse counts.
function steady(ui, all) {
  if (ui.paused) return [ui.paused, "paused"];
  const list = document.querySelector("[data-key=rows]");
  const isAt = list?.matches(":focus-within") || (ui.isMouse && list?.matches(":hover"));
  if (!isAt && !ui.decision) ui.held = undefined;
  else ui.held ??= all;
  return ui.held ? [ui.held, ui.decision ? "held while one is open" : "held while you are at it"] : [all, ""];
}

export const decisions = {
  title: "Decisions",
  enter,
  draw(state) {
    const { decisions: all, explained_per_second: explained } = state.snapshot;
    const { ui } = state;
    const [list, why] = steady(ui, all);
    const pause = h("button", { class: "chip", "aria-pressed": String(Boolean(ui.paused)), onclick: () => { ui.paused = ui.paused ? undefined : list; state.redraw(); } },
      ui.paused ? "paused" : "pause");
    const leave = (event) => { if (event.key === "Escape" && ui.decision) close(); };
    const heads = [["Request"], ["Pod"], ["Status", "number"], ["First byte", "number"], ["Total", "number"], ["Cached of prompt"], ["Predicted", "number"]];
    return h("div", { class: ui.decision ? "beside" : null, onkeydown: leave },
      h("div", { "data-key": "list" },
        h("div", { class: "title" }, h("h1", {}, "Decisions"), h("span", { class: "quiet" }, ui.paused ? "" : why, " ", pause)),
        h("p", { class: "quiet" }, explained > 0
          ? `Up to ${explained} a second are taken down in full: open one to see why. Those, and those that went wrong, are listed before others.`
          : "None are taken down in full: set `explained` in the configuration to see why requests go where they go."),
        list.length ? h("div", { "data-key": "rows", onpointermove: (event) => { ui.isMouse = event.pointerType === "mouse"; } },
          table(heads, list.map((record) => row(state, record)), "cards")) : empty("No request has ended yet. Send one to the client address, or try ",
          h("code", {}, "wornpath demo"), ".")),
      ui.decision ? panel(state) : null);
  },
};

