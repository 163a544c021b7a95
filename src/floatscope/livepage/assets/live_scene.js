// A scene that grows: what is constant comes first, steps arrive one by one and are joined here to the
// arrays the viewer draws from. It draws nothing.

const BY_STEP = ["canvas", "class", "masked", "null", "reach", "share", "anchors", "anchor_count", "peak",
  "peak_key", "confidence"];
// Six letters: the room an empty place of the answer has before its word is known.
const ROOM = "moment";

// What the live page asks of any scene, one that grows or one that came whole.
class LiveScene extends Scene {
  wordsOf(key) {
    const words = super.wordsOf(key);
    return key < this.json.prompt_length ? words : [...words, ROOM];
  }

  // How sure the model is of what it proposes at a masked position; NaN elsewhere.
  confidenceAt(step, key) {
    const { confidence } = this.array;
    return confidence && this.isMasked(step, key) ? rowOf(confidence, step)[key] : NaN;
  }

  // Beside what colours a token in any scene: the difference to the other run's share, as the server computes it.
  // `difference` is { sign, rows, head } of the steps shown: rows by layer and their mean, and one head's row.
  valueRow(mode, step, layer, head) {
    if (mode !== "difference") return super.valueRow(mode, step, layer, head);
    const { rows, head: own, sign = 1 } = this.difference || {}, array = head >= 0 ? own : rows, row = new Float32Array(this.keys).fill(NaN);
    if (!array) return row;
    const last = array.shape[0] - 1, from = head >= 0 ? 0 : layer < 0 ? last : layer;
    if (from > last || (layer >= 0 && head < 0 && last === 0)) return row;
    rowOf(array, from).forEach((v, k) => { if (k < row.length) row[k] = sign * v; });
    return row;
  }
}

class GrowingScene extends LiveScene {
  // `header` as the server sends it when a run starts, `first` the event of its first step.
  constructor(header, first, id, source) {
    super({ ...header, ...first.scene, steps: [], vocabulary: [], classes: [], answer: "", left_out: [],
      range: { share: 0, head: 0, change: 0 }, single_heads: null, from: null, changes: null, result: null }, id, source);
    this.planned = first.total;
    this.steps = 0;
    this.array.changes = { shape: [0, 4], values: new Int32Array(0) };
    this.array.result = { shape: [this.keys], values: new Int32Array(this.keys).fill(-1) };
    for (const name of BY_STEP) delete this.array[name];
    this.lastReveal = new Int32Array(this.keys).fill(-1);
    Object.assign(this, { changesAt: [], reveals: [] });
    this.append(first);
  }

  collectChanges() {}  // they come with their steps

  get span() { return Math.max(this.steps, this.planned || 0); }
  stepOfAll(step) { return this.stepName(step) + (this.span > 1 ? ` of 0–${this.span - 1}` : ""); }

  append({ step, words, new_classes, scene, changes }) {
    this.json.vocabulary.push(...words);
    this.json.classes.push(...new_classes);
    for (const name of BY_STEP) if (scene[name]) this.array[name] = joined(this.array[name], unpackArray(scene[name]));
    this.joinHeads(this.headsOf(scene.single_heads));
    if (scene.from) {
      const share = unpackArray(scene.from.share);
      this.from = { names: scene.from.names, share: joined(this.from && this.from.share, share) };
    }
    for (const name of ["share", "head"]) this.json.range[name] = Math.max(this.json.range[name], scene.range[name]);
    this.json.steps.push(step);
    this.steps += 1;
    if (this.steps === 1) this.readPrompt();
    this.takeChanges(step, changes);
    this.widenChange();
    this.json.answer = this.answerSoFar();
  }

  readPrompt() {
    const first = rowOf(this.array.canvas, 0), { values } = this.array.result;
    for (let k = 0; k < this.keys; k++) values[k] = this.isMasked(0, k) ? -1 : first[k];
  }

  takeChanges(tick, changes) {
    const rows = changes.map(([key, kind, word]) => [tick, key, kind, word]);
    this.array.changes = joined(this.array.changes, { shape: [rows.length, 4], values: Int32Array.from(rows.flat()) });
    this.changesAt.push(changes.map(([key, kind, word, p]) => ({ key, kind, word, p })));
    for (const [key, kind, word] of changes) {
      this.array.result.values[key] = kind === REMASK ? -1 : word;
      if (kind !== REVEAL) continue;
      this.lastReveal[key] = tick;
      this.reveals.push({ tick, key, word });
    }
  }

  answerSoFar() {
    let text = "";
    for (let k = this.json.prompt_length; k < this.keys; k++) text += this.resultWord(k).replace(/^<[^<>]*>$/, "");
    return text;
  }

  joinHeads(next) {
    if (this.steps && !this.single) return;
    if (!next) { this.single = null; return; }
    const { share, anchors } = this.single || {};
    this.single = { coarse: next.coarse, kept: [...Array(this.steps + 1).keys()],
      share: joined(share, next.share), anchors: joined(anchors, next.anchors) };
  }

  // A step alone has no change; the scale of changes is known only where two meet.
  widenChange() {
    const s = this.steps - 1, { range } = this.json;
    for (let l = 0; s > 0 && l < this.layers; l++) {
      const now = rowOf(this.array.share, s, l), before = rowOf(this.array.share, s - 1, l);
      for (let k = 0; k < this.keys; k++) range.change = Math.max(range.change, Math.abs(now[k] - before[k]) || 0);
    }
  }

  // What only a whole trace has: the rows of revealed positions, and who predicts from the gold passage.
  adopt(json) {
    if (json.rows) this.rows = Object.fromEntries(Object.entries(json.rows).map(([name, packed]) => [name, unpackArray(packed)]));
    if (json.gold_look && json.steps.length === this.steps) this.array.gold_look = unpackArray(json.gold_look);
  }
}

// Two arrays, one after the other along the first dimension. The buffer has room to grow, so that a long
// decoding is not copied at every step.
function joined(a, b) {
  if (!a) return b;
  const used = a.values.length, more = b.values.length;
  let { room = a.values } = a;
  if (room.length < used + more) {
    room = new a.values.constructor(Math.max(used + more, 2 * used));
    room.set(a.values);
  }
  room.set(b.values, used);
  return { shape: [a.shape[0] + b.shape[0], ...b.shape.slice(1)], room, values: room.subarray(0, used + more) };
}
