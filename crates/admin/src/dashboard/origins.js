// The same figures by model and by tenant. A name opens its decisions.

import { address } from "./address.js";
import { cell, count, duration, h, percent, rate, table } from "./draw.js";

const HEADS = [["Requests/s", "number"], ["Tokens/s", "number"], ["First byte", "number"], ["Between tokens", "number"],
  ["4xx/s", "number"], ["5xx/s", "number"], ["Hit rate", "number"], ["Given away/s", "number"]];

function row(kind, one) {
  const now = one.recent ?? {};
  const name = one.name || (kind === "tenant" ? "no tenant" : "unknown model");
  const errors = (value, cls) => h("span", { class: value > 0 ? cls : null }, rate(value));
  return h("tr", { "data-key": `${kind}-${one.name}` },
    h("th", { scope: "row" }, one.name ? h("a", { class: "link", href: address("decisions", "", { [kind]: one.name }) }, name) : h("span", { class: "quiet" }, name),
      h("small", {}, `${count(one.requests)} requests`)),
    cell("Requests/s", "number", rate(now.requests)),
    cell("Tokens/s", "number", rate(now.output_tokens), h("small", {}, `${count(one.output_tokens)} in all`)),
    cell("First byte", "number", duration(now.first_byte_seconds), h("small", {}, `p99 ${duration(now.first_byte_p99_seconds)}`)),
    cell("Between tokens", "number", duration(now.inter_token_seconds)),
    cell("4xx/s", "number", errors(now.client_errors, "warn"), h("small", {}, `${count(one.client_errors)} in all`)),
    cell("5xx/s", "number", errors(now.server_errors, "bad"), h("small", {}, `${count(one.server_errors)} in all`)),
    cell("Hit rate", "number", percent(now.hit_rate ?? one.hit_rate)),
    cell("Given away/s", "number", rate(now.given_away_tokens), h("small", {}, `${count(one.given_away_tokens)} tokens in all`)));
}

function section(name, kind, all) {
  return h("section", { class: "origins", "data-key": kind },
    h("h2", {}, name),
    table([[name.slice(0, -1)], ...HEADS], all.map((one) => row(kind, one)), "cards"));
}

export function origins({ snapshot: { models = [], tenants = [] } }) {
  const busiest = (all) => all.slice().sort((a, b) => b.requests - a.requests);
  return [
    models.length ? section("Models", "model", busiest(models)) : null,
    tenants.some(({ name }) => name) ? section("Tenants", "tenant", busiest(tenants)) : null,
  ];
}
