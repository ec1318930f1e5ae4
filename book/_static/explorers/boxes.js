// What the boxes of Figure 1 compute, read from a trace of the live model: names, shapes, rows; model.js draws them.
"use strict";

(() => {
  const { shown, LONGEST } = globalThis.annotated.live;
  // What the still draws: its rectangles in the order of the file, and its two circles, each with its note.
  const NOTES = {
    "encoder.embedding": "The row of E for each token, times \u221ad_model.",
    "decoder.embedding": "The row of E for the token just read, times \u221ad_model.",
    "encoder.self_attention": "", "encoder.add_norm.0": "LayerNorm of the sum of the sub-layer's input and output.",
    "decoder.self_attention": "", "decoder.add_norm.0": "LayerNorm of the sum of the sub-layer's input and output.",
    "decoder.cross_attention": "", "decoder.add_norm.1": "LayerNorm of the sum of the sub-layer's input and output.",
    "encoder.feed_forward": "", "encoder.add_norm.1": "LayerNorm of the sum; what comes out of the last layer is the memory.",
    "decoder.feed_forward": "", "decoder.add_norm.2": "LayerNorm of the sum; what comes out of the last layer becomes logits.",
    "decoder.logits": "A product with every row of E; the five largest of all.",
    "decoder.softmax": "The five likeliest next tokens; greedy search writes the first.",
    "encoder.positions": "Sines and cosines of each position, to be added.",
    "decoder.positions": "Sines and cosines of the position of the token just read, to be added.",
  };
  const BOXES = Object.keys(NOTES);
  const PARTS = {
    attention: {
      weights: "Rows are queries, columns are keys; each row sums to 1.",
      Q: "What came in, times W_Q; a query for each position.", K: "Times W_K; a key for each position.",
      V: "Times W_V; a value for each position.", heads: "The values' mean by the weights, in one head.",
      output: "The results of all heads side by side, times W_O.",
    },
    feed_forward: { hidden: "max(0, x W_1 + b_1): what is negative becomes 0.", output: "hidden W_2 + b_2." },
  };

  const kindOf = (box) => box.match(/attention|feed_forward/)?.[0];
  const partsOf = (box) => Object.keys(PARTS[kindOf(box)] ?? { output: "" });
  const perHead = (part) => ["weights", "Q", "K", "V", "heads"].includes(part);

  /** A position's sines and cosines (section 3.5). */
  const position = (p, d) => Array.from({ length: d }, (_, k) => (k % 2 ? Math.cos : Math.sin)(p / 10000 ** ((k - (k % 2)) / d)));

  /** The name in a trace of what a box shows. */
  function nameOf({ box, part, layer }) {
    const [stack, kind, at] = box.split(".");
    if (/embedding|positions/.test(kind)) return `${stack === "encoder" ? "source" : "target"}_embedding`;
    if (/logits|softmax/.test(kind)) return "logits";
    return [stack, "layers", layer, kind, ...(at ? [at] : []), ...(part === "output" ? [] : [part])].join(".");
  }

  /** Whether what has been found holds it; the probabilities stand with the search. */
  const has = (found, state) => state.box === "decoder.softmax" || nameOf(state) in found.values;

  /** What a box computes: its shape in letters and numbers, and its rows with their labels; step 0 is the encoder's. */
  function look(found, { box, part, layer, head, step }) {
    const { tokens, values, config, steps } = found, name = nameOf({ box, part, layer });
    const h = config.h, encoder = box.startsWith("encoder"), cross = box.includes("cross"), memory = /^[KV]$/.test(part);
    if (/logits|softmax/.test(box)) {
      const { candidates } = steps[step - 1], from = (step - 1) * config.vocab;
      const rows = candidates.map(({ id, p }) => [box.includes("logits") ? values.logits.values[from + id] : p]);
      return { shape: "(B, 1, vocab)", sizes: [1, 1, config.vocab], labels: candidates.map(({ token }) => shown(token)), rows };
    }
    const queries = encoder ? tokens.source : tokens.read;
    const keys = encoder || cross ? tokens.source : tokens.read.slice(0, step); // later tokens are not there yet
    const seen = memory ? keys.map((_, s) => s) : encoder ? queries.map((_, r) => r) : [step - 1];
    let labels = seen.map((r) => shown((memory ? keys : queries)[r]));
    if (memory && !encoder && !cross) labels = labels.map((label, r) => `${label} (${r < step - 1 ? "cached" : "new"})`);
    const { shape, values: flat } = values[name], n = encoder || (cross && memory) ? "S" : memory ? "T" : "1"; // a step of the decoder has one query
    const cut = (from, width) => Array.from(flat.slice(from, from + width));
    if (part === "weights") {
      if (!encoder) labels = seen.map((r) => `${shown(queries[r])} \u2192 ${shown(tokens.written[r])}`); // read, and what it writes
      const S = shape[2], rows = seen.map((r) => cut((head * shape[1] + r) * S, keys.length));
      const sizes = [1, h, seen.length, keys.length];
      return { shape: `(B, h, ${n}, ${encoder || cross ? "S" : "T"})`, sizes, labels, columns: keys.map(shown), rows };
    }
    if (perHead(part)) {
      const width = shape[2], rows = seen.map((r) => cut((r * h + head) * width, width));
      return { shape: `(B, h, ${n}, ${/[QK]/.test(part) ? "d_k" : "d_v"})`, sizes: [1, h, seen.length, width], labels, rows };
    }
    const width = shape[1], waves = (r) => position(r, width);
    const rows = seen.map((r) => (box.includes("positions") ? waves(r)
      : box.includes("embedding") ? cut(r * width, width).map((x, k) => x - waves(r)[k]) : cut(r * width, width)));
    return { shape: `(B, ${n}, ${part === "hidden" ? "d_ff" : "d_model"})`, sizes: [1, seen.length, width], labels, rows };
  }

  /** Greedy search, for its words and their probabilities, and every value on the way. */
  async function ask(model, text, signal) {
    const options = { beam: 1, longest: LONGEST, signal };
    const { text: said, ids, steps, cut: left } = await model.translate(text, options);
    const { tokens, values } = await model.trace(text, { ...options, target: ids }); // found once
    return { said, tokens, values, cut: left, config: model.config, steps: steps.map(({ candidates }) => ({ candidates })) };
  }

  const boxes = { NOTES, BOXES, PARTS, kindOf, partsOf, perHead, position, nameOf, has, look, ask };
  globalThis.annotated = Object.assign(globalThis.annotated, { boxes });
  if (typeof module !== "undefined") module.exports = boxes;
})();
