// Chapter 2: queries, keys and values in the plane, to be dragged; what the softmax makes of them.
"use strict";

(() => {
  const { dot, softmax, clamp, words, el, svg, set, canvas, once, slider, choice, drag, readings, explorer } = globalThis.annotated;
  const SIDE = 174, MIDDLE = SIDE / 2, UNIT = 26, REACH = 3; // of one plane, in units of the drawing
  const START = {
    q: [[1.6, 1.2]],
    k: [[2, 0.4], [0.2, 2.2], [-1.8, -1]],
    v: [[-2, -1.6], [0.2, 2], [2.2, -1.2]],
  };
  const KINDS = { q: "query", k: "key", v: "value" };

  /** Equation 1 for one query: scores divided by `divisor`, their softmax, and the mean of the values by it. */
  function lookup(query, keys, values, divisor) {
    const products = keys.map((key) => dot(query, key));
    const scores = products.map((product) => product / divisor);
    const weights = softmax(scores);
    const output = values[0].map((_, i) => dot(weights, values.map((value) => value[i])));
    return { products, scores, weights, output };
  }

  function plane(left, title) {
    const at = (x, y) => [left + MIDDLE + UNIT * x, MIDDLE + 20 - UNIT * y];
    const back = (x, y) => [(x - left - MIDDLE) / UNIT, (MIDDLE + 20 - y) / UNIT].map((c) => clamp(c, -REACH, REACH));
    const [cx, cy] = at(0, 0);
    const ground = svg("g", {},
      svg("rect", { class: "box", x: left + 2, y: 20 + 2, width: SIDE - 4, height: SIDE - 4, rx: 4 }),
      svg("line", { class: "rule", x1: left + 6, x2: left + SIDE - 6, y1: cy, y2: cy }),
      svg("line", { class: "rule", x1: cx, x2: cx, y1: 26, y2: 16 + SIDE }),
      svg("text", { x: left + 4, y: 13 }, title));
    return { at, back, ground, left };
  }

  function build(root, say) {
    const now = structuredClone(START);
    const left = plane(0, "query and keys"), right = plane(SIDE + 12, "values and output");
    const wires = svg("g"), marks = svg("g");
    const output = svg("circle", { class: "obar", r: 6 });
    const outputName = svg("text", { class: "o strong over", "text-anchor": "end" }, "output");
    const drawn = [];
    const centre = () => [0, 1].map((i) => now.v.reduce((sum, point) => sum + point[i] / now.v.length, 0));

    for (const kind of ["k", "q", "v"]) {
      now[kind].forEach((point, i) => {
        const area = kind === "v" ? right : left;
        const name = kind === "q" ? "q" : `${kind}${i + 1}`;
        const arrow = svg("line", { class: `wire ${kind}` });
        const label = svg("text", { class: `${kind} strong`, "text-anchor": "middle" }, name);
        const mark = svg("g", {},
          svg("circle", { r: 17, fill: "transparent" }), svg("circle", { class: `${kind}bar`, r: 6 }));
        const move = (x, y) => {
          [point[0], point[1]] = area.back(x, y);
          redraw();
        };
        drag(mark, { label: `${KINDS[kind]} ${name}`, at: () => area.at(...point), move });
        if (kind !== "v") wires.append(arrow);
        marks.append(label, mark);
        drawn.push(() => {
          const [x, y] = area.at(...point), [x0, y0] = area.at(0, 0);
          set(arrow, { x1: x0, y1: y0, x2: x, y2: y });
          const told = point.map((c) => words(c, 1)).join(", ");
          set(mark, { transform: `translate(${x} ${y})`, "aria-valuemin": -REACH, "aria-valuemax": REACH, "aria-valuenow": point[0], "aria-valuetext": told });
          const [fx, fy] = area === left ? [x0, y0] : area.at(...centre()); // names stand on the outer side
          const far = Math.hypot(x - fx, y - fy) || 1;
          set(label, {
            x: clamp(x + (17 * (x - fx)) / far, area.left + 14, area.left + SIDE - 14),
            y: clamp(y + (17 * (y - fy)) / far, 34, SIDE + 10) + 5,
          });
        });
      });
    }
    const ropes = now.v.map(() => svg("line", { class: "wire o" }));
    wires.append(...ropes);
    const numbers = readings();
    const scale = choice({
      label: "Scores", value: "root", options: { root: "divided by √d_k = √2", plain: "not divided" },
      change: () => redraw(),
    });
    const heat = slider({
      label: "Temperature", min: -2, max: 2, step: 0.25, value: 0, show: (x) => words(2 ** x, 2), change: () => redraw(),
    });

    function draw() {
      const divisor = (scale.value === "root" ? Math.SQRT2 : 1) * 2 ** heat.value;
      const { products, scores, weights, output: mean } = lookup(now.q[0], now.k, now.v, divisor);
      for (const one of drawn) one();
      const [x, y] = right.at(...mean);
      ropes.forEach((rope, i) => {
        const [vx, vy] = right.at(...now.v[i]);
        set(rope, { x1: vx, y1: vy, x2: x, y2: y, style: `stroke-width: ${0.5 + 7 * weights[i]}` });
      });
      set(output, { cx: x, cy: y });
      set(outputName, { x: clamp(x - 11, SIDE + 72, 2 * SIDE + 8), y: clamp(y - 3, 34, SIDE + 14) });
      numbers.show(["", "q · k", "score", "weight"], products.map((product, i) =>
        [`k${i + 1}, v${i + 1}`, words(product), words(scores[i]), words(weights[i])]));
      const most = weights.indexOf(Math.max(...weights));
      say(`Key ${most + 1} has the largest weight, ${words(weights[most])}; the output is ${words(mean[0])}, ${words(mean[1])}.`);
    }
    const redraw = once(draw);
    root.append(
      canvas(2 * SIDE + 12, SIDE + 22, { group: "A plane with the query and the keys, and one with the values and the output" },
        left.ground, right.ground, wires, marks, outputName, output),
      el("p", { class: "note" }, "Drag a point, or choose one with the Tab key and move it with the arrow keys. The output follows by itself."),
      el("div", { class: "controls" }, scale, heat), numbers);
    draw();
  }

  explorer("lookup", "A query, three keys and three values, to be dragged", build);
  if (typeof module !== "undefined") module.exports = { lookup, START };
})();
