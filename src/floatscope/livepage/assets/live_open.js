// Opening what was kept: a run of the history, a link. A run the server still has is read, any other is run again.

async function pastRun(page, row) {
  const run = new Run(page, { model: row.model, prompt: row.prompt }, page.modelOf(row.model));
  const json = await page.client.scene(row.run);
  const { client } = page;
  run.scene = new LiveScene(json, row.run, { heads: (id, step) => client.heads(row.run, step), head: (id, layer, head) => client.head(row.run, layer, head) });
  Object.assign(run, { id: row.run, phase: "done", control: row.control, label: row.name, touches: row.touches, from: row.from, prompt: row.prompt, sampler: row.sampler, samplerText: row.sampler.text,
    answer: row.answer, seconds: row.seconds, total: row.steps, wholeAsked: true, state: row.control ? null : row.state.runs[0] });
  return run;
}

// The same run twice is the same JSON, whatever stands around it.
const sameRun = (a, b) => {
  const plain = ({ fingerprint, prompt, sampler, touches }) => JSON.stringify([fingerprint, sorted(prompt),
    sampler && [sampler.name, sorted(sampler.settings)], touches.map(sorted)]);
  return plain(a) === plain(b);
};
const sorted = (object) => Object.entries(object).filter(([name, value]) => value !== null && (name !== "text" || typeof object.kind !== "string"))
  .sort(([a], [b]) => (a < b ? -1 : 1));

// What the server makes of a link: its checked state, the runs to make here, and the models that are missing.
async function readLink(page, link) {
  try {
    return await page.client.state(decodeLink(link, page.limits.state_chars));
  } catch (error) {
    throw error.status === 400 || error.status === 413 ? brokenLink(error.message) : error;
  }
}

// The same once its models are loaded; null where it is no longer wanted.
async function loadedLink(page, link, isWanted) {
  for (let waited = false; ; waited = true) {
    const opened = await readLink(page, link);
    if (!isWanted()) return null;
    if (waited) { page.notify(""); await page.updateModels(); }
    if (!opened.missing.length || !opened.waiting.length) return opened;
    page.notify(`The link opens once all models are loaded. Still loading: ${opened.waiting.join(", ")}.`);
    await new Promise((resolve) => { setTimeout(resolve, 400); });
  }
}

async function openRuns(page, { runs, state }) {
  const { runs: kept } = await page.client.history();
  const made = new Map();  // by its place in the link; two can be shown
  for (const [i, request] of runs.entries()) {
    if (!request || made.size === 2) continue;
    const row = kept.find((one) => !one.control && sameRun(one.state.runs[0], state.runs[i]));
    made.set(i, row ? await pastRun(page, row) : new Run(page, request, page.modelOf(request.model)));
  }
  const [[first, run] = [0, null]] = made, { prompt, sampler } = state.runs[first];
  page.prompt.set(prompt);
  page.fold.open = !run;
  page.folded = Boolean(run);
  if (run) page.first.chooseModel(run.model.id, sampler);
  await page.begin([...made.values()]);
  // A branch says which run it left, by its place in the list.
  for (const [i, one] of made) {
    const { from } = state.runs[i];
    if (from && made.has(from.run)) one.from = { run: made.get(from.run).id, step: from.step };
  }
}

// A link whose model is not here: what it asks for, and what can be done.
function showMissing(page, { missing, state }) {
  const box = at("missing"), ready = page.models.filter((model) => model.state === "ready");
  box.hidden = !missing.length;
  box.replaceChildren(...missing.map(({ run, message, remedy }) => {
    const { prompt, sampler, touches } = state.runs[run];
    const rows = [["Prompt", promptTitle(prompt)], ["Sampler", sampler ? samplerText(sampler) : "the model's own"],
      ["Edits", touches.length ? touches.map((touch) => `${touch.kind} at step ${touch.step}`).join(", ") : "none"]];
    const here = ready.map((model) => button(`Run the prompt with ${model.name}`, () => page.runWith(model, state.runs[run])));
    return make("div", {}, make("h2", {}, message), make("dl", {}, ...rows.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))),
      make("p", {}, remedy, here.length ? ` Or run the prompt with a model that is here${
        touches.length ? ", without the edits: their positions and heads are those of the other model" : ""}.` : ""),
      make("div", { className: "fsl-buttons" }, ...here));
  }), button("Dismiss", () => { box.hidden = true; }));
}

const samplerText = ({ name, settings }) => `${name} (${Object.entries(settings).map(([key, value]) => `${key} ${value}`).join(", ")})`;

// The view of a checked state; what it says of layers, heads and positions may be more than a run has.
function showView(page, view) {
  const { viewer } = page, [first] = viewer.views;
  if (!first) return;
  if ([...viewer.pickMode.options].some((option) => option.value === view.colour && !option.disabled)) viewer.mode = view.colour;
  if (view.grid) viewer.grid = view.grid;
  if (view.layer !== undefined) viewer.chose = true;
  if (view.layer !== undefined) viewer.layer = Math.min(view.layer, first.scene.layers - 1);
  if (view.head !== undefined) viewer.head = viewer.layer < 0 ? -1 : Math.min(view.head, first.scene.heads - 1);
  if (view.key >= 0 && view.key < first.scene.keys) viewer.selected = { scene: first.scene, key: view.key };
  const step = first.scene.json.steps.indexOf(view.step);
  viewer.update();
  if (step >= 0 && !view.end) viewer.go(first, step);
  const run = page.lanes[view.pattern], shown = run && run.finished && viewer.viewOf(run);
  if (!shown || viewer.head < 0) return;
  const { scene } = shown, { steps, layers, heads } = scene.json;
  page.showPattern(run, steps[shown.step], layers[viewer.layerOf(scene)], heads[Math.min(viewer.head, scene.heads - 1)], view.row);
}
