// Chapter 4: one wide matrix seen as h heads, one head's attention, and the heads joined again by W_O.
"use strict";

(() => {
  const { dot, softmax, matmul, random, normal, shade, words, el, svg, set, write, canvas, once, slider, choice, readings, explorer } = globalThis.annotated;
  const WORDS = "the dog sees the cat".split(" "), T = WORDS.length, D = 12; // d_model
  const next = random(11);
  const wide = (n) => Array.from({ length: n }, () => Array.from({ length: D }, () => Math.round(10 * normal(next)) / 10));
  const GIVEN = { Q: wide(T), K: wide(T), V: wide(T) }, W_O = wide(D); // made up: only where numbers go matters here
  const LEFT = 46, CELL = 20, HIGH = 20, GAP = 6;

  /** (T, h * d) viewed as (h, T, d): head i has the columns i * d to (i + 1) * d of every row. */
  const split = (A, h) => Array.from({ length: h }, (_, i) => A.map((row) => row.slice((i * row.length) / h, ((i + 1) * row.length) / h)));

  /** (h, T, d) to (T, h * d): the split undone. */
  const join = (heads) => heads[0].map((_, t) => heads.flatMap((head) => head[t]));

  /** Attention of every head, their outputs joined, and what W_O makes of them. */
  function attend({ Q, K, V }, h, O) {
    const [q, k, v] = [Q, K, V].map((A) => split(A, h)), root = Math.sqrt(q[0][0].length);
    const weights = q.map((head, i) => head.map((query) => softmax(k[i].map((key) => dot(query, key) / root))));
    const heads = weights.map((rows, i) => matmul(rows, v[i])), joined = join(heads);
    return { weights, heads, joined, output: matmul(joined, O) };
  }

  /** What each head adds to the output of word t: its columns of the joined row times its rows of W_O. */
  const shares = (heads, t, O) => heads.map((head, i) => matmul([head[t]], O.slice(i * head[t].length, (i + 1) * head[t].length))[0]);

  /** T rows of D cells, the darker the larger the number, in h groups that stand apart; one head and one word framed. */
  function matrix(top, hue, title) {
    const cells = Array.from({ length: T }, () => Array.from({ length: D }, () => svg("rect", { class: `${hue}fill`, width: CELL, height: HIGH })));
    const frame = svg("rect", { class: "ring" }), word = svg("rect", { class: "ring", height: HIGH });
    const name = svg("text", { class: hue, x: 0, y: top - 8 }, title);
    const rows = WORDS.map((text, t) => svg("text", { x: LEFT - 6, y: top + t * HIGH + 15, "text-anchor": "end" }, text));
    function show(numbers, h, head, t) {
      const d = D / h, gap = h > 1 ? Math.min(GAP, 60 / (h - 1)) : 0, x = (j) => LEFT + j * CELL + Math.floor(j / d) * gap;
      cells.forEach((row, i) => row.forEach((cell, j) =>
        set(cell, { x: x(j), y: top + i * HIGH, style: `fill-opacity: ${Math.min(0.9, 0.06 + Math.abs(numbers[i][j]) / 2.6).toFixed(2)}` })));
      set(frame, { x: x(head * d) - 1.5, y: top - 1.5, width: d * CELL + 3, height: T * HIGH + 3 });
      set(word, { x: LEFT, y: top + t * HIGH, width: x(D - 1) + CELL - LEFT });
    }
    return { group: svg("g", {}, name, rows, cells.flat(), word, frame), name, show };
  }

  function build(root, say) {
    const MAP = 154, SIZE = 34; // where the weights stand, and one of them
    const before = matrix(26, "q", ""), after = matrix(342, "o", "");
    const grid = Array.from({ length: T }, (_, t) => Array.from({ length: T }, (_, s) => {
      const place = { x: LEFT + s * SIZE, y: MAP + 20 + t * 26 };
      return { ground: svg("rect", { ...place, width: SIZE, height: 26 }), text: svg("text", { x: place.x + SIZE / 2, y: place.y + 18, "text-anchor": "middle" }) };
    }));
    const title = svg("text", { x: 0, y: MAP - 4 });
    const names = WORDS.flatMap((word, i) => [svg("text", { class: "k", x: LEFT + (i + 0.5) * SIZE, y: MAP + 14, "text-anchor": "middle" }, word),
      svg("text", { class: "q", x: LEFT - 6, y: MAP + 38 + 26 * i, "text-anchor": "end" }, word)]);
    const frame = svg("rect", { class: "ring", x: LEFT, width: T * SIZE, height: 26 });
    const numbers = readings(), shape = el("p", { class: "shape" }), redraw = once(draw);
    const many = choice({ label: "heads h", value: 3, options: Object.fromEntries([1, 2, 3, 4, 6, 12].map((h) => [h, h])), change() {
      which.querySelector("input").max = many.value;
      which.value = Math.min(which.value, many.value);
      redraw();
    } });
    const which = slider({ label: "head", min: 1, max: 3, value: 1, change: redraw });
    const at = slider({ label: "word", min: 0, max: T - 1, value: 1, show: (t) => `${t} ${WORDS[t]}`, change: redraw });

    function draw() {
      const h = Number(many.value), head = which.value - 1, t = at.value, d = D / h;
      const { weights, heads, joined, output } = attend(GIVEN, h, W_O), share = shares(heads, t, W_O)[head];
      write(before.name, `Q, its ${D} columns as ${h} × ${d}: strong colour, large number`);
      write(after.name, "outputs of the heads, side by side again");
      before.show(GIVEN.Q, h, head, t);
      after.show(joined, h, head, t);
      write(title, `weights of head ${head + 1}: every word attends to all five`);
      weights[head].forEach((row, i) => row.forEach((w, s) => {
        const { ground, text } = grid[i][s];
        set(ground, { class: shade(w) });
        set(text, { class: w < 0.45 ? "on" : "under" });
        write(text, words(w).replace(/^0/, "").replace("1.00", "1"));
      }));
      set(frame, { y: MAP + 20 + t * 26 });
      write(shape, `(T, d_model) = (${T}, ${D}) → (h, T, d_k) = (${h}, ${T}, ${d}) → weights (${h}, ${T}, ${T}) → joined (${T}, ${D}) → times W_O (${T}, ${D})`);
      numbers.show([`feature of ${WORDS[t]}`, 0, 1, 2, 3], [
        [`head ${head + 1} × its rows of W_O`, share], ["all heads, the sum", output[t]]].map(([name, row]) => [name, ...row.slice(0, 4).map((v) => words(v))]));
      say(`Head ${head + 1} of ${h} has ${d} of ${D} columns; ${WORDS[t]} looks most at ${WORDS[weights[head][t].indexOf(Math.max(...weights[head][t]))]}.`);
    }
    root.append(many, el("div", { class: "controls" }, which, at), shape,
      canvas(360, 446, "Queries in groups of columns, the heads' outputs in the same groups, and the weights of one head; one word and one head framed",
        before.group, title, names, grid.flat().flatMap(({ ground, text }) => [ground, text]), frame, after.group), numbers);
    draw();
  }

  explorer("heads", "One matrix as several heads, and back", build);
  if (typeof module !== "undefined") module.exports = { split, join, attend, shares, GIVEN, W_O };
})();
