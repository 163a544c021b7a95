// A model with its sampler and the sampler's settings, as fields made from what the server says of them.

const FIRST = ["length", "steps"];  // shown at once; the others in a fold
let settings = 0;

class Setting {
  constructor(page, label) {
    this.page = page;
    this.number = ++settings;
    this.inputs = new Map();
    this.pickModel = make("select", {});
    this.pickSampler = make("select", {});
    this.pickModel.addEventListener("change", () => this.chooseModel(this.pickModel.value));
    this.pickSampler.addEventListener("change", () => this.chooseSampler(this.pickSampler.value, {}));
    this.about = make("p", { className: "fsv-note" });
    this.suggested = {};  // settings that suit the prompt, where a sampler has them
    this.near = make("div", { className: "fsl-fields" });
    this.far = make("div", { className: "fsl-fields" });
    this.more = make("details", { className: "fsl-more" }, make("summary", {}, "More settings"), this.far);
    this.root = make("div", { className: "fsl-setting", role: "group", "aria-label": label },
      make("div", { className: "fsl-fields fsl-fields-wide" }, this.labelled("Model", this.pickModel), this.labelled("Sampler", this.pickSampler)),
      this.near, this.more, this.about);
    // The tokens to decode are counted with those of the prompt.
    this.root.addEventListener("input", () => this.page.settingChanged());
  }

  // The settings of an example; without any, those of the model.
  suggest(settings = {}) {
    if (JSON.stringify(settings) === JSON.stringify(this.suggested)) return;
    this.suggested = settings;
    const { model, sampler } = this;
    if (sampler) this.chooseSampler(sampler.name, { length: model.sampler.settings.length, ...(sampler.name === model.sampler.name ? model.sampler.settings : {}), ...settings });
  }

  labelled(text, field) {
    field.id = `setting-${this.number}-${text.replace(/\W+/g, "-").toLowerCase()}`;
    return make("div", { className: "fsv-control" }, make("label", { className: "fsv-label", htmlFor: field.id }, text), field);
  }

  get model() { return this.page.modelOf(this.pickModel.value); }
  get sampler() { return this.model && this.model.samplers ? this.model.samplers.find((s) => s.name === this.pickSampler.value) : null; }

  // The models as they are now: one may have become ready.
  refresh() {
    const { models } = this.page, held = this.pickModel.value;
    fillSelect(this.pickModel, models.map((m) => [m.id, m.state === "ready" ? m.name || m.spec : `${m.spec} (${m.state})`]));
    const keep = models.some((m) => m.id === held) ? held : models[Math.min(this.number - 1, models.length - 1)].id;
    this.pickModel.value = keep;
    if (keep !== held || (this.model.samplers && !this.pickSampler.options.length)) this.chooseModel(keep);
  }

  chooseModel(id, sampler) {
    this.pickModel.value = id;
    const { model } = this;
    const held = this.read();
    fillSelect(this.pickSampler, model.samplers ? model.samplers.map((s) => [s.name, s.title || s.name]) : []);
    this.pickSampler.disabled = !model.samplers;
    const offered = sampler || model.sampler;
    if (!model.samplers || !offered) { this.fields([], {}); this.about.textContent = model.message || "This model is still being loaded."; return; }
    // A length that was chosen stays when the model changes.
    const kept = !sampler && held.length !== undefined ? { length: held.length } : {};
    this.chooseSampler(offered.name, { ...offered.settings, ...(sampler ? {} : this.suggested), ...kept });
  }

  chooseSampler(name, values) {
    const held = this.read();
    this.pickSampler.value = name;
    const { sampler } = this;
    if (!sampler) return;
    const kept = Object.fromEntries(FIRST.filter((f) => f in held && !(f in values)).map((f) => [f, held[f]]));
    this.fields(sampler.fields, { ...kept, ...values });
    this.about.textContent = sampler.about || "";
    this.page.settingChanged();
  }

  fields(fields, values) {
    this.inputs.clear();
    const [near, far] = [[], []];
    for (const field of fields) {
      const value = values[field.name] === undefined ? field.default : values[field.name];
      const input = inputFor(field, value, this.page.limits[field.name]);
      this.inputs.set(field.name, { field, input });
      (FIRST.includes(field.name) ? near : far).push(this.labelled(field.name.replace(/_/g, " "), input));
    }
    this.near.replaceChildren(...near);
    this.far.replaceChildren(...far);
    this.more.hidden = !far.length;
  }

  // Only what can be read as its kind; what is left empty takes its default on the server.
  read() {
    const values = {};
    for (const [name, { field, input }] of this.inputs) {
      if (field.kind === "bool") values[name] = input.checked;
      else if (input.value.trim() === "") { if (field.optional) values[name] = null; }
      else if (field.kind === "int" || field.kind === "float") values[name] = Number(input.value);
      else values[name] = input.value;
    }
    return values;
  }

  // The first field whose value cannot be meant, or null.
  wrong() {
    for (const { input } of this.inputs.values()) if (!input.checkValidity()) return input;
    return null;
  }

  request() {
    const sampler = this.sampler ? { name: this.sampler.name, settings: this.read() } : null;
    return { model: this.pickModel.value, sampler };
  }
}

function inputFor(field, value, most) {
  if (field.kind === "choice") {
    const select = make("select", {});
    fillSelect(select, [...(field.optional ? [["", "–"]] : []), ...field.choices.map((c) => [c, c])]);
    select.value = value === null || value === undefined ? "" : value;
    return select;
  }
  if (field.kind === "bool") return make("input", { type: "checkbox", checked: Boolean(value) });
  const number = field.kind === "int" || field.kind === "float";
  const input = make("input", { type: number ? "number" : "text", autocomplete: "off" });
  if (number) input.step = field.kind === "int" ? 1 : "any";
  if (FIRST.includes(field.name)) input.min = 1;
  if (most) input.max = most;
  input.required = !field.optional && number;
  input.value = value === null || value === undefined ? "" : String(value);
  if (field.optional) input.placeholder = "–";
  return input;
}
