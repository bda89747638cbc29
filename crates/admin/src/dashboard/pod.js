// One pod: its state, what can be done with it, its predictions, events, prefixes and decisions.

import { address } from "./address.js";
import { bar, cell, clock, count, duration, empty, focusSoon, h, micros, percent, rate, table } from "./draw.js";
import { changes, ranges } from "./history.js";
import { del, get, post } from "./stream.js";
import { slowWords, speeds } from "./speeds.js";

const DECISIONS = 20;
const PREFIXES = 12;
// Prefixes are a walk over the index: they are asked for this often, in milliseconds.
const PREFIXES_EVERY = 5000;

// What an operator can do, and what it means.
const ACTIONS = {
  drain: ["Drain", "It gets no new requests; those in flight may finish.", (name) => post(`/pods/${encodeURIComponent(name)}/drain`)],
  resume: ["Resume", "It gets requests again as soon as a probe succeeds.", (name) => post(`/pods/${encodeURIComponent(name)}/resume`)],
  remove: ["Remove", "It leaves the fleet; a pod of the configuration stays away until its entry changes or the router restarts.", (name) => del(`/pods/${encodeURIComponent(name)}`)],
};

export function enterPod({ ui, redraw }, name) {
  if (ui.pod_page?.name !== name) ui.pod_page = { name };
  const page = ui.pod_page;
  const keep = (key) => (found) => { page[key] = found; };
  const fail = (error) => { page.error = error.message; };
  if (!page.isAsked) {
    page.isAsked = true;
    get(`/decisions?view=rows&last=${DECISIONS}&pod=${encodeURIComponent(name)}`).then(keep("decisions"), fail)
      .finally(() => { page.isAsked = false; redraw(); });
  }
  const now = performance.now();
  if (now - (page.lookedAt ?? -Infinity) < PREFIXES_EVERY) return;
  page.lookedAt = now;
  get("/index/prefixes").then(keep("prefixes"), fail).finally(redraw);
}

function actions(state, pod) {
  const page = state.ui.pod_page;
  const offered = pod.health === "draining" ? ["resume", "remove"] : ["drain", "remove"];
  const ask = (key) => { page.asks = key; page.said = undefined; state.redraw(); focusSoon(key ? ".confirm button" : ".actions button"); };
  const act = async (key) => {
    page.asks = undefined;
    page.said = "Asking the router…";
    state.redraw();
    try {
      await ACTIONS[key][2](pod.name);
      page.said = { drain: "Draining.", resume: "It will be up after the next probe.", remove: "Removed." }[key];
    } catch (error) {
      page.said = error.message;
    }
    state.redraw();
  };
  const asked = page.asks && h("div", { class: "confirm", role: "alertdialog", "aria-label": `${ACTIONS[page.asks][0]} ${pod.name}?` },
    h("p", {}, h("b", {}, `${ACTIONS[page.asks][0]} ${pod.name}? `), ACTIONS[page.asks][1]),
    h("button", { class: "chip do", type: "button", onclick: () => act(page.asks) }, `${ACTIONS[page.asks][0]} ${pod.name}`),
    h("button", { class: "chip", type: "button", onclick: () => ask(undefined) }, "cancel"));
  return h("div", { class: "actions", "data-key": "actions", onkeydown: (event) => { if (event.key === "Escape" && page.asks) ask(undefined); } },
    asked || offered.map((key) => h("button", { class: "chip", type: "button", "data-key": key, onclick: () => ask(key) }, ACTIONS[key][0])),
    h("span", { class: "quiet", role: "status" }, page.said ?? ""));
}

function figures(pod) {
  const now = pod.recent ?? {};
  const shown = [
    [count(pod.load.requests), "in flight"], [count(pod.load.prefill_tokens), "tokens to prefill"], [count(pod.engine.waiting), "queued in the engine"],
    [percent(pod.engine.kv_usage), "of its KV cache used"], [count(pod.blocks), "blocks cached"], [percent(pod.hit_rate), "hit rate"],
    [rate(now.requests), "requests per second"], [rate(now.output_tokens), "tokens per second"], [duration(now.first_byte_seconds), "to the first byte"],
    [duration(now.inter_token_seconds), "between tokens"], [rate(now.client_errors), "4xx per second"], [rate(now.server_errors), "5xx per second"],
    [rate(now.given_away_tokens), "tokens given away per second"],
  ];
  return h("p", { class: "figures" }, shown.map(([value, unit]) => h("span", {}, h("b", {}, value), h("small", {}, unit))));
}

function predictions({ predictions: p }) {
  const most = Math.max(1, p.predicted_tokens, p.actual_tokens);
  return h("section", { "data-key": "predictions" }, h("h2", {}, "Predictions"),
    h("p", {}, p.verdict === "unknown" ? "Too few were compared with what the engine reports." : `${p.meaning[0].toUpperCase()}${p.meaning.slice(1)}.`),
    h("ul", { class: "shares" },
      [["predicted", p.predicted_tokens, ""], ["actual", p.actual_tokens, "saved"]].map(([name, tokens, kind]) =>
        h("li", {}, h("span", {}, name), bar(tokens / most, kind), h("span", { class: "number" }, count(tokens))))),
    h("p", { class: "quiet" }, `${count(p.checked)} checked, ${count(p.speculative)} speculative ones left out.`));
}

function precision({ precision: p, engine, block_size: blocks }) {
  const facts = [["Engine", engine.software ?? "does not say"], ["Tokenizer", p.tokenizer ?? "none: prompts are compared by their text"],
    ["Tokens per block", blocks ? count(blocks.engine ?? blocks.index) : "–"], ["Cache", engine.kv_tokens ? `${count(engine.kv_tokens)} tokens` : "size unknown"]];
  return h("section", { "data-key": "precision" }, h("h2", {}, p.mode === "exact" ? "Exact" : "Approximate"),
    h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    p.reasons.map((reason) => h("p", { class: "warn" }, `${reason[0].toUpperCase()}${reason.slice(1)}.`)));
}

function events({ events: { feed, guess, trust } }) {
  const facts = feed ? [
    ["Source", feed.sources.join(", ") || "–"], ["State", feed.state], ["Trusted as", trust], ["Confidence", percent(feed.confidence)],
    ["Behind", `${count(feed.lag)} batches`], ["Heard", feed.age_seconds === null ? "never" : `${duration(feed.age_seconds)} ago`],
    ["Blocks per second", rate(feed.blocks_per_second)], ["Gaps", count(feed.gaps)], ["Resyncs", count(feed.resyncs)], ["Restarts", count(feed.restarts)],
    ...feed.troubles.map(({ source, reason }) => [source, reason]),
  ] : [["Source", "sends no events"], ["Known by", guess ? `${count(guess.tokens)} tokens guessed from what it was sent` : trust]];
  return h("section", { "data-key": "events" }, h("h2", {}, "Events"),
    h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}

function prefixes({ prefixes: found }, name) {
  const at = found?.pods.indexOf(name) ?? -1;
  const own = at < 0 ? [] : found.runs.filter((run) => run.holders.includes(at)).sort((a, b) => b.blocks - a.blocks).slice(0, PREFIXES);
  const tokens = (blocks) => (found.block_size ? `${count(blocks * found.block_size)} tokens` : `${count(blocks)} blocks`);
  const rows = own.map((run) => h("tr", { "data-key": run.prefix },
    h("th", { scope: "row" }, h("code", {}, run.prefix)),
    cell("Length", "number", tokens(run.blocks)), cell("After", "number", tokens(run.depth)),
    cell("Also held by", "number", `${run.holders.length - 1} pods`)));
  return h("section", { "data-key": "prefixes" }, h("h2", {}, "Largest prefixes"),
    !found ? empty("Looking at the caches…") : rows.length ? table([["Prefix"], ["Length", "number"], ["After", "number"], ["Also held by", "number"]], rows, "cards") : empty("It holds none of the largest prefixes."));
}

function decisions({ decisions: found }, name) {
  const rows = (found?.decisions ?? []).map((record) => h("tr", { "data-key": record.id },
    h("th", { scope: "row" }, h("a", { class: "link", href: address("decisions", record.id, { pod: name }) }, record.id.slice(0, 13)), h("small", {}, clock(record.ended_at))),
    cell("Model", null, record.model), cell("Status", "number", record.status), cell("First byte", "number", micros(record.first_byte_us)),
    cell("Cached of prompt", "number", `${count(record.cached_tokens.actual)} / ${count(record.prompt_tokens)}`)));
  return h("section", { "data-key": "decisions" },
    h("div", { class: "title" }, h("h2", {}, "Decisions"), h("a", { class: "link", href: address("decisions", "", { pod: name }) }, "all of this pod")),
    rows.length ? table([["Request"], ["Model"], ["Status", "number"], ["First byte", "number"], ["Cached of prompt", "number"]], rows, "cards") : empty(found ? "No recent request went here." : "Asking…"));
}

export function drawPod(state, name, kindOf) {
  const page = state.ui.pod_page?.name === name ? state.ui.pod_page : { name };
  state.ui.pod_page = page;
  const back = h("p", {}, h("a", { class: "link", href: "#fleet" }, "← all pods"));
  const pod = state.snapshot.pods.find((one) => one.name === name);
  if (!pod) {
    return h("div", { class: "pod-page" }, back, h("h1", {}, name),
      h("p", { class: "empty" }, page.said ? `${page.said} ` : "", "There is no pod of this name in the fleet."),
      changes(state, name), decisions(page, name));
  }
  const kind = kindOf(pod);
  const health = [pod.health, pod.breaker === "closed" ? null : `breaker ${pod.breaker.replace("_", " ")}`].filter(Boolean).join(", ");
  return h("div", { class: "pod-page" }, back,
    h("div", { class: "title" }, h("h1", {}, name), h("span", { class: "name" }, h("i", { class: `dot ${kind}` }), h("span", { id: "pod-state", class: kind === "good" ? null : kind }, health))),
    h("p", { class: "quiet" }, [pod.url, ...pod.models, ...pod.roles, ...Object.entries(pod.labels).map((label) => label.join("="))].join(" · ")),
    pod.speed.slow ? h("p", { class: "warn", role: "status" }, slowWords(pod)) : null,
    actions(state, pod), figures(pod), ranges(state), speeds(state, name), changes(state, name),
    h("div", { class: "split" }, precision(pod), events(pod)),
    predictions(pod),
    prefixes(page, name), decisions(page, name));
}
