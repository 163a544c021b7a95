// Scenes as the page reads them: base64 to typed arrays, once, and the questions a view asks of them.
// It draws nothing and touches no document.

// A packed array becomes { shape, values }: floats with NaN, or whole numbers with −1 for "not there".
function unpackArray(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const wide = packed.dtype === "uint16";
  const missing = wide ? 65535 : 255;
  const count = wide ? bytes.length / 2 : bytes.length;
  const codeAt = wide ? (i) => bytes[2 * i] | (bytes[2 * i + 1] << 8) : (i) => bytes[i];
  if (packed.code === "index") {
    const values = new Int32Array(count);
    for (let i = 0; i < count; i++) values[i] = codeAt(i) === missing ? -1 : codeAt(i);
    return { shape: packed.shape, values };
  }
  const linear = packed.code === "linear";
  const decoded = (code) => {
    if (code === missing) return NaN;
    if (linear) return packed.offset + packed.scale * code;
    return code === 0 ? 0 : Math.pow(2, packed.offset + packed.scale * (code - 1));
  };
  const values = new Float32Array(count);
  if (count <= missing) {
    for (let i = 0; i < count; i++) values[i] = decoded(codeAt(i));
  } else {  // more values than codes: each code once
    const table = Float32Array.from({ length: missing + 1 }, (_, code) => decoded(code));
    for (let i = 0; i < count; i++) values[i] = table[codeAt(i)];
  }
  return { shape: packed.shape, values };
}

// Rows of the last dimension, without copying: rowOf(array, 2, 5) is array[2, 5, :].
function rowOf(array, ...index) {
  const last = array.shape[array.shape.length - 1];
  let at = 0;
  index.forEach((i, d) => { at = at * array.shape[d] + i; });
  return array.values.subarray(at * last, (at + 1) * last);
}

const PACKED = ["canvas", "result", "changes", "region", "class", "masked", "null", "reach", "share",
  "anchors", "anchor_count", "peak", "peak_key", "gold_look"];
const REVEAL = 1, REMASK = 2;

class Scene {
  constructor(json, id, source = {}) {
    this.json = json;
    this.id = id;
    this.source = source;  // where scenes are served it has single heads too: `heads` and `head`
    this.array = {};
    for (const name of PACKED) if (json[name]) this.array[name] = unpackArray(json[name]);
    this.keys = this.array.region.shape[0];
    this.steps = json.steps.length;
    this.layers = json.layers.length;
    this.heads = json.heads.length;
    this.causal = json.model.direction === "causal";
    this.kind = this.causal ? "ARM" : "MDM";
    this.label = this.kind;  // the view adds the model's name where two of a kind meet
    this.single = this.headsOf(json.single_heads);
    this.from = json.from ? { names: json.from.names, share: unpackArray(json.from.share) } : null;
    this.rows = json.rows ? {
      event: unpackArray(json.rows.event),
      key: unpackArray(json.rows.key),
      weight: unpackArray(json.rows.weight),
    } : null;
    this.fetched = new Map();  // step → { share, anchors } of all heads, fetched on demand
    this.alone = new Map();  // "layer/head" → the same of one head at all steps
    this.asked = new Set();  // what is on its way
    this.failed = "";  // why the last of it did not come
    this.means = new Map();
    this.collectChanges();
  }

  headsOf(json) {
    if (!json) return null;
    return { kept: json.kept, share: unpackArray(json.share), anchors: unpackArray(json.anchors),
      coarse: json.share.dtype === "uint8" };
  }

  collectChanges() {
    this.changesAt = this.json.steps.map(() => []);
    this.lastReveal = new Int32Array(this.keys).fill(-1);
    this.reveals = [];
    const tickToStep = new Map(this.json.steps.map((tick, i) => [tick, i]));
    const { shape, values } = this.array.changes;
    for (let e = 0; e < shape[0]; e++) {
      const [tick, key, kind, word] = values.subarray(4 * e, 4 * e + 4);
      if (kind === REVEAL) { this.lastReveal[key] = tick; this.reveals.push({ tick, key, word }); }
      const step = tickToStep.get(tick);
      if (step !== undefined) this.changesAt[step].push({ key, kind, word });
    }
  }

  // How many steps there are, or will be.
  get span() { return this.steps; }

  // A step goes by the number that trace.sel(step=…) takes: the first is 0.
  stepName(step) { return `step ${this.json.steps[step]}`; }
  stepOfAll(step) { return this.stepName(step) + (this.json.ticks > 1 ? ` of 0–${this.json.ticks - 1}` : ""); }

  regionName(key) { return this.json.regions[this.array.region.values[key]]; }
  className(step, key) { return this.json.classes[rowOf(this.array.class, step)[key]]; }
  isMasked(step, key) { return rowOf(this.array.masked, step)[key] === 1; }
  isThere(step, key) { return rowOf(this.array.canvas, step)[key] >= 0; }
  word(index) { return index < 0 ? "" : this.json.vocabulary[index]; }
  wordAt(step, key) { return this.isMasked(step, key) ? "" : this.word(rowOf(this.array.canvas, step)[key]); }
  // What a step saw at a position, also a step that the scene left out: what became of it last before;
  // null for a mask.
  wordBefore(tick, key) {
    if (key < this.json.prompt_length) return this.resultWord(key);
    const { shape, values } = this.array.changes;
    let word = null;
    for (let e = 0; e < shape[0] && values[4 * e] < tick; e++) {
      if (values[4 * e + 1] === key) word = values[4 * e + 2] === REMASK ? null : this.word(values[4 * e + 3]);
    }
    return word;
  }
  resultWord(key) { return this.word(this.array.result.values[key]); }

  // Every text that ever stands at a position, so that its cell can be as wide as the widest.
  wordsOf(key) {
    const seen = new Set([this.resultWord(key)]);
    for (let s = 0; s < this.steps; s++) seen.add(this.wordAt(s, key));
    return [...seen];
  }

  // Which step's single heads to show for this step: itself where they are here, or the nearest one kept.
  headStep(step, layer, head) {
    if (this.fetched.has(step) || this.alone.has(`${layer}/${head}`)) return step;
    if (!this.single) return -1;
    return this.single.kept.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
  }

  headData(step) {
    if (this.fetched.has(step)) return { of: this.fetched.get(step), index: 0 };
    return { of: this.single, index: this.single.kept.indexOf(step) };
  }

  // One head's "share" or "anchors" at a step, or at the nearest one that is here.
  headRow(name, step, layer, head) {
    const alone = this.alone.get(`${layer}/${head}`);
    if (alone) return rowOf(alone[name], step, 0, 0);
    const { of, index } = this.headData(this.headStep(step));
    return rowOf(of[name], index, layer, head);
  }

  // The share of all attention each key receives; layer −1 is their mean, head −1 likewise.
  shareRow(step, layer, head) {
    if (head >= 0 && this.headStep(step, layer, head) >= 0) return this.headRow("share", step, layer, head);
    if (layer >= 0) return rowOf(this.array.share, step, layer);
    if (!this.means.has(step)) {
      const mean = new Float32Array(this.keys);
      for (let l = 0; l < this.layers; l++) {
        const row = rowOf(this.array.share, step, l);
        for (let k = 0; k < this.keys; k++) mean[k] += row[k] / this.layers;
      }
      this.means.set(step, mean);
    }
    return this.means.get(step);
  }

  // What colours a token: its share, its lift over uniform attention, or the change of its share.
  valueRow(mode, step, layer, head) {
    const share = this.shareRow(step, layer, head);
    if (mode === "share") return share;
    if (mode === "lift") {
      const chance = rowOf(this.array.null, step);
      return share.map((v, k) => v / chance[k]);
    }
    const here = (s) => this.headStep(s, layer, head) === s;
    const exact = head < 0 || (here(step) && here(step - 1));
    if (step === 0 || !exact) return new Float32Array(this.keys).fill(NaN);
    const before = this.shareRow(step - 1, layer, head);
    return share.map((v, k) => v - before[k]);
  }

  anchorsOf(step, layer, head) {
    const found = head >= 0 && this.headStep(step, layer, head) >= 0 ? this.headRow("anchors", step, layer, head)
      : rowOf(this.array.anchors, step, layer < 0 ? this.layers : layer);
    return [...found].filter((key) => key >= 0);
  }

  topKey(step, layer, head) {
    const share = this.shareRow(step, layer, head);
    let top = -1;
    for (let k = 0; k < this.keys; k++) if (share[k] > (top < 0 ? -1 : share[top])) top = k;
    return top;
  }

  // The heads that give a key most, best first: [{ layer, head, share }].
  headsLookingAt(step, key, most) {
    if (this.headStep(step) < 0) return [];
    const found = [];
    const { of, index } = this.headData(this.headStep(step));
    for (let l = 0; l < this.layers; l++) {
      for (let h = 0; h < this.heads; h++) {
        const share = rowOf(of.share, index, l, h)[key];
        if (share > 0) found.push({ layer: l, head: h, share });
      }
    }
    return found.sort((a, b) => b.share - a.share).slice(0, most);
  }

  // The strongest keys of the row that predicted a position, where the trace kept them. Over several
  // heads it is the mean of what each head's few kept keys say: at least that much.
  ownRow(key, layer, head, most) {
    if (!this.rows) return null;
    const events = this.rows.event;
    let event = -1;
    for (let e = 0; e < events.shape[0]; e++) if (events.values[2 * e + 1] === key) event = e;
    if (event < 0) return null;
    const sums = new Map();
    const some = layer >= 0 ? [layer] : [...Array(this.layers).keys()];
    const others = head >= 0 ? [head] : [...Array(this.heads).keys()];
    for (const l of some) for (const h of others) {
      const keys = rowOf(this.rows.key, event, l, h), weights = rowOf(this.rows.weight, event, l, h);
      keys.forEach((k, r) => { if (k >= 0) sums.set(k, (sums.get(k) || 0) + weights[r]); });
    }
    const n = some.length * others.length;
    const found = [...sums].map(([k, sum]) => ({ key: k, weight: sum / n }));
    return { tick: events.values[2 * event], atLeast: n > 1,
      keys: found.sort((a, b) => b.weight - a.weight).slice(0, most) };
  }

  // Ask the server for what the scene has not: all heads at a step, one head at all steps. True when
  // something came.
  wantHeads(step) {
    if (!this.source.heads || this.headStep(step) === step) return false;
    return this.want(this.fetched, step, () => this.source.heads(this.id, step));
  }

  wantHead(layer, head) {
    const complete = this.single && this.single.kept.length === this.steps;
    if (!this.source.head || complete || layer < 0 || head < 0) return false;
    return this.want(this.alone, `${layer}/${head}`, () => this.source.head(this.id, layer, head));
  }

  async want(where, key, fetch) {
    const name = `${where === this.alone} ${key}`;
    if (where.has(key) || this.asked.has(name)) return false;
    this.asked.add(name);
    try {
      where.set(key, this.headsOf(await fetch()));
      this.failed = "";
    } catch (error) {
      this.failed = error.message;
    }
    this.asked.delete(name);
    return where.has(key);
  }
}

// The prompt in bands: a named part with the scaffolding that leads to it, in order.
function bandsOf(scene) {
  const bands = [];
  let open = null;
  for (let key = 0; key < scene.keys; key++) {
    const region = scene.regionName(key);
    const quiet = region === "template";
    if (!open || (!quiet && open.name !== null && open.name !== region)
        || (quiet && open.name !== null && scene.regionName(key - 1) !== "template")) {
      open = { name: null, keys: [] };
      bands.push(open);
    }
    if (!quiet && open.name === null) open.name = region;
    open.keys.push(key);
  }
  // Scaffolding that ends a prompt belongs to what came before it.
  bands.forEach((band) => { if (band.name === null) band.name = "template"; });
  return bands;
}

// Three significant digits, or two where a number was kept in one byte.
function digits(value, count) {
  if (value === 0) return "0";
  const fixed = Number(value.toPrecision(count));
  if (Math.abs(fixed) >= 1e-4 && Math.abs(fixed) < 1e5) {
    const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(fixed))));
    return fixed.toFixed(Math.min(places, 7));
  }
  return fixed.toExponential(count - 1);
}
const percent = (share, count = 3) => (Number.isFinite(share) ? `${digits(100 * share, count)} %` : "–");
const times = (lift, count = 3) => (Number.isFinite(lift) ? `${digits(lift, count)}×` : "–");
const points = (change) => (Number.isFinite(change)
  ? `${change > 0 ? "+" : change < 0 ? "−" : ""}${digits(Math.abs(100 * change), 3)} points` : "–");

// What a cell says: line ends and bare spaces made visible, the space before a word left to the layout.
function shown(text) {
  if (text === "") return "";
  const bare = text.replace(/\r\n|\n|\r/g, "↵").replace(/\t/g, "⇥");
  return bare.trim() === "" ? bare.replace(/ /g, "␣") : bare.replace(/^ +/, "");
}
