// Many pods at once: one cell for each, as strong as the figure that is asked for. A cell opens the pod's page.

import { address } from "./address.js";
import { count, duration, h, percent, rate } from "./draw.js";

const MEASURES = {
  load: ["Requests in flight", (pod) => pod.load.requests, count],
  kv: ["KV cache used", (pod) => pod.engine.kv_usage, percent],
  hits: ["Hit rate", (pod) => pod.hit_rate, percent],
  tokens: ["Tokens per second", (pod) => pod.recent?.output_tokens, rate],
  token: ["Time to first token", (pod) => pod.speed.first_token_seconds, duration],
  first: ["Time to first byte", (pod) => pod.recent?.first_byte_seconds, duration],
  errors: ["5xx per second", (pod) => pod.recent?.server_errors, rate],
  given: ["Given away per second", (pod) => pod.recent?.given_away_tokens, rate],
};

// The map is one stop of the Tab key: arrows move along its cells.
function move(ui, event) {
  const cells = [...event.currentTarget.children];
  const across = getComputedStyle(event.currentTarget).gridTemplateColumns.split(" ").length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
  const next = step && cells[cells.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  ui.heatAt = next.dataset.key;
  next.focus();
}

export function heat(state, kindOf) {
  const { ui, snapshot: { pods } } = state;
  const measure = ui.heat ?? "load";
  const [name, read, as] = MEASURES[measure];
  const most = Math.max(measure === "kv" || measure === "hits" ? 1 : 1e-9, ...pods.map((pod) => read(pod) ?? 0));
  const choice = (key) => h("button", {
    class: "chip", type: "button", "data-key": key, "aria-pressed": String(key === measure), onclick: () => { ui.heat = key; state.redraw(); },
  }, MEASURES[key][0]);
  const stop = pods.some(({ name }) => name === ui.heatAt) ? ui.heatAt : pods[0].name;
  const cell = (pod) => {
    const value = read(pod);
    const kind = kindOf(pod);
    const words = `${pod.name}: ${as(value)}${kind === "good" ? "" : `, ${pod.health !== "up" ? pod.health : pod.breaker !== "closed" ? pod.breaker.replace("_", " ") : "slow"}`}`;
    return h("a", {
      class: `heat-cell ${kind}`, href: address("fleet", pod.name), "data-key": pod.name, title: words, "aria-label": words,
      tabindex: pod.name === stop ? 0 : -1,
      vars: { "--heat": ((value ?? 0) / most).toFixed(3) },
    });
  };
  return h("section", { class: "heat", "data-key": "heat", "aria-label": "Heat map of the pods" },
    h("div", { class: "chips", role: "group", "aria-label": "Colour by" }, Object.keys(MEASURES).map(choice)),
    h("div", { class: "heat-map", onkeydown: (event) => move(ui, event) }, pods.map(cell)),
    h("p", { class: "quiet legend" }, `${name}: the strongest colour is ${as(most)}. A red frame is a pod that is down, an ochre one wants a look.`));
}
