// The past of the charts: what the router remembers of it, in the range that was picked, and what changed meanwhile.

import { h } from "./draw.js";
import { here } from "./address.js";
import { fleetGaps, podGaps } from "./gaps.js";
import { get } from "./stream.js";

// Names and seconds. Within an hour there is a value per second, beyond it one per minute.
const RANGES = [["2 min", 120], ["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["24 h", 86400]];
// So many points are drawn at most: more would fall on the same pixels.
const POINTS = 360;
// Milliseconds after which it is asked for again.
const FRESH = 60000;
// Seconds between two values of a pod within an hour, and pods that have a line.
const STEP = 10;
const DRAWN = 32;
// And so many changes are listed at once.
const LISTED = 6;

const WORDS = {
  router_started: "the router started", reload_applied: "configuration reloaded", reload_refused: "configuration refused",
  pod_added: "added", pod_removed: "removed", pod_up: "up", pod_down: "down", pod_draining: "draining", pod_restarted: "engine restarted",
  pod_slow: "slow", pod_no_longer_slow: "no longer slow",
};
const KINDS = { reload_refused: "bad", pod_down: "bad", pod_removed: "warn", pod_draining: "warn", pod_restarted: "warn", pod_slow: "warn" };

const seconds = (state) => state.ui.range ?? RANGES[0][1];

// The rates of a second as the stream has them, or nothing.
const row = (series, at) => series.requests[at] === null ? null : {
  requests: series.requests[at], failed: series.failed[at], prompt_tokens: series.prompt_tokens[at], saved_tokens: series.saved_tokens[at],
  output_tokens: series.output_tokens[at], hit_rate: series.hit_rate[at],
  first_byte_seconds: { p50: series.p50[at], p90: series.p90[at], p99: series.p99[at] },
};

// Asks the router for the past if the range is new, if seconds were missed, or if it is a while ago. What has changed
// since comes with every snapshot.
export function remember(state) {
  const { past } = state;
  const now = performance.now();
  const { view, part } = here();
  const pod = view === "fleet" ? part : "";
  if (past?.range === seconds(state) && past.pod === pod && now - past.asked < FRESH && !past.isMissing) return;
  const asked = { pod, pods: past?.pods, started: past?.started, range: seconds(state), asked: now, step: past?.step ?? 1, changes: past?.changes ?? [], from: past?.from, now: past?.now };
  state.past = asked;
  get(`/history?seconds=${asked.range}${pod ? `&pod=${encodeURIComponent(pod)}` : ""}`).then((told) => {
    if (state.past !== asked) return;
    Object.assign(asked, { pods: told.pods, started: told.started, step: told.step, from: told.from, now: told.now, changes: told.changes });
    state.history = told.series.requests.map((_, at) => row(told.series, at));
    // This second may not have been sampled yet.
    if (told.step === 1) state.history[state.history.length - 1] ??= state.snapshot?.rates ?? null;
    state.redraw();
  }, () => {
    // Tried again with the next snapshot; until then the charts go on from what is there.
    if (state.past === asked) asked.asked = -FRESH;
  });
}

// Adds the times of pods at the end of a step, as they were last measured. Longer steps end too seldom for that.
function appendPods({ past }, { now, pods }) {
  const told = past?.pods;
  if (!told || told.step > STEP) return;
  const length = Math.ceil(past.range / told.step);
  const speeds = new Map(pods.map(({ name, speed }) => [name, speed]));
  for (let until = told.from + length * told.step; until + told.step <= now; until += told.step) {
    for (const { name, speed } of pods) {
      const isNew = speed.first_token_seconds !== null || speed.inter_token_seconds !== null;
      if (!isNew || told.series.length >= DRAWN || told.series.some(({ pod }) => pod === name)) continue;
      told.series.push({ pod: name, first_token: Array(length).fill(null), inter_token: Array(length).fill(null) });
    }
    told.from += told.step;
    for (const one of told.series) {
      for (const time of ["first_token", "inter_token"]) {
        one[time].shift();
        one[time].push(speeds.get(one.pod)?.[`${time}_seconds`] ?? null);
      }
    }
  }
}

// Adds the rates of a snapshot, and nothing for the seconds before it that were missed.
export function append(state, snapshot, missed) {
  const { rates } = snapshot;
  appendPods(state, snapshot);
  if (missed && state.past) state.past.isMissing = true;
  if ((state.past?.step ?? 1) > 1) return;
  const length = seconds(state);
  for (let second = 0; second < Math.min(missed, length); second += 1) state.history.push(null);
  state.history.push(rates);
  state.history.splice(0, Math.max(0, state.history.length - length));
}

// How the charts are drawn: their length in values, their range in words, and where something changed.
export function chart(state) {
  const { past, snapshot: { now: end } } = state;
  const length = Math.max(2, Math.round(seconds(state) / (past?.step ?? 1)));
  const [name] = RANGES.find(([, length]) => length === seconds(state));
  const marks = changed(state).map(({ at, kind }) => ({ x: 100 * (1 - (end - at) / seconds(state)), cls: KINDS[kind] ?? "" }));
  return { length, points: POINTS, title: `last ${name}`, marks: marks.filter(({ x }) => x >= 0 && x <= 100) };
}

// Why the charts of the fleet have no value of a figure.
export function gapsOf(state, rows, read, unknown) {
  const { past, snapshot: { now } } = state;
  if (!past?.now) return [];
  const { step, started } = past;
  return fleetGaps({ from: now - rows.length * step, step, started }, rows, read, unknown);
}

// How the charts of pods are drawn, the times of each pod, and why one has none.
export function podTimes(state) {
  const { past, snapshot } = state;
  const told = past?.pods;
  const step = told?.step ?? STEP;
  const length = Math.max(2, Math.ceil(seconds(state) / step));
  const known = changed(state);
  const health = (name) => name === null ? "up" : snapshot.pods.find((pod) => pod.name === name)?.health ?? "gone";
  const why = (name, values) => told ? podGaps({ from: told.from, step, started: past.started }, values, known, name, health(name)) : [];
  return { ...chart(state), length, why, series: told?.series ?? [], leftOut: told?.left_out ?? 0 };
}

export const ranges = (state) =>
  h("div", { class: "chips ranges", role: "group", "aria-label": "Time range of the charts" }, RANGES.map(([name, length]) =>
    h("button", { class: "chip", "aria-pressed": String(length === seconds(state)), onclick: () => {
      state.ui.range = length;
      remember(state);
      state.redraw();
    } }, name)));

const time = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

// What changed in the range: what the history told, and what the snapshots have told since.
function changed({ past, snapshot, ui }) {
  const told = past?.changes ?? [];
  const known = new Set(told.map((change) => JSON.stringify(change)));
  const since = (snapshot?.changes ?? []).filter((change) => !known.has(JSON.stringify(change)));
  const from = (snapshot?.now ?? 0) - seconds({ ui });
  return [...told, ...since].filter(({ at }) => at > from).sort((one, other) => one.at - other.at);
}

// The same as a list, the latest first; of one pod, if it is named.
export function changes(state, name = null) {
  const all = changed(state).filter(({ pod }) => name === null || pod === name).reverse();
  if (!all.length) return null;
  const shown = all.slice(0, state.ui.allChanges ? all.length : LISTED);
  return h("section", { class: "changes", "aria-label": "What changed" },
    h("h2", {}, "What changed"),
    h("ol", { class: "plain" }, shown.map(({ at, kind, pod, detail }) =>
      h("li", {}, h("i", { class: `dot ${KINDS[kind] ?? ""}` }), h("time", { datetime: new Date(at * 1000).toISOString() }, time(at)),
        h("span", {}, pod ? [h("b", {}, pod), ` ${WORDS[kind] ?? kind}`] : WORDS[kind] ?? kind,
          detail ? h("small", {}, detail) : kind === "reload_refused" ? h("small", {}, "The old one stays: see Setup for the reason.") : null)))),
    all.length > shown.length ? h("button", { class: "chip", onclick: () => { state.ui.allChanges = true; state.redraw(); } }, `show all ${all.length}`) : null);
}
