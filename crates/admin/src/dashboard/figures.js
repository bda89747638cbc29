// How fast answers come, what goes wrong, and what routing gives away: the figures that stand below the first ones.

import { bar, count, duration, h, rate } from "./draw.js";

// Why the pod that held most was not chosen.
export const PASSED_OVER = {
  load: "it had more to do", health: "it was down or on trial", role: "it lacks the role", excluded: "it had just failed",
  hold: "it was full", subset: "it was not allowed", filter: "a filter dropped it",
};

function figure(name, values, note) {
  return h("section", { class: "tile" },
    h("h2", {}, name),
    h("p", { class: "figures" }, values.map(([value, unit, cls]) => h("span", {}, h("b", { class: cls }, value), h("small", {}, unit)))),
    h("div", { class: "quiet" }, note));
}

function givenAway({ given_away: reasons = [], totals }) {
  const most = Math.max(1, ...reasons.map(({ tokens }) => tokens));
  const some = reasons.filter(({ tokens }) => tokens > 0);
  if (!some.length) return "every prompt went to a pod that held most of it";
  return [`${count(totals.given_away_tokens)} tokens since the start. The pod that held more was not chosen because`,
    h("ul", { class: "shares" }, some.map(({ why, tokens }) =>
      h("li", { "data-key": why }, h("span", {}, PASSED_OVER[why] ?? why), bar(tokens / most), h("span", { class: "number" }, count(tokens)))))];
}

export function figures({ snapshot }) {
  const { rates, totals } = snapshot;
  const of = (name) => rates?.[name];
  return h("div", { class: "tiles more" },
    figure("Output", [[rate(of("output_tokens")), "tokens per second"], [duration(of("inter_token_seconds")), "between two tokens"]],
      `${count(totals.output_tokens)} tokens since the start`),
    figure("Errors", [[rate(of("client_errors")), "4xx per second", of("client_errors") > 0 ? "warn" : null], [rate(of("server_errors")), "5xx per second", of("server_errors") > 0 ? "bad" : null]],
      `${count(totals.client_errors)} 4xx and ${count(totals.server_errors)} 5xx since the start`),
    figure("Prefill given away", [[rate(of("given_away_tokens")), "tokens per second"]], givenAway(snapshot)));
}
