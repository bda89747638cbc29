// Requests as they end, and why each went where it went.

import { address, here } from "./address.js";
import { bar, cell, clock, count, empty, focusSoon, h, micros, table } from "./draw.js";
import { explanation } from "./explanation.js";
import { CAUSES } from "./failures.js";
import { filters, wanted } from "./filters.js";
import { get } from "./stream.js";

// How many are asked for, if a filter is set.
const MOST = 200;

// Which one is open stands in the address, with the filters, so that the link can be shared.
const addressOf = (id) => address("decisions", id, wanted());

function enter(state) {
  search(state);
  const { ui } = state;
  const id = here().view === "decisions" ? here().part : "";
  if ((ui.decision?.id ?? "") === id) return;
  const before = ui.decision?.id;
  ui.decision = id ? { id } : undefined;
  // Back to where it was opened, unless the user came from elsewhere on the page.
  if (id || document.querySelector(".panel")?.contains(document.activeElement)) {
    focusSoon(id ? ".panel" : `[href="${CSS.escape(addressOf(before))}"]`);
  }
  if (!id) return;
  get(`/decisions/${encodeURIComponent(id)}`).then(
    (found) => { if (ui.decision?.id === id) ui.decision = { id, found }; },
    (error) => { if (ui.decision?.id === id) ui.decision = { id, error: error.message }; },
  ).finally(state.redraw);
}

// Asks for what the filters want: now, and again with every snapshot.
function search({ ui, redraw }) {
  const query = new URLSearchParams(wanted()).toString();
  if (!query) { ui.search = undefined; return; }
  if (ui.search?.query !== query) ui.search = { query };
  const search = ui.search;
  if (search.isAsked) return;
  search.isAsked = true;
  get(`/decisions?view=rows&last=${MOST}&${query}`).then(
    ({ decisions }) => { search.found = decisions; search.error = undefined; },
    (error) => { search.error = error.message; },
  ).finally(() => { search.isAsked = false; redraw(); });
}

const close = () => { location.hash = address("decisions", "", wanted()); };

const statusKind = (record) => (record.status >= 500 || record.end === "broken" ? "bad" : record.status >= 400 ? "warn" : "");

function row(state, record) {
  const { predicted, actual, speculative } = record.cached_tokens;
  const isOpen = state.ui.decision?.id === record.id;
  const given = record.best ? record.best.tokens - predicted : 0;
  const why = record.cause ? (CAUSES[record.cause] ?? record.cause) : record.end === "whole" ? null : record.end.replace("_", " ");
  return h("tr", { "data-key": record.id, class: isOpen ? "open" : null },
    h("th", { scope: "row" },
      h("a", { class: record.explained ? "link" : "opens", href: addressOf(record.id), "aria-current": isOpen ? "true" : null }, h("span", { class: "name" }, record.id.slice(0, 13))),
      h("small", {}, clock(record.ended_at))),
    cell("Model", null, h("span", {}, record.model || "–"), h("small", {}, [record.tenant, record.api].filter(Boolean).join(" · "))),
    cell("Pod", null, h("span", {}, record.pod ?? "–"), h("small", {}, record.retries ? `${record.retries} tried again` : null)),
    cell("Status", "why", h("span", { class: statusKind(record) }, record.status), h("small", { title: record.reason }, why)),
    cell("First byte", "number", h("span", {}, micros(record.first_byte_us)), h("small", {}, `${micros(record.total_us)} in all`)),
    cell("Cached of prompt", "with-bar", h("span", {}, `${count(actual)} / ${count(record.prompt_tokens)}`), record.prompt_tokens ? bar(actual / record.prompt_tokens, "saved") : null),
    cell("Predicted", "number", h("span", {}, count(predicted)), h("small", {}, speculative ? "speculative" : null)),
    cell("Given away", "number", h("span", {}, given > 0 ? count(given) : "–"), h("small", {}, given > 0 ? record.best.why : null)));
}

function panel(state) {
  const { id, found, error } = state.ui.decision;
  const outcome = !found ? "" : found.pod ? ` went to ${found.pod}` : found.cause ? ` got ${found.status}` : "";
  return h("aside", { class: "panel", "aria-label": "Explanation", "data-key": "panel", tabindex: 0 },
    h("div", { class: "title" }, h("h2", {}, "Why ", h("code", {}, id.slice(0, 13)), outcome),
      h("button", { class: "chip", title: "Escape", onclick: close }, "close")),
    error ? empty(error) : found ? explanation(found) : empty("Asking…"));
}

// The list stands still while the user points at it: new rows would take the one away that is aimed at. A finger that
// was lifted is still "hovering", so only a mouse counts.
function steady(ui, all) {
  if (ui.paused) return [ui.paused, "paused"];
  const list = document.querySelector("[data-key=rows]");
  const isAt = list?.matches(":focus-within") || (ui.isMouse && list?.matches(":hover"));
  const query = ui.search?.query ?? "";
  if ((!isAt && !ui.decision) || ui.heldFor !== query) ui.held = undefined;
  else ui.held ??= all;
  ui.heldFor = query;
  return ui.held?.length ? [ui.held, ui.decision ? "held while one is open" : "held while you are at it"] : [all, ""];
}

function words({ search }, explained) {
  if (search) return `Of the last requests and the failures of a day, up to ${MOST}. The address of this page shows the same to others.`;
  return explained > 0
    ? `Up to ${explained} a second are recorded in full, and of refusals the first ten. Those, and those that went wrong, are listed before others.`
    : "None are recorded in full: set `explained` in the configuration to see why requests go where they go.";
}

export const decisions = {
  title: "Decisions",
  enter,
  draw(state) {
    const { decisions: last, explained_per_second: explained } = state.snapshot;
    const { ui } = state;
    const [list, why] = steady(ui, ui.search ? ui.search.found ?? [] : last);
    const pause = h("button", { class: "chip", "aria-pressed": String(Boolean(ui.paused)), onclick: () => { ui.paused = ui.paused ? undefined : list; state.redraw(); } },
      ui.paused ? "paused" : "pause");
    const leave = (event) => { if (event.key === "Escape" && ui.decision) close(); };
    const heads = [["Request"], ["Model"], ["Pod"], ["Status"], ["First byte", "number"], ["Cached of prompt"], ["Predicted", "number"], ["Given away", "number"]];
    const none = ui.search ? empty(ui.search.error ?? (ui.search.found ? "No request is like that." : "Asking…"))
      : empty("No request has ended yet. Send one to the client address, or try ", h("code", {}, "wornpath demo"), ".");
    return h("div", { class: ui.decision ? "beside" : null, onkeydown: leave },
      h("div", { "data-key": "list" },
        h("div", { class: "title" }, h("h1", {}, "Decisions"), h("span", { class: "quiet" }, ui.paused ? "" : why, " ", pause)),
        h("p", { class: "quiet" }, words(ui, explained)),
        filters(state),
        list.length ? h("div", { "data-key": "rows", onpointermove: (event) => { ui.isMouse = event.pointerType === "mouse"; } },
          table(heads, list.map((record) => row(state, record)), "cards")) : none),
      ui.decision ? panel(state) : null);
  },
};
