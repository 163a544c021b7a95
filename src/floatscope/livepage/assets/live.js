// The live page: what is typed becomes runs, runs become lanes of the viewer, and the address follows.

const KEYS = [["Ctrl Enter", "run"], ["← →", "one step back or forward"], ["Home, End", "first step, newest step"],
  ["space", "pause or follow while it runs; play afterwards"], ["↑ ↓ in the text", "from token to token; Enter selects"],
  ["↑ ↓, shift ← → in the grid", "from head to head; Enter chooses"], ["arrow keys in a pattern", "from weight to weight; Enter goes to the row"],
  ["Ctrl Z, Ctrl Shift Z", "undo the last edit or run, and redo it"], ["Shift click in the grid", "chooses several heads"], ["/", "to the prompt"], ["Esc", "closes a tip or a message"]];

class Page {
  constructor(setup) {
    this.client = new Client();
    Object.assign(this, { models: setup.models, limits: setup.limits || {}, lanes: [], past: [], future: [], heard: [], links: 0 });
    this.prompt = new PromptBox(this, { examples: setup.examples || [], limits: this.limits });
    this.first = new Setting(this, "Model and sampler");
    this.second = new Setting(this, "Second model and sampler");
    this.viewer = new LiveViewer(at("viewer"), this);
    at("viewer").floatscope = this.viewer;
    this.pattern = new Pattern(this);
    this.keep = new Keep(this);
    at("pattern").replaceWith(this.pattern.root);
    this.compose();
    this.buildRunbar();
    at("history").replaceChildren(this.keep.root);
    this.showModels();
    this.pollModels();
    if (setup.examples && setup.examples.length) this.prompt.example(0);
    this.listen();
    this.keep.refresh();
  }

  compose() {
    this.compare = make("input", { type: "checkbox", id: "compare" });
    this.compare.addEventListener("change", () => { this.second.root.hidden = !this.compare.checked; this.relabel(); });
    this.second.root.hidden = true;
    this.runButton = make("button", { type: "button", className: "fsl-button fsl-primary", id: "run", title: "Ctrl Enter" }, "Run");
    this.runButton.addEventListener("click", () => this.run());
    this.title = make("span", { className: "fsl-summary" });
    this.fold = make("details", { open: true }, make("summary", {}, make("h2", {}, "Prompt"), this.title),
      make("div", { className: "fsl-two" }, this.prompt.root, make("div", { className: "fsl-settings" }, this.first.root,
        make("div", { className: "fsl-check" }, this.compare, make("label", { htmlFor: "compare" }, "Compare with a second model or setting")), this.second.root)));
    this.fold.addEventListener("toggle", () => { if (this.fold.open) this.prompt.fit(); this.relabel(); });
    at("compose").replaceChildren(this.fold);
  }

  relabel() { this.title.textContent = this.fold.open ? "" : `${this.prompt.summary()} · ${this.first.model.name || this.first.model.spec}`; }
  settingChanged() { if (this.first) this.prompt.typed(); }
  suggest(settings) { for (const setting of [this.first, this.second]) setting.suggest(settings); }
  promptChanged() { if (this.title) this.relabel(); }
  countFor() { return { model: this.first.model && this.first.model.state === "ready" ? this.first.model.id : null, length: this.first.read().length }; }

  buildRunbar() {
    this.pauseButton = button("Pause", () => this.viewer.follow(!this.viewer.following));
    this.stopButton = button("Stop", () => this.stop());
    this.undoButton = button("Undo", () => this.undo());
    this.redoButton = button("Redo", () => this.redo());
    this.where = make("span", { className: "fsl-status" });
    at("runbar").replaceChildren(make("div", { className: "fsl-tools" }, this.runButton, this.pauseButton, this.stopButton, this.undoButton, this.redoButton, this.where),
      this.keep.tools, this.keep.shownText);
    this.refreshBar();
  }

  refreshBar() {
    const busy = this.busy(), { viewer } = this;
    this.pauseButton.disabled = this.stopButton.disabled = !busy;
    this.undoButton.disabled = !this.past.length;
    this.redoButton.disabled = !this.future.length;
    this.pauseButton.textContent = busy && !viewer.following ? "Follow" : "Pause";
    const letters = this.lanes.filter(Boolean).length > 1;
    if (busy || !this.told) this.where.textContent = !busy ? "" : this.lanes.filter(Boolean).map((run, i) => `${letters ? `${"AB"[i]}: ` : ""}${run.where()}`).join(" · ");
    this.keep.refreshTools();
    document.body.dataset.state = busy ? "running" : this.lanes.some((run) => run && run.phase === "failed") ? "failed" : this.lanes.length ? "done" : "ready";
    at("empty").hidden = this.lanes.some((run) => run && run.scene);
    at("empty").textContent = busy ? "Waiting for the first step …"
      : "Press Run: each step is drawn as it is decoded. Then click a token to see who looks at it, to change it or to take it away, and a head to ablate it or to see its pattern.";
    if (viewer.waitingNote) viewer.waitingNote.textContent = ` ${this.lanes.find((run) => run && !run.scene)?.where() || ""}`;
  }

  listen() {
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.run(); }
      if (event.key === "Escape" && !event.defaultPrevented) this.notify("");
      const typing = /^(TEXTAREA|INPUT|SELECT)$/.test(event.target.tagName) && event.target.type !== "radio";
      if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !typing) { event.preventDefault(); if (event.shiftKey) this.redo(); else this.undo(); }
      if (event.key === "/" && !typing) { event.preventDefault(); this.fold.open = true; this.prompt.field().focus(); }
    });
    window.addEventListener("hashchange", () => this.openAddress());
  }

  // ---- Models

  modelOf(id) { return this.models.find((model) => model.id === id); }

  async updateModels() {
    this.models = (await this.client.models()).models;
    this.showModels();
  }

  showModels() {
    this.first.refresh();
    this.second.refresh();
    this.prompt.refresh();
    const failed = this.models.find((model) => model.state === "failed");
    if (failed) this.notify(`${failed.spec}: ${failed.message} ${failed.remedy || ""}`);
    this.relabel();
  }

  pollModels() {
    if (!this.models.some((model) => ["loading", "restarting"].includes(model.state))) return;
    setTimeout(async () => {
      try { await this.updateModels(); this.pollModels(); } catch (error) { this.notify(inWords(error)); }
    }, 400);
  }

  // ---- Runs

  busy() { return this.lanes.some((run) => run && run.active); }
  stop() { for (const run of this.lanes) if (run && run.active) run.stop(); }

  run() {
    this.leaveLink();
    if (this.prompt.empty()) { this.fold.open = true; this.notify("The prompt is empty. Type one, or choose an example.", this.prompt.field()); return; }
    const settings = this.compare.checked ? [this.first, this.second] : [this.first];
    for (const setting of settings) {
      const wrong = setting.wrong();
      if (wrong) { this.fold.open = true; const fold = wrong.closest("details"); if (fold) fold.open = true; wrong.reportValidity(); return; }
    }
    const prompt = this.prompt.value();
    // Room for the canvas, once: who unfolds the prompt again wants to see it.
    if (!this.folded) { this.folded = true; this.fold.open = false; }
    this.begin(settings.map((setting) => new Run(this, { ...setting.request(), prompt }, setting.model)));
    if (at("viewer").getBoundingClientRect().top > 0.7 * window.innerHeight) at("runbar").scrollIntoView({ block: "start" });
  }

  begin(lanes) {
    this.stop();
    this.notify("");
    at("missing").hidden = true;
    this.told = false;
    this.leaveLanes();
    this.lanes = lanes;
    document.title = `${this.prompt.summary()} · Floatscope live`;
    this.viewer.following = true;
    this.pattern.root.hidden = true;
    Object.assign(this.pattern, { at: null, wanted: null });
    this.viewer.showLanes();
    this.refreshBar();
    return Promise.all(lanes.filter((run) => run.phase === "asked").map((run) => run.start()));
  }

  // From a step of a run, with one more edit, beside the run it leaves. `beside` is what asked for it.
  branch(run, step, touch, beside) {
    const request = run.finished ? { from: { run: run.id, step }, touches: [{ ...touch, step }] }
      : { model: run.model.id, prompt: run.prompt, sampler: run.state.sampler, touches: [...run.state.touches, { ...touch, step }] };
    return this.show(run, request, beside);
  }

  show(run, request, beside) {
    const branch = new Run(this, request, run.model);
    branch.beside = beside;
    this.stop();
    this.notify("");
    this.leaveLanes();
    this.lanes = [run, branch];
    this.viewer.following = true;
    this.viewer.showLanes();
    this.refreshBar();
    return branch.start();
  }

  // Without one of its edits: the run it left where that is the same, else a branch with the others.
  removeEdit(run, index) {
    const parent = this.lanes.find((one) => one && run.from && one.id === run.from.run), rest = run.state.touches.filter((_, i) => i !== index);
    if (parent && parent !== run && sameRun({ ...run.state, touches: rest }, parent.state)) { this.begin([parent]); return; }
    if (run.finished) this.show(run, { from: { run: run.id, step: run.state.touches[index].step, without: [index] } });
    else this.show(run, { model: run.model.id, prompt: run.prompt, sampler: run.state.sampler, touches: rest });
  }

  // The same canvases, read by the untrained control of the model.
  async control(run) {
    this.keep.wait("Making the control …");
    try {
      let row = null;
      await this.client.task("control", { run: run.id }, (event) => {
        if (event.event === "done") row = event.history;
        if (event.event === "error") throw new LiveError(event.error);
      });
      if (row) await this.begin([run, await pastRun(this, row)]);
      this.keep.refresh();
    } catch (error) { this.notify(inWords(error), this.keep.tools); }
    this.keep.wait("");
  }

  // ---- Undo: what was shown before, and again

  leaveLanes() {
    if (this.lanes.length) { this.past.push(this.lanes); this.future = []; }
  }

  undo() { this.travel(this.past, this.future); }
  redo() { this.travel(this.future, this.past); }

  travel(from, to) {
    if (!from.length) return;
    this.stop();
    this.notify("");
    to.push(this.lanes);
    this.lanes = from.pop();
    this.viewer.showLanes();
    this.keep.refresh();
    this.refreshBar();
    this.changed();
    this.say(`Shown: ${this.lanes.map((run) => [run.name, ...run.touches.map((touch) => touch.text || touch.kind)].join(", ")).join("; beside it ")}`);
  }

  onStep(run, first) {
    if (!this.lanes.includes(run)) return;
    if (first) this.viewer.showLanes(); else this.viewer.arrived(run);
    this.hear(run);
    this.refreshBar();
  }

  onRun(run) {
    if (!this.lanes.includes(run)) return;
    if (run.phase === "failed" && run.beside) {  // an edit that cannot be made: nothing has changed
      this.lanes = this.past.pop();
      this.viewer.showLanes();
      this.notify(inWords(run.error), this.viewer.cardOf(run.beside));
    } else if (run.phase === "failed") {
      if (!run.scene) this.fold.open = true;  // what was asked has to be changed
      this.notify(inWords(run.error), at("runbar"));
    }
    if (run.finished) { this.viewer.showStory(run); this.say(`${run.name} is done. Answer: ${run.answer.trim()}`); }
    if (!run.active) { this.keep.refresh(); if (run.scene) this.viewer.arrived(run); this.prompt.recount(); }
    this.refreshBar();
    this.changed();
  }

  // A link that is being opened gives way to what is asked for after it.
  leaveLink() { this.links++; this.opening = false; }

  // The prompt of a link, with a model that is here.
  runWith(model, { prompt, sampler }) {
    const isKnown = sampler && model.samplers.some((one) => one.name === sampler.name);
    this.prompt.set(prompt);
    this.compare.checked = false;
    this.second.root.hidden = true;
    this.first.chooseModel(model.id, isKnown ? sampler : undefined);
    this.run();
  }

  async showRow(row, beside) {
    this.leaveLink();
    try {
      const run = this.lanes.find((one) => one && one.id === row.run) || await pastRun(this, row);
      const lanes = beside && this.lanes[0] && this.lanes[0] !== run ? [this.lanes[0], run] : [run];
      await this.begin(lanes);
      if (!beside) this.prompt.set(row.prompt);
      this.keep.refresh();
      at("viewer").scrollIntoView({ block: "start" });
    } catch (error) { this.notify(inWords(error), this.keep.note); }
  }

  showPattern(run, step, layer, head, query) {
    this.pattern.show(run, step, layer, head, query).then(() => this.pattern.root.scrollIntoView({ block: "nearest" }));
  }

  // ---- Words for those who listen: which step revealed what, gathered so that no sentence overtakes another.

  hear(run) {
    const { scene } = run, step = scene.steps - 1;
    const words = scene.changesAt[step].map((c) => (c.kind === REMASK ? `takes back position ${c.key}` : `reveals ${quoted(scene.word(c.word))}`));
    this.heard.push(`${this.lanes.length > 1 ? `${run.name}, ` : ""}${scene.stepName(step)} ${words.join(", ") || "reveals nothing"}`);
    this.speak();
  }

  say(text, visibly = false) {
    this.heard.push(text);
    if (visibly) { this.told = true; this.where.textContent = text; }
    this.speak();
  }

  speak() {
    if (this.speaking) return;
    const next = () => {
      if (!this.heard.length) { this.speaking = null; return; }
      at("said").textContent = `${this.heard.splice(0).join(". ")}.`;
      this.speaking = setTimeout(next, 1500);
    };
    next();
  }

  // Next to the control that caused it, and in view; what no control caused stands on top.
  notify(text, beside = at("keys-list")) {
    const box = at("notice");
    box.hidden = !text;
    box.replaceChildren(...(text ? [make("span", {}, text), button("Dismiss", () => this.notify(""))] : []));
    const place = text ? beside : at("keys-list");
    if (box.previousElementSibling !== place) place.after(box);
    if (text) box.scrollIntoView({ block: "nearest" });
  }

  // ---- The address

  // Without the page's address: that holds the key of this server.
  link() { return PREFIX + encodeState(stateOf(this)); }

  changed() {
    if (this.pauseButton) this.refreshBar();
    const shown = this.pattern && this.pattern.at;
    if (shown && this.pattern.dark !== this.viewer.isDark()) this.pattern.scaled();
    if (shown && !this.viewer.playing) this.followPattern(shown);
    clearTimeout(this.addressing);
    if (!this.opening && this.lanes.some((run) => run && run.state)) this.addressing = setTimeout(() => this.writeAddress(), 150);
  }

  writeAddress() {
    const wanted = this.link();
    if (wanted !== location.hash) history.replaceState(null, "", wanted);
    document.body.dataset.address = "written";
  }

  // The pattern shows the step and the head that the viewer shows.
  followPattern({ run, step, layer, head }) {
    const { viewer } = this, view = viewer.viewOf(run);
    if (!view || !run.finished) return;
    const tick = view.scene.json.steps[view.step];
    const l = viewer.layer < 0 || viewer.head < 0 ? layer : view.scene.json.layers[viewer.layerOf(view.scene)];
    const h = viewer.layer < 0 || viewer.head < 0 ? head : view.scene.json.heads[Math.min(viewer.head, view.scene.heads - 1)];
    if (tick !== step || l !== layer || h !== head) this.pattern.show(run, tick, l, h);
  }

  openAddress() { return location.hash.startsWith(PREFIX) ? this.openLink(location.hash) : null; }

  async openLink(link) {
    const number = ++this.links, isWanted = () => number === this.links;
    this.opening = true;
    try {
      const opened = await loadedLink(this, link, isWanted);
      if (opened) await openRuns(this, opened);
      if (!isWanted()) return;
      showView(this, opened.state.view);
      showMissing(this, opened);
    } catch (error) { this.notify(inWords(error), this.links > 1 ? this.keep.opening : undefined); }
    this.opening = false;
    document.body.dataset.opened = "true";
    this.changed();
  }
}

const at = (id) => document.getElementById(id);
