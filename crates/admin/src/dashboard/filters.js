// The filters of the decisions. They stand in the address.

import { address, here } from "./address.js";
import { CAUSES } from "./failures.js";
import { h } from "./draw.js";

const NAMES = ["model", "tenant", "pod", "status", "cause", "from", "to"];

// The filters that are set, as the admin plane takes them.
export function wanted() {
  const { query } = here();
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name)]).filter(([, value]) => value));
}

const set = (name, value) => {
  const now = { ...wanted(), [name]: value };
  location.hash = address("decisions", here().part, Object.fromEntries(NAMES.map((name) => [name, now[name]])));
};

function choice(name, label, options) {
  const now = wanted()[name] ?? "";
  // A shared link may name what this router does not know.
  const all = now && !options.some(([value]) => String(value) === now) ? [[now, now], ...options] : options;
  return h("label", {}, h("span", {}, label),
    h("select", { id: `filter-${name}`, onchange: (event) => set(name, event.target.value) },
      h("option", { value: "" }, "all"),
      all.map(([value, words]) => h("option", { value, selected: String(value) === now }, words))));
}

// `datetime-local` has no zone: it is the time of the viewer.
const local = (seconds) => {
  if (!seconds) return "";
  const time = new Date(seconds * 1000);
  return new Date(time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
};

function time(name, label) {
  const now = wanted()[name];
  return h("label", {}, h("span", {}, label),
    h("input", {
      type: "datetime-local", step: 1, id: `filter-${name}`, value: local(Number(now)), "data-key": `${name}-${now ?? ""}`,
      onchange: (event) => set(name, event.target.value ? String(new Date(event.target.value).getTime() / 1000) : ""),
    }));
}

const named = (all) => all.filter(Boolean).map((name) => [name, name]);

export function filters({ snapshot }) {
  const statuses = [...new Set((snapshot.failures ?? []).map(({ status }) => status))].sort();
  return h("form", { class: "filters", "aria-label": "Filters", "data-key": "filters", onsubmit: (event) => event.preventDefault() },
    choice("model", "Model", named((snapshot.models ?? []).map(({ name }) => name))),
    choice("tenant", "Tenant", named((snapshot.tenants ?? []).map(({ name }) => name))),
    choice("pod", "Pod", named(snapshot.pods.map(({ name }) => name))),
    choice("status", "Status", [["failed", "failed"], ["4xx", "4xx"], ["5xx", "5xx"], [200, "200"], ...statuses.filter((status) => status >= 400).map((status) => [status, String(status)])]),
    choice("cause", "Reason", Object.entries(CAUSES)),
    time("from", "From"), time("to", "To"),
    Object.keys(wanted()).length ? h("button", { class: "chip", type: "button", onclick: () => { location.hash = "#decisions"; } }, "no filter") : null);
}
