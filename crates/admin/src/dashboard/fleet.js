// The fleet at a glance: how much comes, how fast it is answered, what caches save, and how every pod is.

import { changes, chart, gapsOf, ranges, remember } from "./history.js";
import { address, here } from "./address.js";
import { failures } from "./failures.js";
import { figures } from "./figures.js";
import { heat } from "./heat.js";
import { origins } from "./origins.js";
import { drawPod, enterPod } from "./pod.js";
import { slowWords, speeds } from "./speeds.js";
import { bar, cell, count, duration, empty, finely, h, lines, percent, rate, table } from "./draw.js";

// A load that fills its bar, unless a pod has more.
const BUSY = 16;
// With more pods than this, those that want a look come first and there is a field to find others.
const MANY = 12;
// And so many are shown at once.
const ROWS = 40;
// Of what wants a look, so much is said in words.
const MOST_CONCERNS = 6;
// How long an order of many pods stands, in milliseconds: rows that jump cannot be read.
const SETTLED = 5000;

const last = (values) => values.at(-1);

function tile(name, figures, chart, note) {
  return h("section", { class: "tile" },
    h("h2", {}, name),
    h("p", { class: "figures" }, figures.map(([value, unit, cls, line]) =>
      h("span", {}, h("b", { class: cls }, value), h("small", {}, line ? h("i", { class: `key ${line}` }) : null, unit)))),
    chart,
    h("p", { class: "quiet" }, note));
}

function tiles(state) {
  const { history, snapshot: { totals } } = state;
  const range = chart(state);
  // Minutes end in the past: what is now follows them.
  const all = state.past?.step > 1 ? [...history, state.snapshot.rates] : history;
  const of = (pick) => all.map((rates) => (rates ? pick(rates) : null));
  const requests = of((r) => r.requests);
  const failed = of((r) => r.failed || null);
  const [p50, p90, p99] = ["p50", "p90", "p99"].map((name) => of((r) => r.first_byte_seconds[name]));
  const hits = of((r) => r.hit_rate);
  const saved = of((r) => r.saved_tokens);
  const gaps = (pick, unknown) => ({ gaps: gapsOf(state, all, pick, unknown) });
  return h("div", { class: "tiles" },
    tile("Requests", [[rate(last(requests)), "per second"], ...(last(failed) > 0 ? [[rate(last(failed)), "failed", "bad"]] : [])],
      lines([{ values: requests }, { values: failed, cls: "bad" }], { ...range, ...gaps((r) => r.requests), as: (value) => `${rate(value)} per second` }),
      `${count(totals.requests)} since the start, ${count(totals.failed)} failed, ${count(totals.waiting)} waiting`),
    tile("Time to first byte", [[duration(last(p50)), "p50", null, "p50"], [duration(last(p90)), "p90", null, "p90"], [duration(last(p99)), "p99", null, "p99"]],
      lines([{ values: p99, cls: "p99" }, { values: p90, cls: "p90" }, { values: p50, cls: "p50" }], { ...range, ...gaps((r) => r.first_byte_seconds.p50, "no answers"), as: duration }), state.past?.step > 1 ? "each over a minute" : "each over the last five seconds"),
    tile("Hit rate", [[percent(last(hits)), "of prompt tokens"]], lines([{ values: hits, cls: "saved" }], { ...range, ...gaps((r) => r.hit_rate), as: percent, most: 1 }),
      `${percent(totals.hit_rate)} since the start, by the engines' own count`),
    tile("Prefill saved", [[rate(last(saved)), "tokens per second"]], lines([{ values: saved, cls: "saved" }], { ...range, ...gaps((r) => r.saved_tokens), as: (value) => `${rate(value)} per second` }),
      `${finely(totals.saved_tokens)} of ${finely(totals.prompt_tokens)} prompt tokens not computed`));
}

// How a pod is, as one: down is bad; on its way out, on trial, resting or slow wants a look.
const kindOf = ({ health, breaker, speed }) =>
  health === "down" ? "bad" : health === "up" && breaker === "closed" && !speed.slow ? "good" : "warn";
const isUp = (pod) => pod.health === "up";

// Roles and models of which no pod is up.
function missing(pods) {
  const none = (what, read) => [...new Set(pods.flatMap(read))].filter((name) => !pods.some((pod) => isUp(pod) && read(pod).includes(name)))
    .map((name) => ["bad", `No pod ${what} ${name} is up.`]);
  return [...none("of the role", ({ roles }) => roles), ...none("with the model", ({ models }) => models)];
}

// Warnings, each in one sentence.
export function concerns({ pods, is_config_refused: refused }) {
  const said = [...missing(pods), ...pods.filter(({ speed }) => speed.slow).map((pod) => ["warn", slowWords(pod)])];
  if (refused) said.push(["bad", "The configuration file was refused and the old one stays: see Setup."]);
  for (const pod of pods) {
    if (pod.health === "draining") said.push(["warn", `${pod.name} is draining: it gets no new requests.`]);
    if (pod.health === "down") said.push(["bad", pod.breaker === "open"
      ? `${pod.name} is down: it failed at ${pod.url}, and gets nothing until a probe succeeds.`
      : `${pod.name} is down: it has not said yet what it serves at ${pod.url}.`]);
    if (["optimistic", "pessimistic"].includes(pod.predictions.verdict)) said.push(["warn", `${pod.name}: ${pod.predictions.meaning}`]);
    if (pod.block_size?.mismatch) said.push(["warn", `${pod.name}: its engine has blocks of ${pod.block_size.engine} tokens, and ${pod.block_size.index} are configured: ${pod.block_size.mismatch}.`]);
    if (pod.events.silent) said.push(["warn", `${pod.name} should send cache events and never did.`]);
    const feed = pod.events.feed?.state;
    if (feed === "stale" || feed === "quarantined") said.push(["warn", `${pod.name}: its cache events are ${feed}.`]);
  }
  return said.sort(([one], [other]) => one.localeCompare(other));
}

function eventState({ events: { feed, trust, guess }, precision }) {
  if (!feed) return [h("span", { class: "warn", title: precision.reasons.join("; ") }, precision.mode), h("small", {}, guess ? "guessed from requests" : trust)];
  const kind = { live: "", waiting: "quiet", unsure: "warn", partial: "warn", stale: "bad", quarantined: "bad" }[feed.state];
  const lag = feed.lag ? `${count(feed.lag)} behind` : `heard ${duration(feed.age_seconds)} ago`;
  return [h("span", { class: kind }, feed.state), h("small", {}, feed.age_seconds === null ? "nothing heard yet" : lag)];
}

// Predicted and actual cached tokens, one above the other on one scale.
function hits({ predictions: p, precision }) {
  const leftOut = p.speculative ? `${count(p.speculative)} speculative ones are left out` : null;
  if (!p.checked) return [h("span", { class: "quiet", title: leftOut }, "–")];
  const most = Math.max(p.predicted_tokens, p.actual_tokens, 1);
  return [
    h("span", {}, `${precision.mode === "exact" ? "" : "~"}${count(p.predicted_tokens)} / ${count(p.actual_tokens)}`),
    h("span", { class: "pair", title: `${precision.mode}: predicted ${count(p.predicted_tokens)}, actual ${count(p.actual_tokens)} tokens over ${count(p.checked)} answers${leftOut ? `; ${leftOut}` : ""}` },
      bar(p.predicted_tokens / most, "thin"), bar(p.actual_tokens / most, "thin saved")),
  ];
}

function row(pod, most) {
  const kind = kindOf(pod);
  const load = pod.load.requests;
  const { slow, first_token_seconds: first, inter_token_seconds: between } = pod.speed;
  const state = [slow ? "slow" : null, pod.health === "up" ? null : pod.health, { closed: null, half_open: "breaker half open", open: "breaker open", resting: "resting", avoided: "avoided" }[pod.breaker]];
  return h("tr", { "data-key": pod.name, class: kind === "bad" ? "down" : null },
    h("th", { scope: "row" },
      h("span", { class: "name" }, h("i", { class: `dot ${kind}` }), h("a", { class: "link", href: address("fleet", pod.name) }, pod.name)),
      h("small", {}, [...pod.models, ...pod.roles].join(" · ") || pod.url)),
    cell("State", null, h("span", { class: kind === "good" ? null : kind }, state.filter(Boolean).join(", ") || "up"),
      h("small", {}, pod.breaker === "closed" ? "breaker closed" : null)),
    cell("Load", "with-bar", h("span", {}, count(load)), bar(load / most.load), h("small", {}, `${count(pod.load.prefill_tokens)} to prefill`)),
    cell("Requests/s", "number", h("span", {}, rate(pod.requests_per_second)), h("small", {}, `${count(pod.engine.waiting)} queued`)),
    cell("First token", "number", h("span", { class: slow?.time === "first_token" ? "warn" : null }, duration(first)),
      h("small", { class: slow?.time === "inter_token" ? "warn" : null }, between === null ? null : `${duration(between)} between`)),
    cell("KV used", "with-bar", h("span", {}, percent(pod.engine.kv_usage)), bar(pod.engine.kv_usage, pod.engine.kv_usage > 0.95 ? "warn" : "")),
    cell("Cached blocks", "with-bar", h("span", {}, count(pod.blocks)), bar(pod.blocks / most.blocks, "saved")),
    cell("Hit rate", "number", h("span", {}, percent(pod.hit_rate))),
    cell("Predicted / actual", "with-bar", hits(pod)),
    cell("Events", null, eventState(pod)));
}

// The names of pods in the order of a large fleet: what wants a look first, then the busiest. It stands for some
// seconds unless a pod fails or recovers, and for as long as the user points at it.
function order(ui, pods) {
  const now = performance.now();
  const kinds = pods.map(kindOf).join();
  const { made, names = [], kinds: before } = ui.order ?? {};
  const isHeld = document.querySelector(".pods")?.matches(":hover, :focus-within");
  const isSettled = kinds === before && now - made < SETTLED;
  if (names.length === pods.length && (isHeld || isSettled)) return names;
  const rank = { bad: 0, warn: 1, good: 2 };
  const sorted = pods.slice().sort((a, b) => rank[kindOf(a)] - rank[kindOf(b)]
    || (b.requests_per_second ?? 0) - (a.requests_per_second ?? 0) || b.blocks - a.blocks);
  ui.order = { names: sorted.map((pod) => pod.name), kinds, made: now };
  return ui.order.names;
}

// Those of a large fleet that are asked for, and how to ask for others.
function chosen(state) {
  const { ui, snapshot: { pods } } = state;
  const wanted = (ui.wanted ?? "").trim().toLowerCase();
  const words = (pod) => [pod.name, pod.url, pod.health, ...pod.models, ...pod.roles].join(" ").toLowerCase();
  const byName = new Map(pods.map((pod) => [pod.name, pod]));
  const found = order(ui, pods).map((name) => byName.get(name)).filter((pod) => pod && words(pod).includes(wanted));
  const shown = found.slice(0, ui.isWhole ? found.length : ROWS);
  return [shown,
    h("div", { class: "find" },
      h("input", { type: "search", id: "find", value: ui.wanted, "aria-label": "Find pods", placeholder: "Name, model, role, up or down", oninput: (event) => { ui.wanted = event.target.value; state.redraw(); } }),
      h("span", { class: "quiet", "aria-live": "polite" }, `${shown.length} of ${pods.length} shown: what wants a look first, then the busiest`)),
    found.length > shown.length ? h("button", { class: "chip", onclick: () => { ui.isWhole = true; state.redraw(); } }, `show all ${found.length}`) : null];
}

function pods(state) {
  const { snapshot: { pods } } = state;
  if (pods.length === 0) {
    return empty("There are no pods. Start with ", h("code", {}, "wornpath serve --pod URL"), ", list them under ",
      h("code", {}, "pods"), " in the configuration, or ", h("code", {}, "POST /pods"), ".");
  }
  const most = {
    load: Math.max(BUSY, ...pods.map((pod) => pod.load.requests)),
    blocks: Math.max(1, ...pods.map((pod) => pod.blocks)),
  };
  const heads = [["Pod"], ["State"], ["Load"], ["Requests/s", "number"], ["First token", "number"], ["KV used"], ["Cached blocks"], ["Hit rate", "number"],
    ["Predicted / actual"], ["Events"]];
  const isMany = pods.length > MANY;
  const [shown, find, more] = isMany ? chosen(state) : [pods];
  return h("div", { class: "pods" }, find,
    shown.length ? table(heads, shown.map((pod) => row(pod, most)), isMany ? "cards many" : "cards") : empty("No pod is like that."), more,
    h("p", { class: "quiet legend" }, `A full bar is ${count(most.load)} requests, all of the engine's KV cache, or ${count(most.blocks)} blocks. Of hits, predicted stands above actual.`));
}

export const fleet = {
  title: "Fleet",
  enter(state) {
    const { view, part } = here();
    if (view === "fleet" && part) enterPod(state, part);
    remember(state);
  },
  draw(state) {
    const { view, part } = here();
    if (view === "fleet" && part) return drawPod(state, part, kindOf);
    const said = concerns(state.snapshot);
    return h("div", {},
      h("h1", { class: "hidden" }, "Fleet"),
      said.length ? h("ul", { class: "concerns", "aria-label": "Needs attention" }, said.slice(0, MOST_CONCERNS).map(([kind, words]) =>
        h("li", { class: kind, "data-key": words }, h("i", { class: `dot ${kind}` }), words)),
      said.length > MOST_CONCERNS ? h("li", { "data-key": "more" }, `and ${said.length - MOST_CONCERNS} more: the map below shows all.`) : null) : null,
      failures(state),
      state.snapshot.pods.length > MANY ? heat(state, kindOf) : null,
      ranges(state),
      tiles(state),
      changes(state),
      speeds(state),
      figures(state),
      h("div", { class: "title" }, h("h2", {}, "Pods"),
        h("span", { class: "quiet" }, `${state.snapshot.pods.filter(isUp).length} of ${state.snapshot.pods.length} up`)),
      pods(state),
      origins(state));
  },
};
