// Which layers and heads matter for a token: each is ablated at one step, on the server, and ranked by how much
// less likely the token becomes. One task at a time; it tells its progress and can be cancelled.

const RANKED = 8;  // shown of each kind

// The step at which a position was decided; of a mask that is shown, the step that is shown.
function decidedAt(view, key) {
  const { scene, step } = view, last = scene.lastReveal[key];
  return last < 0 || scene.isMasked(step, key) ? scene.json.steps[step] : last;
}

function rankingOf(app, view, run, key) {
  const box = make("div", { className: "fsl-ranking" }, make("h4", {}, "Which heads matter for it"));
  const step = decidedAt(view, key), name = `${run.id} ${step} ${key}`, task = app.rankings.get(name);
  const label = `Rank layers and heads at step ${step}`;
  if (!run.finished || !view.scene.resultWord(key)) { box.append(make("p", { className: "fsv-note" }, "Known once the run is over.")); return box; }
  if (!task || task.error) {
    box.append(make("div", { className: "fsl-buttons" }, button(label, () => rankNow(app, run, step, key, name))));
    box.append(make("p", task ? { className: "fsl-bad", role: "alert" } : { className: "fsv-note" },
      task ? inWords(task.error) : `Ablates each of them by itself and reads how likely ${quoted(view.scene.resultWord(key))} still is.`));
    return box;
  }
  if (!task.value) {
    const bar = make("progress", { max: 1, value: task.progress, "aria-label": "Layers ranked" });
    box.append(make("div", { className: "fsl-scope" }, bar, button("Cancel", () => task.stopper.abort())));
    return box;
  }
  const { token, layers, heads } = task.value;
  box.append(make("p", { className: "fsv-note" }, `${quoted(token.text)} has ${probability(token.p)} at step ${step}. Without one of them it has less; beside it, by how many nats its logarithm falls:`),
    effectList(app, view, "layers", layers, ({ layer }) => `layer ${layer}`, ({ layer }) => app.choose(layer, -1)),
    effectList(app, view, "heads", heads, ({ layer, head }) => `layer ${layer} head ${head}`, ({ layer, head }) => app.choose(layer, head)));
  return box;
}

// The strongest first: what is left of the token's probability, and how far its logarithm falls.
function effectList(app, view, what, entries, named, choose) {
  const list = make("ol", { className: "fsv-list", "aria-label": `Strongest ${what}` }), most = entries[0].effect;
  for (const entry of entries.slice(0, RANKED)) {
    const bar = make("i", { className: "fsl-p" });
    bar.style.width = `${Math.max(0, (100 * entry.effect) / (most || 1))}%`;
    list.append(make("li", { className: "fsl-effect" }, linkTo(named(entry), () => choose(entry)),
      make("span", { className: "fsl-track" }, bar), make("span", {}, `${probability(entry.p)} · ${entry.effect < 0 ? "−" : ""}${digits(Math.abs(entry.effect), 2)}`)));
  }
  return list;
}

async function rankNow(app, run, step, key, name) {
  for (const task of app.rankings.values()) if (!task.value && !task.error) task.stopper.abort();
  const task = { progress: 0, stopper: new AbortController() };
  app.rankings.set(name, task);
  app.update();
  try {
    await app.page.client.task("rank", { run: run.id, step, position: key }, (event) => {
      if (event.event === "progress") task.progress = event.done / event.of;
      if (event.event === "answer") task.value = event;
      if (event.event === "error") task.error = new LiveError(event.error);
      app.update();
    }, task.stopper.signal);
  } catch (error) {
    if (error.name !== "AbortError") task.error = error;
  }
  if (!task.value && !task.error) app.rankings.delete(name);
  else app.page.say(task.value ? "Layers and heads are ranked." : inWords(task.error));
  app.update();
}
