// What went wrong within a day, by status, cause and time: each is a link to the requests.

import { address } from "./address.js";
import { clock, count, h } from "./draw.js";

export const CAUSES = {
  no_pod: "no pod could take it", saturated: "pods, queues or quotas were full", expired: "it waited too long",
  shutting_down: "the router was shutting down", calls_failed: "the calls to pods failed", request: "the request itself",
  engine: "the engine answered so", broken: "the answer broke off",
};

// So many are listed at once.
const LISTED = 6;
// And so many tenants are named of each.
const NAMED = 3;

// A link to the requests of an incident, in whole seconds.
const addressOf = ({ status, cause, first, last }) => address("decisions", "", { status, cause, from: Math.floor(first), to: Math.ceil(last) + 1 });

export function failures({ ui, redraw, snapshot: { failures: all = [] } }) {
  if (!all.length) return null;
  const shown = all.slice(0, ui.allFailures ? all.length : LISTED);
  return h("section", { class: "failures", "data-key": "failures", "aria-labelledby": "failures" },
    h("h2", { id: "failures" }, "Failed within a day"),
    h("ul", {}, shown.map((incident) => {
      const { status, cause, count: times, tenants, first, last, reason } = incident;
      const whose = tenants.length > NAMED ? `${tenants.length} tenants` : tenants.join(", ");
      return h("li", { "data-key": `${status}-${cause}-${first}` },
        h("a", { class: "link", href: addressOf(incident) },
          h("b", { class: status >= 500 || status < 400 ? "bad" : "warn" }, status), ` ${CAUSES[cause] ?? cause}`),
        h("span", { class: "quiet" }, ` ${count(times)} ×${whose ? ` for ${whose}` : ""}, ${times > 1 ? `${clock(first)} to ${clock(last)}` : `at ${clock(last)}`}`),
        reason ? h("small", {}, reason) : null);
    })),
    all.length > shown.length ? h("button", { class: "chip", type: "button", onclick: () => { ui.allFailures = true; redraw(); } }, `show all ${all.length}`) : null);
}
