// Making and updating the page: elements from plain calls, updated in place so that focus and scrolling stay, and
// numbers as people read them. Text is only ever text: nothing is read as markup.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "line", "rect", "circle", "g", "text"]);

// An element. `on…` are handlers, `vars` are CSS properties, everything else is an attribute.
export function h(tag, props, ...children) {
  const el = SHAPES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) el[name.toLowerCase()] = value;
    else if (name === "vars") for (const [key, v] of Object.entries(value)) el.style.setProperty(key, v);
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return el;
}

const HANDLERS = ["onclick", "onkeydown", "oninput", "onsubmit", "onchange", "onpointermove"];
const keyOf = (node) => node.nodeType === 1 ? node.getAttribute("data-key") : null;
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

// Makes what is there look like what is wanted, changing as little as possible.
export function patch(there, wanted) {
  if (there.nodeType !== 1) {
    if (there.nodeValue !== wanted.nodeValue) there.nodeValue = wanted.nodeValue;
    return;
  }
  for (const { name } of [...there.attributes]) {
    if (name !== "style" && !wanted.hasAttribute(name)) there.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && there.getAttribute(name) !== value) there.setAttribute(name, value);
  }
  if (there.style && there.style.cssText !== wanted.style.cssText) there.style.cssText = wanted.style.cssText;
  for (const name of HANDLERS) there[name] = wanted[name];
  // Keeps what the user is typing.
  if (there.nodeName === "TEXTAREA" || there.nodeName === "INPUT") return;
  patchChildren(there, [...wanted.childNodes]);
  if (there.nodeName === "SELECT" && there.value !== wanted.value) there.value = wanted.value;
}

export function patchChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = parent.firstChild;
  for (const next of wanted) {
    const known = keyOf(next) ? keyed.get(keyOf(next)) : at && !keyOf(at) && isAlike(at, next) ? at : null;
    if (known && isAlike(known, next)) {
      if (known === at) at = at.nextSibling;
      else parent.insertBefore(known, at);
      patch(known, next);
    } else {
      parent.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const NONE = "–";
const is = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value, digits = 1) {
  if (!is(value)) return NONE;
  const [unit, word] = value >= 1e9 ? [1e9, "G"] : value >= 1e6 ? [1e6, "M"] : value >= 1e4 ? [1e3, "k"] : [1, ""];
  const scaled = value / unit;
  if (unit === 1) return Math.round(scaled).toLocaleString("en");
  return scaled.toFixed(scaled < 10 ? digits : scaled < 100 ? 1 : 0) + word;
}

// Where two counts stand side by side that may be nearly the same.
export const finely = (value) => count(value, 2);

export const rate = (value) => !is(value) ? NONE : value >= 100 ? count(value) : value.toFixed(value >= 10 || value === 0 ? 0 : 1);
export const percent = (value) => !is(value) ? NONE : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)}%`;

export function duration(seconds) {
  if (!is(seconds)) return NONE;
  if (seconds < 0.0001) return `${(seconds * 1e6).toFixed(seconds < 1e-5 ? 1 : 0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

// The time of day, with the date if it is another.
export function clock(seconds) {
  if (!is(seconds)) return NONE;
  const then = new Date(seconds * 1000);
  const isToday = then.toDateString() === new Date().toDateString();
  const day = isToday ? "" : `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return `${day}${then.toLocaleTimeString("en-GB")}`;
}

export const micros = (value) => duration(is(value) ? value / 1e6 : value);

export function bytes(value) {
  if (!is(value)) return NONE;
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${(value / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// A share as a bar, with its meaning in words beside it.
export const bar = (share, kind = "") =>
  h("span", { class: `bar ${kind}`, "aria-hidden": "true", vars: { "--share": Math.max(0, Math.min(1, share || 0)).toFixed(4) } });

export const empty = (...words) => h("p", { class: "empty" }, words);

// What stands where an answer will: what is being done, or why there is none.
export const waiting = (state, words) => empty(state.ui.unanswered ? `Not known: ${state.ui.unanswered}.` : words);

// Moves the focus once what was asked for is drawn.
export const focusSoon = (selector) =>
  requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(selector)?.focus()));

export const table = (heads, rows, kind = "") =>
  h("div", { class: `sheet ${kind}` },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map(([name, cls]) => h("th", { scope: "col", class: cls }, name)))),
      h("tbody", {}, rows)));

// A cell that says on a narrow screen, where there are no columns, what it is.
export const cell = (label, cls, ...children) => h("td", { "data-label": label, class: cls }, children);

// The highest of each `size` values: an average would hide what is looked for.
function grouped(values, size) {
  if (size <= 1) return values;
  const groups = [];
  for (let at = values.length % size; at < values.length; at += size) {
    const known = values.slice(at, at + size).filter(is);
    groups.push(known.length ? Math.max(...known) : null);
  }
  return groups;
}

// The times without values, as shares of the width, each with its reason. The last value may still be on its way.
function spans(reasons, size, places) {
  const found = [];
  const first = reasons.length % size;
  for (let at = first; at < reasons.length; at += size) {
    const group = reasons.slice(at, at + size);
    if (group.includes(null) || (at + size >= reasons.length && found.at(-1)?.until !== at)) continue;
    const last = found.at(-1);
    if (last?.until === at && last.why === group[0]) last.until = at + size;
    else found.push({ at, until: at + size, why: group[0] });
  }
  const x = (at) => Math.min(1, Math.max(0, (places + 1 - (reasons.length - at) / size - 0.5) / places));
  return found.map(({ at, until, why }) => ({ from: x(at), share: x(until) - x(at), why }));
}

// Lines over a range of time, the highest value in words, marks where something changed, and the reasons of gaps. Each
// line is a list of numbers or nothing; all share one scale, from zero.
export function lines(series, { as, most, length = 120, points = 360, title = "last 2 min", marks = [], gaps = [] }) {
  const values = series.flatMap(({ values }) => values).filter(is);
  const highest = values.reduce((most, value) => Math.max(most, value), 0);
  const top = Math.max(most ?? 0, highest, 1e-9);
  const size = Math.ceil(length / points);
  const places = Math.floor(length / size) - 1;
  const shape = (values) => {
    let path = "";
    let pen = "M";
    values.forEach((value, at) => {
      if (!is(value)) { pen = "M"; return; }
      const x = (100 * (places + 1 - values.length + at)) / places;
      path += `${pen}${x.toFixed(2)} ${(39 - 37 * value / top).toFixed(2)}`;
      pen = "L";
    });
    return path;
  };
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("span", {}, title), h("span", {}, values.length ? `highest ${as(highest)}` : "")),
    h("div", { class: "plot" },
      spans(gaps, size, places).map(({ from, share, why }) =>
        h("div", { class: "gap", title: why, vars: { "--from": from.toFixed(4), "--share": share.toFixed(4) } }, h("span", {}, why))),
      h("svg", { class: "lines", viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" },
        h("line", { class: "floor", x1: 0, x2: 100, y1: 39.5, y2: 39.5 }),
        marks.map(({ x, cls }) => h("line", { class: `mark ${cls}`, x1: x.toFixed(2), x2: x.toFixed(2), y1: 0, y2: 39.5 })),
        series.map(({ values, cls }) => h("path", { class: cls ?? "", d: shape(grouped(values, size)) })))));
}
