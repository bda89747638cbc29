// Where knowledge of caches comes from, and how good it is.

import { cell, count, duration, empty, h, percent, rate, table } from "./draw.js";

const KIND = { live: "good", waiting: "", unsure: "warn", partial: "warn", stale: "bad", quarantined: "bad" };

function row(pod) {
  const { feed, guess } = pod.events;
  const name = h("th", { scope: "row" }, h("span", { class: "name" }, pod.name), h("small", {}, feed?.sources.join(", ") || "no source"));
  if (!feed) {
    const words = guess ? `${count(guess.tokens)} of about ${count(guess.capacity_tokens)} tokens are guessed from what it was sent` : "nothing is known of its cache";
    return h("tr", { "data-key": pod.name }, name, h("td", { colspan: 7, "data-label": "Events" }, h("span", { class: "quiet" }, `sends no events; ${words}`)));
  }
  const trouble = [
    feed.gaps && `gaps ${count(feed.gaps)}`, feed.replays && `replays ${count(feed.replays)}`, feed.resyncs && `resyncs ${count(feed.resyncs)}`,
    feed.restarts && `restarts ${count(feed.restarts)}`, feed.disagreements && `digests that disagreed ${count(feed.disagreements)}`,
    feed.throttled && `throttled ${count(feed.throttled)}`,
    feed.batches.malformed && `malformed ${count(feed.batches.malformed)}`, feed.batches.dropped && `dropped ${count(feed.batches.dropped)}`,
  ].filter(Boolean);
  return h("tr", { "data-key": pod.name }, name,
    cell("State", null, h("span", { class: "name" }, h("i", { class: `dot ${KIND[feed.state]}` }), feed.state), h("small", {}, `trusted as ${pod.events.trust}`)),
    cell("Confidence", "number", percent(feed.confidence)),
    cell("Behind", "number", h("span", { class: feed.lag ? "warn" : null }, count(feed.lag)), h("small", {}, "batches")),
    cell("Heard", "number", feed.age_seconds === null ? "never" : duration(feed.age_seconds)),
    cell("Blocks/s", "number", rate(feed.blocks_per_second)),
    cell("Applied", "number", h("span", {}, count(feed.batches.applied)), h("small", {}, feed.last_sequence === null ? "not numbered" : `last ${feed.last_sequence}`)),
    cell("What happened", null, trouble.join(", ") || h("span", { class: "quiet" }, "nothing unusual"), h("small", { class: "bad" }, feed.last_malformed),
      feed.troubles.map(({ source, reason }) => h("small", { class: "bad" }, `${source}: ${reason}`))));
}

export const events = {
  title: "Events",
  draw({ snapshot: { pods, strangers } }) {
    const heads = [["Pod"], ["State"], ["Confidence", "number"], ["Behind", "number"], ["Heard", "number"], ["Blocks/s", "number"], ["Applied", "number"], ["What happened"]];
    return h("div", {},
      h("h1", {}, "Event sources"),
      pods.length ? table(heads, pods.map(row), "cards") : empty("There are no pods, so there are no event sources."),
      strangers ? h("p", { class: "warn" }, `${count(strangers)} things were said of pods that are not in the fleet: is a pod missing from the configuration, or named otherwise by its source?`) : null);
  },
};
