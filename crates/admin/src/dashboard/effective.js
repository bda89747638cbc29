// The configuration in force, key by key, and where each value comes from.

import { cell, h, table } from "./draw.js";

const isDefault = ({ source }) => source === "default";

function row({ key, value, source, overridden }, at) {
  return h("tr", { "data-key": `${key}-${source}-${at}`, class: overridden ? "dropped" : null },
    h("th", { scope: "row" }, h("code", {}, key)),
    cell("Value", "value", h("code", {}, value)),
    cell("From", null, source, overridden ? h("small", {}, "an option overrides it") : null));
}

export function effective(state) {
  const { ui } = state;
  const all = ui.effective?.values;
  if (!all) return null;
  const wanted = (ui.wantedKey ?? "").trim().toLowerCase();
  const given = all.filter((one) => (ui.withDefaults || !isDefault(one)) && one.key.toLowerCase().includes(wanted));
  return h("section", { class: "effective", "data-key": "effective" },
    h("div", { class: "title" }, h("h2", {}, "Configuration in force"),
      h("button", {
        class: "chip", type: "button", "aria-pressed": String(Boolean(ui.withDefaults)), onclick: () => { ui.withDefaults = !ui.withDefaults; state.redraw(); },
      }, "with defaults")),
    h("div", { class: "find" }, h("input", { type: "search", id: "key", "aria-label": "Find keys", placeholder: "Part of a key", oninput: (event) => { ui.wantedKey = event.target.value; state.redraw(); } }),
      h("span", { class: "quiet", "aria-live": "polite" }, `${given.length} of ${all.length} values`)),
    given.length ? table([["Key"], ["Value"], ["From"]], given.map(row)) : h("p", { class: "empty" }, "Nothing is set but defaults."));
}
