// The panel of a chosen token: what it is, what it receives now, who looks at it, what it looked at.

function makePanel(app, view) {
  view.panel = make("div", { className: "fsv-panel-body" });
  return make("section", { className: "fsv-card fsv-panel", "aria-label": `Selected token, ${view.scene.label}` },
    make("h3", {}, `Token · ${view.scene.label}`), view.panel);
}

function updatePanel(app, view) {
  const { scene, step } = view, key = app.selectedIn(view);
  const held = [...view.panel.querySelectorAll("button, input, select")].indexOf(document.activeElement);
  if (key < 0) {
    const hint = app.selected ? "The selected token has no counterpart here."
      : "Click a token, or press Enter on one, to see who looks at it.";
    view.panel.replaceChildren(make("p", { className: "fsv-note" }, hint));
    return;
  }
  const n = tokenNumbers(app, scene, step, key);
  const text = scene.isMasked(step, key) ? "mask" : n.there ? scene.wordAt(step, key) : "not there yet";
  const end = scene.resultWord(key), differs = end !== "" && end !== scene.wordAt(step, key);
  const region = scene.regionName(key);
  const facts = make("dl", { className: "fsv-facts" });
  const fact = (name, value) => facts.append(make("dt", {}, name), make("dd", {}, value));
  fact("class", scene.className(step, key));
  fact("region", region === scene.json.gold ? `${region} ★ gold` : region);
  fact("state", stateWord(scene, step, key));
  if (n.there) {
    fact("share", `${n.share}; chance ${n.chance}`);
    fact("lift", n.lift);
    fact("per query", `${n.received} (of those that see it)`);
    fact("change", n.change);
  }
  view.panel.replaceChildren(
    make("p", { className: "fsv-token-text" }, make("code", {}, text),
      make("span", { className: "fsv-note" }, ` position ${key}${differs ? `, in the end ${quoted(end)}` : ""}`)),
    facts, ...app.underToken(view, key), ...(n.there ? [byLayer(app, view, key), byGroup(app, view, key), byHead(app, view, key)] : []),
    ownRowOf(app, view, key));
  // The panel is made anew at every step: whoever stands on one of its controls goes on standing there.
  const buttons = view.panel.querySelectorAll("button, input, select");
  if (held >= 0 && buttons[held]) buttons[held].focus({ preventScroll: true });
}

const heading = (text) => make("h4", {}, text);

// A bar per layer, on one scale within the panel; the number is in its label.
function byLayer(app, view, key) {
  const { scene, step } = view;
  const shares = Array.from({ length: scene.layers }, (_, l) => scene.shareRow(step, l, -1)[key]);
  const most = Math.max(...shares);
  const bars = make("div", { className: "fsv-bars", role: "group", "aria-label": "Share by layer, head mean" });
  shares.forEach((share, l) => {
    const bar = make("button", { type: "button", className: "fsv-layer", tabIndex: -1,
      "aria-label": `layer ${scene.json.layers[l]}: ${percent(share)}` });
    const fill = make("span", {});
    fill.style.height = `${(100 * share) / (most || 1)}%`;
    bar.append(fill);
    bar.classList.toggle("fsv-chosen", app.layerOf(scene) === l);
    bar.addEventListener("click", () => app.choose(l, -1));
    const tell = () => app.tip(bar, [`layer ${scene.json.layers[l]}: share ${percent(share)}`,
      `lift ${times(share / rowOf(scene.array.null, step)[key])}`]);
    for (const type of ["pointerenter", "focus"]) bar.addEventListener(type, tell);
    for (const type of ["pointerleave", "blur"]) bar.addEventListener(type, () => app.tip(null));
    bars.append(bar);
  });
  // One stop for the tab key; up and down go from layer to layer, as in the grid.
  bars.children[Math.max(0, app.layerOf(scene))].tabIndex = 0;
  bars.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key], at = [...bars.children].indexOf(event.target);
    if (!by || !bars.children[at + by]) return;
    event.preventDefault();
    event.stopPropagation();
    bars.children[at + by].focus();
  });
  const top = shares.indexOf(most);
  return make("div", {}, heading("Layers that look at it"), bars, make("p", { className: "fsv-note" },
    `first layer left; most: layer ${scene.json.layers[top]}, ${percent(most)}`));
}

function byHead(app, view, key) {
  const { scene, step } = view, from = scene.headStep(step);
  const found = scene.headsLookingAt(step, key, 5);
  const box = make("div", {}, heading("Heads that look at it"));
  if (!found.length) return make("div", {}, heading("Heads that look at it"), make("p", { className: "fsv-note" }, scene.source.heads ? "Reading single heads …" : "Single heads were left out of this scene."));
  const chance = rowOf(scene.array.null, step)[key];
  const list = make("ol", { className: "fsv-list" });
  for (const { layer, head, share } of found) {
    const pick = make("button", { type: "button", className: "fsv-link" }, `layer ${scene.json.layers[layer]} head ${scene.json.heads[head]}`);
    pick.addEventListener("click", () => app.choose(layer, head));
    list.append(make("li", {}, pick, make("span", {}, `${percent(share, 2)} · ${times(share / chance, 2)}`)));
  }
  box.append(list);
  if (from !== step) box.append(make("p", { className: "fsv-note" }, `of ${scene.stepName(from)}, the nearest one kept`));
  return box;
}

function byGroup(app, view, key) {
  const { scene, step } = view;
  if (!scene.from) return make("div", {});
  const layer = app.layerOf(scene);
  const list = make("ul", { className: "fsv-list" });
  scene.from.names.forEach((name, g) => {
    const layers = layer >= 0 ? [layer] : [...Array(scene.layers).keys()];
    const share = layers.reduce((sum, l) => sum + rowOf(scene.from.share, step, g, l)[key], 0) / layers.length;
    list.append(make("li", {}, make("span", {}, `${name} queries`), make("span", {}, Number.isFinite(share) ? percent(share, 2) : "none here")));
  });
  return make("div", {}, heading("Mean attention it gets from"), list);
}

function ownRowOf(app, view, key) {
  const { scene } = view;
  const row = scene.ownRow(key, app.layerOf(scene), app.layer < 0 ? -1 : Math.min(app.head, scene.heads - 1), 5);
  if (!row) return make("div", {});
  const named = (word) => (word === null ? "mask" : quoted(word));
  const list = make("ol", { className: "fsv-list" });
  for (const { key: k, weight } of row.keys) {
    const gold = scene.regionName(k) === scene.json.gold ? " ★" : "";
    const pick = make("button", { type: "button", className: "fsv-link" }, `${named(scene.wordBefore(row.tick, k))} ${k}`);
    pick.addEventListener("click", () => app.select(view, k));
    list.append(make("li", {}, pick, make("span", {}, `${row.atLeast ? "≥ " : ""}${percent(weight, 2)} · ${scene.regionName(k)}${gold}`)));
  }
  return make("div", {}, heading(`What it looked at when revealed (step ${row.tick})`), list);
}
