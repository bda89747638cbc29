// Offline work: how far each batch is, how long it will take, and what its plan saves.

import { bar, count, duration, empty, h, percent } from "./draw.js";

function plan(batch) {
  const { plan } = batch;
  if (!plan) return null;
  const most = Math.max(1, ...plan.pods.map((pod) => pod.requests));
  return h("div", { class: "plan" },
    h("h3", {}, "Plan"),
    h("p", { class: "figures" },
      h("span", {}, h("b", {}, percent(1 - plan.planned_tokens / Math.max(1, plan.prompt_tokens))), h("small", {}, "of prefill saved")),
      h("span", {}, h("b", {}, count(plan.planned_tokens)), h("small", {}, `of ${count(plan.prompt_tokens)} prompt tokens computed`)),
      h("span", {}, h("b", {}, count(plan.least_tokens)), h("small", {}, "at the very least")),
      plan.copies ? h("span", {}, h("b", {}, count(plan.copies)), h("small", {}, "equal requests computed once")) : null),
    h("ul", { class: "shares" }, plan.pods.map((pod) =>
      h("li", {}, h("span", {}, pod.pod), bar(pod.requests / most), h("span", { class: "number" }, count(pod.requests))))));
}

function card(batch) {
  const { total, completed, failed } = batch.lines;
  const done = completed + failed;
  const left = batch.seconds_left === undefined ? null : done < total ? `about ${duration(batch.seconds_left)} left` : "all answered";
  const kind = { completed: "good", failed: "bad", expired: "bad", cancelled: "warn" }[batch.status] ?? "";
  return h("article", { class: "card", "data-key": batch.id },
    h("div", { class: "title" },
      h("h2", {}, h("code", {}, batch.id)),
      h("span", { class: kind }, batch.status.replace("_", " "))),
    h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": done, "aria-label": `${done} of ${total} lines` },
      bar(total ? done / total : 0, "saved")),
    h("p", { class: "figures" },
      h("span", {}, h("b", {}, percent(total ? done / total : 0)), h("small", {}, `${count(done)} of ${count(total)} lines`)),
      failed ? h("span", {}, h("b", { class: "bad" }, count(failed)), h("small", {}, "failed")) : null,
      left ? h("span", {}, h("b", {}, left), h("small", {}, `${count(batch.in_flight)} under way`)) : null,
      h("span", {}, h("b", {}, percent(batch.prompt_tokens ? batch.cached_tokens / batch.prompt_tokens : NaN)), h("small", {}, `of ${count(batch.prompt_tokens)} prompt tokens cached`))),
    batch.blocked ? h("p", { class: "bad" }, `Nothing is written at the moment: ${batch.blocked}`) : null,
    batch.pods_gone ? h("p", { class: "warn" }, `${batch.pods_gone} of its pods do not answer.`) : null,
    plan(batch));
}

export const batches = {
  title: "Batches",
  draw({ snapshot: { batches: all } }) {
    const body = all === null
      ? empty("Batches are not served. Start with ", h("code", {}, "wornpath serve --batches FOLDER"), " to have OpenAI's Files and Batches interface.")
      : all.length === 0
        ? empty("No batch has come. Try ", h("code", {}, "wornpath batch submit requests.jsonl"), ".")
        : all.map(card);
    return h("div", {}, h("h1", {}, "Batches"), body);
  },
};
