// floatscopeViewer(root, source): the whole view, its state and its controls.
//
// source = { examples: [{ id, title, scenes: [{ id, model, direction, range }] }],
//            scene(id) → scene JSON or a promise of it,
//            heads(id, step), head(id, layer, head) → single heads that a scene left out: all at a step,
//              or one at all steps (optional),
//            left_out: [reasons] of traces that cannot be shown (optional),
//            keys: true where the viewer is alone on its page and may take keys pressed anywhere,
//            toggle: false where the page around it has its own switch between light and dark }
//
// A page that does more with the same drawing extends the class and overrides what stands below "What a page
// around it may say otherwise"; `grown` says that a scene has more steps.

const COLOURS = { share: "received (share)", lift: "lift", change: "change since last step" };
const PLAY_MS = 700;
const NARROW = 640;  // as in viewer.css
let viewers = 0;

class Viewer {
  constructor(root, source) {
    this.root = root;
    this.source = source;
    this.number = ++viewers;  // ids stay apart where several viewers share a page
    this.loaded = new Map();
    Object.assign(this, { example: 0, which: "both", mode: "lift", layer: -1, head: -1, grid: "peak",
      selected: null, playing: null, views: [], fraction: 0 });
    root.classList.add("fsv");
    if (root.clientWidth < NARROW) this.which = "0";  // side by side needs the width
    root.tabIndex = -1;
    this.tipBox = make("div", { className: "fsv-tip", role: "tooltip", id: `fsv-tip-${this.number}`, hidden: true });
    this.bar = make("div", { className: "fsv-bar", role: "toolbar", "aria-label": "What to show" });
    this.legend = make("div", { className: "fsv-legend" });
    this.body = make("div", { className: "fsv-body" });
    this.message = make("p", { className: "fsv-message", role: "status" });
    const keys = make("p", { className: "fsv-note fsv-keys" },
      "← → steps · space plays · Home and End · in the text ↑ ↓ go from token to token, Enter selects");
    root.replaceChildren(this.bar, this.legend, this.message, this.body, keys, this.tipBox);
    this.buildBar();
    this.listen();
  }

  // ---- Controls

  buildBar() {
    this.pickExample = this.selectOf("Example", this.source.examples.map((e, i) => [i, e.title]), (v) => this.open(Number(v)));
    this.pickExample.parentNode.classList.add("fsv-wide");
    this.pickModel = make("div", { className: "fsv-segments", role: "radiogroup", "aria-label": "Model" });
    this.bar.append(make("div", { className: "fsv-control" }, make("span", { className: "fsv-label" }, "Model"), this.pickModel));
    this.pickMode = this.selectOf("Colour", this.colours(), (v) => { this.mode = v; this.update(); });
    this.pickLayer = this.selectOf("Layer", [], (v) => this.choose(Number(v), -1));
    this.pickHead = this.selectOf("Head", [], (v) => this.choose(this.layer, Number(v)));
    this.pickGrid = this.selectOf("Grid shows", Object.entries(GRID_VALUES), (v) => { this.grid = v; this.update(); });
    if (this.source.toggle !== false) {
      const toggle = make("button", { type: "button", className: "fsv-button fsv-theme", "aria-label": "Light or dark", title: "Light or dark" }, "◐");
      toggle.addEventListener("click", () => { document.documentElement.dataset.theme = this.isDark() ? "light" : "dark"; });
      this.bar.append(toggle);
    }
  }

  // ---- What a page around it may say otherwise

  colours() { return Object.entries(COLOURS); }
  parts() { return [makePanel, makeGrid, makePath]; }
  ranges() { return this.source.examples[this.example].scenes.map((s) => s.range); }
  header(view) { return makeHeader(view.scene); }
  underToken() { return []; }
  afterCells() {}
  tokenLines() { return []; }  // more for a token's tip
  columns() { return this.views.length; }
  padded(nodes) { return nodes; }

  alongside(other) { return stepAt(other.scene, this.fraction); }

  // MDM and ARM, with the models' names where two of a kind meet.
  labelled(scenes) {
    const alike = new Set(scenes.map((scene) => scene.kind)).size < scenes.length;
    scenes.forEach((scene) => { scene.label = alike ? `${scene.kind} ${scene.json.model.model}` : scene.kind; });
  }

  selectOf(label, options, act) {
    const id = `fsv-${this.number}-${label.replace(/ /g, "-").toLowerCase()}`;
    const select = make("select", { id });
    fillSelect(select, options);
    select.addEventListener("change", () => act(select.value));
    this.bar.append(make("div", { className: "fsv-control" }, make("label", { className: "fsv-label", htmlFor: id }, label), select));
    return select;
  }

  // MDM and ARM where that tells them apart, the models' names where it does not.
  modelChoices() {
    const { scenes } = this.source.examples[this.example];
    const kinds = scenes.map((s) => (s.direction === "causal" ? "ARM" : "MDM"));
    const clear = new Set(kinds).size === kinds.length;
    const choices = scenes.map((s, i) => [String(i), clear ? kinds[i] : s.model, s.model]);
    return scenes.length > 1 ? [...choices, ["both", "both", "side by side"]] : choices;
  }

  fillModels() {
    const held = this.pickModel.contains(document.activeElement);
    this.pickModel.replaceChildren(...this.modelChoices().map(([value, label, title]) => {
      const button = make("button", { type: "button", role: "radio", title, "aria-checked": String(this.which === value) }, label);
      button.addEventListener("click", () => { this.which = value; this.open(this.example); });
      return button;
    }));
    if (held) this.pickModel.querySelector("[aria-checked=true]").focus();
  }

  fillLayers() {
    const deepest = this.views.reduce((a, v) => (v.scene.layers > a.layers ? v.scene : a), this.views[0].scene);
    fillSelect(this.pickLayer, [[-1, "all (mean)"], ...deepest.json.layers.map((name, i) => [i, name])]);
    fillSelect(this.pickHead, [[-1, "mean"], ...deepest.json.heads.map((name, i) => [i, name])]);
    for (const option of this.pickGrid.options) {
      if (option.value === "gold") option.disabled = !this.views.some((v) => v.scene.array.gold_look);
    }
  }

  // ---- Opening an example

  async open(example) {
    this.pause();
    this.example = example;
    const { scenes } = this.source.examples[example];
    if (this.which !== "both" && !scenes[Number(this.which)]) this.which = "0";
    if (this.which === "both" && scenes.length < 2) this.which = "0";
    const chosen = this.which === "both" ? bothOf(scenes) : [scenes[Number(this.which)]];
    const turn = (this.turn = (this.turn || 0) + 1);
    this.fillModels();
    this.pickExample.value = String(example);
    try {
      const found = await Promise.all(chosen.map((s) => this.sceneOf(s.id)));
      if (turn === this.turn) this.show(found);
    } catch (error) {
      this.message.textContent = `This example could not be opened: ${error.message}`;
    }
  }

  async sceneOf(id) {
    if (!this.loaded.has(id)) {
      const json = await this.source.scene(id);
      this.loaded.set(id, new Scene(json, id, this.source));
    }
    return this.loaded.get(id);
  }

  show(scenes) {
    this.shown = this.example;
    this.selected = this.keepSelection(scenes);
    this.labelled(scenes);
    this.views = scenes.map((scene) => ({ scene, step: stepAt(scene, this.fraction), places: new Map() }));
    this.layer = Math.min(this.layer, Math.max(...scenes.map((s) => s.layers)) - 1);
    this.root.classList.toggle("fsv-both", this.columns() > 1);
    const stage = make("div", { className: "fsv-stage" });
    const side = make("div", { className: "fsv-side" });
    for (const view of this.views) {
      view.element = stage;
      view.header = this.header(view);
      makeStage(this, view);
      const answer = view.bands.filter((band) => band.name === "answer").map((band) => band.element);
      view.transport = makeTransport(this, view);
      view.dock = make("div", { className: "fsv-dock" }, ...answer, view.transport);
    }
    stage.append(...this.padded(this.views.map((v) => v.header), true));
    for (const row of alignedBands(this.views)) stage.append(...this.padded(row.map((band) => (band ? band.element : make("div", {})))));
    stage.append(...this.padded(this.views.map((v) => v.dock)));
    // Side by side the answer scrolls with the canvas, so that no passage lies under it; the steps stay in sight.
    if (this.columns() > 1) stage.append(...this.padded(this.views.map((v) => v.transport)));
    for (const part of this.parts()) side.append(...this.padded(this.views.map((v) => part(this, v))));
    this.body.replaceChildren(stage, side);
    this.fillLayers();
    this.views.forEach((view) => fixWidths(view, this));
    this.views.forEach(measure);
    this.watchSize(stage);
    this.update();
  }

  keepSelection(scenes) {
    const keep = this.selected && scenes.includes(this.selected.scene);
    return keep ? this.selected : null;
  }

  // Lines break elsewhere when the width changes: cells are measured and strips painted again.
  watchSize(stage) {
    if (this.sizes) this.sizes.disconnect();
    this.sizes = new ResizeObserver(() => {
      this.views.forEach((view) => { measure(view); paintStrips(this, view); });
    });
    this.sizes.observe(stage);
  }

  // ---- What is chosen. Models may differ in depth: the last layer stands for those beyond it.

  layerOf(scene) { return Math.min(this.layer, scene.layers - 1); }
  headOf(scene, step) {
    const head = Math.min(this.head, scene.heads - 1);
    return this.layer < 0 || scene.headStep(step, this.layerOf(scene), head) < 0 ? -1 : head;
  }
  rowHeight(scene) { return scene.layers <= 8 ? 3 : scene.layers <= 20 ? 2 : 1; }

  selectedIn(view) {
    if (!this.selected) return -1;
    return this.selected.scene === view.scene ? this.selected.key : counterpart(this.selected.scene, this.selected.key, view.scene);
  }

  select(view, key) {
    const again = this.selected && this.selectedIn(view) === key;
    this.selected = again ? null : { scene: view.scene, key };
    this.update();
  }

  choose(layer, head) {
    this.layer = layer;
    this.head = layer < 0 ? -1 : head;
    this.update();
  }

  go(view, step) {
    view.step = Math.min(view.scene.steps - 1, Math.max(0, step));
    this.fraction = view.scene.span > 1 ? view.step / (view.scene.span - 1) : this.fraction;
    for (const other of this.views) if (other !== view) other.step = this.alongside(other, view);
    this.update();
  }

  // A scene has more steps than before: its slider, its ticks and its widest words.
  grown(view) {
    view.slider.max = view.scene.span - 1;
    fillTicks(view);
    if (fixWidths(view, this, view.scene.json.prompt_length)) measure(view);
  }

  // The view with most steps leads; the other follows by its fraction of progress.
  leader() { return this.views.reduce((a, b) => (b.scene.steps > a.scene.steps ? b : a)); }

  togglePlay() {
    if (this.playing) { this.pause(); this.update(); return; }
    const leader = this.leader();
    if (leader.step >= leader.scene.steps - 1) this.go(leader, 0);
    this.playing = setInterval(() => {
      const at = this.leader();
      if (at.step >= at.scene.steps - 2) this.pause();
      this.go(at, at.step + 1);
    }, PLAY_MS);
    this.update();
  }

  pause() {
    if (this.playing) clearInterval(this.playing);
    this.playing = null;
  }

  // ---- Showing it

  update() {
    if (!this.views.length) return;
    const dark = this.isDark();
    const all = this.ranges();
    const most = (name) => Math.max(...all.map((range) => range[name]));
    // One scale for all models of the example and all its steps, wider where single heads are shown.
    const range = { share: this.head >= 0 ? most("head") : most("share"), change: most(this.mode === "difference" ? "difference" : "change") };
    this.scale = makeScale(this.mode, range, dark);
    this.headScale = makeScale("share", { share: this.grid === "gold" ? 1 : most("head") }, dark);
    this.pickMode.value = this.mode;
    this.pickLayer.value = String(this.layer);
    this.pickHead.value = String(this.head);
    this.pickHead.disabled = this.layer < 0;
    this.pickHead.title = this.layer < 0 ? "Choose a layer first: head 3 of one layer has nothing to do with head 3 of another." : "";
    this.pickGrid.value = this.grid;
    for (const view of this.views) {
      updateCells(this, view);
      this.afterCells(view);
      paintStrips(this, view);
      for (const part of [updateTransport, updateGrid, updatePath, updatePanel]) part(this, view);
    }
    this.drawLegend();
    this.sayWhatIsMissing();
    this.fetchMissing();
  }

  drawLegend() {
    const { label } = this.scale;
    const sign = (className, text) => make("span", { className: "fsv-key" }, make("i", { className }), text);
    this.legend.replaceChildren(
      makeRamp(this.scale), make("span", { className: "fsv-legend-label" }, label),
      make("span", { className: "fsv-signs" }, sign("fsv-key-masked", "masked"), sign("fsv-key-revealed", "revealed at this step"),
        sign("fsv-key-anchor", `anchor, with its share in % (${this.views[0].scene.json.rule})`), sign("fsv-key-strip", "under each line: layers, first on top")));
  }

  sayWhatIsMissing() {
    const unread = this.source.left_out || [];
    const said = unread.length ? [`${unread.length} traces could not be read: ${unread[0]}`] : [];
    said.push(...this.views.map(({ scene }) => (scene.json.left_out.length ? `${scene.label}: ${scene.json.left_out.join("; ")}.` : "")));
    for (const { scene, step } of this.views) {
      const from = scene.headStep(step, this.layerOf(scene), Math.min(this.head, scene.heads - 1));
      if (scene.failed) said.push(`${scene.label}: single heads could not be read: ${scene.failed}`);
      else if (this.head < 0 || from === step) continue;
      else if (this.source.heads) said.push(`${scene.label}: reading single heads …`);
      else if (from < 0) said.push(`${scene.label}: single heads are not in this scene; the mean is shown.`);
      else said.push(`${scene.label}: this head at ${scene.stepName(from)}, the nearest one kept.`);
    }
    this.message.textContent = said.filter(Boolean).join(" ");
  }

  // The step that is shown first, then the chosen head's whole way. A failure is said, and tried again
  // when something else is chosen.
  fetchMissing() {
    if (!this.source.heads || (this.head < 0 && !this.selected)) return;
    for (const { scene, step } of this.views) {
      const asked = [scene.wantHeads(step), scene.wantHead(this.layerOf(scene), Math.min(this.head, scene.heads - 1))];
      asked.filter(Boolean).forEach(async (one) => ((await one) ? this.update() : this.sayWhatIsMissing()));
    }
  }

  // Beside an element, or beside a point; never outside the viewport.
  tip(at, lines) {
    this.tipBox.hidden = !at;
    if (!at) return;
    this.tipBox.replaceChildren(...lines.map((line) => make("div", {}, line)));
    const box = at.getBoundingClientRect ? at.getBoundingClientRect() : { left: at.left, bottom: at.top + 12, top: at.top - 8 };
    const own = this.tipBox.getBoundingClientRect();
    const below = box.bottom + 8 + own.height < window.innerHeight;
    this.tipBox.style.left = `${Math.max(4, Math.min(box.left, window.innerWidth - own.width - 8))}px`;
    this.tipBox.style.top = `${below ? box.bottom + 8 : Math.max(4, box.top - own.height - 6)}px`;
  }

  // ---- Keys and theme

  isDark() {
    if (this.printing) return false;
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  listen() {
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    if (this.source.keys) {
      document.addEventListener("keydown", (event) => { if (!this.root.contains(event.target)) this.onKey(event); });
    }
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update());
    new MutationObserver(() => this.update()).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    const print = (on) => () => { this.printing = on; this.update(); };
    window.addEventListener("beforeprint", print(true));
    window.addEventListener("afterprint", print(false));
    window.addEventListener("scroll", () => this.tip(null), { passive: true });
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !this.views.length) return;
    const { target, key } = event;
    if (target.tagName === "SELECT") return;
    const view = this.views.find((v) => v.slider === target || v.cells.includes(target)) || this.leader();
    const cell = target.classList && target.classList.contains("fsv-cell");
    const acts = {
      ArrowLeft: () => { this.pause(); this.go(view, view.step - 1); },
      ArrowRight: () => { this.pause(); this.go(view, view.step + 1); },
      Home: () => { this.pause(); this.go(view, 0); },
      End: () => { this.pause(); this.go(view, view.scene.steps - 1); },
    };
    if (target.tagName !== "BUTTON") acts[" "] = () => this.togglePlay();
    if (cell) {
      acts.ArrowUp = () => view.cells[Math.max(0, view.focusKey - 1)].focus();
      acts.ArrowDown = () => view.cells[Math.min(view.cells.length - 1, view.focusKey + 1)].focus();
      acts.Enter = () => this.select(view, view.focusKey);
    }
    acts.Escape = () => this.tip(null);
    if (!acts[key]) return;
    event.preventDefault();
    acts[key]();
    if (cell && this.views.includes(view) && key !== "Escape") showTokenTip(this, view, view.focusKey);
  }
}

const stepAt = (scene, fraction) => Math.min(scene.steps - 1, Math.round(fraction * (scene.span - 1)));

function fillSelect(select, options) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, String(text))));
}

function bothOf(scenes) {
  const arm = scenes.find((s) => s.direction === "causal"), mdm = scenes.find((s) => s.direction !== "causal");
  return arm && mdm ? [mdm, arm] : scenes.slice(0, 2);
}

function makeHeader(scene) {
  const { model, family, direction, sampler, fingerprint } = scene.json.model;
  return make("header", { className: "fsv-model" },
    make("b", {}, `${scene.kind} · ${model}`),
    make("span", { className: "fsv-note" }, ` ${family}, ${direction}, ${scene.layers} layers × ${scene.heads} heads; ${sampler}; ${fingerprint.slice(0, 8)}`),
    ...(scene.json.under ?? []).map((one) => make("div", { className: "fsv-under" }, `under ${one}`)),
    make("div", { className: "fsv-answer" }, "answer ", make("q", {}, scene.json.answer.trim())));
}

// Rows of bands with the same name in every view, in the order of the first.
function alignedBands(views) {
  const rows = new Map();
  views.forEach((view, i) => {
    const times = {};
    for (const band of view.bands.filter((b) => b.name !== "answer")) {
      times[band.name] = (times[band.name] || 0) + 1;
      const id = `${band.name} ${times[band.name]}`;
      if (!rows.has(id)) rows.set(id, new Array(views.length).fill(null));
      rows.get(id)[i] = band;
    }
  });
  return [...rows.values()];
}

// The token at the same place of the same region in another model's canvas, or −1.
function counterpart(scene, key, other) {
  const name = scene.regionName(key);
  let place = -1;
  for (let k = 0; k <= key; k++) if (scene.regionName(k) === name) place++;
  for (let k = 0; k < other.keys; k++) {
    if (other.regionName(k) === name && place-- === 0) return k;
  }
  return -1;
}

function floatscopeViewer(root, source) {
  if (!source.examples.length) {
    root.textContent = ["There is nothing to show.", ...(source.left_out || [])].join(" ");
    return null;
  }
  const viewer = new Viewer(root, source);
  viewer.ready = viewer.open(0);
  root.floatscope = viewer;
  return viewer;
}
