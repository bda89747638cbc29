// A second profile that decides beside the first one without effect: how often they agree, and what each choice was
// predicted to give.

import { cell, count, duration, h, percent, table } from "./draw.js";

const each = (sum, times) => (times ? sum / times : NaN);

function row(one) {
  const all = one.agreed + one.differed + one.held + one.refused;
  const [chosen, shadow] = [each(one.chosen_tokens, one.valued), each(one.shadow_tokens, one.valued)];
  const [chosenTime, shadowTime] = [each(one.chosen_seconds, one.timed), each(one.shadow_seconds, one.timed)];
  return h("tr", { "data-key": `${one.profile}-${one.shadow}` },
    h("th", { scope: "row" }, h("span", { class: "name" }, one.shadow), h("small", {}, `beside ${one.profile}`)),
    cell("Compared", "number", count(all)),
    cell("Agreed", "number", percent(each(one.agreed, all)), h("small", {}, `${count(one.differed)} differed`)),
    cell("Would hold", "number", count(one.held)),
    cell("Would refuse", "number", count(one.refused)),
    cell("Cached tokens", "number", h("span", { class: shadow > chosen ? "good" : null }, count(shadow)), h("small", {}, `${count(chosen)} on the chosen pods`)),
    cell("First token", "number", h("span", { class: shadowTime < chosenTime ? "good" : null }, duration(shadowTime)), h("small", {}, `${duration(chosenTime)} on the chosen pods`)));
}

export function shadow({ snapshot: { shadows = [] } }) {
  if (!shadows.length) return null;
  const heads = [["Shadow"], ["Compared", "number"], ["Agreed", "number"], ["Would hold", "number"], ["Would refuse", "number"],
    ["Cached tokens", "number"], ["First token", "number"]];
  return h("section", { class: "shadow", "data-key": "shadow" },
    h("h2", {}, "Shadow profile"),
    table(heads, shadows.map(row), "cards"),
    h("p", { class: "quiet legend" }, "It decides a part of the requests beside the profile in use, and nothing follows from it. Tokens and times are predicted, each per request."));
}
