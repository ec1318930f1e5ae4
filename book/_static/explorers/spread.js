// Chapter 2: why the root of d_k. Random queries and keys, with and without the division, at any width.
"use strict";

(() => {
  const { dot, softmax, random, normal, words, el, svg, canvas, once, slider, button, table, explorer } = globalThis.annotated;
  const KEYS = 8, DRAWS = 64; // keys of a query; queries over which the numbers are means

  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

  /** Inner products of one query with KEYS keys, all features normal with mean 0 and variance 1. */
  function products(d_k, next) {
    const vector = () => Array.from({ length: d_k }, () => normal(next));
    const query = vector();
    return Array.from({ length: KEYS }, () => dot(query, vector()));
  }

  /** How much the weights still change with the scores: the trace of the softmax's derivative, sum of w (1 - w). */
  const slope = (weights) => weights.reduce((sum, w) => sum + w * (1 - w), 0);

  /** Over many rows of scores: their standard deviation about 0, the mean largest weight, and the mean slope. */
  function summary(rows) {
    const weights = rows.map((row) => softmax(row));
    return {
      spread: Math.sqrt(mean(rows.flat().map((x) => x * x))),
      largest: mean(weights.map((row) => Math.max(...row))),
      slope: mean(weights.map(slope)),
    };
  }

  function build(root, say) {
    let seed = 1;
    const WIDE = 360, HIGH = 104, GAP = 8, BAR = (WIDE - GAP * (KEYS + 1)) / KEYS;
    const panels = ["not divided", "divided by √d_k"].map((title, row) => {
      const top = row * (HIGH + 24);
      const bars = Array.from({ length: KEYS }, (_, i) =>
        svg("rect", { class: "bar", x: GAP + i * (BAR + GAP), width: BAR }));
      const base = svg("line", { class: "rule", x1: 0, x2: WIDE, y1: top + 20 + HIGH, y2: top + 20 + HIGH });
      const group = svg("g", {}, svg("text", { x: 0, y: top + 13 }, `weights of eight keys, ${title}`), bars, base);
      const show = (weights) => bars.forEach((bar, i) => {
        bar.setAttribute("height", HIGH * weights[i]);
        bar.setAttribute("y", top + 20 + HIGH * (1 - weights[i]));
      });
      return { group, show };
    });
    const numbers = el("div");

    const known = new Map(); // what has been drawn: wide vectors take longer than a frame
    function drawn(d_k) {
      const key = `${seed} ${d_k}`, next = random(seed);
      if (!known.has(key)) known.set(key, Array.from({ length: DRAWS }, () => products(d_k, next)));
      return known.get(key);
    }

    function draw() {
      const d_k = 2 ** width.value, plain = drawn(d_k);
      const divided = plain.map((row) => row.map((x) => x / Math.sqrt(d_k)));
      [plain, divided].forEach((rows, i) => panels[i].show(softmax(rows[0])));
      const [a, b] = [summary(plain), summary(divided)];
      numbers.replaceChildren(table(["", "not divided", "divided"], [
        ["spread of the scores", words(a.spread), words(b.spread)],
        ["largest of eight weights", words(a.largest), words(b.largest)],
        ["Σ w(1 − w), what learning sees", words(a.slope), words(b.slope)],
      ]));
      say(`At d_k ${d_k} the largest weight is ${words(a.largest)} without the division, ${words(b.largest)} with it.`);
    }
    const redraw = once(draw);
    const width = slider({ label: "d_k", min: 0, max: 10, value: 6, show: (x) => String(2 ** x), change: redraw });
    const again = button("Draw again", () => {
      seed += 1;
      redraw();
    });
    root.append(el("div", { class: "controls" }, width, again),
      canvas(WIDE, 2 * (HIGH + 24), "Two rows of bars: the weights of eight random keys, as the table says",
        panels.map((panel) => panel.group)),
      numbers, el("p", {}, `The bars are one query, the numbers means over ${DRAWS}.`));
    draw();
  }

  explorer("spread", "Random scores with and without the root", build);
  if (typeof module !== "undefined") module.exports = { products, slope, summary, KEYS, DRAWS };
})();
