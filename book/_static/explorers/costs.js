// Table 1 with its sizes to choose: operations of a layer, how many must wait, the longest path, and where two layers cost the same.
"use strict";

(() => {
  const { el, svg, set, write, renew, canvas, slider, choice, readings, fitted, path, plot, scientific, words, once } = globalThis.annotated;
  const NAMES = [
    "self-attention", "recurrent", "convolutional", "convolutional (dilated)", "convolutional (separable)",
    "self-attention (restricted)",
  ];
  const LINES = ["o thick", "hand", "", "", "dash", "o dash"]; // both kinds of dense convolution cost the same
  const DOUBLING = [...Array(14).keys()].flatMap((i) => [2 ** (i + 1), 3 * 2 ** i]); // 2, 3, 4, 6, 8, ...
  const VALUES = {
    n: [...DOUBLING, 2 ** 15], d: DOUBLING.filter((d) => d <= 2048),
    k: [3, 5, 7, 9, 15, 31], r: [3, 5, 9, 17, 33, 65, 129, 257, 513, 1025],
  };
  const START = { n: 64, d: 512, k: 3, r: 9 };
  const HEIGHT = 320;

  /** How many steps of so many places it takes from one end of n words to the other, if each layer's steps grow. */
  function layers(n, side, growth = 1) {
    if (growth === 1) return Math.ceil((n - 1) / side);
    let [depth, reach, step] = [0, 0, side];
    for (; reach < n - 1; depth++, step *= growth) reach += step;
    return depth;
  }

  /** The chapter's counts, in the order of NAMES. */
  function counted({ n, d, k, r }) {
    const w = Math.floor(r / 2);
    const block = Math.max(w, 1);
    const size = block + 2 * w; // of the window that a block of queries sees
    const side = (k - 1) / 2;
    return {
      operations: [2 * n * n * d, 8 * n * d * d, k * n * d * d, k * n * d * d, k * n * d + n * d * d, 2 * Math.ceil(n / block) * block * size * d],
      sequential: [2, n, 1, 1, 2, 2],
      path: [1, n, layers(n, side), layers(n, side, side + 1), layers(n, side), layers(n, w)],
      formula: ["2n²d", "8nd²", "knd²", "knd²", "knd + nd²", "≈ 3rnd"],
      level: [null, 4 * d, (k * d) / 2, (k * d) / 2, (k + d) / 2, size],
      where: [null, "4d", "kd/2", "kd/2", "(k + d)/2", "3(r − 1)/2"],
    };
  }

  /** What section 4 of the paper writes inside its O( ), taken for a number. */
  function published({ n, d, k, r }) {
    return {
      operations: [n * n * d, n * d * d, k * n * d * d, k * n * d * d, k * n * d + n * d * d, r * n * d],
      sequential: [1, n, 1, 1, 1, 1],
      path: [1, n, n / k, Math.log(n) / Math.log(k), n / k, n / r],
      formula: ["n²d", "nd²", "knd²", "knd²", "knd + nd²", "rnd"],
      level: [null, d, k * d, k * d, k + d, r],
      where: [null, "d", "kd", "kd", "k + d", "r"],
    };
  }

  const KINDS = { counted, published };
  const whole = (x) => (x < 1e6 ? words(x, 0) : scientific(x));
  const short = (x) => words(x, Number.isInteger(x) ? 0 : 1);

  /** The curves at one width; the frame is made anew where other powers of ten are needed. */
  function curves(width) {
    const frame = svg("g"), here = svg("path", { class: "wire dash" }), rings = svg("g");
    const lines = NAMES.map((_, i) => svg("path", { class: `wire ${LINES[i]}` }));
    const dots = NAMES.map((_, i) => svg("circle", { class: `dot ${LINES[i].startsWith("o") ? "o" : ""}`, r: 4 }));
    const drawing = canvas(width, HEIGHT, "", frame, here, lines, dots, rings);
    const last = VALUES.n.at(-1);
    let powers = "", x, y;

    function scale(low, high) {
      const decades = [...Array(high - low + 1).keys()].map((i) => [10 ** (low + i), i % 2 ? "" : scientific(10 ** (low + i), 0).split(" ").at(-1)]);
      const made = plot({
        width, height: HEIGHT, left: 44,
        x: { from: 2, to: last, log: true, label: "words in the sentence, n", ticks: [2, 16, 128, 1024, 8192].map((n) => [n, words(n, 0)]) },
        y: { from: 10 ** low, to: 10 ** high, log: true, label: "operations", ticks: decades },
      });
      [powers, x, y] = [`${low} ${high}`, made.x, made.y];
      renew(frame, ...made.frame.childNodes);
    }

    function show([sizes, count]) {
      const at = (n) => count({ ...sizes, n });
      const all = [...at(2).operations, ...at(last).operations].map(Math.log10);
      const [low, high] = [2 * Math.floor(Math.min(...all) / 2), 2 * Math.ceil(Math.max(...all) / 2)]; // so that it seldom moves
      if (powers !== `${low} ${high}`) scale(low, high);
      const now = count(sizes), along = VALUES.n.map((n) => [x(n), at(n).operations]);
      set(here, { d: `M${x(sizes.n)} ${y(10 ** low)}V${y(10 ** high)}` });
      lines.forEach((line, i) => set(line, { d: path(along.map(([place, operations]) => [place, y(operations[i])])) }));
      dots.forEach((dot, i) => set(dot, { cx: x(sizes.n), cy: y(now.operations[i]) }));
      renew(rings, ...now.level.filter((n) => n >= 2 && n <= last).map((n) =>
        svg("circle", { class: "ring", cx: x(n), cy: y(at(n).operations[0]), r: 6 })));
      set(drawing, { "aria-label": `Operations of each layer over the length of the sentence, both axes logarithmic; at n = ${words(sizes.n, 0)} self-attention takes ${whole(now.operations[0])} and a recurrent layer ${whole(now.operations[1])}.` });
    }
    return { drawing, show };
  }

  const swatch = (i) => svg("svg", { class: "drawing swatch", viewBox: "0 0 30 8", "aria-hidden": "true" }, svg("path", { class: `wire ${LINES[i]}`, d: "M1 4H29" }));

  function build(root, say) {
    const over = (name, label) => slider({
      label, min: 0, max: VALUES[name].length - 1, value: VALUES[name].indexOf(START[name]),
      show: (i) => words(VALUES[name][i], 0), change: () => redraw(),
    });
    const sliders = { n: over("n", "n, words"), d: over("d", "d, width"), k: over("k", "k, kernel"), r: over("r", "r, positions") };
    const kind = choice({ label: "numbers", options: { counted: "counted here", published: "Table 1, without factors" }, value: "counted", change: () => redraw() });
    const state = () => Object.fromEntries(Object.entries(sliders).map(([name, one]) => [name, VALUES[name][one.value]]));
    const drawing = fitted(curves, () => [state(), KINDS[kind.value]]);
    const redraw = once(show);
    const numbers = readings();
    const named = NAMES.map((name, i) => {
      const formula = el("span"), level = i ? el("small") : null; // self-attention costs as much as itself everywhere
      return { formula, level, cell: el("span", { class: "layer" }, name, el("small", {}, swatch(i), " ", formula), level) };
    });

    function show() {
      const now = KINDS[kind.value](state());
      const least = Math.min(...now.operations);
      const rows = NAMES.map((_, i) => {
        const operations = whole(now.operations[i]);
        const { formula, level, cell } = named[i];
        write(formula, now.formula[i]);
        if (level) write(level, `ring at n = ${now.where[i]} = ${short(now.level[i])}`);
        return [cell, now.operations[i] === least ? el("strong", {}, operations) : operations, short(now.sequential[i]), short(now.path[i])];
      });
      numbers.show(["layer", "operations", "in a row", "path"], rows);
      const cheapest = NAMES.filter((_, i) => now.operations[i] === least).join(" and ");
      say(`Fewest operations: ${cheapest}, ${whole(least)}; self-attention ${whole(now.operations[0])}, recurrent ${whole(now.operations[1])}`);
      drawing.redraw();
    }

    root.append(el("div", { class: "sliders" }, Object.values(sliders)), kind, drawing,
      el("p", { class: "note" }, "Rings: where self-attention costs as much as another layer. In a row: operations that must wait for one another. The fewest operations are bold."), numbers);
    show();
  }

  globalThis.annotated.explorer("costs", "The costs of six layers, with their sizes to choose", build);
  if (typeof module !== "undefined") module.exports = { NAMES, START, VALUES, counted, published };
})();
