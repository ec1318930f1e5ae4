// The Transformer of the package `annotated` in JavaScript: a sentence in; its translation and every attention weight out.
//
//   const model = await annotated.load("tatoeba-en-de");        // models/tatoeba-en-de.js beside this file
//   const { text, attention } = await model.translate("Dogs bark.", { beam: 4 });
//
// A classic script without dependencies, so it also works in a page opened from a file. The weights are a script, too,
// written by `annotated.page.to_page`. Names and order are those of the book: appendix M sets the two side by side.
(() => {
"use strict";

// Everything that computes stands in this one function, so that its text can be given to a worker.
function engine() {

// ---- Text and identifiers (chapter 8) -------------------------------------------------------------------------------

const SPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u; // what Python's split() takes
const MARKERS = ["<pad>", "<bos>", "<eos>", "<unk>"];

// White space becomes a space, half a surrogate pair U+FFFD, and what nobody sees is empty: what `Translator` does before
// it encodes a line.
function clean(text) {
  const line = text.replace(/\p{Surrogate}/gu, "\ufffd").replace(/\ufeff/g, " ").split(SPACE).filter((word) => word).join(" ");
  return /[^\p{Cc}\p{Cf}\p{Z}]/u.test(line) ? line : "";
}

class Words {
  constructor(words) {
    this.names = [...MARKERS, ...words];
    this.ids = new Map(words.map((word, i) => [word, MARKERS.length + i]));
  }

  encode(text) {
    const found = text.split(SPACE).flatMap((word) => word.match(/[^.,?!]+|[.,?!]/gu) ?? []);
    return [...found.map((word) => this.ids.get(word) ?? 3), 2];
  }

  decode(ids) {
    return ids.filter((id) => id > 2).map((id) => this.names[id]).join(" ").replace(/ (?=[.,?!])/g, "");
  }
}

// SentencePiece's byte-pair encoding: identifiers 4 to 259 are bytes, then come the pieces in the order of their merges.
class Subwords {
  constructor(pieces) {
    const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
    this.names = [...MARKERS, ...bytes, ...pieces];
    this.ids = new Map(pieces.map((piece, i) => [piece, 260 + i]));
  }

  encode(text) {
    const marked = text ? ("\u2581" + text.replaceAll(" ", "\u2581")).replace(/\u2581+$/, "") : "";
    const words = marked.split(/(?=\u2581)/); // no piece reaches over the beginning of a word
    return [...words.flatMap((word) => this.merge(Array.from(word))).flatMap((symbol) => this.spell(symbol)), 2];
  }

  // Of all neighbours that make a piece, join the pair merged first in training, the leftmost of equals; again.
  merge(symbols) {
    const rank = (i) => this.ids.get(symbols[i] + symbols[i + 1]) ?? Infinity;
    const ranks = symbols.map((_, i) => rank(i));
    for (;;) {
      let best = 0;
      for (let i = 1; i < ranks.length; i++) if (ranks[i] < ranks[best]) best = i;
      if (!(ranks[best] < Infinity)) return symbols;
      symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
      ranks.splice(best, 2, rank(best));
      if (best) ranks[best - 1] = rank(best - 1);
    }
  }

  spell(symbol) { // a character that is no piece is spelt as its bytes
    if (this.ids.has(symbol)) return [this.ids.get(symbol)];
    return Array.from(new TextEncoder().encode(symbol), (byte) => byte + 4);
  }

  decode(ids) {
    let text = "";
    let bytes = [];
    for (const id of [...ids.filter((id) => id > 2), null]) {
      if (id > 3 && id < 260) {
        bytes.push(id - 4);
        continue;
      }
      text += fromBytes(bytes);
      bytes = [];
      if (id === null) break;
      const piece = id === 3 ? " \u2047 " : this.names[id];
      text += (text ? piece : piece.replace(/^\u2581/, "")).replaceAll("\u2581", " ");
    }
    return text;
  }
}

function fromBytes(bytes) { // UTF-8 as SentencePiece reads it: U+FFFD for each byte that belongs to no character
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const lengths = [1, 2, 3, 4].filter((n) => at + n <= bytes.length);
    const found = lengths.map((n) => character(bytes.slice(at, at + n))).find((one) => one);
    text += found ?? "\ufffd";
    at += found ? new TextEncoder().encode(found).length : 1;
  }
  return text;
}

function character(bytes) { // the one character that these bytes are, or null
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
    return Array.from(text).length === 1 ? text : null;
  } catch {
    return null;
  }
}

// ---- Weights: from base64 to float32 matrices -----------------------------------------------------------------------

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// A matrix is a number for each row, its scale, and then the rows in whole numbers from -127 to 127; a vector is float32.
function unpack(buffer, { shape: [n, m], at }) {
  if (m === undefined) return new Float32Array(buffer.slice(at, at + 4 * n));
  const scales = new Float32Array(buffer.slice(at, at + 4 * n));
  const whole = new Int8Array(buffer, at + 4 * n, n * m), W = new Float32Array(n * m);
  for (let i = 0; i < n; i++) for (let k = i * m; k < (i + 1) * m; k++) W[k] = whole[k] * scales[i];
  return W;
}

// ---- Arithmetic: a matrix of T rows is a Float32Array, row after row ------------------------------------------------

// y = x W^T + b, W of n rows and m columns.
function linear({ W, b, n, m }, x, rows) {
  const y = new Float32Array(rows * n);
  for (let r = 0; r < rows; r += 4) {
    if (rows - r > 1) fourRows(W, n, m, x, r, rows, y);
    else oneRow(W, n, m, x, r, y);
  }
  if (b) for (let i = 0; i < y.length; i++) y[i] += b[i % n];
  return y;
}

// Four rows of x by two rows of W at a time: what has been read is used several times, and the sums run side by side.
// Where fewer rows are left, the last one is worked out again.
function fourRows(W, n, m, x, r, rows, y) {
  const [r0, r1, r2, r3] = [r, r + 1, r + 2, r + 3].map((row) => Math.min(row, rows - 1));
  const [x0, x1, x2, x3] = [r0, r1, r2, r3].map((row) => x.subarray(row * m, (row + 1) * m));
  for (let j = 0; j < n; j += 2) {
    const i = Math.min(j + 1, n - 1), wj = j * m, wi = i * m;
    let j0 = 0, j1 = 0, j2 = 0, j3 = 0, i0 = 0, i1 = 0, i2 = 0, i3 = 0;
    for (let k = 0; k < m; k++) {
      const a = W[wj + k], b = W[wi + k], c0 = x0[k], c1 = x1[k], c2 = x2[k], c3 = x3[k];
      j0 += a * c0; j1 += a * c1; j2 += a * c2; j3 += a * c3;
      i0 += b * c0; i1 += b * c1; i2 += b * c2; i3 += b * c3;
    }
    y[r0 * n + j] = j0; y[r1 * n + j] = j1; y[r2 * n + j] = j2; y[r3 * n + j] = j3;
    y[r0 * n + i] = i0; y[r1 * n + i] = i1; y[r2 * n + i] = i2; y[r3 * n + i] = i3;
  }
}

function oneRow(W, n, m, x, r, y) { // the same with one row of x, by four rows of W
  const row = x.subarray(r * m, (r + 1) * m);
  for (let j = 0; j < n; j += 4) {
    const [j0, j1, j2, j3] = [j, Math.min(j + 1, n - 1), Math.min(j + 2, n - 1), Math.min(j + 3, n - 1)];
    const a = j0 * m, b = j1 * m, c = j2 * m, d = j3 * m;
    let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (let k = 0; k < m; k++) {
      const v = row[k];
      s0 += v * W[a + k]; s1 += v * W[b + k]; s2 += v * W[c + k]; s3 += v * W[d + k];
    }
    y[r * n + j0] = s0; y[r * n + j1] = s1; y[r * n + j2] = s2; y[r * n + j3] = s3;
  }
}

function softmax(scores) { // in place
  let max = -Infinity, sum = 0;
  for (const score of scores) if (score > max) max = score;
  for (let i = 0; i < scores.length; i++) sum += scores[i] = Math.exp(scores[i] - max);
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

function rowsOf(x, rows) { // views of the rows, not copies
  const width = x.length / rows;
  return Array.from({ length: rows }, (_, r) => x.subarray(r * width, (r + 1) * width));
}

// LayerNorm of each row (chapter 5).
function layerNorm(x, { gain, bias, eps }) {
  const d = gain.length, y = new Float32Array(x.length);
  for (let at = 0; at < x.length; at += d) {
    let mean = 0, variance = 0;
    for (let k = 0; k < d; k++) mean += x[at + k] / d;
    for (let k = 0; k < d; k++) variance += (x[at + k] - mean) ** 2 / d;
    const root = Math.sqrt(variance + eps);
    for (let k = 0; k < d; k++) y[at + k] = gain[k] * (x[at + k] - mean) / root + bias[k];
  }
  return y;
}

const ACTIVATIONS = { relu: (v) => Math.max(v, 0), swish: (v) => v / (1 + Math.exp(-v)) };

const POSITIONS = { // (position, feature, width) -> a number (chapter 6); learned ones are a table
  sinusoidal: (p, k, d) => (k % 2 ? Math.cos : Math.sin)(p * 10000 ** -((k - k % 2) / d)),
  halves: (p, k, d) => (k < d / 2 ? Math.sin : Math.cos)(p * 10000 ** -(k % (d / 2) / Math.max(d / 2 - 1, 1))),
};

// ---- The model (chapters 2 to 7) ------------------------------------------------------------------------------------

class Transformer {
  constructor(file) {
    const bytes = fromBase64(file.data);
    const tensors = new Map(file.tensors.map((entry) => [entry.name, { entry, values: unpack(bytes.buffer, entry) }]));
    const vector = (name) => tensors.get(name)?.values;
    const matrix = (name) => {
      const { entry: { shape: [n, m] }, values } = tensors.get(`${name}.weight`);
      return { W: values, b: vector(`${name}.bias`), n, m };
    };
    const norm = (name) => vector(`${name}.gain`) &&
      { gain: vector(`${name}.gain`), bias: vector(`${name}.bias`), eps: this.config.eps_norm };
    const attention = (name) => Object.fromEntries(["Q", "K", "V", "O"].map((x) => [x, matrix(`${name}.W_${x}`)]));
    const layer = (name, kinds) => ({
      name,
      ...Object.fromEntries(kinds.map((kind) => [kind, attention(`${name}.${kind}`)])),
      W_1: matrix(`${name}.feed_forward.W_1`),
      W_2: matrix(`${name}.feed_forward.W_2`),
      norms: [...kinds, "feed_forward"].map((_, i) => norm(`${name}.add_norm.${i}.norm`)),
    });
    const stack = (name, N, kinds) => ({
      layers: Array.from({ length: N }, (_, n) => layer(`${name}.layers.${n}`, kinds)),
      norm: norm(`${name}.norm`),
    });
    this.config = file.config;
    this.vocabulary = file.vocabulary === "Words" ? new Words(file.pieces) : new Subwords(file.pieces);
    this.target = matrix("target_embedding");
    this.source = tensors.has("source_embedding.weight") ? matrix("source_embedding") : this.target;
    this.output = { ...this.target, b: vector("output_bias.bias") }; // the same matrix gives the logits
    this.positions = tensors.has("positions.weight") ? matrix("positions") : null;
    this.encoder = stack("encoder", this.config.N, ["self_attention"]);
    this.decoder = stack("decoder", this.config.N_decoder, ["self_attention", "cross_attention"]);
    this.note = null; // trace() sets it to a function of (name, shape, values)
    this.off = new Set(); // heads that contribute nothing, each by the name of its attention and its number
  }

  // Vectors of identifiers, times sqrt(d_model), plus their positions (sections 3.4 and 3.5).
  embed(table, ids, positions) {
    const d = this.config.d_model, x = new Float32Array(ids.length * d);
    ids.forEach((id, r) => {
      const vector = this.position(positions[r]);
      for (let k = 0; k < d; k++) x[r * d + k] = Math.fround(table.W[id * d + k] * Math.sqrt(d)) + vector[k];
    });
    return x;
  }

  position(p) {
    const { d_model: d, positions } = this.config;
    if (this.positions) return this.positions.W.subarray(p * d, (p + 1) * d);
    this.made ??= []; // each is worked out once
    return this.made[p] ??= Float32Array.from({ length: d }, (_, k) => POSITIONS[positions](p, k, d));
  }

  // LayerNorm(x + f(x)), as in the paper, or x + f(LayerNorm(x)), as in later models (section 3.1).
  addNorm(name, x, norm, sublayer) {
    const before = this.config.norm === "pre";
    const change = sublayer(before ? layerNorm(x, norm) : x);
    const sum = x.map((value, i) => value + change[i]);
    const y = before ? sum : layerNorm(sum, norm);
    this.note?.(name, [y.length / norm.gain.length, norm.gain.length], y);
    return y;
  }

  feedForward(name, x, rows, { W_1, W_2 }) { // max(0, x W_1 + b_1) W_2 + b_2 (section 3.3)
    const hidden = linear(W_1, x, rows).map(ACTIVATIONS[this.config.activation]);
    const y = linear(W_2, hidden, rows);
    this.note?.(`${name}.hidden`, [rows, W_1.n], hidden);
    this.note?.(name, [rows, W_2.n], y);
    return y;
  }

  // Multi-head attention (section 3.2): row r of x attends to the keys and values that see(r) gives, lists of rows.
  attend(name, x, rows, { Q, O }, see, seen) {
    const { h, d_k, d_v } = this.config, queries = rowsOf(linear(Q, x, rows), rows);
    const heads = new Float32Array(rows * h * d_v), scores = [];
    for (let r = 0; r < rows; r++) {
      const [keys, values] = see(r);
      const out = heads.subarray(r * h * d_v, (r + 1) * h * d_v);
      seen.push([]);
      for (let i = 0; i < h; i++) {
        const weights = Float32Array.from(keys, (key) => {
          let sum = 0;
          for (let k = i * d_k; k < (i + 1) * d_k; k++) sum += queries[r][k] * key[k];
          return sum / Math.sqrt(d_k);
        });
        if (this.note) scores.push(weights.slice());
        seen.at(-1).push(softmax(weights));
        if (this.off.has(`${name}.${i}`)) continue;
        values.forEach((value, s) => {
          for (let k = i * d_v; k < (i + 1) * d_v; k++) out[k] += weights[s] * value[k];
        });
      }
    }
    const y = linear(O, heads, rows);
    if (this.note) this.noteAttention(name, rows, { queries, scores, weights: seen.flat(), heads, y });
    return y;
  }

  noteAttention(name, rows, { queries, scores, weights, heads, y }) {
    const { h, d_k, d_v, d_model } = this.config, S = Math.max(...weights.map((row) => row.length));
    const byHead = (found, rest) => join(Array.from({ length: h * rows }, (_, i) =>
      padded(found[i % rows * h + Math.floor(i / rows)], S, rest))); // (h, T, S); what may not be seen is `rest`
    this.note(`${name}.Q`, [rows, h, d_k], join(queries));
    this.note(`${name}.scores`, [h, rows, S], byHead(scores, -Infinity));
    this.note(`${name}.weights`, [h, rows, S], byHead(weights, 0));
    this.note(`${name}.heads`, [rows, h, d_v], heads);
    this.note(name, [rows, d_model], y);
  }

  keysValues(name, x, rows, { K, V }) {
    const { h, d_k, d_v } = this.config, both = [linear(K, x, rows), linear(V, x, rows)];
    this.note?.(`${name}.K`, [rows, h, d_k], both[0]);
    this.note?.(`${name}.V`, [rows, h, d_v], both[1]);
    return both.map((matrix) => rowsOf(matrix, rows));
  }

  last(name, x, rows, { norm }) { // a LayerNorm after the last layer, in models that have one
    const y = norm ? layerNorm(x, norm) : x;
    this.note?.(name, [rows, this.config.d_model], y);
    return y;
  }

  // Encode once: what each decoder layer makes of the result, and the weights, attention[layer][query][head][key].
  start(ids) {
    const rows = ids.length, attention = [];
    let x = this.embed(this.source, ids, ids.map((_, r) => r));
    this.note?.("source_embedding", [rows, this.config.d_model], x);
    this.encoder.layers.forEach((layer, n) => {
      const at = `${layer.name}.self_attention`, seen = attention[n] = [];
      x = this.addNorm(`${layer.name}.add_norm.0`, x, layer.norms[0], (x) => {
        const both = this.keysValues(at, x, rows, layer.self_attention);
        return this.attend(at, x, rows, layer.self_attention, () => both, seen);
      });
      x = this.addNorm(`${layer.name}.add_norm.1`, x, layer.norms[1],
        (x) => this.feedForward(`${layer.name}.feed_forward`, x, rows, layer));
    });
    x = this.last("encoder", x, rows, this.encoder);
    const memory = this.decoder.layers.map(({ name, cross_attention }) =>
      this.keysValues(`${name}.cross_attention`, x, rows, cross_attention));
    return { memory, attention };
  }

  // Rows of the decoder. `extend(n, r, K, V)` gives the keys and values that row r of layer n sees of its own sentence.
  decode(ids, positions, memory, extend) {
    const rows = ids.length, self = [], cross = [];
    let x = this.embed(this.target, ids, positions);
    this.note?.("target_embedding", [rows, this.config.d_model], x);
    this.decoder.layers.forEach((layer, n) => {
      const at = layer.name;
      x = this.addNorm(`${at}.add_norm.0`, x, layer.norms[0], (x) => {
        const [K, V] = this.keysValues(`${at}.self_attention`, x, rows, layer.self_attention);
        const see = (r) => extend(n, r, K, V);
        return this.attend(`${at}.self_attention`, x, rows, layer.self_attention, see, self[n] = []);
      });
      x = this.addNorm(`${at}.add_norm.1`, x, layer.norms[1], (x) =>
        this.attend(`${at}.cross_attention`, x, rows, layer.cross_attention, () => memory[n], cross[n] = []));
      x = this.addNorm(`${at}.add_norm.2`, x, layer.norms[2],
        (x) => this.feedForward(`${at}.feed_forward`, x, rows, layer));
    });
    x = this.last("decoder", x, rows, this.decoder);
    const logits = linear(this.output, x, rows);
    this.note?.("logits", [rows, this.config.vocab], logits);
    return { logits: rowsOf(logits, rows), self, cross };
  }

  // One position of each hypothesis, after its last token. A cache, [layer][keys or values], is kept; longer ones are made.
  step(tokens, caches, memory) {
    const grown = tokens.map(() => []), t = caches[0][0][0].length;
    const { logits, self, cross } = this.decode(tokens, tokens.map(() => t), memory, (n, r, K, V) =>
      grown[r][n] = [[...caches[r][n][0], K[r]], [...caches[r][n][1], V[r]]]);
    const of = (seen, r) => seen.map((layer) => layer[r]); // [layer][head][key]
    return tokens.map((_, r) => ({ logits: logits[r], cache: grown[r], self: of(self, r), cross: of(cross, r) }));
  }

  emptyCache() { return this.decoder.layers.map(() => [[], []]); }
}

function join(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole;
}

function padded(row, length, rest) {
  const whole = new Float32Array(length).fill(rest);
  whole.set(row);
  return whole;
}

// ---- Searching (chapter 11) -----------------------------------------------------------------------------------------

function likeliest(logits, k) { // the k likeliest tokens, best first, with their log-probabilities
  let max = -Infinity, sum = 0;
  for (const logit of logits) if (logit > max) max = logit;
  for (const logit of logits) sum += Math.exp(logit - max);
  const top = [];
  for (let id = 0; id < logits.length; id++) {
    if (top.length === k && !(logits[id] > logits[top[k - 1]])) continue;
    let place = top.length;
    while (place && logits[top[place - 1]] < logits[id]) place--;
    top.splice(place, 0, id);
    if (top.length > k) top.pop();
  }
  return top.map((id) => ({ id, logP: logits[id] - max - Math.log(sum) }));
}

// Beam search, a step at a time. A finished hypothesis keeps its place, so that a beam of 1 is greedy search.
function* search(model, source, { beam = 4, alpha = 0.6, maxLen, top = 5 } = {}) {
  const { bos, eos, positions, max_positions: most } = model.config;
  const limit = Math.min(maxLen ?? source.length + 50, positions === "learned" ? most : Infinity);
  const penalty = (length) => ((5 + length) / 6) ** alpha;
  const { memory, attention } = model.start(source);
  let hypotheses = [{ ids: [], logP: 0, score: null, cache: model.emptyCache(), self: [], cross: [] }];
  for (let length = 1; ; length++) {
    const alive = hypotheses.filter(({ score }) => score === null);
    const next = model.step(alive.map(({ ids }) => ids.at(-1) ?? bos), alive.map(({ cache }) => cache), memory);
    const candidates = alive.flatMap((parent, r) => likeliest(next[r].logits, Math.max(beam, top)).map(({ id, logP }) =>
      ({ parent, place: hypotheses.indexOf(parent), after: next[r], id, p: Math.exp(logP), logP: parent.logP + logP })));
    candidates.sort((a, b) => b.logP - a.logP);
    const done = hypotheses.map((x, place) => ({ ...x, place })).filter(({ score }) => score !== null);
    const kept = candidates.slice(0, beam - done.length).map((candidate) => {
      const { parent, place, after, id, logP } = candidate;
      candidate.kept = true;
      const score = id === eos || length >= limit ? logP / penalty(length) : null;
      return { ids: [...parent.ids, id], logP, score, place, cache: after.cache,
        self: [...parent.self, after.self], cross: [...parent.cross, after.cross] };
    });
    hypotheses = [...done, ...kept];
    const open = Math.max(...hypotheses.map(({ score, logP }) => (score === null ? logP : -Infinity)));
    const [best] = hypotheses.filter(({ score }) => score !== null).sort((a, b) => b.score - a.score);
    const attainable = Math.max(open / penalty(length), open / penalty(limit));
    // Over where nothing unfinished can become better than the best that is finished.
    const over = open === -Infinity || best?.score >= attainable;
    yield { hypotheses, candidates, attention, best: over ? best : null };
    if (over) return;
  }
}

// [step or query][layer][head][key] or [layer][query][head][key] -> [layer][head][query][key], rows of equal length
function byHead(layers, length) {
  return layers.map((rows) => rows[0].map((_, i) => rows.map((heads) => padded(heads[i], length, 0))));
}

const KINDS = { encoder: ["encoder", "self_attention"], decoder: ["decoder", "self_attention"],
  cross: ["decoder", "cross_attention"] };

function switchOff(model, without = []) {
  model.off = new Set(without.map(([kind, layer, head]) => {
    const [stack, attention] = KINDS[kind] ?? [];
    const there = (i, n) => Number.isInteger(i) && i >= 0 && i < n;
    if (!stack || !there(layer, model[stack].layers.length) || !there(head, model.config.h)) {
      throw new RangeError(`without: there is no head ${head} in layer ${layer} of ${kind}, counted from 0`);
    }
    return `${stack}.layers.${layer}.${attention}.${head}`;
  }));
}

// The identifiers of a text, at most `longest` of them before eos, and how many more there would have been.
function read(model, text, longest) {
  if (typeof text !== "string") throw new TypeError("text must be a string");
  const most = model.config.positions === "learned" ? Math.min(longest, model.config.max_positions - 1) : longest;
  const whole = clean(text.slice(0, 100 * most)); // no more than so many letters are even looked at
  const ids = whole ? model.vocabulary.encode(whole) : [2];
  const cut = Math.max(0, ids.length - 1 - most) + text.slice(100 * most).length;
  return { ids: [...ids.slice(0, -1).slice(0, most), model.config.eos], cut };
}

function check({ beam = 4, alpha = 0.6, maxLen = 1, longest = 1, top = 1 }) {
  const whole = { beam, maxLen, longest, top };
  for (const [name, value] of Object.entries(whole)) {
    if (!Number.isInteger(value) || value < 1) throw new RangeError(`${name} must be a whole number, 1 or more`);
  }
  if (beam > 100) throw new RangeError("beam must be 100 at most");
  if (!(Math.abs(alpha) <= 10)) throw new RangeError("alpha must lie in -10..10");
}

// `pause` is awaited between steps, so that whoever computes can be told to stop: it throws then.
async function translate(model, text, options = {}, pause = () => {}) {
  check(options);
  const { ids: source, cut } = read(model, text, options.longest ?? 200);
  const names = (ids) => ids.map((id) => model.vocabulary.names[id]);
  const nothing = { encoder: [], decoder: [], cross: [] };
  const empty = { text: "", ids: [], source: [], tokens: { source: [], target: [] }, score: 0, cut };
  if (source.length === 1) return { ...empty, attention: nothing, steps: [] };
  switchOff(model, options.without);
  const steps = [];
  let found;
  const searching = search(model, source, options);
  for (;;) {
    await pause();
    switchOff(model, options.without); // somebody else may have computed in the pause
    const { value, done } = searching.next();
    if (done) break;
    found = value;
    steps.push({
      hypotheses: value.hypotheses.map(({ ids, logP, score, place }) =>
        ({ ids, tokens: names(ids), logP, score, parent: place })),
      candidates: value.candidates.map(({ place, id, p, logP, kept = false }) =>
        ({ parent: place, id, token: names([id])[0], p, logP, kept })),
    });
  }
  const { ids, score, self, cross } = found.best, layers = model.decoder.layers;
  const written = (seen, length) => byHead(layers.map((_, n) => seen.map((step) => step[n])), length);
  const attention = {
    encoder: byHead(found.attention, source.length),
    decoder: written(self, ids.length),
    cross: written(cross, source.length),
  };
  const tokens = { source: names(source), target: names(ids) };
  return { text: model.vocabulary.decode(ids), ids, source, tokens, score, cut, attention, steps };
}

// Every intermediate value of one pass over a source and its target, a text or identifiers, by default the translation:
// name -> { shape, values }.
// Names are those of the modules in Python, with .Q .K .V .scores .weights .heads behind an attention's.
async function trace(model, text, options = {}, pause = () => {}) {
  check(options);
  const { ids: source } = read(model, text, options.longest ?? 200);
  const { ids: target } = options.target === undefined ? await translate(model, text, options, pause)
    : Array.isArray(options.target) ? { ids: options.target } : read(model, options.target, options.longest ?? 200);
  const known = (id) => Number.isInteger(id) && id in model.vocabulary.names;
  if (!target.every(known)) throw new RangeError("target must be a text or identifiers of the vocabulary");
  const shifted = [model.config.bos, ...target.slice(0, -1)]; // what the decoder reads when it writes the target
  switchOff(model, options.without);
  const values = {};
  model.note = (name, shape, found) => { values[name] = { shape, values: found }; };
  try {
    const { memory } = model.start(source);
    model.decode(shifted, shifted.map((_, r) => r), memory, (_, r, K, V) => [K.slice(0, r + 1), V.slice(0, r + 1)]);
  } finally {
    model.note = null;
  }
  const names = (ids) => ids.map((id) => model.vocabulary.names[id]);
  return { source, target, tokens: { source: names(source), read: names(shifted), written: names(target) }, values };
}

// ---- Answering: one request after the other; any of them can be called off ------------------------------------------

function serve(send) {
  const off = new Set();
  let model, turn = Promise.resolve(), rested = 0;
  const rest = () => new Promise((done) => { // lets messages in; a timer would sleep 4 ms each time
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); done(); };
    port2.postMessage(null);
  });
  const asks = {
    load: (file) => { model = new Transformer(file); },
    translate: (text, options, pause) => translate(model, text, options, pause),
    trace: (text, options, pause) => trace(model, text, options, pause),
    encode: (text) => model.vocabulary.encode(clean(text)),
    decode: (ids) => model.vocabulary.decode(ids),
  };
  const answer = async ({ id, what, args }) => {
    const pause = async () => {
      if (Date.now() - rested > 10) {
        await rest();
        rested = Date.now();
      }
      if (off.has(id)) throw new Error("called off");
    };
    try {
      await pause();
      send({ id, value: await asks[what](...args, pause) });
    } catch (error) {
      send({ id, error: { name: error.name, message: error.message } });
    }
    off.delete(id);
  };
  return (message) => {
    if ("off" in message) off.add(message.off);
    else turn = turn.then(() => answer(message));
  };
}

return { Words, Subwords, Transformer, search, translate, trace, clean, unpack, fromBase64, linear, serve };
}

// ---- In a page ------------------------------------------------------------------------------------------------------

const { src: here, dataset } = globalThis.document?.currentScript ?? {};
const version = dataset?.weights ? `?v=${dataset.weights}` : ""; // so that no cache gives an old model to a new page
const models = new Map(); // name -> promise, so that two explorers of a page share a model

// What answers messages: a worker made of the engine's own text, or, where there is none, the engine in this thread.
// `lost` is called if a worker that has begun breaks down.
async function hire(receive, lost) {
  const start = () => ({ send: engine().serve((message) => setTimeout(receive, 0, message)), dismiss: () => {} });
  if (!globalThis.Worker) return start();
  try {
    const code = `"use strict"; const take = (${engine})().serve((message) => postMessage(message));
      onmessage = ({ data }) => take(data); postMessage("ready");`;
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const worker = new Worker(url);
    await new Promise((ready, failed) => Object.assign(worker, { onmessage: ready, onerror: failed }));
    URL.revokeObjectURL(url);
    const dismiss = () => worker.terminate();
    const onerror = ({ message }) => {
      dismiss();
      lost(new Error(message || "the worker broke down"));
    };
    Object.assign(worker, { onmessage: ({ data }) => receive(data), onerror });
    return { send: (message) => worker.postMessage(message), dismiss };
  } catch {
    return start();
  }
}

class Model {
  constructor(name, file) {
    this.name = name;
    this.config = file.config;
    this.about = file.about; // its data and their licence
    this.waiting = new Map();
    this.asked = 0;
    this.broken = null; // or why it answers no more
  }

  async ask(what, args, signal) {
    signal?.throwIfAborted();
    if (this.broken) throw this.broken; // nobody would answer
    const id = ++this.asked;
    return new Promise((done, failed) => {
      const off = () => {
        this.send({ off: id });
        this.waiting.delete(id);
        failed(signal.reason);
      };
      signal?.addEventListener("abort", off, { once: true });
      this.waiting.set(id, { done, failed, settle: () => signal?.removeEventListener("abort", off) });
      this.send({ id, what, args });
    });
  }

  receive({ id, value, error }) {
    const call = this.waiting.get(id);
    if (!call) return; // called off
    this.waiting.delete(id);
    call.settle();
    if (!error) call.done(value);
    else call.failed(Object.assign(new ({ TypeError, RangeError }[error.name] ?? Error)(error.message)));
  }

  fail(error) {
    this.broken = error;
    for (const { failed, settle } of this.waiting.values()) {
      settle();
      failed(error);
    }
    this.waiting.clear();
  }

  translate(text, { signal, ...options } = {}) { return this.ask("translate", [text, options], signal); }
  trace(text, { signal, ...options } = {}) { return this.ask("trace", [text, options], signal); }
  encode(text) { return this.ask("encode", [text]); }
  decode(ids) { return this.ask("decode", [ids]); }
}

function script(src) {
  return new Promise((done, failed) => {
    const missing = () => failed(new Error(`no weights at ${src}`));
    document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: missing }));
  });
}

async function begin(name, from) {
  if (!annotated.weights?.[name]) await script(from ?? new URL(`models/${name}.js${version}`, here).href);
  const file = annotated.weights?.[name];
  if (!file) throw new Error(`the script of the weights names no model ${name}`);
  const model = new Model(name, file);
  const { send, dismiss } = await hire((message) => model.receive(message), (error) => {
    models.delete(name); // the next call hires another
    model.fail(error);
  });
  model.send = send;
  try {
    await model.ask("load", [file]);
  } catch (error) {
    dismiss();
    throw error;
  }
  delete annotated.weights[name]; // who computes has read them
  return model;
}

// The model of this name: its weights are read at the first call. `from`: where their script lies, if not beside this one.
function load(name, { from } = {}) {
  if (!models.has(name)) {
    const model = begin(name, from);
    models.set(name, model);
    model.catch(() => models.delete(name)); // the next call tries again
  }
  return models.get(name);
}

const annotated = globalThis.annotated = Object.assign(globalThis.annotated ?? {}, { load });
if (typeof module !== "undefined") module.exports = { load, ...engine() };
})();
