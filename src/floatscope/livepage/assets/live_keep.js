// What is kept: the history of runs, the link, the lines of Python, the trace, the offline page.

const LINK_HELP = "Copies #s=… without the address of this page, which holds its key. Append it to the address of another live page, or paste it there under “Open a link from elsewhere”.";

const CONTROL_HELP = "The same canvases, read by the model with permuted weights, each head as sharp as the trained one: what the architecture does by itself.";

class Keep {
  constructor(page) {
    this.page = page;
    this.which = make("select", { id: "keep-which", hidden: true, "aria-label": "Which run to keep" });
    fillSelect(this.which, [["0", "of A"], ["1", "of B"]]);
    this.tools = make("div", { className: "fsl-tools", role: "group", "aria-label": "Keep and share" },
      Object.assign(button("Copy link", () => this.copyLink()), { title: LINK_HELP }), this.which, button("Copy as Python", () => this.copyPython()),
      button("Save trace", () => this.saveTrace()), button("Export page", () => this.exportPage()),
      button("Save SVG", () => this.savePicture("svg")), button("Save PNG", () => this.savePicture("png")),
      Object.assign(button("Compare with untrained control", () => this.page.control(this.trainedRun())), { title: CONTROL_HELP }));
    this.code = make("pre", { tabIndex: 0 }, make("code", {}));
    this.shownText = make("section", { className: "fsl-text", hidden: true }, make("div", { className: "fsl-line" },
      make("h3", {}), button("Close", () => { this.shownText.hidden = true; })), this.code);
    this.table = make("tbody", {});
    this.note = make("p", { className: "fsv-note", role: "status" }, "Nothing has run yet.");
    this.paste = make("input", { type: "text", id: "keep-paste", autocomplete: "off", spellcheck: false, placeholder: "paste a link" });
    this.root = make("div", {}, make("div", { className: "fsl-line" }, make("h2", {}, "History"), this.opener()), this.note, this.makeTable());
    this.refreshTools();
  }

  opener() {
    const open = () => this.page.openLink(this.paste.value);
    this.paste.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    this.opening = this.paste;
    return make("div", { className: "fsl-line" }, make("label", { className: "fsv-label", htmlFor: "keep-paste" }, "Open a link from elsewhere"), this.paste, button("Open", open));
  }

  makeTable() {
    const names = ["Prompt", "Model", "Sampler", "Edits", "Answer", "Steps", "Time", ""];
    const head = make("tr", {}, ...names.map((name) => (name ? make("th", { scope: "col" }, name) : make("td", {}))));
    this.wrap = make("div", { className: "fsl-scroll", tabIndex: 0, role: "region", "aria-label": "Runs" },
      make("table", { className: "fsl-runs" }, make("thead", {}, head), this.table));
    this.wrap.hidden = true;
    return this.wrap;
  }

  refreshTools() {
    const { lanes } = this.page, any = lanes.some((run) => run && run.finished);
    const alone = lanes.filter(Boolean).length < 2;
    if (this.which.hidden && !alone) this.which.value = "1";  // a branch is what one has just made
    this.which.hidden = alone;
    for (const tool of this.tools.querySelectorAll("button")) tool.disabled = !any;
  }

  run() {
    const { lanes } = this.page, wanted = lanes[this.which.hidden ? 0 : Number(this.which.value)];
    return wanted && wanted.finished ? wanted : lanes.find((run) => run && run.finished);
  }

  trainedRun() { return this.page.lanes.find((run) => run && run.finished && !run.control); }

  async copyLink() { await this.copy(this.page.link(), "Link without this page's key", "The link of this view"); }

  async copyPython() {
    await this.trying(async () => this.copy(await this.page.client.python(this.run().id), "Python", "Python that repeats this run", true));
  }

  async saveTrace() {
    await this.trying(async () => {
      const run = this.run();
      this.page.say("Saving the trace.");
      download(await this.page.client.trace(run.id), `${run.id}.zarr.zip`);
      this.page.say("The trace is saved among your downloads: unpack it, and floatscope.Trace.load reads it.", true);
    });
  }

  async exportPage() {
    await this.trying(async () => {
      const ids = this.page.lanes.filter((run) => run && run.finished).map((run) => run.id);
      download(await this.page.client.exported(ids), `floatscope-${ids.join("-")}.html`);
      this.page.say("The page is saved among your downloads: one file that opens without a server.", true);
    });
  }

  wait(text) { this.page.say(text, true); }

  // What is shown of the view now: header, canvas, cards; without the controls.
  async savePicture(kind) {
    await this.trying(async () => {
      const { viewer } = this.page, names = this.page.lanes.map((run) => run.id).join("-");
      const text = pictureOf(viewer.root, [viewer.legend, viewer.body], `Floatscope live: ${names}`);
      download(kind === "svg" ? new Blob([text], { type: "image/svg+xml" }) : await pngOf(text), `floatscope-${names}.${kind}`);
      this.page.say("The picture is saved among your downloads.", true);
    });
  }

  async trying(act) { try { await act(); } catch (error) { this.page.notify(inWords(error), this.tools); } }

  // To the clipboard; what cannot go there, or is worth reading, is shown and selected.
  async copy(text, what, title, show = false) {
    let copied = true;
    try { await navigator.clipboard.writeText(text); } catch { copied = false; }
    if (show || !copied) {
      this.shownText.querySelector("h3").textContent = title;
      this.code.firstChild.textContent = text;
      this.shownText.hidden = false;
    }
    if (!copied) {
      const range = document.createRange();
      range.selectNodeContents(this.code);
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
    }
    this.page.say(copied ? `${what} copied.` : `${what}: selected, press Ctrl+C to copy.`, true);
  }

  async refresh() {
    try {
      const { runs, dropped } = await this.page.client.history();
      this.rows = runs;
      const held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.act : null;
      this.table.replaceChildren(...runs.map((row) => this.line(row)));
      if (held) this.table.querySelector(`[data-act="${CSS.escape(held)}"]`)?.focus();
      this.wrap.hidden = !runs.length;
      this.note.textContent = runs.length ? dropped ? `${dropped} older runs were let go to make room.` : "" : "Nothing has run yet.";
    } catch { /* said where it was asked for */ }
  }

  line(row) {
    const act = (text, name, doing) => {
      const made = button(text, doing, `${text} run ${row.run}`);
      made.dataset.act = `${name}-${row.run}`;
      return made;
    };
    const { lanes } = this.page;
    const touches = row.touches.length ? row.touches.map((touch) => make("div", {}, touch.text || touch.kind)) : ["–"];
    const line = make("tr", {}, make("th", { scope: "row", className: "fsl-long" }, make("span", { className: "fsl-run" }, row.run), promptTitle(row.prompt)), make("td", {}, row.name),
      make("td", { className: "fsl-long" }, row.sampler.text || row.sampler.name), make("td", { className: "fsl-long" }, ...touches),
      make("td", { className: "fsl-long" }, make("q", {}, row.answer.trim())), make("td", { className: "fsl-number" }, String(row.steps)),
      make("td", { className: "fsl-number" }, `${digits(row.seconds, 2)} s, ${new Date(1000 * row.at).toLocaleTimeString()}`),
      make("td", {}, make("div", { className: "fsl-acts" }, act("Show", "show", () => this.page.showRow(row, false)), act("Beside", "beside", () => this.page.showRow(row, true)))));
    line.classList.toggle("fsl-shown", lanes.some((run) => run && run.id === row.run));
    return line;
  }
}
