// Chapter 2: why the root of d_k. Random queries and keys, with and without the division, at any width.
"use strict";

(() => {
  const { softmax, random, normal, mean, words, el, svg, set, canvas, once, slider, button, readings, explorer } = globalThis.annotated;
  const WORDS = ["the", "dog", "sees", "the", "cat"]; // a key for each
  const DRAWS = 64, WIDEST = 10; // queries over which the numbers are means; d_k is 2 ** WIDEST at most
  const FEATURES = 32; // of all vectors, drawn in one frame

  /**
   * The inner products of many queries with a key for each word, all features normal with mean 0 and variance 1.
   *
   * grow() gives all vectors one more feature; widths[i] are the products when they have 2 ** i of them.
   */
  function products(seed, draws = DRAWS) {
    const next = random(seed), widths = [];
    const sums = Array.from({ length: draws }, () => WORDS.map(() => 0));
    let d_k = 0;
    function grow() {
      for (const row of sums) {
        const feature = normal(next);
        for (let i = 0; i < row.length; i += 1) row[i] += feature * normal(next);
      }
      d_k += 1;
      if (d_k === 2 ** widths.length) widths.push(sums.map((row) => [...row]));
    }
    return { widths, grow };
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
    let seed = 1, drawn = products(seed), late = false;
    const WIDE = 360, HIGH = 104, ROW = HIGH + 48, GAP = 12, BAR = (WIDE - GAP * (WORDS.length + 1)) / WORDS.length;
    const panels = ["not divided", "divided by √d_k"].map((title, row) => {
      const top = row * ROW;
      const bars = WORDS.map((_, i) => svg("rect", { class: "bar", x: GAP + i * (BAR + GAP), width: BAR }));
      const names = WORDS.map((word, i) =>
        svg("text", { class: "small k", x: GAP + i * (BAR + GAP) + BAR / 2, y: top + HIGH + 36, "text-anchor": "middle" }, word));
      const base = svg("line", { class: "rule", x1: 0, x2: WIDE, y1: top + 20 + HIGH, y2: top + 20 + HIGH });
      const group = svg("g", {}, svg("text", { x: 0, y: top + 13 }, `weights of five keys, ${title}`), bars, base, names);
      const show = (weights) => bars.forEach((bar, i) => {
        set(bar, { height: HIGH * weights[i], y: top + 20 + HIGH * (1 - weights[i]) });
      });
      return { group, show };
    });
    const numbers = readings();

    function widen() { // a few features a frame, since all of them take longer than one
      for (let i = 0; i < FEATURES && drawn.widths.length <= WIDEST; i += 1) drawn.grow();
      if (late) draw();
      if (drawn.widths.length <= WIDEST) requestAnimationFrame(widen);
    }

    function draw() {
      const d_k = 2 ** width.value, plain = drawn.widths[width.value];
      late = !plain;
      if (late) return; // widen() will come to it
      const divided = plain.map((row) => row.map((x) => x / Math.sqrt(d_k)));
      [plain, divided].forEach((rows, i) => panels[i].show(softmax(rows[0])));
      const [a, b] = [summary(plain), summary(divided)];
      numbers.show(["", "not divided", "divided"], [
        ["spread of the scores", words(a.spread), words(b.spread)],
        ["largest of five weights", words(a.largest), words(b.largest)],
        ["Σ w(1 − w), slope of the softmax", words(a.slope), words(b.slope)],
      ]);
      say(`At d_k ${d_k} the largest weight is ${words(a.largest)} without the division, ${words(b.largest)} with it.`);
    }
    const redraw = once(draw);
    const width = slider({ label: "d_k", min: 0, max: WIDEST, value: 6, show: (x) => String(2 ** x), change: redraw });
    const again = button("Draw again", () => {
      const done = drawn.widths.length > WIDEST;
      drawn = products(seed += 1);
      late = true;
      if (done) widen();
    });
    root.append(el("div", { class: "controls" }, width, again),
      canvas(WIDE, 2 * ROW, "Two rows of bars: the weights that one random query gives to five random keys, above without the division and below with it; the table has means over many queries",
        panels.map((panel) => panel.group)),
      numbers, el("p", {}, `The bars are one query, the numbers means over ${DRAWS}.`));
    while (!drawn.widths[width.value]) drawn.grow();
    draw();
    requestAnimationFrame(widen);
  }

  explorer("spread", "Random scores with and without the root", build);
  if (typeof module !== "undefined") module.exports = { products, slope, summary, WORDS, DRAWS };
})();
