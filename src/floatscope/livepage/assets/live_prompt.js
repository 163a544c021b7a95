// The prompt box: plain text, or a question with passages of which one may be the gold one. What stands in it
// is read with `value` and put in with `set`.

const KINDS = { rag: "Question and passages", text: "Plain text" };

class PromptBox {
  constructor(page, { examples, limits }) {
    this.page = page;
    this.limits = limits;
    this.kind = "rag";
    this.gold = null;
    this.wait = 500;  // ms without typing, before tokens are counted
    this.rest = {};  // what a prompt may hold besides: its instruction
    this.buildHead(examples);
    this.text = make("textarea", { id: "prompt-text", rows: 7, spellcheck: false, maxLength: limits.prompt_chars || 100000 });
    this.question = make("input", { id: "prompt-question", type: "text", spellcheck: false, autocomplete: "off", maxLength: limits.prompt_chars || 100000 });
    this.passages = make("div", { className: "fsl-passages", role: "group", "aria-label": "Passages" });
    const add = make("button", { type: "button", className: "fsl-button" }, "Add a passage");
    add.addEventListener("click", () => { this.addPassage("").focus(); this.typed(); });
    this.ragPart = make("div", { className: "fsl-rag" },
      make("label", { className: "fsv-label", htmlFor: "prompt-question" }, "Question"), this.question,
      make("div", { className: "fsl-line" }, make("span", { className: "fsv-label" }, "Passages; ★ marks the gold one"), add), this.passages);
    this.textPart = make("div", { className: "fsl-plain" }, make("label", { className: "fsv-label", htmlFor: "prompt-text" }, "Prompt"), this.text);
    this.chat = make("select", { id: "prompt-chat" });
    fillSelect(this.chat, [["", "where the model has one"], ["yes", "yes"], ["no", "no"]]);
    this.chatPart = make("div", { className: "fsl-scope" }, make("label", { className: "fsv-label", htmlFor: "prompt-chat" }, "Chat template"), this.chat);
    this.count = make("p", { className: "fsv-note fsl-count", role: "status" });
    this.root = make("div", { className: "fsl-prompt" }, this.head, this.ragPart, this.textPart, make("div", { className: "fsl-line" }, this.count, this.chatPart));
    this.refresh();
    this.root.addEventListener("input", (event) => { if (event.target !== this.examples) { this.examples.value = ""; this.typed(); } });
    this.show("rag");
  }

  buildHead(examples) {
    this.tabs = make("div", { className: "fsv-segments", role: "radiogroup", "aria-label": "Kind of prompt" });
    for (const [kind, label] of Object.entries(KINDS)) {
      const tab = make("button", { type: "button", role: "radio" }, label);
      tab.dataset.kind = kind;
      tab.addEventListener("click", () => this.show(kind));
      this.tabs.append(tab);
    }
    this.examples = make("select", { id: "prompt-example" });
    fillSelect(this.examples, [["", "choose …"], ...examples.map((e, i) => [i, e.title])]);
    this.examples.addEventListener("change", () => { if (this.examples.value !== "") this.example(Number(this.examples.value)); });
    this.example = (i) => { this.set(examples[i].prompt); this.examples.value = String(i); this.page.suggest(examples[i].settings); };
    const pick = make("div", { className: "fsv-control" }, make("label", { className: "fsv-label", htmlFor: "prompt-example" }, "Example"), this.examples);
    this.head = make("div", { className: "fsl-line" }, this.tabs, pick);
  }

  // Models without a chat template need no choice of it.
  refresh() { this.chatPart.hidden = !this.page.models.some((model) => model.chat); }

  show(kind) {
    this.kind = kind;
    this.ragPart.hidden = kind !== "rag";
    this.textPart.hidden = kind !== "text";
    for (const tab of this.tabs.children) tab.setAttribute("aria-checked", String(tab.dataset.kind === kind));
  }

  addPassage(text, gold = false) {
    const number = ++this.made || (this.made = 1);
    const area = make("textarea", { rows: 1, spellcheck: false, value: text, maxLength: this.limits.prompt_chars || 100000 });
    const star = make("button", { type: "button", className: "fsl-star", "aria-pressed": "false" }, "☆");
    const away = make("button", { type: "button", className: "fsl-star" }, "×");
    const row = make("div", { className: "fsl-passage" }, star, area, away);
    row.dataset.number = number;
    star.addEventListener("click", () => { this.gold = this.gold === row ? null : row; this.rename(); this.typed(); });
    away.addEventListener("click", () => {
      const next = row.nextElementSibling || row.previousElementSibling;
      if (this.gold === row) this.gold = null;
      row.remove();
      this.rename();
      (next ? next.querySelector("textarea") : this.question).focus();
      this.typed();
    });
    area.addEventListener("input", () => fitted(area));
    this.passages.append(row);
    if (gold) this.gold = row;
    this.rename();
    return area;
  }

  // Names for those who cannot see where a field stands.
  rename() {
    [...this.passages.children].forEach((row, i) => {
      const [star, area, away] = row.children, gold = this.gold === row;
      star.textContent = gold ? "★" : "☆";
      star.setAttribute("aria-pressed", String(gold));
      star.setAttribute("aria-label", `Passage ${i + 1} is the gold one`);
      star.title = gold ? "The gold passage; click to unmark" : "Mark as the gold passage";
      area.setAttribute("aria-label", `Passage ${i + 1}`);
      away.setAttribute("aria-label", `Remove passage ${i + 1}`);
      away.title = "Remove this passage";
    });
  }

  set(prompt) {
    const { text, question, passages, gold, chat, layout, ...rest } = prompt;  // each model has a layout of its own
    this.rest = rest;
    this.chat.value = chat === true ? "yes" : chat === false ? "no" : "";
    this.gold = null;
    this.examples.value = "";
    if (text !== undefined) this.text.value = text;
    else {
      this.question.value = question || "";
      this.passages.replaceChildren();
      (passages || []).forEach((passage, i) => this.addPassage(passage, gold === i));
    }
    this.show(text === undefined ? "rag" : "text");
    this.fit();
    this.typed();
  }

  fit() { for (const area of this.passages.querySelectorAll("textarea")) fitted(area); }

  value() {
    const { instruction } = this.rest, rest = this.chat.value ? { chat: this.chat.value === "yes" } : {};
    if (this.kind === "text") return { text: this.text.value, ...rest };
    const rows = [...this.passages.children].filter((row) => row.children[1].value.trim());
    const gold = this.gold ? rows.indexOf(this.gold) : -1;
    return { question: this.question.value, passages: rows.map((row) => row.children[1].value), gold: gold < 0 ? null : gold,
      ...(instruction === undefined ? {} : { instruction }), ...rest };
  }

  field() { return this.kind === "text" ? this.text : this.question; }

  // What could not be counted while a run was going on.
  recount() { if (!this.count.textContent) this.typed(); }

  empty() { return !(this.kind === "text" ? this.text.value : this.question.value).trim(); }

  // In one line, for the fold's summary and the history.
  summary() { return promptTitle(this.value()); }

  // Tokens are counted by the model itself, when typing pauses and nothing runs.
  typed() {
    this.page.promptChanged();
    clearTimeout(this.timer);
    this.count.textContent = "";
    this.timer = setTimeout(() => this.counted(), this.wait);
  }

  async counted() {
    const { model, length } = this.page.countFor();
    if (!model || this.empty() || this.page.busy()) return;
    try {
      const { length: tokens, context, fits } = await this.page.client.tokens(model, this.value(), length);
      this.count.textContent = `${tokens} tokens and ${length || 0} to decode${context ? `; the model takes ${context}` : ""}${
        fits ? "." : ": too long. Leave out passages, or decode fewer."}`;
      this.count.classList.toggle("fsl-bad", !fits);
    } catch { this.count.textContent = ""; }
  }
}

function promptTitle(prompt) {
  const text = (prompt.text === undefined ? prompt.question : prompt.text).replace(/\s+/g, " ").trim();
  const short = text.length > 90 ? `${text.slice(0, 89)}…` : text;
  const n = (prompt.passages || []).length;
  return prompt.text === undefined && n ? `${short} · ${n} passage${n === 1 ? "" : "s"}` : short;
}

// As tall as its text, up to four lines.
function fitted(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, 84)}px`;
}
