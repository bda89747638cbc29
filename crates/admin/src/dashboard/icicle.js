// Prefixes as an icicle: what follows stands below, wide is much. Arrow keys walk along it.

import { h } from "./draw.js";

const ROWS = 12;
// Pixels that a cell needs for its words.
const LABEL = 88;

// Draws cells with `row`, `left` and `width` (shares of the whole width), `follows` (the cell above, or null), `key`,
// `text`, `small`, `label` and `strength` (0 to 1). `chosen` is the number of one, and `choose` is told another.
export function icicle(name, cells, { chosen, choose, isOff = () => false }) {
  const room = document.querySelector(".icicle")?.clientWidth ?? innerWidth;
  const walk = (event, at) => {
    const beside = cells.flatMap((cell, other) => (cell.follows === cells[at].follows ? [other] : []));
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const below = cells.findIndex((cell) => cell.follows === at);
    const next = event.key === "ArrowUp" ? cells[at].follows : event.key === "ArrowDown" && below >= 0 ? below
      : step ? beside[beside.indexOf(at) + step] : undefined;
    if (next === undefined || next === null) return;
    event.preventDefault();
    choose(next);
    requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(`${name}-${next}`)?.focus()));
  };
  const drawn = cells.map((cell, at) => cell.row >= ROWS || cell.width < 0.0015 ? null : h("button", {
    id: `${name}-${at}`, "data-key": cell.key, class: `run${cell.width * room < LABEL ? " slim" : ""}${isOff(cell) ? " off" : ""}`,
    tabindex: at === chosen ? 0 : -1, "aria-pressed": String(at === chosen), "aria-label": cell.label, title: `${cell.text}, ${cell.small}`,
    onclick: () => choose(at), onkeydown: (event) => walk(event, at),
    vars: { "--left": cell.left, "--width": cell.width, "--row": cell.row, "--held": cell.strength },
  }, h("span", {}, cell.text), h("small", {}, cell.small)));
  const rows = Math.min(ROWS, Math.max(0, ...cells.map((cell) => cell.row)) + 1);
  return h("div", { class: "icicle", role: "group", "aria-label": "Prefixes; arrow keys walk", vars: { "--rows": rows } }, drawn);
}
