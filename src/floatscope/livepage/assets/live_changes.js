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

// What the server says of two finished runs, or of their attention at the two steps shown: null while it is on
// its way or cannot be known. It compares the traces themselves, before anything is rounded for a page.
function comparisonOf(app) {
  const [a, b] = app.views.map((view) => app.runOf(view));
  if (!a || !b || !a.finished || !b.finished) return null;
  return app.ask(`compare ${a.id} ${b.id}`, () => app.page.client.compare(a.id, b.id));
}

function attentionOf(app, layer = -1, head = -1) {
  const [one, two] = app.views, [a, b] = app.views.map((view) => app.runOf(view));
  if (!a || !b || !a.finished || !b.finished) return null;
  const steps = [one.scene.json.steps[one.step], two.scene.json.steps[two.step]], where = head < 0 ? [] : [layer, head];
  return app.ask(`attention ${a.id} ${b.id} ${steps} ${where}`, async () => {
    const answer = await app.page.client.compare(a.id, b.id, ...steps, ...where);
    return { ...answer, rows: unpackArray(answer.difference) };
  });
}

// A distance in words; what rounding alone may give is no change.
const moved = (distance, resolution) => (distance <= resolution ? "no change" : percent(distance));

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
  const compared = comparisonOf(app), at = `${a.scene.stepName(a.step)}${a.step === b.step ? "" : ` and ${b.scene.stepName(b.step)}`}`;
  if (compared && compared.value && compared.value.same) {
    view.changes.replaceChildren(make("p", {}, make("b", {}, "No change"), ": the same answer, tokens and order, and the same attention at every step."));
    return;
  }
  view.changes.replaceChildren(answerLine(a.scene, b.scene), tokenLines(app, view, a, b), orderLine(app, view, a.scene, b.scene),
    make("h4", {}, `Attention at ${at}`), ...attentionLines(app, b.scene), ...overSteps(app, compared));
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

function attentionLines(app, scene) {
  const answer = attentionOf(app), note = (text) => [make("p", { className: "fsv-note" }, text)];
  if (!answer) return note("Compared once both runs are over.");
  if (answer.error) return [make("p", { className: "fsl-bad", role: "alert" }, inWords(answer.error))];
  if (!answer.value) return note("Comparing …");
  const { distance, layers, top, resolution } = answer.value;
  if (distance === undefined) return note("The two models have other layers or heads: colours show the mean over all of them.");
  if (top.distance <= resolution) return [make("p", {}, "no change")];
  const line = make("p", {}, `${moved(distance, resolution)} ${app.isBranch() ? "moved" : "differs"} (mean over layers and heads); most: `);
  const pick = make("button", { type: "button", className: "fsv-link" }, `layer ${scene.json.layers[top.layer]} head ${scene.json.heads[top.head]}`);
  pick.addEventListener("click", () => app.choose(top.layer, top.head));
  line.append(pick, ` ${moved(top.distance, resolution)}`);
  return [line, movedBars(scene, layers, resolution)];
}

function movedBars(scene, layers, resolution) {
  const most = Math.max(...layers);
  const bars = make("div", { className: "fsv-bars", role: "img",
    "aria-label": `Attention moved, by layer: ${layers.map((v, l) => `${scene.json.layers[l]}: ${moved(v, resolution)}`).join(", ")}` });
  layers.forEach((v, l) => {
    const fill = make("span", {});
    fill.style.height = `${v <= resolution ? 0 : (100 * v) / most}%`;
    bars.append(make("span", { className: "fsv-layer", title: `layer ${scene.json.layers[l]}: ${moved(v, resolution)}` }, fill));
  });
  return make("div", {}, bars, make("p", { className: "fsv-note" }, `by layer, first layer left; most: ${moved(most, resolution)}`));
}

// Where in the whole run attention moved most: the step that is shown may be one at which it did not.
function overSteps(app, compared) {
  const attention = compared && compared.value && compared.value.attention;
  if (!attention || !attention.distance.some((v) => v > attention.resolution)) return [];
  const most = Math.max(...attention.distance), step = attention.steps[attention.distance.indexOf(most)], [a] = app.views;
  const at = a.scene.json.steps.indexOf(step);
  return [make("p", { className: "fsv-note" }, `Of all steps most at step `, linkTo(String(step), () => app.go(a, at)), `: ${moved(most, attention.resolution)}`)];
}
