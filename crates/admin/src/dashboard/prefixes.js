// The index: the largest prefixes in the caches as an icicle. A cell is as wide as what is cached below it, and as
// strong as many pods hold it.

import { bytes, count, empty, h, rate, waiting } from "./draw.js";
import { icicle } from "./icicle.js";
import { get } from "./stream.js";

const EVERY = 3000;
// More pods than this are chosen from a list.
const CHIPS = 12;
let asked = 0;

function enter(state) {
  const now = performance.now();
  if (now - asked < EVERY) return;
  asked = now;
  get("/index/prefixes").then((found) => {
    Object.assign(state.ui, { prefixes: layout(found), unanswered: null });
  }, (error) => { state.ui.unanswered = error.message; }).finally(state.redraw);
}

// Gives every run its row and its place, as shares of the whole width.
function layout(found) {
  const children = found.runs.map(() => []);
  const roots = [];
  found.runs.forEach((run, at) => (run.follows === null ? roots : children[run.follows]).push(at));
  const cells = found.runs.map((run) => ({ ...run, row: 0, left: 0, width: 0, children: [] }));
  const whole = Math.max(1, roots.reduce((sum, at) => sum + cells[at].weight, 0));
  const place = (list, row, left, width, weight) => {
    let from = left;
    for (const at of list) {
      const cell = Object.assign(cells[at], { row, left: from, width: (width * cells[at].weight) / weight, children: children[at] });
      from += cell.width;
      place(children[at], row + 1, cell.left, cell.width, cell.weight);
    }
  };
  place(roots, 0, 0, 1, whole);
  return { ...found, cells };
}

// What is chosen is known by its name: in the next answer it may stand elsewhere.
function choose(state, found, at) {
  state.ui.prefix = found.cells[at]?.prefix;
  state.redraw();
}

const chosenAt = ({ ui }, found) => Math.max(0, found.cells.findIndex((run) => run.prefix === ui.prefix));

const tokens = (found, blocks) => (found.block_size ? `${count(blocks * found.block_size)} tokens` : `${count(blocks)} blocks`);
const holders = (found, run) => (run.holders.length === 1 ? found.pods[run.holders[0]] : `${run.holders.length} pods`);

function drawing(state, found) {
  const pod = found.pods.indexOf(state.ui.pod);
  // Against what most pods hold together: in a large fleet, one pod and six of a hundred would look alike.
  const most = Math.max(1, ...found.cells.map((run) => run.holders.length));
  const cells = found.cells.map((run) => ({
    ...run, key: run.prefix, text: tokens(found, run.blocks), small: holders(found, run),
    label: `${tokens(found, run.blocks)}, ${holders(found, run)}, after ${tokens(found, run.depth)}`,
    strength: run.holders.length / most,
  }));
  const isOff = (run) => pod >= 0 && !run.holders.includes(pod);
  return icicle("run", cells, { chosen: chosenAt(state, found), choose: (at) => choose(state, found, at), isOff });
}

function chosen(state, found) {
  const run = found.cells[chosenAt(state, found)];
  if (!run) return null;
  return h("dl", { class: "facts" },
    h("dt", {}, "Prefix"), h("dd", {}, h("code", {}, run.prefix)),
    h("dt", {}, "Reaches"), h("dd", {}, `from ${tokens(found, run.depth)} to ${tokens(found, run.depth + run.blocks)}`),
    h("dt", {}, "Held by"), h("dd", {}, run.holders.map((pod) => h("span", { class: "chip" }, found.pods[pod]))),
    h("dt", {}, "Followed by"), h("dd", {}, `${count(run.children.length)} continuations; ${count(run.weight)} cached blocks from here on`));
}

function filter(state, found) {
  const choose = (value) => { state.ui.pod = value; state.redraw(); };
  if (found.pods.length > CHIPS) {
    const option = (name, value) => h("option", { value: value ?? "", selected: state.ui.pod === value }, name);
    return h("p", { class: "choice" }, h("label", { for: "holder" }, "Highlight what is held by "),
      h("select", { id: "holder", onchange: (event) => choose(event.target.value || undefined) },
        option("all pods", undefined), found.pods.map((name) => option(name, name))));
  }
  const choice = (name, value) => h("button", {
    class: "chip", "data-key": `pod-${value}`, "aria-pressed": String(state.ui.pod === value),
    onclick: () => choose(value),
  }, name);
  return h("div", { class: "chips", role: "group", "aria-label": "Highlight what a pod holds" },
    choice("all pods", undefined), found.pods.map((name) => choice(name, name)));
}

function figures({ index }) {
  const facts = [
    [count(index.blocks), "distinct blocks"], [count(index.entries), "held over all pods"],
    [rate(index.blocks ? index.entries / index.blocks : 0), "copies of each"], [count(index.sets), "sets of pods"],
    [bytes(index.table_bytes), "of tables"], [count(index.suspects), "pods with holes"],
  ];
  return h("p", { class: "figures" }, facts.map(([value, unit]) => h("span", {}, h("b", {}, value), h("small", {}, unit))));
}

export const prefixes = {
  title: "Index",
  enter,
  draw(state) {
    const found = state.ui.prefixes;
    const drawn = !found ? [waiting(state, "Looking at the caches…")] : found.cells.length === 0
      ? [empty("Nothing is cached yet, as far as the router knows. It learns from the pods' cache events, or from what it sends them: send a request.")]
      : [filter(state, found), drawing(state, found), chosen(state, found),
        h("p", { class: "quiet" }, `The ${count(found.cells.length)} largest runs among ${count(found.looked_at)} cached blocks: wide is much, strong is held by many, below stands what follows. `,
          found.cut_short ? `${found.cut_short} pods have more than is looked at. ` : "",
          found.detached ? `${count(found.detached)} blocks hang on no known beginning and are left out.` : "")];
    return h("div", {}, h("h1", {}, "Shared prefixes"), figures(state.snapshot), drawn);
  },
};
