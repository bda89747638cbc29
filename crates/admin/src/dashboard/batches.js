// Offline work: how far each batch is, how long it will take, what its plan saves, and the prefix forest behind it.

import { bar, clock, count, duration, empty, h, percent } from "./draw.js";
import { icicle } from "./icicle.js";
import { get } from "./stream.js";

// Asks once for every plan that has come.
function enter(state) {
  state.ui.forests ??= {};
  for (const { id, plan } of state.snapshot?.batches ?? []) {
    if (!plan || id in state.ui.forests) continue;
    state.ui.forests[id] = null;
    get(`/batches/${encodeURIComponent(id)}/forest`).then((found) => {
      state.ui.forests[id] = { ...found, cells: layout(found), chosen: 0 };
      state.redraw();
    }, () => { delete state.ui.forests[id]; });
  }
}

// Pods in the first row, each with its part of the planned order; below them what their requests share.
function layout({ requests, segments, groups }) {
  const all = Math.max(1, requests);
  const place = ({ from, requests: own }) => ({ left: from / all, width: own / all, requests: own });
  const most = Math.max(1, ...groups.map((group) => group.saved_tokens));
  const cells = segments.map((part, at) => ({
    ...place(part), key: `segment-${at}`, row: 0, follows: null, pod: part.pod, strength: 0, text: part.pod,
    small: `${count(part.requests)} requests`, label: `${part.pod} computes ${count(part.requests)} requests`,
  }));
  for (const [at, group] of groups.entries()) {
    const follows = group.follows === null ? group.segment : segments.length + group.follows;
    cells.push({
      ...place(group), ...group, key: `group-${at}`, follows, row: cells[follows].row + 1, pod: segments[group.segment].pod,
      strength: group.saved_tokens / most, text: `${count(group.shared_tokens)} tokens`, small: `${count(group.requests)} requests`,
      label: `${count(group.requests)} requests share their first ${count(group.shared_tokens)} tokens, which saves ${count(group.saved_tokens)}`,
    });
  }
  return cells;
}

function forest(state, id) {
  const found = state.ui.forests?.[id];
  if (!found) return null;
  const choose = (at) => { found.chosen = at; state.redraw(); };
  const cell = found.cells[found.chosen];
  return h("div", { class: "forest" },
    h("h3", {}, "Prefix forest"),
    icicle(`forest-${id}`, found.cells, { chosen: found.chosen, choose }),
    h("p", { "aria-live": "polite" }, cell ? `${cell.row ? `On ${cell.pod}: ` : ""}${cell.label}` : "",
      cell?.line ? `; the first is line ${count(cell.line)}.` : "."),
    h("p", { class: "quiet" }, `Requests from left to right in planned order, shared prefixes from top to bottom; ${found.groups.length < found.groups_in_all
      ? `the ${count(found.groups.length)} of ${count(found.groups_in_all)} groups that save the most` : `all ${count(found.groups.length)} groups`}.`));
}

function plan(batch) {
  const { plan } = batch;
  if (!plan) return null;
  const most = Math.max(1e-9, ...plan.pods.map((pod) => pod.work_seconds));
  return h("div", { class: "plan" },
    h("h3", {}, "Plan"),
    h("p", { class: "figures" },
      h("span", {}, h("b", {}, percent(1 - plan.planned_tokens / Math.max(1, plan.prompt_tokens))), h("small", {}, "of prefill saved")),
      h("span", {}, h("b", {}, count(plan.planned_tokens)), h("small", {}, `of ${count(plan.prompt_tokens)} prompt tokens computed`)),
      h("span", {}, h("b", {}, count(plan.least_tokens)), h("small", {}, "at the very least")),
      plan.copies ? h("span", {}, h("b", {}, count(plan.copies)), h("small", {}, "equal requests computed once")) : null),
    h("ul", { class: "shares work", "aria-label": "Work of each pod" }, plan.pods.map((pod) =>
      h("li", {}, h("span", {}, pod.pod), bar(pod.work_seconds / most),
        h("span", { class: "number" }, `${duration(pod.work_seconds)}, ${count(pod.computed_tokens)} tokens of ${count(pod.requests)} requests`)))),
    h("p", { class: "quiet" }, "A bar is the time that the pod's part takes at one speed."));
}

// Who sent it, and when what happened.
function times(batch) {
  const took = batch.ended_at && batch.started_at ? batch.ended_at - batch.started_at : null;
  const facts = [
    ["Tenant", batch.owner || "–"], ["Created", clock(batch.created_at)], ["Started", clock(batch.started_at)],
    [batch.ended_at ? "Ended" : "Expires", batch.ended_at ? `${clock(batch.ended_at)}${took === null ? "" : `, after ${duration(took)}`}` : `in ${duration(batch.expires_in_seconds)}`],
  ];
  return h("dl", { class: "facts across" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function errors(batch) {
  if (!batch.errors?.length && !batch.lines.failed) return null;
  return h("div", { class: "errors" },
    batch.errors?.length ? h("ul", { class: "plain" }, batch.errors.map(({ code, line }) =>
      h("li", { class: "bad" }, line ? `line ${count(line)}: ` : "", String(code).replaceAll("_", " ")))) : null,
    batch.lines.failed ? h("p", { class: "bad" }, `${count(batch.lines.failed)} lines failed`,
      batch.error_file ? [": their errors are in the file ", h("code", {}, batch.error_file)] : "") : null);
}

const isOver = (batch) => ["completed", "failed", "expired", "cancelled"].includes(batch.status);

function card(state, batch) {
  const { total, completed, failed } = batch.lines;
  const done = completed + failed;
  const left = batch.seconds_left === undefined ? null : done < total ? `about ${duration(batch.seconds_left)} left` : "all answered";
  const kind = { completed: "good", failed: "bad", expired: "bad", cancelled: "warn" }[batch.status] ?? "";
  state.ui.batches ??= {};
  const isOpen = state.ui.batches[batch.id] ?? !isOver(batch);
  const toggle = () => { state.ui.batches[batch.id] = !isOpen; state.redraw(); };
  return h("article", { class: "card", "data-key": batch.id },
    h("div", { class: "title" },
      h("h2", {}, h("button", { class: "link fold", type: "button", "aria-expanded": String(isOpen), onclick: toggle }, isOpen ? "▾ " : "▸ ", batch.name ? [String(batch.name), " "] : null, h("code", {}, batch.id))),
      h("span", {}, isOpen ? null : h("span", { class: "quiet" }, `${count(done)} of ${count(total)} lines${batch.owner ? ` · ${batch.owner}` : ""} · ${clock(batch.ended_at ?? batch.created_at)} `), h("span", { class: kind }, batch.status.replace("_", " ")))),
    isOpen ? h("div", { "data-key": "open" },
      times(batch),
      h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": done, "aria-label": `${done} of ${total} lines` },
        bar(total ? done / total : 0, "saved")),
      h("p", { class: "figures" },
        h("span", {}, h("b", {}, percent(total ? done / total : 0)), h("small", {}, `${count(done)} of ${count(total)} lines`)),
        failed ? h("span", {}, h("b", { class: "bad" }, count(failed)), h("small", {}, "failed")) : null,
        left ? h("span", {}, h("b", {}, left), h("small", {}, `${count(batch.in_flight)} under way`)) : null,
        h("span", {}, h("b", {}, percent(batch.prompt_tokens ? batch.cached_tokens / batch.prompt_tokens : NaN)), h("small", {}, `of ${count(batch.prompt_tokens)} prompt tokens cached`))),
      errors(batch),
      batch.blocked ? h("p", { class: "bad" }, `Nothing is written at the moment: ${batch.blocked}`) : null,
      batch.pods_gone ? h("p", { class: "warn" }, `${batch.pods_gone} of its pods do not answer.`) : null,
      plan(batch),
      forest(state, batch.id)) : null);
}

export const batches = {
  title: "Batches",
  enter,
  draw(state) {
    const all = state.snapshot.batches;
    const body = all === null
      ? empty("Batches are not served. Start with ", h("code", {}, "wornpath serve --batches FOLDER"), " to have OpenAI's Files and Batches interface.")
      : all.length === 0
        ? empty("No batch has come. Try ", h("code", {}, "wornpath batch submit requests.jsonl"), ".")
        : all.map((batch) => card(state, batch));
    return h("div", {}, h("h1", {}, "Batches"), body);
  },
};
