// Talking to the admin plane: answers as JSON, and the stream of snapshots. `EventSource` cannot show a token, so
// the stream is read with `fetch`.

const TOKEN = "wornpath-token";
// A snapshot comes every second; without any for so long, the router is taken for gone.
const PATIENCE = 5000;

export class Refused extends Error {
  constructor(status, message, problems) {
    super(message);
    this.status = status;
    this.problems = problems;
  }
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function ask(path, options = {}) {
  const sent = fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  const answer = await sent.catch(() => { throw new Error("the router does not answer"); });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error?.message ?? `answered ${answer.status}`, said.error?.problems);
}

// What comes within the patience that we have.
function soon(promise) {
  let timer;
  const late = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new Error("the router has fallen silent")), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export const get = async (path) => (await soon(ask(path))).json();
export const post = async (path, body, type) =>
  (await ask(path, { method: "POST", body, headers: type ? { "content-type": type } : {} })).json();
export const del = async (path) => (await ask(path, { method: "DELETE" })).json();

// Connects when the page becomes visible.
const inSight = () => new Promise((seen) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    seen();
  };
  document.addEventListener("visibilitychange", look);
  look();
});

// Snapshots for as long as the page lives and is looked at: `tell` gets each, `trouble` what is wrong meanwhile. A
// browser has few connections to a router, and a hidden tab needs none.
export async function follow(tell, trouble) {
  for (let pause = 500; ; pause = Math.min(5000, pause * 2)) {
    await inSight();
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await soon(ask("/live", { signal: stop.signal }));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await soon(reader.read().catch(() => { throw new Error("the connection broke"); }));
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          const data = part.split("\n").find((line) => line.startsWith("data: "));
          if (data) tell(JSON.parse(data.slice(6)));
        }
        pause = 250;
      }
      trouble(new Error("the router ended the stream"));
    } catch (error) {
      if (error.status === 401) return trouble(error);
      if (!document.hidden) trouble(error);
    } finally {
      document.removeEventListener("visibilitychange", hide);
      stop.abort();
    }
    await new Promise((later) => setTimeout(later, pause));
  }
}
