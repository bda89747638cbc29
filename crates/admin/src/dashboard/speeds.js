// How fast each pod answers: the time to the first token and between tokens, a line for each pod.

import { duration, h, lines } from "./draw.js";
import { commonGaps } from "./gaps.js";
import { podTimes } from "./history.js";

const TIMES = { first_token: "Time to first token", inter_token: "Time between tokens" };
// Below so many measured pods, half of them says nothing.
const FEW = 2;

// What a pod takes now, in words, where that is slow.
export const slowWords = ({ name, speed: { slow } }) => `${name} is slow: ${slow.meaning}.`;

const measured = (pods, time) => pods.map(({ name, speed }) => [name, speed[`${time}_seconds`], speed.slow?.time === time])
  .filter(([, seconds]) => seconds > 0).sort(([, one], [, other]) => other - one);

function tile(state, time, name = null) {
  const { snapshot: { pods } } = state;
  const all = measured(pods, time);
  const shown = name === null ? all : all.filter(([pod]) => pod === name);
  const [slowest] = shown;
  const usual = all.length > FEW ? all[Math.floor(all.length / 2)] : null;
  const { series, leftOut, why, ...range } = podTimes(state);
  const isSlow = (pod) => all.some(([name, , slow]) => slow && name === pod);
  const own = series.filter(({ pod }) => name === null || pod === name);
  const none = Array(range.length).fill(null);
  const gaps = own.length ? commonGaps(own.map(({ pod, [time]: values }) => why(pod, values))) : why(name, none);
  const drawn = own.map(({ pod, [time]: values }) => ({ values, cls: isSlow(pod) ? "warn" : name === null ? "peer" : "" }));
  // What is slow is drawn last, above the others.
  drawn.sort((one, other) => (one.cls === "warn") - (other.cls === "warn"));
  return h("section", { class: "tile", "data-key": time },
    h("h2", {}, name === null ? `${TIMES[time]}, by pod` : TIMES[time]),
    h("p", { class: "figures" },
      h("span", {}, h("b", { class: slowest?.[2] ? "warn" : null }, duration(slowest?.[1])), h("small", {}, slowest ? (name === null ? `${slowest[0]}, the slowest` : "now") : "not measured")),
      usual ? h("span", {}, h("b", {}, duration(usual[1])), h("small", {}, "half of the pods, at most")) : null),
    lines(drawn.length ? drawn : [{ values: [] }], { ...range, as: duration, gaps }),
    h("p", { class: "quiet" }, `${time === "first_token" ? "from the decision on, of streams" : "of streams"}${name === null ? `; a line for each pod${leftOut ? `, without ${leftOut} faster ones` : ""}` : ""}`));
}

// Of all pods, or of one.
export const speeds = (state, name = null) =>
  h("div", { class: "tiles two", "data-key": "speeds" }, Object.keys(TIMES).map((time) => tile(state, time, name)));
