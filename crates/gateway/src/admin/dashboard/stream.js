// Talking to the admin plane: answers as JSON, and the stream of snapshots. `EventSource` cannot show a token, so
// the stream is read with `fetch`.

const TOKEN = "wornpath-token";

export class Refused extends Error {
  constructor(status, message, problems) {
    super(message);
    this.status = status;
    this.problems = problems;
  }
}

export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.error?.message ?? `answered ${answer.status}`, said.error?.problems);
}

export const get = async (path) => (await ask(path)).json();
export const post = async (path, body, type) =>
  (await ask(path, { method: "POST", body, headers: { "content-type": type } })).json();

// Snapshots for as long as the page lives: `tell` gets each, `trouble` what is wrong meanwhile.
export async function follow(tell, trouble) {
  for (let pause = 500; ; pause = Math.min(5000, pause * 2)) {
    try {
      const answer = await ask("/live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
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
      trouble(new Error("the stream ended"));
    } catch (error) {
      if (error.status === 401) return trouble(error);
      trouble(error);
    }
    await new Promise((later) => setTimeout(later, pause));
  }
}
