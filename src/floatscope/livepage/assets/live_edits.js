// The edits of the run that is attended to: from which step the next one acts, those in force, and back again.

const STARTS = { first: "first step", here: "step shown" };

// The step from which an edit acts: the first unless told otherwise. Whoever looks at the last step would
// otherwise edit where nothing is decided any more, and see no effect.
function startOf(app, view, kind, key) {
  const here = view.scene.json.steps[view.step], { scene } = view;
  if (scene.causal && kind === "force") return key - scene.json.prompt_length;  // decided at this step alone
  if (app.start === "here") return here;
  if (kind === "remask") return scene.lastReveal[key] >= 0 ? scene.lastReveal[key] : here;  // no earlier one has it
  return 0;
}

const fromStep = (step) => `from step ${step}`;

function makeEdits(app, view) {
  view.edits = make("div", {});
  return make("section", { className: "fsv-card fsl-edits", "aria-label": `Edits, ${view.scene.label}` },
    make("h3", {}, `Edits · ${view.scene.label}`), view.edits);
}

function updateEdits(app, view) {
  const run = app.runOf(view);
  if (!run || run.control) {
    view.edits.replaceChildren(make("p", { className: "fsv-note" }, run ? "The untrained control is only compared: edit the run beside it." : ""));
    return;
  }
  const held = [...view.edits.querySelectorAll("button, input")].indexOf(document.activeElement);
  view.edits.replaceChildren(startPicker(app, view), editList(app, view, run));
  const controls = view.edits.querySelectorAll("button, input");
  if (held >= 0) (controls[held] || controls[0]).focus({ preventScroll: true });
}

function startPicker(app, view) {
  const number = app.views.indexOf(view), here = view.scene.json.steps[view.step];
  const box = make("fieldset", { className: "fsl-start" }, make("legend", { className: "fsv-label" }, "An edit acts from"));
  for (const [value, text] of Object.entries(STARTS)) {
    const id = `fsl-start-${value}-${number}`, step = value === "first" ? 0 : here;
    const input = make("input", { type: "radio", name: `fsl-start-${number}`, id, value, checked: app.start === value });
    input.addEventListener("change", () => { app.start = value; app.update(); });
    box.append(make("span", {}, input, make("label", { htmlFor: id }, `${text} (${step})`)));
  }
  return box;
}

function editList(app, view, run) {
  if (!run.touches.length) return make("p", { className: "fsv-note" }, "None yet. Choose a token or a head below; every edit makes a branch, and edits of a branch add up.");
  const list = make("ol", { className: "fsl-edit-list" });
  run.touches.forEach((touch, i) => {
    const text = touch.text || touch.kind;
    list.append(make("li", {}, make("span", {}, text), button("Remove", () => app.page.removeEdit(run, i), `Remove: ${text}`)));
  });
  return list;
}
