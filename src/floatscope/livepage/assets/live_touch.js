// What can be done to a run: to a token, its key, its region, a head. Each button says from which step it acts,
// and makes a branch; nothing is changed in the run itself.

const ROWS_THAT_LOOK = ["predicting", "answer", "masked", "revealed", "question"];

// ---- Under the chosen token

function touchToken(app, view, key) {
  const run = app.runOf(view);
  if (!run || run.control) return [];
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
        linkTo(String(own), () => app.go(view, scene.json.steps.indexOf(own))), "."), rankingOf(app, view, run, key)];
    }
    return [candidatesOf(app, view, run, key), rankingOf(app, view, run, key)];
  }
  const ranking = rankingOf(app, view, run, key);
  if (scene.isMasked(step, key)) return [candidatesOf(app, view, run, key), ranking];
  const text = `Put back to mask ${fromStep(startOf(app, view, "remask", key))}`;
  return [make("h4", {}, "Change it"), make("div", { className: "fsl-buttons" },
    button(text, () => app.touch(view, { kind: "remask", positions: [key] }, key), `${text}: position ${key}`)),
  candidatesOf(app, view, run, key), ranking];
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
  const box = make("div", { className: "fsl-candidates" }, make("h4", {}, `Likeliest at step ${step}; click to force`));
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
  const force = ({ id }) => app.touch(view, { kind: "force", position: key, token: id }, key);
  const list = make("ol", { className: "fsl-ranked" }), from = fromStep(startOf(app, view, "force", key));
  for (const one of candidates) list.append(make("li", {}, candidate(one, key, from, force)));
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
      Object.assign(app, { anyWord: "", wordError: "" });
      app.touch(view, { kind: "force", position: key, token: found }, key);
    } catch (error) { app.wordError = inWords(error); app.update(); app.root.querySelector(".fsl-word-error").scrollIntoView({ block: "nearest" }); }
  };
  field.addEventListener("input", () => { app.anyWord = field.value; app.wordError = ""; });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.ctrlKey) { event.preventDefault(); force(); } });
  const text = `Force ${fromStep(startOf(app, view, "force", key))}`;
  return make("div", {}, make("div", { className: "fsl-scope" }, make("label", { className: "fsv-label", htmlFor: field.id }, "another"), field,
    button(text, force, `${text}: this token, position ${key}`)), app.wordError ? make("p", { className: "fsl-bad fsl-word-error", role: "alert" }, app.wordError) : "");
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

function candidate(one, key, from, force) {
  const bar = make("i", { className: "fsl-p" });
  bar.style.width = `${100 * one.p}%`;
  const word = shown(one.text) || "␣", p = probability(one.p);
  const inside = [make("span", { className: "fsl-word" }, word), make("span", { className: "fsl-track" }, bar), " ", make("b", {}, p), " ", make("small", {}, from)];
  const pick = make("button", { type: "button", className: "fsl-candidate", title: "Force this token, in a branch",
    "aria-label": `${word} ${p} ${from}: force this token at position ${key}` }, ...inside);
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
  const when = fromStep(startOf(app, view, "hide", key));
  const act = (text, more, touch) => button(`${text} ${when}`, () => app.touch(view, { ...touch(), ...where() }, key), `${text} ${when}: ${more}`);
  return [make("div", { className: "fsl-take" }, make("h4", {}, "Take it away"),
    make("div", { className: "fsl-scope" }, label(scope, "for"), scope),
    make("div", { className: "fsl-buttons" },
      act("Hide this key", `position ${key}`, () => ({ kind: "hide", positions: [key] })),
      act("Zero its value", `position ${key}`, () => ({ kind: "value", positions: [key], to: "zero" }))),
    make("div", { className: "fsl-scope" }, label(from, "edges from"), from,
      act(`Cut to “${region}”`, "the edges to this region", () => ({ kind: "cut", queries: [from.value], keys: [region] }))))];
}

// ---- Chosen heads: one, a whole layer, or several

function makeHeadCard(app, view) {
  view.headCard = make("div", {});
  return make("section", { className: "fsv-card fsl-head-card", "aria-label": `Chosen heads, ${view.scene.label}` },
    make("h3", {}, `Chosen heads · ${view.scene.label}`), view.headCard);
}

// What is chosen: { heads: [[layer, head]] as the run numbers them, text, several }.
function chosenHeads(app, view) {
  const { scene } = view, named = ([l, h]) => [scene.json.layers[l], scene.json.heads[h]];
  const words = ([l, h]) => `layer ${l} head ${h}`;
  if (app.several) {
    const heads = [...app.several].map((place) => place.split("/").map(Number)).filter(([l, h]) => l < scene.layers && h < scene.heads).map(named);
    const text = heads.length === 1 ? words(heads[0]) : `${heads.length} heads`;
    return { heads, text, about: heads.map(words).join(", ") || "Click heads in the grid to add or remove them; a layer's number stands for all its heads." };
  }
  if (app.layer < 0) return { heads: [], text: "", about: "Choose a head in the grid, or a layer, to ablate it or to see its whole pattern." };
  const layer = app.layerOf(scene), head = Math.min(app.head, scene.heads - 1);
  if (app.head >= 0) { const one = named([layer, head]); return { heads: [one], text: words(one), about: `${words(one)}: ${headLines(app, view, layer, head)[1]}`, one }; }
  const text = `layer ${scene.json.layers[layer]}`;
  return { heads: scene.json.heads.map((h) => [scene.json.layers[layer], h]), text, about: `${text}, all ${scene.heads} heads` };
}

function updateHeadCard(app, view) {
  const { scene, step } = view, run = app.runOf(view), held = [...view.headCard.querySelectorAll("button")].indexOf(document.activeElement);
  const { heads, text, about, one } = chosenHeads(app, view), key = app.selectedIn(view), when = fromStep(startOf(app, view, "ablate"));
  const tools = [];
  const ablate = (to) => button(`Ablate ${text} (${to}) ${when}`, () => app.touch(view, { kind: "ablate", heads, to }));
  if (run && !run.control && heads.length) tools.push(ablate("zero"), ablate("mean"));
  if (run && !run.control && one) {
    const look = (label, query) => {
      const made = button(label, () => app.page.showPattern(run, scene.json.steps[step], ...one, query));
      if (!run.finished) { made.disabled = true; made.title = "Once the run is over"; }
      return made;
    };
    tools.push(look("Whole pattern"), ...(key >= 0 ? [look("Row of the token", key)] : []));
  }
  const several = button("Select several heads", () => app.selectSeveral(!app.several));
  several.setAttribute("aria-pressed", String(Boolean(app.several)));
  tools.push(several);
  view.headCard.replaceChildren(make("p", {}, about), make("div", { className: "fsl-buttons" }, ...tools));
  if (held >= 0 && tools[held]) tools[held].focus({ preventScroll: true });
}
