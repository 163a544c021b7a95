// The parts of the view: canvas of tokens with its heat strips, transport, head grid, anchor path, token
// panel. Each is made once and then told what to show. Text is only ever put in as text nodes.

const SVG = "http://www.w3.org/2000/svg";

// An element with properties, attributes (what has a dash, or role) and children; strings become text.
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

function draw(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const quoted = (text) => `“${shown(text) || " "}”`;
// What a step saw at a position, in words.
const tokenName = (scene, step, key) => (scene.isMasked(step, key) ? "mask" : quoted(scene.wordAt(step, key)));

// The numbers of a token at a step, as hover, focus and the panel say them.
function tokenNumbers(app, scene, step, key) {
  const exact = app.head >= 0 && scene.single && scene.single.coarse ? 2 : 3;
  const layer = app.layerOf(scene), head = app.headOf(scene, step);
  const share = scene.shareRow(step, layer, head)[key];
  const chance = rowOf(scene.array.null, step)[key];
  return {
    share: percent(share, exact), lift: times(share / chance, exact), chance: percent(chance),
    received: percent(share / rowOf(scene.array.reach, step)[key], exact),
    change: points(scene.valueRow("change", step, layer, head)[key]), there: Number.isFinite(share),
  };
}

function stateWord(scene, step, key) {
  if (key < scene.json.prompt_length) return "part of the prompt";
  const tick = scene.lastReveal[key];
  const when = tick < 0 ? "never revealed" : `revealed at step ${tick}`;
  if (!scene.isThere(step, key)) return `not there yet; ${when}`;
  return scene.isMasked(step, key) ? `masked now; ${when}` : when;
}

// A scale as a bar of its colours, with its ticks.
function makeRamp({ ramp, place, ticks, label, mode }) {
  const bar = make("div", { className: "fsv-ramp", role: "img", "aria-label": label });
  const stops = Array.from({ length: 17 }, (_, i) => css(ramp[Math.round((i * (LEVELS - 1)) / 16)]));
  bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
  const marks = make("div", { className: "fsv-ramp-ticks", "aria-hidden": "true" });
  for (const tick of ticks) {
    const mark = make("span", {}, tickText(mode, tick));
    mark.style.left = `${100 * Math.min(1, Math.max(0, place(tick)))}%`;
    marks.append(mark);
  }
  return make("div", { className: "fsv-ramp-box" }, bar, marks);
}

// ---- The canvas: one band a region, cells that never move, and under each line its heat strip.

function makeStage(app, view) {
  const { scene } = view;
  view.cells = new Array(scene.keys);
  view.bands = bandsOf(scene).map((band) => makeBand(app, view, band));
  view.focusKey = 0;
  view.cells[0].tabIndex = 0;
}

function makeBand(app, view, band) {
  const { scene } = view;
  const gold = band.name === scene.json.gold;
  const name = make("div", { className: "fsv-band-name" }, band.name);
  if (gold) name.append(make("span", { className: "fsv-gold" }, "★ gold"));
  name.append(make("span", { className: "fsv-band-model" }, scene.label));
  const heat = make("canvas", { className: "fsv-heat", "aria-hidden": "true" });
  const cells = make("div", { className: "fsv-cells", role: "listbox",
    "aria-label": `${scene.label}, ${band.name}${gold ? " (gold)" : ""}: tokens` }, heat);
  for (const key of band.keys) cells.append(makeCell(app, view, key));
  cells.addEventListener("pointermove", (event) => hoverStrip(app, view, cells, event));
  cells.addEventListener("pointerleave", () => app.tip(null));
  const element = make("section", { className: `fsv-band${gold ? " fsv-band-gold" : ""}` }, name, cells);
  return { name: band.name, keys: band.keys, element, cells, heat };
}

function makeCell(app, view, key) {
  const { scene } = view;
  const text = make("span", { className: "fsv-text" });
  const cell = make("span", { className: "fsv-cell", role: "option", tabIndex: -1 }, text);
  const first = scene.resultWord(key);
  if (/^\s/.test(first) && first.trim()) cell.classList.add("fsv-word");
  if (key >= scene.json.prompt_length) cell.classList.add("fsv-slot");
  if (scene.regionName(key) === "template") cell.classList.add("fsv-template");
  cell.dataset.key = key;
  view.cells[key] = cell;
  cell.addEventListener("click", () => app.select(view, key));
  cell.addEventListener("focus", () => {
    view.cells[view.focusKey].tabIndex = -1;
    view.focusKey = key;
    cell.tabIndex = 0;
    showTokenTip(app, view, key);
  });
  cell.addEventListener("blur", () => app.tip(null));
  return cell;
}

function showTokenTip(app, view, key) {
  const { scene, step } = view;
  const n = tokenNumbers(app, scene, step, key);
  app.tip(view.cells[key], [
    `${tokenName(scene, step, key)} · ${key} · ${scene.regionName(key)}`,
    n.there ? `share ${n.share} · lift ${n.lift}` : "not there yet",
    ...(app.mode === "change" && n.there ? [`change ${n.change}`] : []),
    ...app.tokenLines(view, key),
  ]);
}

// Hover over a token gives its numbers; hover over the strip under it gives one layer's.
function hoverStrip(app, view, cells, event) {
  const cell = event.target.closest(".fsv-cell");
  if (cell) return showTokenTip(app, view, Number(cell.dataset.key));
  const box = cells.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const { scene, step } = view;
  for (const { key, left, top, width } of view.places.get(cells) || []) {
    const layer = Math.floor((y - top) / app.rowHeight(scene));
    if (x < left || x >= left + width || layer < 0 || layer >= scene.layers) continue;
    const share = scene.shareRow(step, layer, -1)[key];
    return app.tip({ left: event.clientX, top: event.clientY }, [
      `${tokenName(scene, step, key)} · ${key} · layer ${scene.json.layers[layer]}`,
      `share ${percent(share)} · lift ${times(share / rowOf(scene.array.null, step)[key])}`,
    ]);
  }
  return app.tip(null);
}

// Cells get the width of the widest text they will hold, so that nothing moves while it plays. True where
// one has another width than before. `from`: the first that may have changed.
function fixWidths(view, app, from = 0) {
  const pen = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(view.cells[0]), answer = view.scene.json.prompt_length;
  let changed = false;
  view.cells.forEach((cell, key) => {
    if (key < from) return;
    // What is revealed is bold.
    if (key === from || key === answer) pen.font = `${key < answer ? style.fontWeight : 600} ${style.fontSize} ${style.fontFamily}`;
    const widest = Math.max(...view.scene.wordsOf(key).map((w) => pen.measureText(shown(w)).width));
    const width = `${Math.ceil(Math.max(widest, 8)) + 6}px`;
    if (cell.style.width === width) return;
    changed = true;
    cell.style.width = width;
  });
  view.element.style.setProperty("--fsv-strip", `${app.rowHeight(view.scene) * view.scene.layers}px`);
  return changed;
}

function measure(view) {
  view.places = new Map();
  for (const band of view.bands) {
    view.places.set(band.cells, band.keys.map((key) => {
      const c = view.cells[key];
      return { key, left: c.offsetLeft, top: c.offsetTop + c.offsetHeight + 3, width: c.offsetWidth };
    }));
  }
}

function updateCells(app, view) {
  const { scene, step } = view;
  const layer = app.layerOf(scene), head = app.headOf(scene, step);
  const values = scene.valueRow(app.mode, step, layer, head);
  const share = scene.shareRow(step, layer, head);
  const changed = new Map(scene.changesAt[step].map((c) => [c.key, c]));
  const anchors = new Set(scene.anchorsOf(step, layer, head));
  view.cells.forEach((cell, key) => {
    const now = changed.get(key);
    const there = scene.isThere(step, key), masked = scene.isMasked(step, key);
    const word = now && now.kind !== REMASK ? scene.word(now.word) : scene.wordAt(step, key);
    cell.firstChild.textContent = shown(word);
    cell.classList.toggle("fsv-masked", masked);
    cell.classList.toggle("fsv-absent", !there);
    cell.classList.toggle("fsv-revealed", Boolean(now) && now.kind !== REMASK);
    cell.classList.toggle("fsv-remasked", Boolean(now) && now.kind === REMASK);
    cell.classList.toggle("fsv-anchor", anchors.has(key));
    const selected = app.selectedIn(view) === key;
    cell.classList.toggle("fsv-selected", selected);
    cell.setAttribute("aria-selected", String(selected));
    // Two digits, no sign: narrow cells stand close together. The tip and the panel say more.
    cell.dataset.share = anchors.has(key) ? String(Number((100 * share[key]).toPrecision(2))) : "";
    const rgb = Number.isFinite(values[key]) ? app.scale.rgb(values[key]) : null;
    cell.style.setProperty("--fsv-fill", rgb ? css(rgb) : "transparent");
    cell.style.color = rgb && !masked ? inkOn(rgb) : "";
    cell.setAttribute("aria-label", `${shown(word) || (masked ? "mask" : "blank")}, position ${key}, share ${
      percent(share[key])}${anchors.has(key) ? ", anchor" : ""}${now ? ", changed at this step" : ""}`);
  });
}

// Layer × position of a step, a pixel each; a chosen layer stands out.
function stripImage(app, { scene, step }) {
  const chosen = app.layerOf(scene), image = new ImageData(scene.keys, scene.layers);
  for (let l = 0; l < scene.layers; l++) {
    const row = scene.valueRow(app.mode, step, l, -1), alpha = chosen < 0 || chosen === l ? 255 : 89;
    for (let k = 0; k < scene.keys; k++) {
      if (!Number.isFinite(row[k])) continue;
      const [r, g, b] = app.scale.rgb(row[k]);
      image.data.set([r, g, b, alpha], 4 * (l * scene.keys + k));
    }
  }
  const made = make("canvas", { width: scene.keys, height: scene.layers });
  made.getContext("2d").putImageData(image, 0, 0);
  return made;
}

// Each cell's column of that image, enlarged, under the cell.
function paintStrips(app, view) {
  const { scene } = view, tall = app.rowHeight(scene) * scene.layers, ratio = window.devicePixelRatio || 1;
  const image = stripImage(app, view), sizes = view.bands.map(({ cells }) => [cells.clientWidth, cells.clientHeight]);
  view.bands.forEach((band, i) => {
    band.heat.width = sizes[i][0] * ratio;
    band.heat.height = sizes[i][1] * ratio;
    const pen = band.heat.getContext("2d");
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = false;
    for (const { key, left, top, width } of view.places.get(band.cells)) {
      pen.drawImage(image, key, 0, 1, scene.layers, left, top, width, tall);
    }
  });
}

// ---- Transport: the slider, the reveal order above it as ticks, play and single steps.

function makeTransport(app, view) {
  const { scene } = view;
  const ticks = draw("svg", { class: "fsv-ticks", preserveAspectRatio: "none", role: "img",
    "aria-label": "Reveal order: steps to the right, positions of the answer downwards" });
  view.ticks = ticks;
  fillTicks(view);
  view.slider = make("input", { type: "range", min: 0, max: scene.span - 1, value: view.step,
    className: "fsv-slider", "aria-label": `Step of ${[...new Set([scene.label, scene.json.model.model])].join(" ")}` });
  view.slider.addEventListener("input", () => { app.pause(); app.go(view, Number(view.slider.value)); });
  const button = (sign, label, act) => {
    const made = make("button", { type: "button", className: "fsv-button", "aria-label": label, title: label }, sign);
    made.addEventListener("click", act);
    return made;
  };
  view.play = button("▶", "Play (space)", () => app.togglePlay(view));
  view.status = make("div", { className: "fsv-status" });
  return make("div", { className: "fsv-transport", role: "group", "aria-label": `Steps of ${scene.label}` },
    make("div", { className: "fsv-buttons" },
      button("❘◀", "First step (Home)", () => { app.pause(); app.go(view, 0); }),
      button("◀", "One step back (left arrow)", () => { app.pause(); app.go(view, view.step - 1); }),
      view.play,
      button("▶❘", "One step forward (right arrow)", () => { app.pause(); app.go(view, view.step + 1); }),
    ),
    make("div", { className: "fsv-track" }, ticks, view.slider), view.status);
}

// Steps to the right, positions of the answer downwards.
function fillTicks(view) {
  const { scene } = view, last = Math.max(1, scene.span - 1);
  const answer = Math.max(1, scene.keys - scene.json.prompt_length), tall = Math.max(8, answer);
  const width = Math.min(3, 70 / last);
  view.tickMarks = [];
  for (const { tick, key } of scene.reveals) {
    const at = scene.json.steps.findIndex((s) => s >= tick);
    if (at < 0) continue;
    const mark = draw("rect", { x: (100 * at) / last - width / 2, width,
      y: ((key - scene.json.prompt_length) * tall) / answer, height: (0.8 * tall) / answer });
    view.tickMarks.push({ mark, at });
  }
  view.ticks.setAttribute("viewBox", `0 0 100 ${tall}`);
  view.ticks.replaceChildren(...view.tickMarks.map(({ mark }) => mark));
}

function updateTransport(app, view) {
  const { scene, step } = view;
  view.slider.value = step;
  view.slider.setAttribute("aria-valuetext", scene.stepOfAll(step));
  for (const { mark, at } of view.tickMarks) {
    mark.setAttribute("class", at === step ? "fsv-now" : at < step ? "fsv-done" : "");
  }
  view.play.firstChild.data = app.playing ? "❚❚" : "▶";
  view.play.setAttribute("aria-label", app.playing ? "Pause (space)" : "Play (space)");
  const done = scene.changesAt[step];
  const what = done.slice(0, 4).map((c) => (c.kind === REMASK ? `takes back ${c.key}` : quoted(scene.word(c.word))));
  const more = done.length > 4 ? ` and ${done.length - 4} more` : "";
  view.status.replaceChildren(make("b", {}, scene.stepOfAll(step)),
    what.length ? ` reveals ${what.join(", ")}${more}` : " reveals nothing");
  // A reader that plays should not be read every step aloud.
  view.status.setAttribute("aria-live", app.playing ? "off" : "polite");
}

// ---- Layer × head.

const GRID_VALUES = {
  peak: "share of its strongest key",
  token: "share on the selected token",
  gold: "gold passage, by the rows that predict",
};

function makeGrid(app, view) {
  const { scene } = view;
  const table = make("div", { className: "fsv-grid", role: "group",
    "aria-label": `${scene.label}: heads. Up and down change the layer, shift with left and right the head.` });
  table.style.setProperty("--fsv-heads", scene.heads);
  const corner = make("span", { className: "fsv-grid-label", title: "layer by head" }, "L\\H");
  const every = Math.ceil(scene.heads / 16);  // more numbers than that would run into each other
  table.append(corner, ...scene.json.heads.map((h, i) => make("span", { className: "fsv-grid-label" }, i % every ? "" : String(h))));
  table.classList.toggle("fsv-deep", scene.layers > 16);
  view.headButtons = [];
  for (let l = 0; l < scene.layers; l++) {
    const name = make("button", { type: "button", tabIndex: -1, className: "fsv-grid-label fsv-grid-layer",
      "aria-label": `Layer ${scene.json.layers[l]}, mean of heads` }, String(scene.json.layers[l]));
    name.addEventListener("click", () => app.choose(l, -1));
    table.append(name);
    for (let h = 0; h < scene.heads; h++) {
      const cell = make("button", { type: "button", className: "fsv-head", tabIndex: l + h ? -1 : 0 });
      cell.addEventListener("click", () => (app.layer === l && app.head === h ? app.choose(-1, -1) : app.choose(l, h)));
      cell.addEventListener("pointerenter", () => app.tip(cell, headLines(app, view, l, h)));
      cell.addEventListener("pointerleave", () => app.tip(null));
      cell.addEventListener("focus", () => {
        view.headButtons.forEach((b) => { b.tabIndex = -1; });
        cell.tabIndex = 0;
        app.tip(cell, headLines(app, view, l, h));
      });
      cell.addEventListener("blur", () => app.tip(null));
      view.headButtons.push(cell);
      table.append(cell);
    }
  }
  table.addEventListener("keydown", (event) => moveInGrid(view, event));
  view.gridNote = make("p", { className: "fsv-note" });
  return make("section", { className: "fsv-card fsv-grid-card" },
    make("h3", {}, `Heads · ${scene.label}`), table, view.gridNote);
}

function moveInGrid(view, event) {
  const at = view.headButtons.indexOf(event.target), { heads } = view.scene;
  const by = { ArrowUp: -heads, ArrowDown: heads, ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const sideways = event.key === "ArrowLeft" || event.key === "ArrowRight";
  if (at < 0 || by === undefined || sideways !== event.shiftKey) return;
  event.preventDefault();
  event.stopPropagation();
  if (view.headButtons[at + by]) view.headButtons[at + by].focus();
}

function gridValue(app, view, l, h) {
  const { scene, step } = view, key = app.selectedIn(view);
  if (app.grid === "gold" && scene.array.gold_look) return rowOf(scene.array.gold_look, step, l)[h];
  if (app.grid === "token" && key >= 0 && scene.headStep(step) >= 0) return scene.shareRow(step, l, h)[key];
  if (app.grid === "token") return NaN;
  return rowOf(scene.array.peak, step, l)[h];
}

function headLines(app, view, l, h) {
  const { scene, step } = view;
  const top = rowOf(scene.array.peak_key, step, l)[h];
  const lines = [`layer ${scene.json.layers[l]}, head ${scene.json.heads[h]}`,
    `strongest key ${tokenName(scene, step, top)} (${top}, ${scene.regionName(top)}): ${
      percent(rowOf(scene.array.peak, step, l)[h])}`];
  if (app.grid !== "peak") lines.push(`${GRID_VALUES[app.grid]}: ${percent(gridValue(app, view, l, h), 2)}`);
  return lines;
}

function updateGrid(app, view) {
  const { scene, step } = view;
  let most = 0;
  view.headButtons.forEach((cell, i) => {
    const l = Math.floor(i / scene.heads), h = i % scene.heads;
    const value = gridValue(app, view, l, h);
    if (value > most) most = value;
    const rgb = Number.isFinite(value) ? app.headScale.rgb(value) : null;
    cell.style.background = rgb ? css(rgb) : "";
    const on = app.layerOf(scene) === l && (app.headOf(scene, step) === h || app.head < 0);
    cell.classList.toggle("fsv-chosen", on);
    cell.setAttribute("aria-pressed", String(on && app.head >= 0));
    cell.setAttribute("aria-label", `layer ${scene.json.layers[l]} head ${scene.json.heads[h]}: ${percent(value, 2)}`);
  });
  const empty = app.grid === "gold" ? "no row predicts at this step" : "select a token";
  view.gridNote.textContent = most > 0 ? `${GRID_VALUES[app.grid]}; most: ${percent(most, 2)}` : empty;
}

// ---- The path of the top anchor: position against step, with the regions as bands.

const PATH = { width: 300, height: 150, left: 64, right: 8, top: 6, bottom: 18 };

function makePath(app, view) {
  const svg = draw("svg", { viewBox: `0 0 ${PATH.width} ${PATH.height}`, class: "fsv-path", role: "img", tabindex: 0 });
  view.path = svg;
  svg.addEventListener("focus", () => app.tip(svg, view.pathNow));
  svg.addEventListener("blur", () => app.tip(null));
  return make("section", { className: "fsv-card fsv-path-card" },
    make("h3", {}, `Path of the top key · ${view.scene.label}`), svg);
}

function pathLines(scene, step, key, share) {
  return [`${scene.stepName(step)}: ${tokenName(scene, step, key)}`,
    `${key}, ${scene.regionName(key)} · share ${percent(share)} · lift ${times(share / rowOf(scene.array.null, step)[key])}`];
}

function updatePath(app, view) {
  const { scene, step } = view, layer = app.layerOf(scene), head = app.headOf(scene, step);
  const wide = PATH.width - PATH.left - PATH.right, tall = PATH.height - PATH.top - PATH.bottom;
  const x = (s) => PATH.left + (wide * (s + 0.5)) / scene.span;
  const y = (k) => PATH.top + (tall * (k + 0.5)) / scene.keys;
  const parts = [];
  let labelled = -20;
  view.bands.forEach((band, i) => {
    const from = y(band.keys[0] - 0.5), to = y(band.keys[band.keys.length - 1] + 0.5);
    parts.push(draw("rect", { x: PATH.left, width: wide, y: from, height: to - from,
      class: band.name === scene.json.gold ? "fsv-path-gold" : i % 2 ? "fsv-path-odd" : "fsv-path-even" }));
    const middle = Math.max((from + to) / 2, labelled + 10.5);
    if (middle > to + 6 && band.name !== "answer") return;
    labelled = middle;
    const name = band.name === scene.json.gold ? `★ ${band.name}` : band.name;
    parts.push(draw("text", { x: PATH.left - 4, y: middle + 3, class: "fsv-path-name" },
      name.length > 11 ? `${name.slice(0, 10)}…` : name));
  });
  // Of a single head only the steps that were kept: a neighbour's value would be no path.
  const known = [...Array(scene.steps).keys()].filter((s) => head < 0 || scene.headStep(s, layer, head) === s);
  const tops = known.map((s) => ({ s, k: scene.topKey(s, layer, head) }));
  parts.push(draw("line", { x1: x(view.step), x2: x(view.step), y1: PATH.top, y2: PATH.top + tall, class: "fsv-path-now" }));
  parts.push(draw("polyline", { points: tops.map(({ s, k }) => `${x(s)},${y(k)}`).join(" "), class: "fsv-path-line" }));
  tops.forEach(({ s, k }) => {
    const share = scene.shareRow(s, layer, head)[k];
    const dot = draw("circle", { cx: x(s), cy: y(k), r: 2 + 6 * Math.sqrt(share), class: s === view.step ? "fsv-dot fsv-now" : "fsv-dot" });
    dot.addEventListener("pointerenter", () => app.tip(dot, pathLines(scene, s, k, share)));
    dot.addEventListener("pointerleave", () => app.tip(null));
    dot.addEventListener("click", () => { app.pause(); app.go(view, s); });
    parts.push(dot);
  });
  [0, scene.steps - 1].forEach((s, i) => {
    if (i && (scene.steps === 1 || x(s) - x(0) < 60)) return;
    const ends = scene.span === 1 ? "" : i ? " fsv-path-last" : " fsv-path-first";
    parts.push(draw("text", { x: x(s), y: PATH.height - 5, class: `fsv-path-step${ends}` }, scene.stepName(s)));
  });
  const different = new Set(tops.map(({ k }) => k)).size, now = scene.topKey(step, layer, head);
  view.pathNow = pathLines(scene, step, now, scene.shareRow(step, layer, head)[now]);
  if (document.activeElement === view.path) app.tip(view.path, view.pathNow);
  view.path.setAttribute("aria-label", `The key that receives most at each of ${tops.length} steps: ${
    different} different keys; now ${tokenName(scene, step, now)} at ${now}`);
  view.path.replaceChildren(...parts);
}
