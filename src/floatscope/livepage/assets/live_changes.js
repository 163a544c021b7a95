// What differs between two runs of one prompt: tokens, the order of revealing, the answer, attention.
// The first half computes and touches no document; the second makes the card that says it.

// Positions can be compared one by one where both canvases have the same parts.
function comparable(a, b) {
  if (a.keys !== b.keys || a.json.prompt_length !== b.json.prompt_length) return false;
  for (let k = 0; k < a.keys; k++) if (a.regionName(k) !== b.regionName(k)) return false;
  return true;
}

const answerKeys = (scene) => Array.from({ length: scene.keys - scene.json.prompt_length },
  (_, i) => scene.json.prompt_length + i);

// What stands at a position after a step: its word, null for a mask, undefined where it is not there yet.
function wordAfter(scene, step, key) {
  const change = scene.changesAt[step].filter((c) => c.key === key).at(-1);
  if (change) return change.kind === REMASK ? null : scene.word(change.word);
  if (!scene.isThere(step, key)) return undefined;
  return scene.isMasked(step, key) ? null : scene.wordAt(step, key);
}

// [{ key, before, after }] of the answer's positions whose tokens differ once both have come to this step.
function tokenChanges(a, b, stepA, stepB) {
  return answerKeys(a).map((key) => ({ key, before: wordAfter(a, stepA, key), after: wordAfter(b, stepB, key) }))
    .filter(({ before, after }) => before !== undefined && after !== undefined && before !== after);
}

// [{ key, before, after }]: the steps at which a position was last revealed, where they differ. Between a model
// that writes from left to right and one that does not, that says nothing.
function orderChanges(a, b) {
  if (a.causal !== b.causal) return [];
  return answerKeys(a).map((key) => ({ key, before: a.lastReveal[key], after: b.lastReveal[key] }))
    .filter(({ before, after }) => before >= 0 && after >= 0 && before !== after);
}

// How much of a row of shares would have to be moved to make it the other: between 0 and 1.
function movedShare(a, b) {
  let sum = 0;
  for (let k = 0; k < a.length; k++) if (Number.isFinite(a[k]) && Number.isFinite(b[k])) sum += Math.abs(a[k] - b[k]);
  return sum / 2;
}

// By layer (head means), their mean, and the head that moved most where both scenes have single heads.
function attentionChange(a, b, stepA, stepB) {
  const layers = Math.min(a.layers, b.layers), heads = Math.min(a.heads, b.heads);
  const byLayer = Array.from({ length: layers }, (_, l) => movedShare(a.shareRow(stepA, l, -1), b.shareRow(stepB, l, -1)));
  let top = null;
  if (a.headStep(stepA) === stepA && b.headStep(stepB) === stepB) {
    for (let layer = 0; layer < layers; layer++) for (let head = 0; head < heads; head++) {
      const moved = movedShare(a.shareRow(stepA, layer, head), b.shareRow(stepB, layer, head));
      if (!top || moved > top.moved) top = { layer, head, moved };
    }
  }
  return { byLayer, mean: byLayer.reduce((x, y) => x + y, 0) / layers, top };
}

// ---- The card

function makeChanges(app, view) {
  view.changes = make("div", {});
  const title = app.isBranch() ? "What changed" : "What differs";
  const card = make("section", { className: "fsv-card fsl-changes", "aria-label": title }, make("h3", {}, title), view.changes);
  card.hidden = app.views.indexOf(view) !== 1;
  return card;
}

function updateChanges(app, view) {
  if (app.views.indexOf(view) !== 1) return;
  const [a, b] = app.views;
  if (!comparable(a.scene, b.scene)) {
    view.changes.replaceChildren(make("p", { className: "fsv-note" },
      "The two canvases have different parts, so positions cannot be compared one by one."), answerLine(a.scene, b.scene));
    return;
  }
  const held = [...view.changes.querySelectorAll("button")].indexOf(document.activeElement);
  const moved = attentionChange(a.scene, b.scene, a.step, b.step);
  view.changes.replaceChildren(answerLine(a.scene, b.scene), tokenLines(app, view, a, b), orderLine(app, view, a.scene, b.scene),
    make("h4", {}, `Attention at ${b.scene.stepName(b.step)}`), attentionLine(app, b.scene, moved), movedBars(app, b.scene, moved));
  const buttons = view.changes.querySelectorAll("button");
  if (held >= 0 && buttons[held]) buttons[held].focus({ preventScroll: true });
}

const answered = (scene) => scene.json.answer.trim() || "nothing yet";

function answerLine(a, b) {
  const [before, after] = [answered(a), answered(b)];
  if (before === after) return make("p", {}, "Answer: the same, ", make("q", {}, before));
  return make("p", {}, "Answer: ", make("del", {}, before), " → ", make("ins", {}, after));
}

const wordOr = (word) => (word === null ? "mask" : quoted(word));

function tokenLines(app, view, a, b) {
  const found = tokenChanges(a.scene, b.scene, a.step, b.step);
  const box = make("div", {}, make("h4", {}, `Tokens after ${b.scene.stepName(b.step)}`));
  if (!found.length) box.append(make("p", { className: "fsv-note" }, "the same at every position"));
  const list = make("ul", { className: "fsv-list" });
  for (const { key, before, after } of found.slice(0, 6)) {
    const pick = make("button", { type: "button", className: "fsv-link" }, `position ${key}`);
    pick.addEventListener("click", () => app.pick(view, key));
    list.append(make("li", {}, pick, make("span", {}, `${wordOr(before)} → ${wordOr(after)}`)));
  }
  box.append(list);
  if (found.length > 6) box.append(make("p", { className: "fsv-note" }, `and ${found.length - 6} more`));
  return box;
}

function orderLine(app, view, a, b) {
  const found = orderChanges(a, b);
  if (a.causal !== b.causal) return make("div", {});
  const box = make("div", {}, make("h4", {}, "Order"));
  if (!found.length) { box.append(make("p", { className: "fsv-note" }, "revealed in the same order so far")); return box; }
  const first = found[0];
  const pick = make("button", { type: "button", className: "fsv-link" }, `position ${first.key}`);
  pick.addEventListener("click", () => app.pick(view, first.key));
  box.append(make("p", {}, `${found.length} ${found.length === 1 ? "position" : "positions"} revealed at another step: `, pick,
    ` at step ${first.before}, now ${first.after}${found.length > 1 ? ", …" : ""}`));
  return box;
}

function attentionLine(app, scene, { mean, top }) {
  const line = make("p", {}, `${percent(mean)} ${app.isBranch() ? "moved" : "differs"} (mean over layers)`);
  if (!top) return line;
  const pick = make("button", { type: "button", className: "fsv-link" },
    `layer ${scene.json.layers[top.layer]} head ${scene.json.heads[top.head]}`);
  pick.addEventListener("click", () => app.choose(top.layer, top.head));
  line.append("; most: ", pick, ` ${percent(top.moved, 2)}`);
  return line;
}

function movedBars(app, scene, { byLayer }) {
  const most = Math.max(...byLayer);
  const bars = make("div", { className: "fsv-bars", role: "img",
    "aria-label": `Attention moved, by layer: ${byLayer.map((v, l) => `${scene.json.layers[l]}: ${percent(v, 2)}`).join(", ")}` });
  byLayer.forEach((v, l) => {
    const fill = make("span", {});
    fill.style.height = `${(100 * v) / (most || 1)}%`;
    bars.append(make("span", { className: "fsv-layer", title: `layer ${scene.json.layers[l]}: ${percent(v)}` }, fill));
  });
  return make("div", {}, bars, make("p", { className: "fsv-note" }, `by layer, first layer left; most: ${percent(most)}`));
}
