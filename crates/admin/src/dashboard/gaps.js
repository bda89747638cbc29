// Why a chart has no value at a time: in words, for every value, or null where there is one.

const BEFORE = "before the router started";
const UNSAMPLED = "the router took no sample";

// Of the fleet: `rows` are the rates of each step, or nothing. `from` is the time before the first of them, `started`
// that of the first sample of the router, and `read` takes a figure from the rates.
export function fleetGaps({ from, step, started }, rows, read, unknown = "not reported by the engines") {
  const isKnown = (value) => typeof value === "number";
  return rows.map((rates, at) => {
    if (!rates) return started && from + (at + 1) * step <= started ? BEFORE : UNSAMPLED;
    if (isKnown(read(rates))) return null;
    return rates.requests > 0 ? unknown : "no requests";
  });
}

// What a pod was at each change, the first of which says what it was before.
const BECOMES = { pod_added: "starting", pod_removed: "gone", pod_up: "up", pod_down: "down", pod_draining: "draining" };
const WAS = { pod_added: "gone", pod_removed: "up", pod_up: "down", pod_down: "up", pod_draining: "up" };
const WORDS = {
  gone: "not in the fleet", starting: "starting", down: "down", draining: "draining", up: "no streamed requests",
};

// Of one pod: `changes` are those of all pods, oldest first; `now` is what the pod is now.
export function podGaps({ from, step, started }, values, changes, name, now) {
  const own = changes.filter(({ pod, kind }) => pod === name && kind in BECOMES);
  return values.map((value, at) => {
    if (typeof value === "number") return null;
    const end = from + (at + 1) * step;
    if (started && end <= started) return BEFORE;
    const next = own.findIndex((change) => change.at >= end);
    const is = next > 0 ? BECOMES[own[next - 1].kind] : next === 0 ? WAS[own[0].kind] : own.length ? BECOMES[own.at(-1).kind] : now;
    return WORDS[is] ?? WORDS.up;
  });
}

// Of several charts in one: what all of them say, where all have no value.
export function commonGaps(all) {
  const length = Math.max(0, ...all.map((gaps) => gaps.length));
  return Array.from({ length }, (_, at) => {
    const said = all.map((gaps) => gaps[at]);
    if (!said.length || said.includes(null)) return null;
    return said.every((words) => words === said[0]) ? said[0] : WORDS.up;
  });
}
