// What can be done to a run from the step that is shown: to a token, its key, its region, a head. Each makes a
// branch; nothing is changed in the run itself.

const ROWS_THAT_LOOK = ["predicting", "answer", "masked", "revealed", "question"];

// ---- Under the chosen token

function touchToken(app, view, key) {
  const run = app.runOf(view);
  if (!run) return [];
  const box = make("div", { className: "fsl-touch" });
  if (key >= view.scene.json.prompt_length) box.append(...touchAnswer(app, view, run, key));
  if (view.scene.isThere(view.step, key)) box.append(...touchKey(app, view, run, key));
  return [box];
}

function button(text, act, label) {
  const made = make("button", { type: "button", className: "fsl-button" }, text);
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function touchAnswer(app, view, run, key) {
  const { scene, step } = view, tick = scene.json.steps[step];
  if (scene.causal) {
    const own = key - scene.json.prompt_length;
    if (own !== tick) {
      if (!scene.json.steps.includes(own)) return [];
      return [make("p", { className: "fsv-note" }, "A causal model writes from left to right: this position is decided at step ",
        linkTo(String(own), () => app.go(view, scene.json.steps.indexOf(own))), ".")];
    }
    return [candidatesOf(app, view, run, key)];
  }
  if (scene.isMasked(step, key)) return [candidatesOf(app, view, run, key)];
  return [make("h4", {}, "Change it"), make("div", { className: "fsl-buttons" },
    button("Put back to mask", () => app.touch(view, { kind: "remask", positions: [key] }), `Put position ${key} back to mask`)),
  candidatesOf(app, view, run, key)];
}

// What no one would tell from nothing is said to be less than something.
const probability = (p, count = 3) => (p > 0 && p < 1e-4 ? "< 0.01 %" : percent(p, count));

function linkTo(text, act) {
  const link = make("button", { type: "button", className: "fsv-link" }, text);
  link.addEventListener("click", act);
  return link;
}

// The five likeliest tokens and what each layer would say, asked for once per run, step and position.
function candidatesOf(app, view, run, key) {
  const step = view.scene.json.steps[view.step];
  const box = make("div", { className: "fsl-candidates" }, make("h4", {}, "Likeliest here"));
  if (!run.finished) {
    box.append(make("p", { className: "fsv-note" }, run.active ? "Known once the run is over." : "Only of a run that came to its end: run it again."));
    return box;
  }
  const answer = app.ask(`${run.id} ${step} ${key}`, () => app.page.client.candidates(run.id, step, key));
  if (!answer.value) {
    box.append(make("p", { className: answer.error ? "fsl-bad" : "fsv-note" }, answer.error ? inWords(answer.error) : "Asking the model …"));
    return box;
  }
  const { candidates, layers, why } = answer.value;
  const force = ({ id, text }) => app.touch(view, { kind: "force", position: key, token: id }, `${quoted(text)}`);
  const list = make("ol", { className: "fsl-ranked" });
  for (const one of candidates) list.append(make("li", {}, candidate(one, key, force)));
  box.append(list, anyToken(app, view, run, key));
  if (layers) box.append(byLens(app, layers, candidates));
  else if (why) box.append(make("p", { className: "fsv-note" }, why));
  return box;
}

// Any other word: it must be one token of the model's, with the space that begins a word or without.
function anyToken(app, view, run, key) {
  const field = make("input", { type: "text", id: `fsl-any-${app.views.indexOf(view)}`, autocomplete: "off", spellcheck: false, maxLength: 60, value: app.anyWord || "" });
  const force = async () => {
    app.anyWord = field.value;
    if (!field.value.trim()) return;
    try {
      const found = await oneToken(app.page.client, run.model.id, field.value);
      app.anyWord = "";
      app.touch(view, { kind: "force", position: key, token: found });
    } catch (error) { app.page.notify(inWords(error)); }
  };
  field.addEventListener("input", () => { app.anyWord = field.value; });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.ctrlKey) { event.preventDefault(); force(); } });
  return make("div", { className: "fsl-scope" }, make("label", { className: "fsv-label", htmlFor: field.id }, "another"), field,
    button("Force", force, `Force this token at position ${key}`));
}

async function oneToken(client, model, word) {
  let pieces = [];
  for (const text of word.startsWith(" ") ? [word] : [` ${word}`, word]) {
    const { tokens, ids } = await client.tokens(model, { text });
    // What the model puts before every text is not part of the word.
    const own = tokens.map((token, i) => ({ token, id: ids[i] })).filter(({ token }) => !/^<[^<>]*>$/.test(token) || token === word);
    if (own.length === 1) return own[0].id;
    pieces = own.map(({ token }) => quoted(token));
  }
  throw new LiveError({ kind: "usage", message: `“${word}” is ${pieces.length} tokens of this model: ${pieces.join(", ")}.`,
    remedy: "Force them one after the other, each at its own position." });
}

function candidate(one, key, force) {
  const bar = make("i", { className: "fsl-p" });
  bar.style.width = `${100 * one.p}%`;
  const inside = [make("span", { className: "fsl-word" }, shown(one.text) || "␣"), make("span", { className: "fsl-track" }, bar), make("b", {}, probability(one.p))];
  const pick = make("button", { type: "button", className: "fsl-candidate", title: "Force this token and branch from here",
    "aria-label": `Force ${quoted(one.text)} at position ${key}, probability ${probability(one.p)}` }, ...inside);
  pick.addEventListener("click", () => force(one));
  return pick;
}

// Layer by layer: what it would say, and how much it gives the final favourite.
function byLens(app, layers, candidates) {
  const table = make("table", { className: "fsl-lens" }, make("caption", {}, "By layer (logit lens)"),
    make("thead", {}, make("tr", {}, ...["layer", "says", "with", `gives ${quoted(candidates[0].text)}`].map((t) => make("th", { scope: "col" }, t)))));
  const body = make("tbody", {});
  for (const { layer, best, p } of layers) {
    body.append(make("tr", {}, make("th", { scope: "row" }, String(layer)), make("td", {}, shown(best.text) || "␣"),
      make("td", {}, probability(best.p, 2)), make("td", {}, probability(p[0], 2))));
  }
  table.append(body);
  return table;
}

function touchKey(app, view, run, key) {
  const { scene } = view, region = scene.regionName(key);
  const scope = make("select", { id: `fsl-scope-${app.views.indexOf(view)}` });
  const layer = app.layerOf(scene), head = app.headOf(scene, view.step);
  const scopes = [["all", "all layers and heads"]];
  if (layer >= 0) scopes.push(["layer", `layer ${scene.json.layers[layer]}, all heads`]);
  if (layer >= 0 && head >= 0) scopes.push(["head", `layer ${scene.json.layers[layer]}, head ${scene.json.heads[head]}`]);
  fillSelect(scope, scopes);
  scope.value = scopes.some(([v]) => v === app.scope) ? app.scope : scopes.at(-1)[0];
  scope.addEventListener("change", () => { app.scope = scope.value; });
  const where = () => ({ layers: scope.value === "all" ? null : [scene.json.layers[layer]],
    heads: scope.value === "head" ? [scene.json.heads[head]] : null });
  const from = make("select", { id: `fsl-from-${app.views.indexOf(view)}` });
  fillSelect(from, [...new Set([...ROWS_THAT_LOOK, ...scene.json.regions])].map((r) => [r, r === "predicting" ? "rows that predict" : r]));
  from.value = app.cutFrom && [...from.options].some((o) => o.value === app.cutFrom) ? app.cutFrom : "predicting";
  from.addEventListener("change", () => { app.cutFrom = from.value; });
  const label = (field, text) => make("label", { className: "fsv-label", htmlFor: field.id }, text);
  return [make("div", { className: "fsl-take" }, make("h4", {}, "Take it away"),
    make("div", { className: "fsl-scope" }, label(scope, "for"), scope),
    make("div", { className: "fsl-buttons" },
      button("Hide this key", () => app.touch(view, { kind: "hide", positions: [key], ...where() }), `Hide key ${key}`),
      button("Zero its value", () => app.touch(view, { kind: "value", positions: [key], to: "zero", ...where() }), `Zero the value of key ${key}`)),
    make("div", { className: "fsl-scope" }, label(from, "edges from"), from, button(`Cut to “${region}”`,
      () => app.touch(view, { kind: "cut", queries: [from.value], keys: [region], ...where() }), `Cut the edges to region ${region}`)))];
}

// ---- A chosen head

function makeHeadCard(app, view) {
  view.headCard = make("div", {});
  return make("section", { className: "fsv-card fsl-head-card", "aria-label": `Chosen head, ${view.scene.label}` },
    make("h3", {}, `Head · ${view.scene.label}`), view.headCard);
}

function updateHeadCard(app, view) {
  const { scene, step } = view, run = app.runOf(view), layer = app.layerOf(scene), head = Math.min(app.head, scene.heads - 1);
  if (app.layer < 0 || app.head < 0 || !run) {
    view.headCard.replaceChildren(make("p", { className: "fsv-note" }, "Choose a head in the grid to ablate it or to see its whole pattern."));
    return;
  }
  const l = scene.json.layers[layer], h = scene.json.heads[head], held = [...view.headCard.querySelectorAll("button")].indexOf(document.activeElement);
  const ablate = (to) => app.touch(view, { kind: "ablate", heads: [[l, h]], to });
  const tools = [button("Ablate (zero)", () => ablate("zero")), button("Ablate (mean)", () => ablate("mean")),
    button("Whole pattern", () => app.page.showPattern(run, scene.json.steps[step], l, h))];
  const key = app.selectedIn(view);
  if (key >= 0) tools.push(button("Row of the token", () => app.page.showPattern(run, scene.json.steps[step], l, h, key)));
  if (!run.finished) for (const one of tools.slice(2)) { one.disabled = true; one.title = "Once the run is over"; }
  view.headCard.replaceChildren(make("p", {}, `layer ${l}, head ${h}: ${headLines(app, view, layer, head)[1]}`), make("div", { className: "fsl-buttons" }, ...tools));
  if (held >= 0 && tools[held]) tools[held].focus({ preventScroll: true });
}
