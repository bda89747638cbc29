// The frame around the views: which one is shown, what is known, and when it is drawn again.

import { duration, empty, h, patchChildren } from "./draw.js";
import { here } from "./address.js";
import { follow, hasToken, keepToken } from "./stream.js";
import { batches } from "./batches.js";
import { decisions } from "./decisions.js";
import { events } from "./events.js";
import { fleet } from "./fleet.js";
import { append } from "./history.js";
import { prefixes } from "./prefixes.js";
import { profiles } from "./profiles.js";
import { setup } from "./setup.js";

// A view draws what is known. `enter` is called when it comes into sight and with every snapshot while it is.
const VIEWS = { fleet, index: prefixes, decisions, profiles, batches, events, setup };

const state = { snapshot: null, heard: null, history: [], trouble: null, wantsToken: false, ui: {}, redraw };
const main = document.getElementById("main");
let drawing = false;
let drawn = null;

// `#decisions/…?…` is a view, something in it, and filters.
const shown = () => {
  const name = here().view;
  return name in VIEWS ? name : "fleet";
};

// Draws at most once per frame, whatever happened in between.
function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  const name = shown();
  document.title = `${VIEWS[name].title} · wornpath`;
  patchChildren(document.getElementById("nav"), Object.entries(VIEWS).map(([key, view]) =>
    h("a", { href: `#${key}`, "data-key": key, "aria-current": key === name ? "page" : null }, view.title)));
  patchChildren(document.getElementById("pulse"), pulse());
  const content = state.wantsToken ? token() : state.snapshot ? VIEWS[name].draw(state)
    : empty(state.trouble ? `${state.trouble.message}; trying again.` : "Waiting for the router…");
  content.setAttribute("data-key", state.wantsToken ? "token" : name);
  const told = lost();
  main.classList.toggle("stale", told !== null);
  patchChildren(main, told ? [told, content] : [content]);
  if (name === drawn) return;
  drawn = name;
  // On a phone the views are wider than the screen.
  document.querySelector("nav a[aria-current]").scrollIntoView({ inline: "center", block: "nearest" });
}

// What stands on the page is old, and looks it.
function lost() {
  if (!state.trouble || !state.snapshot || state.wantsToken) return null;
  return h("p", { class: "lost", role: "alert", "data-key": "lost" }, h("i", { class: "dot bad" }),
    h("span", {}, h("b", {}, `Not connected since ${state.heard.toLocaleTimeString("en-GB")}: `),
      `${state.trouble.message}. Everything below is from then, and goes on when the router answers.`));
}

function pulse() {
  const { snapshot, trouble } = state;
  if (trouble || !snapshot) {
    return [h("i", { class: "dot bad" }), h("span", {}, trouble ? "not connected" : "connecting")];
  }
  const kind = snapshot.readiness === "ready" ? "good" : "warn";
  return [
    h("i", { class: `dot ${kind}` }), h("span", {}, snapshot.readiness),
    h("span", { class: "quiet wide" }, `up ${duration(snapshot.uptime_seconds)} · ${snapshot.version}`),
  ];
}

function token() {
  const given = (event) => {
    event.preventDefault();
    keepToken(new FormData(event.target).get("token"));
    Object.assign(state, { wantsToken: false, isTokenWrong: false, trouble: null });
    start();
    redraw();
  };
  return h("section", { class: "narrow" },
    h("h1", {}, "Token"),
    state.isTokenWrong ? h("p", { class: "bad", role: "alert", id: "wrong" }, "The router refused this token: it is not the one whose digest is configured.") : null,
    h("p", {}, "This admin plane asks for a token: the text whose digest stands in ", h("code", {}, "listen.admin.token_digest"),
      ". It is kept until this tab is closed."),
    h("form", { onsubmit: given },
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true }),
      h("button", { type: "submit" }, "Show the dashboard")));
}

function start() {
  follow(
    (snapshot) => {
      const now = new Date();
      // Nothing is known of seconds that were missed; a snapshot that is a little late misses none.
      const since = state.heard ? Math.round((now - state.heard) / 1000) : 0;
      append(state, snapshot, since > 3 ? since - 1 : 0);
      Object.assign(state, { snapshot, heard: now, trouble: null });
      VIEWS[shown()].enter?.(state);
      redraw();
    },
    (trouble) => {
      const wantsToken = trouble.status === 401;
      Object.assign(state, { trouble, wantsToken, isTokenWrong: wantsToken && hasToken() });
      redraw();
    },
  );
}

addEventListener("hashchange", () => {
  if (shown() !== drawn || shown() === "fleet") scrollTo(0, 0);
  VIEWS[shown()].enter?.(state);
  redraw();
});
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
start();
draw();
