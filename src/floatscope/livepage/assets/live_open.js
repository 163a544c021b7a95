// Opening what was kept: a run of the history, a link. A run the server still has is read, any other is run again.

async function pastRun(page, row) {
  const run = new Run(page, { model: row.model, prompt: row.prompt }, page.modelOf(row.model));
  const json = await page.client.scene(row.run);
  const { client } = page;
  run.scene = new LiveScene(json, row.run, { heads: (id, step) => client.heads(row.run, step), head: (id, layer, head) => client.head(row.run, layer, head) });
  Object.assign(run, { id: row.run, phase: "done", touches: row.touches, from: row.from, prompt: row.prompt, sampler: row.sampler, samplerText: row.sampler.text,
    answer: row.answer, seconds: row.seconds, total: row.steps, wholeAsked: true, state: row.state.runs[0] });
  return run;
}

// The same run twice is the same JSON, whatever stands around it.
const sameRun = (a, b) => {
  const plain = ({ fingerprint, prompt, sampler, touches }) => JSON.stringify([fingerprint, sorted(prompt), sampler.name, sorted(sampler.settings), touches.map(sorted)]);
  return plain(a) === plain(b);
};
const sorted = (object) => Object.entries(object || {}).filter(([name, value]) => value !== null && (name !== "text" || typeof object.kind !== "string"))
  .sort(([a], [b]) => (a < b ? -1 : 1));

async function openRuns(page, state) {
  const [{ runs, missing }, { runs: kept }] = await Promise.all([page.client.state(state), page.client.history()]);
  if (missing && missing.length) page.notify(missing.map((one) => `${one.message} ${one.remedy || ""}`).join(" "));
  const lanes = [];
  for (const [i, request] of runs.entries()) {
    if (!request) continue;
    const row = kept.find((one) => one.state && one.state.runs[0] && sameRun(one.state.runs[0], state.runs[i]));
    const { from, ...whole } = request;
    lanes.push(row ? await pastRun(page, row) : new Run(page, whole, page.modelOf(request.model)));
  }
  const first = state.runs.find((one) => one.prompt);
  if (first) page.prompt.set(first.prompt);
  page.fold.open = false;
  page.folded = true;
  if (lanes[0] && lanes[0].model && first) page.first.chooseModel(lanes[0].model.id, first.sampler);
  await page.begin(lanes.slice(0, 2));
  // A branch says which run it left, by its place in the list.
  state.runs.forEach((one, i) => { if (one.from && lanes[i] && lanes[one.from.run]) lanes[i].from = { run: lanes[one.from.run].id, step: one.from.step }; });
}

function showView(page, view) {
  const { viewer } = page;
  if (!viewer.views.length) return;
  const [first] = viewer.views;
  if (typeof view.colour === "string" && [...viewer.pickMode.options].some((o) => o.value === view.colour && !o.disabled)) viewer.mode = view.colour;
  if (typeof view.grid === "string" && view.grid in GRID_VALUES) viewer.grid = view.grid;
  if (Number.isInteger(view.layer)) viewer.layer = Math.min(view.layer, first.scene.layers - 1);
  if (Number.isInteger(view.head)) viewer.head = viewer.layer < 0 ? -1 : view.head;
  if (Number.isInteger(view.key) && view.key >= 0 && view.key < first.scene.keys) viewer.selected = { scene: first.scene, key: view.key };
  const step = first.scene.json.steps.indexOf(view.step);
  viewer.update();
  if (step >= 0 && !view.end) viewer.go(first, step);
  if (Number.isInteger(view.pattern) && page.lanes[view.pattern] && viewer.head >= 0) {
    const run = page.lanes[view.pattern], shown = viewer.viewOf(run);
    page.showPattern(run, shown.scene.json.steps[shown.step], shown.scene.json.layers[viewer.layer], shown.scene.json.heads[viewer.head],
      Number.isInteger(view.row) ? view.row : undefined);
  }
}
