// The server, as functions: questions and answers in JSON, a run as a stream of lines. Every failure is an
// error with words for a reader and, where there is one, a remedy.

class LiveError extends Error {
  constructor({ kind = "internal", message = "", remedy = "", field = "" }, status = 0) {
    super(message);
    Object.assign(this, { kind, remedy, field, status });
  }
}

const inWords = (error) => (error.remedy ? `${error.message} ${error.remedy}` : error.message);

const GONE = { kind: "offline", message: "The server does not answer.",
  remedy: "Start floatscope live again and open the address it prints; this page's link can be pasted there." };

async function answerOf(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new LiveError(GONE);
  }
  if (answer.ok) return answer;
  let said;
  try { said = (await answer.json()).error; } catch { said = null; }
  throw new LiveError(said || { message: `The server answered ${answer.status} ${answer.statusText}.`,
    remedy: "Reload the page; if that does not help, start floatscope live again." }, answer.status);
}

const posted = (json, signal) => ({ method: "POST", headers: { "content-type": "application/json" }, body: json, signal });

class Client {
  async get(path) { return (await answerOf(path)).json(); }
  post(path, body) { return this.postText(path, JSON.stringify(body)); }
  async postText(path, json) { return (await answerOf(path, posted(json))).json(); }

  setup() { return this.get("setup"); }
  models() { return this.get("models"); }
  history() { return this.get("history"); }
  scene(run) { return this.get(`scene/${run}`); }
  heads(run, step) { return this.get(`scene/${run}/heads/${step}`); }
  head(run, layer, head) { return this.get(`scene/${run}/head/${layer}/${head}`); }
  compare(...at) { return this.get(`compare/${at.join("/")}`); }
  forget(runs) { return this.post("forget", { runs }); }
  state(json) { return this.postText("state", json); }
  tokens(model, prompt, length) { return this.post("tokens", { model, prompt, length }); }
  candidates(run, step, position) { return this.post("candidates", { run, step, position, top: 5 }); }
  pattern(run, step, layer, head) { return this.post("pattern", { run, step, layer, head }); }
  async python(run) { return (await this.post("python", { run })).code; }
  async exported(runs) { return (await answerOf("export", posted(JSON.stringify({ runs })))).blob(); }
  async trace(run) { return (await answerOf(`trace/${run}`)).blob(); }

  // Each event of a run, or of another task that tells its progress, as it comes. Aborting the signal cancels it.
  async run(request, onEvent, signal) { return this.task("run", request, onEvent, signal); }

  async task(path, request, onEvent, signal) {
    const answer = await answerOf(path, posted(JSON.stringify(request), signal));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", ended = false;
    const take = (line) => {
      if (!line.trim()) return;
      const event = JSON.parse(line);
      ended = ["done", "error", "cancelled", "answer"].includes(event.event);
      onEvent(event);
    };
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new LiveError({ ...GONE, message: "The connection to the server was lost while the run was going on." });
      }
      if (part.done) break;
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      lines.forEach(take);
    }
    take(rest);
    if (!ended) throw new LiveError({ ...GONE, message: "The run ended without an answer: the server stopped sending." });
  }
}

// A file for the reader, without leaving the page.
function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
