// The profiles that decide, each as a graph: what prepares a request, the slots it fills, and the filters, scorers and
// picker that read them, step by step.

import { shadow } from "./shadow.js";
import { cell, empty, h, table, waiting } from "./draw.js";
import { get } from "./stream.js";

let generation = null;

function enter(state) {
  const now = state.snapshot?.generation;
  if (state.ui.profiles && generation === now) return;
  generation = now;
  get("/profiles").then((found) => {
    Object.assign(state.ui, { profiles: found, unanswered: null });
  }, (error) => {
    generation = null;
    state.ui.unanswered = error.message;
  }).finally(state.redraw);
}

const WIDTH = 166;
const HEIGHT = 34;
const GAP = 10;
const COLUMN = 214;

// Boxes of one column below each other.
function column(cards, x, y, kind) {
  return cards.map((card, at) => ({ ...card, kind, x, y: y + at * (HEIGHT + GAP) }));
}

const bottom = (boxes, y) => (boxes.length ? y + boxes.length * (HEIGHT + GAP) : y);

// Places for everything: preparers, slots, then for each step its filters, scorers and picker, and last what holds.
function layout(graph) {
  const top = 46;
  // A value that a picker writes and no plugin reads is its decision, which the graph shows anyway.
  const cards = [...graph.prepare, ...graph.steps.flatMap((step) => step.plugins), ...graph.hold];
  const slots = [...new Set([...graph.prepare.flatMap((card) => card.writes), ...cards.flatMap((card) => card.reads)])];
  const boxes = [...column(graph.prepare, 0, top, "plugin"), ...column(slots.map((plugin) => ({ plugin, reads: [], writes: [] })), COLUMN, top, "slot")];
  const heads = [["prepare", 0, 14], ...(slots.length ? [["slots", COLUMN, 14]] : [])];
  let y = 14;
  for (const step of graph.steps) {
    const stages = ["filter", "score", "pick"].map((stage) => step.plugins.filter((card) => card.stage === stage));
    const from = y + 32;
    stages.forEach((cards, at) => {
      if (!cards.length) return;
      heads.push([`${["filter", "score", "pick"][at]}${graph.steps.length > 1 ? ` · ${step.step}` : ""}`, COLUMN * (2 + at), y]);
      boxes.push(...column(cards, COLUMN * (2 + at), from, "plugin"));
    });
    y = Math.max(...stages.map((cards) => bottom(cards, from))) + 24;
  }
  if (graph.hold.length) {
    heads.push(["hold unless", COLUMN * 5, 14]);
    boxes.push(...column(graph.hold, COLUMN * 5, top, "plugin"));
  }
  const width = Math.max(...boxes.map((box) => box.x), 0) + WIDTH + 2;
  const floor = Math.max(...boxes.map((box) => box.y), 0) + HEIGHT;
  return { boxes, heads, slots, width, floor, height: floor + 16 + slots.length * 6 };
}

// A line of straight pieces with round corners.
function rounded(points) {
  return points.map(([x, y], at) => {
    const [before, after] = [points[at - 1], points[at + 1]];
    if (!before) return `M${x} ${y}`;
    if (!after) return `L${x} ${y}`;
    const toward = ([px, py]) => {
      const far = Math.hypot(px - x, py - y) || 1;
      const by = Math.min(7, far / 2) / far;
      return `${x + (px - x) * by} ${y + (py - y) * by}`;
    };
    return `L${toward(before)}Q${x} ${y} ${toward(after)}`;
  }).join("");
}

// Writes go straight to their slot. Reads that would cross other boxes go around below them, each slot in a lane of
// its own.
function wires({ boxes, slots, floor }, lit) {
  const all = [];
  for (const box of boxes.filter((one) => one.kind === "plugin")) {
    const at = box.y + HEIGHT / 2;
    const add = (name, kind, points) => all.push(h("path", { class: `wire ${kind}${lit === box.plugin || lit === name ? " on" : ""}`, d: rounded(points) }));
    for (const name of [...box.writes, ...box.reads]) {
      const lane = slots.indexOf(name);
      if (lane < 0) continue;
      const slot = boxes.find((one) => one.kind === "slot" && one.plugin === name);
      const middle = slot.y + HEIGHT / 2;
      const turn = 12 + (lane % 5) * 5;
      const low = floor + 12 + lane * 6;
      if (box.writes.includes(name) && box.x > slot.x) add(name, "writes", [[box.x + WIDTH, at], [box.x + WIDTH + turn, at], [box.x + WIDTH + turn, low], [slot.x + WIDTH + turn, low], [slot.x + WIDTH + turn, middle], [slot.x + WIDTH, middle]]);
      else if (box.writes.includes(name)) add(name, "writes", [[box.x + WIDTH, at], [slot.x - turn, at], [slot.x - turn, middle], [slot.x, middle]]);
      else if (box.x < slot.x) add(name, "reads", [[slot.x, middle + 6], [slot.x - turn, middle + 6], [slot.x - turn, at + 6], [box.x + WIDTH, at + 6]]);
      else if (box.x === slot.x + COLUMN) add(name, "reads", [[slot.x + WIDTH, middle], [slot.x + WIDTH + turn, middle], [slot.x + WIDTH + turn, at], [box.x, at]]);
      else add(name, "reads", [[slot.x + WIDTH, middle], [slot.x + WIDTH + turn, middle], [slot.x + WIDTH + turn, low], [box.x - turn, low], [box.x - turn, at], [box.x, at]]);
    }
  }
  return all;
}

function drawing(state, graph) {
  const laid = layout(graph);
  const lit = state.ui.plugin;
  const light = (name) => { state.ui.plugin = state.ui.plugin === name ? undefined : name; state.redraw(); };
  const box = (one) => {
    const words = one.kind === "slot" ? `slot ${one.plugin}` : `${one.plugin}: reads ${one.reads.join(", ") || "nothing"}, writes ${one.writes.join(", ") || "nothing"}`;
    return h("g", {
      class: `box ${one.kind}${lit === one.plugin ? " on" : ""}`, tabindex: 0, role: "button", "aria-pressed": String(lit === one.plugin), "aria-label": words,
      onclick: () => light(one.plugin), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); light(one.plugin); } },
    },
    h("rect", { x: one.x + 1, y: one.y + 1, width: WIDTH - 2, height: HEIGHT - 2, rx: one.kind === "slot" ? HEIGHT / 2 : 5 }),
    h("text", { x: one.x + 14, y: one.y + HEIGHT / 2 + 4 }, one.plugin),
    one.weight === null || one.weight === undefined ? null : h("text", { class: "weight", x: one.x + WIDTH - 12, y: one.y + HEIGHT / 2 + 4 }, `× ${one.weight}`));
  };
  return h("div", { class: "graph", tabindex: 0, role: "region", "aria-label": "Graph of the profile" },
    h("svg", { width: laid.width, height: laid.height, viewBox: `0 0 ${laid.width} ${laid.height}` },
      laid.heads.map(([name, x, y]) => h("text", { class: "head", x: x + 2, y: y + 6 }, name)),
      wires(laid, lit), laid.boxes.map(box)));
}

export const profiles = {
  title: "Profiles",
  enter,
  draw(state) {
    const found = state.ui.profiles;
    if (!found) return h("div", {}, h("h1", {}, "Profiles"), waiting(state, "Asking…"));
    const at = Math.min(state.ui.profile ?? 0, found.profiles.length - 1);
    const profile = found.profiles[at];
    const choice = (one, number) => h("button", {
      class: "chip", "data-key": one.name, "aria-pressed": String(number === at), onclick: () => { state.ui.profile = number; state.redraw(); },
    }, one.name);
    const routes = found.routes.map((route) => h("tr", {},
      cell("Path", null, route.path ?? "any"), cell("Model", null, route.model ?? "any"), cell("Tenant", null, route.tenant ?? "any"), cell("Profile", null, route.profile)));
    return h("div", {},
      h("h1", {}, "Profiles"),
      h("div", { class: "chips", role: "group", "aria-label": "Profiles" }, found.profiles.map(choice)),
      h("p", {}, profile.description ?? ""),
      h("p", { class: "quiet" }, `Caches: ${profile.cache.meaning}.`, profile.cache.doubtful?.length ? ` Doubtful for ${profile.cache.doubtful.join(", ")}.` : ""),
      shadow(state),
      drawing(state, profile.graph),
      h("p", { class: "quiet on-phone" }, "The graph goes on to the right: scroll it sideways."),
      h("details", {}, h("summary", {}, "As it is written, with every default"), h("pre", {}, profile.text)),
      h("h2", {}, "Routes"),
      routes.length ? table([["Path"], ["Model"], ["Tenant"], ["Profile"]], routes, "cards") : empty(`Every request goes by ${found.profiles[0].name}.`));
  },
};
