// What the page shows stands in its address, so that a link shows the same: `#view/part?filter=value`.

// Where we are: the view, what is open in it, and the filters.
export function here() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view, ...rest] = path.split("/");
  return { view, part: decodeURIComponent(rest.join("/")), query: new URLSearchParams(query) };
}

export function address(view, part = "", query = {}) {
  const given = Object.entries(query instanceof URLSearchParams ? Object.fromEntries(query) : query).filter(([, value]) => value);
  const shown = new URLSearchParams(given).toString();
  return `#${view}${part ? `/${encodeURIComponent(part)}` : ""}${shown ? `?${shown}` : ""}`;
}
