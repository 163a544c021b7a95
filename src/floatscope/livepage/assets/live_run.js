// One run as the page holds it: what was asked, where it stands, and the scene that grows while it decodes.

const WORDS = { asked: "asking", queued: "waiting", running: "running", done: "done", stopped: "stopped", failed: "failed" };

class Run {
  // `request` as the server takes it; `model` the model's entry of the setup, where it is known.
  constructor(page, request, model) {
    Object.assign(this, { page, request, model, id: null, phase: "asked", scene: null, total: 0, said: "", error: null,
      touches: [], from: request.from || null, seconds: 0, state: null, answer: "", sampler: null });
    this.stopper = new AbortController();
  }

  get name() { return this.control ? this.label : this.model ? this.model.name || this.model.spec : "model"; }
  get active() { return ["asked", "queued", "running"].includes(this.phase); }
  get finished() { return this.phase === "done"; }

  // Until it has ended, whichever way; failures are kept in `error`, never thrown.
  async start() {
    this.begun = performance.now();
    try {
      await this.page.client.run(this.request, (event) => this.take(event), this.stopper.signal);
    } catch (error) {
      if (error.name === "AbortError") this.turn("stopped", "stopped; the steps that came are kept here");
      else this.fail(error);
    }
    return this;
  }

  stop() { this.stopper.abort(); }

  take(event) {
    const acts = {
      queued: () => this.turn("queued", event.why === "loading" ? "waits for the model to load"
        : event.place > 0 ? `waits for its turn: ${event.place} ahead` : "is about to start"),
      started: () => this.started(event),
      step: () => this.step(event),
      done: () => this.done(event),
      cancelled: () => this.turn("stopped", "stopped"),
      error: () => this.fail(new LiveError(event.error)),
    };
    if (event.run) this.id = event.run;
    if (acts[event.event]) acts[event.event]();
  }

  started({ model, prompt, sampler, touches, from, total, scene }) {
    this.model = this.page.modelOf(model) || this.model;
    Object.assign(this, { prompt, sampler, touches, from, total, header: scene });
    const plain = touches.map(({ text, ...touch }) => touch);
    this.state = { fingerprint: this.model.fingerprint, model: this.model.spec, prompt,
      sampler: { name: sampler.name, settings: sampler.settings }, touches: plain };
    this.turn("running", "");
  }

  step(event) {
    this.seconds = event.seconds;
    const client = this.page.client;
    // Single heads too heavy for the stream can be asked for once the run is over.
    const source = { heads: (id, step) => client.heads(this.id, step), head: (id, layer, head) => client.head(this.id, layer, head) };
    const first = !this.scene;
    if (first) {
      this.scene = new GrowingScene(this.header, event, this.id, {});
      this.lateSource = source;
      this.firstAfter = performance.now() - this.begun;
    } else {
      this.scene.append(event);
    }
    this.page.onStep(this, first);
  }

  done({ answer, seconds, changed, state, steps }) {
    Object.assign(this, { answer, seconds, changed });
    if (state && state.runs) this.state = { ...state.runs[0] };
    if (this.scene) {
      this.scene.planned = steps;
      this.scene.json.answer = answer;
      this.scene.source = this.lateSource;
    }
    this.turn("done", "");
  }

  fail(error) {
    this.error = error;
    this.turn("failed", inWords(error));
  }

  turn(phase, said) {
    Object.assign(this, { phase, said });
    this.page.onRun(this);
  }

  // What a whole trace adds to the steps that came: asked for once, when something needs it.
  async whole() {
    if (!this.finished || this.wholeAsked || !this.scene) return;
    this.wholeAsked = true;
    try {
      this.scene.adopt(await this.page.client.scene(this.id));
      this.page.viewer.update();
    } catch { /* the run was let go on the server; what is here stays */ }
  }

  where() {
    if (this.phase === "running" && this.scene) return `step ${this.scene.steps} of ${this.total}`;
    const took = this.seconds ? `, ${digits(this.seconds, 2)} s` : "";
    if (this.finished) return `done: ${this.scene.steps} steps${took}`;
    return this.said || WORDS[this.phase];
  }
}
