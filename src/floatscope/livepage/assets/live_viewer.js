// The viewer over runs instead of stored scenes: it follows steps that arrive, marks what differs between two
// runs, and offers what can be done to a token or a head. All drawing is the viewer's own.

class LiveViewer extends Viewer {
  constructor(root, page) {
    super(root, { examples: [], keys: true, toggle: false, heads: true });
    this.page = page;
    this.following = true;
    this.asked = new Map();  // questions to the server, with what came of them
    this.scope = "all";
    this.start = "first";  // the step from which an edit acts
    this.several = null;  // the heads that are chosen together, as "layer/head"
    this.rankings = new Map();
    for (const control of [this.pickExample.parentNode, this.pickModel.parentNode]) control.remove();  // lanes take their place
    root.hidden = true;
  }

  // ---- Lanes

  runOf(view) { return this.page.lanes.find((run) => run && run.scene === view.scene); }
  viewOf(run) { return this.views.find((view) => view.scene === run.scene); }
  atEnd() { return this.views.every((view) => view.step >= view.scene.steps - 1); }

  showLanes() {
    const scenes = this.page.lanes.filter((run) => run && run.scene).map((run) => run.scene);
    this.root.hidden = !scenes.length;
    if (this.root.contains(at("notice"))) this.page.notify("");  // its card is made anew
    if (!scenes.length) { this.views = []; return; }
    const steps = new Map(this.views.map((view) => [view.scene, view.step]));
    this.show(scenes);
    for (const view of this.views) if (steps.has(view.scene)) view.step = steps.get(view.scene);
    if (this.following) this.toNewest();
    this.update();
  }

  // Runs that are going on at their newest step, the others as far along as those.
  toNewest() {
    const going = this.views.filter((view) => this.runOf(view).active);
    for (const view of going.length ? going : this.views) view.step = view.scene.steps - 1;
    if (!going.length) { this.fraction = 1; return; }
    const { scene, step } = going[0];
    this.fraction = scene.span > 1 ? step / (scene.span - 1) : 0;
    for (const view of this.views) if (!going.includes(view)) view.step = this.alongside(view, going[0]);
  }

  show(scenes) {
    for (const scene of scenes) scene.difference = null;
    if (scenes.length < 2 && this.mode === "difference") this.mode = "lift";
    const held = this.root.contains(document.activeElement), place = this.views.find((view) => view.cells.includes(document.activeElement));
    super.show(scenes);
    const again = place && this.views.find((view) => view.scene === place.scene);
    if (held && !this.root.contains(document.activeElement)) (again ? again.cells[place.focusKey] : this.root).focus({ preventScroll: true });
    this.views.forEach((view) => this.attend(view));
    dressLanes(this);
    const newest = this.views.at(-1).scene;  // the next edit adds to the branch that was just made
    if (newest !== this.newest || !this.views.some((view) => view.scene === this.active)) this.active = newest;
    this.newest = newest;
    for (const option of this.pickMode.options) {
      if (option.value === "difference") option.disabled = !(scenes.length === 2 && comparable(...scenes));
    }
  }

  // Two letters tell lanes apart where the models' names do not.
  labelled(scenes) {
    scenes.forEach((scene, i) => { scene.label = scenes.length > 1 || this.columns() > 1 ? "AB"[i] : scene.json.model.model; });
  }

  // A branch stands at the step its parent stands at; two other runs are as far along as each other.
  alongside(other, view) {
    return this.isBranch() ? Math.min(view.step, other.scene.steps - 1) : super.alongside(other);
  }

  // Whether the second lane left the first at a step.
  isBranch() {
    const [a, b] = this.page.lanes;
    return Boolean(a && b && b.from && b.from.run === a.id && !b.control);
  }

  // Until a layer is chosen: the layer of a finished diffusion run whose strongest key moves most. The mean over
  // layers colours a key that holds in most of them, and hides that attention moves.
  showStory(run) {
    if (this.chose || run.scene.causal || this.page.lanes[0] !== run) return;
    const { scene } = run, steps = [...Array(scene.steps).keys()];
    const keys = (layer) => new Set(steps.map((step) => scene.topKey(step, layer, -1))).size;
    const counts = scene.json.layers.map((_, layer) => keys(layer)), most = Math.max(...counts);
    const moves = most > keys(-1);
    this.layer = moves ? counts.indexOf(most) : -1;
    this.story = moves ? { scene, text: `Layer ${scene.json.layers[this.layer]} is shown, whose strongest key moves most: ${most} different keys in ${
      scene.steps} steps. “all (mean)” shows the mean over layers.` } : null;
  }

  choose(layer, head) {
    Object.assign(this, { chose: true, story: null });
    super.choose(layer, head);
  }

  sayWhatIsMissing() {
    super.sayWhatIsMissing();
    if (this.mode === "difference" && this.views.length === 2 && !this.views[0].scene.difference) this.message.textContent = "The difference is drawn once both runs are over and compared.";
    if (this.story && this.views.some((view) => view.scene === this.story.scene)) this.message.textContent = [this.message.textContent, this.story.text].filter(Boolean).join(" ");
  }

  // Several heads at once: with a modifier key, or after "Select several heads".
  selectSeveral(on) {
    this.several = on ? new Set(this.layer >= 0 && this.head >= 0 ? [`${this.layer}/${this.head}`] : []) : null;
    this.update();
  }

  pickHeads(view, event) {
    const layerNames = [...view.headGrid.querySelectorAll(".fsv-grid-layer")], at = view.headButtons.indexOf(event.target), layer = layerNames.indexOf(event.target);
    if ((at < 0 && layer < 0) || !(this.several || event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.stopPropagation();
    if (!this.several) this.selectSeveral(true);
    const { heads } = view.scene, places = at < 0 ? view.scene.json.heads.map((_, h) => `${layer}/${h}`) : [`${Math.floor(at / heads)}/${at % heads}`];
    const all = places.every((place) => this.several.has(place));
    for (const place of places) this.several[all ? "delete" : "add"](place);
    this.update();
  }

  // One lane is attended to: the one whose token or head was touched last. Its token and head are shown beside.
  attend(view) {
    view.headGrid = view.headButtons[0].parentElement;
    view.headGrid.addEventListener("click", (event) => this.pickHeads(view, event), true);
    const parts = [...view.bands.map((band) => band.cells), view.headGrid, view.slider];
    for (const part of parts) for (const type of ["pointerdown", "focusin"]) part.addEventListener(type, () => { this.active = view.scene; }, true);
  }

  columns() { return Math.max(1, this.page ? this.page.lanes.filter(Boolean).length : 1); }

  // A lane that has nothing to show yet keeps its column.
  padded(nodes, header) {
    const waiting = this.page.lanes.filter((run) => run && !run.scene);
    const blanks = Array.from({ length: Math.max(0, this.columns() - nodes.length) }, (_, i) => {
      if (!header) return make("div", {});
      this.waitingNote = make("span", { className: "fsv-note" }, waiting[i] ? ` ${waiting[i].where()}` : "");
      return make("header", { className: "fsv-model fsl-waiting" }, make("b", {}, waiting[i] ? waiting[i].name : ""), this.waitingNote);
    });
    return [...nodes, ...blanks];
  }

  // Steps came: once per frame, however many.
  arrived(run) {
    (this.late = this.late || new Set()).add(run);
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      for (const one of this.late) {
        const view = this.viewOf(one);
        if (view) this.grown(view);
      }
      this.late.clear();
      if (this.following) this.toNewest();
      this.update();
    });
  }

  follow(on) {
    this.following = on;
    if (on) this.toNewest();
    this.update();
  }

  go(view, step) {
    super.go(view, step);
    this.following = this.atEnd();
    this.update();
  }

  togglePlay() {
    if (this.page.busy()) this.follow(!this.following);
    else { this.following = false; super.togglePlay(); }
  }

  // ---- What the viewer leaves to the page around it

  colours() { return [...super.colours(), ["difference", "difference to the other run"]]; }
  parts() { return [makeChanges, makeEdits, makePanel, makeHeadCard, makeGrid, makePath]; }

  ranges() {
    // The largest difference of two runs at any step both have, so that the scale does not move with the step.
    const compared = this.mode === "difference" && comparisonOf(this), attention = compared && compared.value && compared.value.attention;
    return this.views.map(({ scene }) => ({ ...scene.json.range, difference: attention && attention.most > attention.resolution ? attention.most : 1 }));
  }

  // What colours the difference: the server's rows at the steps shown, for one lane as they are, for the other negated.
  takeDifference() {
    if (this.mode !== "difference" || this.views.length < 2) return;
    const [{ scene, step }] = this.views, layer = this.layerOf(scene), head = this.headOf(scene, step);
    const all = attentionOf(this), own = head >= 0 ? attentionOf(this, scene.json.layers[layer], scene.json.heads[head]) : null;
    this.views.forEach((view, i) => {
      view.scene.difference = all && all.value ? { sign: i ? 1 : -1, rows: all.value.rows, head: own && own.value ? own.value.rows : null } : null;
    });
  }

  header(view) {
    const run = this.runOf(view), { scene } = view;
    view.where = make("span", { className: "fsl-where" });
    view.answer = make("q", {});
    const { family, direction, sampler, fingerprint } = scene.json.model;
    const letter = this.columns() > 1 ? `${scene.label} · ` : "";
    return make("header", { className: "fsv-model" }, make("b", {}, `${letter}${scene.kind} · ${run.name}`), view.where,
      make("div", { className: "fsv-note" }, `${family}, ${direction}, ${scene.layers} layers × ${scene.heads} heads; ${run.samplerText || sampler}; ${fingerprint.slice(0, 8)}`),
      ...run.touches.map((touch) => make("div", { className: "fsv-under" }, touch.text || touch.kind)),
      ...(run.control ? [make("div", { className: "fsv-under" }, "untrained control: permuted weights, every head as sharp as the trained one")] : []),
      make("div", { className: "fsv-answer" }, "answer ", view.answer));
  }

  underToken(view, key) {
    const run = this.runOf(view);
    if (!run || view.scene !== this.active) return [];
    run.whole();
    return touchToken(this, view, key);
  }

  tokenLines(view, key) {
    const { scene, step } = view, sure = scene.confidenceAt(step, key);
    const lines = Number.isFinite(sure) ? [`proposed with ${percent(sure)}`] : [];
    if (this.mode !== "difference") return lines;
    const by = scene.valueRow("difference", step, this.layerOf(scene), this.headOf(scene, step))[key];
    return [...lines, `${points(by)} against the other run`];
  }

  afterCells(view) {
    const [a, b] = this.views, run = this.runOf(view), tick = view.scene.json.steps[view.step];
    const both = b && comparable(a.scene, b.scene);
    const differs = new Set(both ? tokenChanges(a.scene, b.scene, a.step, b.step).map((c) => c.key) : []);
    const order = new Set(both ? orderChanges(a.scene, b.scene).map((c) => c.key) : []);
    const inForce = run ? run.touches.filter((touch) => touch.step <= tick) : [];
    const taken = new Set(inForce.filter((t) => t.kind === "hide" || t.kind === "value").flatMap((t) => t.positions));
    const forced = new Set(inForce.flatMap((t) => (t.kind === "force" ? [t.position] : t.kind === "remask" ? t.positions : [])));
    view.cells.forEach((cell, key) => {
      cell.classList.toggle("fsl-differs", differs.has(key));
      cell.classList.toggle("fsl-order", order.has(key) && view.scene.lastReveal[key] <= tick);
      cell.classList.toggle("fsl-taken", taken.has(key));
      cell.classList.toggle("fsl-forced", forced.has(key));
      if (differs.has(key)) cell.setAttribute("aria-label", `${cell.getAttribute("aria-label")}, differs from the other run`);
    });
  }

  update() {
    this.takeDifference();
    super.update();
    if (!this.page || !this.views.length) return;
    for (const view of this.views) {
      const run = this.runOf(view);
      if (!run) continue;
      view.where.textContent = ` ${run.where()}`;
      view.answer.textContent = view.scene.json.answer.trim() || "…";
      const ablated = new Set(run.touches.filter((t) => t.kind === "ablate" && t.step <= view.scene.json.steps[view.step]).flatMap((t) => t.heads.map(String)));
      view.headButtons.forEach((cell, i) => cell.classList.toggle("fsl-ablated", ablated.has(String([
        view.scene.json.layers[Math.floor(i / view.scene.heads)], view.scene.json.heads[i % view.scene.heads]]))));
      const attended = view.scene === this.active;
      for (const card of [view.panel, view.headCard, view.edits]) card.parentElement.hidden = !attended;
      if (attended) { updateHeadCard(this, view); updateEdits(this, view); } else view.edits.replaceChildren();
      this.markSeveral(view);
      updateChanges(this, view);
      view.status.setAttribute("aria-live", this.playing || run.active ? "off" : "polite");
    }
    this.page.changed();
  }

  markSeveral(view) {
    view.headButtons.forEach((cell, i) => {
      const on = Boolean(this.several && this.several.has(`${Math.floor(i / view.scene.heads)}/${i % view.scene.heads}`));
      cell.classList.toggle("fsl-several", on);
      if (this.several) cell.setAttribute("aria-pressed", String(on));
    });
  }

  drawLegend() {
    super.drawLegend();
    if (this.views.length < 2) return;
    const sign = (className, text) => make("span", { className: "fsv-key" }, make("i", { className }), text);
    this.legend.querySelector(".fsv-signs").append(sign("fsl-key-differs", "token differs"), sign("fsl-key-order", "revealed at another step"));
  }

  // ---- Acts

  touch(view, touch, key) {
    const section = (touch.kind === "ablate" ? view.headCard : view.panel).parentElement;
    this.page.branch(this.runOf(view), startOf(this, view, touch.kind, key), touch, section);
  }

  // The same token of the other lane is another choice, not the same one again.
  select(view, key) {
    const again = this.selected && this.selected.scene === view.scene && this.selected.key === key;
    this.selected = again ? null : { scene: view.scene, key };
    this.active = view.scene;
    this.update();
  }

  pick(view, key) { this.selected = { scene: view.scene, key }; this.update(); view.cells[key].scrollIntoView({ block: "nearest" }); }
  pickIn(run, key) { const view = this.viewOf(run); if (view) this.pick(view, key); }

  // The card of the same kind as one that was drawn before: cards are made anew with the lanes.
  cardOf(card) { return [...this.root.querySelectorAll(".fsv-card")].find((one) => !one.hidden && one.className === card.className) || this.root; }

  // A question to the server, asked once: { value } or { error } when it has come, {} before.
  ask(name, question) {
    if (!this.asked.has(name)) {
      const entry = {};
      this.asked.set(name, entry);
      question().then((value) => { entry.value = value; }, (error) => { entry.error = error; this.asked.delete(name); this.asked.set(name, entry); })
        .finally(() => this.update());
    }
    return this.asked.get(name);
  }

  onKey(event) {
    const { target } = event;
    const typing = target.tagName === "TEXTAREA" || (target.tagName === "INPUT" && target.type !== "range");
    // A region that scrolls takes the arrow keys itself; a summary and a link take the space bar.
    if (typing || (target.matches && target.matches(".fsl-scroll, summary"))) return;
    super.onKey(event);
  }
}
