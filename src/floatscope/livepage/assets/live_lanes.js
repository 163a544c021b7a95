// Two lanes on a narrow screen: one at a time, with a switch. On a wide one they stand side by side, and the switch
// is not there (live.css).

function dressLanes(app) {
  app.views.forEach((view, i) => {
    const cards = [view.panel, view.headCard, view.edits, view.headButtons[0], view.path].map((part) => part.closest(".fsv-card"));
    for (const part of [view.header, view.dock, view.transport, ...view.bands.map((band) => band.element), ...cards]) part.dataset.lane = i;
  });
  if (!app.lanes) {
    app.lanes = make("div", { className: "fsv-segments fsl-lanes", role: "radiogroup", "aria-label": "Run to show" });
    app.bar.prepend(app.lanes);
  }
  app.lanes.hidden = app.views.length < 2;
  app.lanes.replaceChildren(...app.views.map((view, i) => {
    const pick = make("button", { type: "button", role: "radio" }, `${"AB"[i]} · ${app.runOf(view).name}`);
    pick.addEventListener("click", () => { showLane(app, i); app.active = view.scene; app.update(); });
    return pick;
  }));
  showLane(app, app.views.length - 1);  // a branch is what one has just made
  if (app.root.clientWidth < NARROW) app.active = app.views.at(-1).scene;
}

function showLane(app, lane) {
  app.root.dataset.shows = lane;
  [...app.lanes.children].forEach((pick, i) => pick.setAttribute("aria-checked", String(i === lane)));
}
