// What is configured, and what would be wrong with something else: a profile or a configuration can be pasted and
// checked by the router itself, which changes nothing.

import { empty, h, waiting } from "./draw.js";
import { effective } from "./effective.js";
import { get, post } from "./stream.js";

let asked = null;

function enter(state) {
  // A configuration that is refused changes nothing but that it was.
  const now = `${state.snapshot?.generation} ${state.snapshot?.is_config_refused}`;
  if (asked === now && state.ui.config) return;
  asked = now;
  Promise.all([get("/config"), get("/profiles"), get("/log-level"), get("/config/effective")]).then(([config, profiles, { level }, effective]) => {
    Object.assign(state.ui, { config, profiles, level, effective, unanswered: null });
  }, (error) => {
    asked = null;
    state.ui.unanswered = error.message;
  }).finally(state.redraw);
}

const field = () => document.getElementById("pasted");

function check(state) {
  const text = field().value;
  const path = state.ui.kind === "configuration" ? "/config/check" : "/profiles/check";
  state.ui.checked = { text, waits: true };
  state.redraw();
  post(path, text, "application/yaml").then(
    (answer) => { state.ui.checked = { text, ...answer }; },
    (error) => { state.ui.checked = { text, good: false, problems: [], error: error.message }; },
  ).finally(state.redraw);
}

// Puts the cursor where a problem stands.
function goTo({ line, column, length }) {
  const area = field();
  const start = area.value.split("\n").slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0) + column - 1;
  area.focus();
  area.setSelectionRange(start, start + Math.max(1, length ?? 1));
  area.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(area).lineHeight));
}

function problem(text, one) {
  const line = text?.split("\n")[one.line - 1];
  const mark = " ".repeat(Math.max(0, one.column - 1)) + "^".repeat(Math.max(1, one.length ?? 1));
  return h("li", {},
    h("button", { class: "link", onclick: () => goTo(one) }, `line ${one.line}, column ${one.column}`), h("small", {}, one.code),
    h("p", {}, one.message),
    line ? h("pre", {}, `${line}\n${mark}`) : null,
    one.cure ? h("p", { class: "cure" }, one.cure) : null);
}

function verdict({ ui: { checked } }) {
  if (!checked) return empty("Paste a profile or a configuration and have it checked: every problem is shown with its place and its cure.");
  if (checked.waits) return empty("Checking…");
  if (checked.good) return h("p", { class: "verdict good" }, h("i", { class: "dot good" }), "Good: the router would take it.");
  return h("div", {},
    h("p", { class: "verdict bad" }, h("i", { class: "dot bad" }), checked.error ?? `${checked.problems.length === 1 ? "One problem" : `${checked.problems.length} problems`}: it would be refused.`),
    h("ol", { class: "problems" }, checked.problems.map((one) => problem(checked.text, one))));
}

function present(state) {
  const { ui: { config, level }, snapshot } = state;
  if (!config) return waiting(state, "Asking…");
  return [
    h("dl", { class: "facts" },
      h("dt", {}, "File"), h("dd", {}, config.file ? h("code", {}, config.file) : "none: everything was said on the command line"),
      h("dt", {}, "Reloaded"), h("dd", {}, config.reloads ? `${config.reloads === 1 ? "once" : `${config.reloads} times`} since the start` : "not since the start"),
      h("dt", {}, "Logs"), h("dd", {}, level),
      h("dt", {}, "Version"), h("dd", {}, snapshot.version)),
    config.refused ? h("div", {}, h("p", { class: "verdict bad" }, h("i", { class: "dot bad" }), "The file was refused when it was last read; the old configuration stays."),
      h("ol", { class: "problems" }, Array.isArray(config.refused) ? config.refused.map((one) => problem(null, one)) : h("li", {}, String(config.refused)))) : null,
  ];
}

export const setup = {
  title: "Setup",
  enter,
  draw(state) {
    const { ui } = state;
    const kind = ui.kind ?? "profile";
    const choice = (name) => h("button", {
      class: "chip", type: "button", "aria-pressed": String(kind === name), onclick: () => { ui.kind = name; ui.checked = undefined; state.redraw(); },
    }, name);
    const start = (one) => h("button", {
      class: "link", type: "button", onclick: () => { field().value = one.text; ui.kind = "profile"; ui.checked = undefined; state.redraw(); },
    }, one.name);
    const known = ui.profiles?.profiles ?? [];
    return h("div", {},
      h("h1", {}, "Setup"),
      present(state),
      h("h2", {}, "Check before you apply"),
      h("div", { class: "chips", role: "group", "aria-label": "What is pasted" }, choice("profile"), choice("configuration")),
      h("div", { class: "split" },
        h("form", { onsubmit: (event) => { event.preventDefault(); check(state); } },
          h("label", { class: "hidden", for: "pasted" }, "YAML"),
          h("textarea", { id: "pasted", rows: 18, spellcheck: "false", autocomplete: "off", wrap: "off", placeholder: "prepare: [tokenize, block_hash]\nfilter: [healthy, model]\nscore:\n  - cache_affinity: {weight: 2}\n  - least_load\npick: max_score" }),
          h("p", { class: "quiet" }, known.length ? ["Start from ", known.map((one, at) => [at ? ", " : "", start(one)]), "."] : ""),
          h("button", { type: "submit" }, "Check")),
        h("div", { "aria-live": "polite", id: "verdict" }, verdict(state))),
      effective(state));
  },
};
