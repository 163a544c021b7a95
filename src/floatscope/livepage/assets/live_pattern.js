// The whole pattern of one head at one step: queries downwards, keys to the right, and the row of one query.
// The matrix comes from the server when it is asked for; colours are the viewer's.

const EDGE = { left: 84, top: 20, right: 4, bottom: 4 };  // room for the regions' names
const ROWS_SHOWN = 8, TALL = 620;

class Pattern {
  constructor(page) {
    this.page = page;
    this.at = null;  // { run, step, layer, head, matrix }
    this.cursor = { query: 0, key: 0 };
    this.title = make("h2", { tabIndex: -1 });
    this.close = make("button", { type: "button", className: "fsv-button" }, "Close the pattern");
    this.close.addEventListener("click", () => this.hide());
    this.canvas = make("canvas", { className: "fsl-matrix", tabIndex: 0, role: "img" });
    this.legend = make("div", { className: "fsv-legend" });
    this.row = make("div", { className: "fsl-row", role: "group", "aria-label": "The row of one query" });
    this.note = make("p", { className: "fsv-note", role: "status" });
    this.root = make("section", { className: "fsl-pattern", "aria-label": "Pattern of one head", hidden: true },
      make("div", { className: "fsl-line" }, this.title, this.close), this.note, this.legend,
      make("div", { className: "fsl-two" }, make("div", { className: "fsl-matrix-box" }, this.canvas), this.row));
    this.listen();
  }

  listen() {
    this.canvas.addEventListener("pointermove", (event) => { const cell = this.cellAt(event); if (cell) this.tell(cell, event); });
    this.canvas.addEventListener("pointerleave", () => this.page.viewer.tip(null));
    this.canvas.addEventListener("click", (event) => { const cell = this.cellAt(event); if (cell) this.choose(cell); });
    this.canvas.addEventListener("focus", () => { this.paint(); this.tell(this.cursor); });
    this.canvas.addEventListener("blur", () => { this.page.viewer.tip(null); this.paint(); });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.paint()).observe(this.root);
  }

  hide() {
    this.wanted = null;
    this.at = null;
    this.root.hidden = true;
    this.page.viewer.root.focus();
    this.page.changed();
  }

  // Ask for a head at a step; a later question overtakes an earlier one.
  async show(run, step, layer, head, query) {
    const name = `${run.id} ${step} ${layer} ${head}`;
    if (this.wanted === name) { if (query !== undefined && this.at) this.choose({ query: Math.min(query, this.at.matrix.shape[0] - 1), key: this.cursor.key }); return; }
    this.wanted = name;
    this.root.hidden = false;
    this.title.textContent = `Pattern · layer ${layer}, head ${head}, step ${step} · ${run.name}`;
    this.note.textContent = "Computing …";
    try {
      const { pattern } = await this.page.client.pattern(run.id, step, layer, head);
      if (this.wanted !== name) return;
      const matrix = unpackArray(pattern);
      const first = !this.at;
      this.at = { run, step, layer, head, matrix };
      this.note.textContent = "Queries downwards, keys to the right; each row sums to 100 %. Arrow keys move, Enter goes to the row.";
      const size = Math.min(matrix.shape[0], run.scene.keys);
      if (query !== undefined) this.cursor.query = Math.min(query, size - 1);
      else if (first) this.cursor = { query: Math.min(run.scene.json.prompt_length, size - 1), key: 0 };
      this.scaled();
      this.page.changed();
    } catch (error) {
      if (this.wanted === name) this.note.textContent = inWords(error);
    }
  }

  scaled() {
    if (!this.at) return;
    const { values } = this.at.matrix;
    let most = 0;
    for (const v of values) if (v > most) most = v;
    this.dark = this.page.viewer.isDark();
    const scale = makeScale("share", { share: most }, this.dark);
    this.scale = { ...scale, label: "attention of one query to one key (square-root scale from zero)" };
    this.legend.replaceChildren(makeRamp(this.scale), make("span", {}, this.scale.label));
    this.draw();
    this.paint();
    this.listRow();
  }

  // One pixel a weight, kept aside; `paint` enlarges it.
  draw() {
    const [rows, keys] = this.at.matrix.shape, { values } = this.at.matrix;
    const image = new ImageData(keys, rows);
    for (let i = 0; i < values.length; i++) {
      const rgb = Number.isFinite(values[i]) ? this.scale.rgb(values[i]) : null;
      image.data.set(rgb ? [...rgb, 255] : [0, 0, 0, 0], 4 * i);
    }
    this.pixels = make("canvas", { width: keys, height: rows });
    this.pixels.getContext("2d").putImageData(image, 0, 0);
  }

  paint() {
    if (!this.at || this.root.hidden) return;
    const [rows, keys] = this.at.matrix.shape, ratio = window.devicePixelRatio || 1;
    const room = this.canvas.parentElement.clientWidth - EDGE.left - EDGE.right;
    this.size = Math.min(14, Math.max(0.5, room / keys), Math.max(2, TALL / rows));
    const wide = EDGE.left + keys * this.size + EDGE.right, tall = EDGE.top + rows * this.size + EDGE.bottom;
    Object.assign(this.canvas, { width: Math.round(wide * ratio), height: Math.round(tall * ratio) });
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${tall}px`;
    const pen = this.canvas.getContext("2d"), style = getComputedStyle(this.page.viewer.root);
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.pixels, EDGE.left, EDGE.top, keys * this.size, rows * this.size);
    this.nameRegions(pen, style.getPropertyValue("--quiet"), style.getPropertyValue("--line"));
    this.mark(pen, style.getPropertyValue("--reveal"));
    const { query, key } = this.cursor, { run, step, layer, head } = this.at;
    this.canvas.setAttribute("aria-label", `Attention of layer ${layer} head ${head} at step ${step} of ${run.name}: ${
      rows} queries by ${keys} keys. ${this.words({ query, key }).join("; ")}`);
  }

  nameRegions(pen, ink, line) {
    const { scene } = this.at.run, [rows, keys] = this.at.matrix.shape;
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = ink;
    pen.strokeStyle = line;
    let last = -20, lastX = -99;
    for (const band of bandsOf(scene)) {
      const from = band.keys[0], middle = (from + band.keys.length / 2) * this.size;
      if (from < rows) {
        pen.strokeRect(EDGE.left - 4, EDGE.top + from * this.size, 4, 0);
        const y = Math.max(EDGE.top + middle + 3, last + 11);
        const gold = band.name === scene.json.gold ? "★ " : "";
        if (y < EDGE.top + rows * this.size + 3) { pen.textAlign = "right"; pen.fillText(gold + shortened(band.name), EDGE.left - 7, y); last = y; }
      }
      const x = EDGE.left + from * this.size;
      pen.strokeRect(x, EDGE.top - 4, 0, 4);
      const name = band.name.replace(/^passage /, "p");
      if (from < keys && x > lastX + 6 && x + pen.measureText(name).width < EDGE.left + keys * this.size) { pen.textAlign = "left"; pen.fillText(name, x + 1, EDGE.top - 7); lastX = x + pen.measureText(name).width; }
    }
  }

  mark(pen, colour) {
    const { query, key } = this.cursor, size = this.size, keys = this.at.matrix.shape[1];
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.strokeRect(EDGE.left - 0.5, EDGE.top + query * size - 0.5, keys * size + 1, size + 1);
    if (document.activeElement !== this.canvas) return;
    pen.lineWidth = 2;
    pen.strokeRect(EDGE.left + key * size - 1.5, EDGE.top + query * size - 1.5, size + 3, size + 3);
  }

  cellAt(event) {
    if (!this.at || !this.size) return null;
    const box = this.canvas.getBoundingClientRect(), [rows, keys] = this.at.matrix.shape;
    const key = Math.floor((event.clientX - box.left - EDGE.left) / this.size);
    const query = Math.floor((event.clientY - box.top - EDGE.top) / this.size);
    return key >= 0 && key < keys && query >= 0 && query < rows ? { query, key } : null;
  }

  words({ query, key }) {
    const { run: { scene }, step, matrix } = this.at;
    const name = (at) => `${tokenName(scene, this.place(step), at)} · ${at} · ${scene.regionName(at)}`;
    const value = rowOf(matrix, query)[key];
    return [`query ${name(query)}`, `key ${name(key)}`, Number.isFinite(value) ? `weight ${percent(value)}` : "not visible to this query"];
  }

  place(step) { return Math.max(0, this.at.run.scene.json.steps.indexOf(step)); }

  tell(cell, event) {
    if (!this.at) return;
    const box = this.canvas.getBoundingClientRect();
    const at = event ? { left: event.clientX + 12, top: event.clientY }
      : { left: box.left + EDGE.left + cell.key * this.size + 12, top: box.top + EDGE.top + cell.query * this.size };
    this.page.viewer.tip(at, this.words(cell));
  }

  choose(cell) {
    this.cursor = cell;
    this.paint();
    this.listRow();
  }

  onKey(event) {
    if (!this.at || event.ctrlKey || event.metaKey || event.altKey) return;
    const [rows, keys] = this.at.matrix.shape, { cursor } = this;
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -keys], End: [0, keys] }[event.key];
    if (event.key === "Enter") { this.listRow(); this.row.querySelector("button")?.focus(); }
    else if (event.key === "Escape") { this.page.viewer.tip(null); return; }
    else if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    if (!by) return;
    const within = (v, end) => Math.min(end - 1, Math.max(0, v));
    this.cursor = { query: within(cursor.query + by[0], rows), key: within(cursor.key + by[1], keys) };
    this.paint();
    this.listRow();
    this.tell(this.cursor);
  }

  // The strongest keys of the chosen query, with their weights; a key can be selected from here.
  listRow() {
    const { run, step, matrix } = this.at, { scene } = run, { query } = this.cursor;
    const row = [...rowOf(matrix, query)].map((weight, key) => ({ key, weight })).filter(({ weight }) => Number.isFinite(weight));
    row.sort((a, b) => b.weight - a.weight);
    const list = make("ol", { className: "fsv-list" });
    for (const { key, weight } of row.slice(0, ROWS_SHOWN)) {
      const pick = make("button", { type: "button", className: "fsv-link" }, `${tokenName(scene, this.place(step), key)} ${key}`);
      pick.addEventListener("click", () => this.page.viewer.pickIn(run, key));
      const gold = scene.regionName(key) === scene.json.gold ? " ★" : "";
      list.append(make("li", {}, pick, make("span", {}, `${percent(weight)} · ${scene.regionName(key)}${gold}`)));
    }
    const rest = row.slice(ROWS_SHOWN).reduce((sum, { weight }) => sum + weight, 0);
    this.row.replaceChildren(
      make("h3", {}, `Row of query ${tokenName(scene, this.place(step), query)} ${query}`), list,
      make("p", { className: "fsv-note" }, row.length > ROWS_SHOWN ? `the other ${row.length - ROWS_SHOWN} keys together: ${percent(rest)}` : ""));
  }
}

const shortened = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);
