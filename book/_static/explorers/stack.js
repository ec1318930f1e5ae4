// Chapter 5: five vectors through a stack of encoder layers with random weights; residual and norm on and off.
"use strict";

(() => {
  const { dot, softmax, random, normal, mean, clamp, words, scientific, el, svg, set, write, renew, canvas, once, slider, choice, toggle, readings, explorer } = globalThis.annotated;
  const T = 5, D = 16, D_FF = 32, EPS = 1e-6, DEEPEST = 16; // positions, features, width of the network, epsilon, layers
  const ORDERS = { after: "after the sum", before: "before the sub-layer", none: "nowhere" };

  /** Rows of A against columns of B, in loops: a slider waits for thousands of these. */
  function matmul(A, B) {
    const wide = B[0].length;
    return A.map((row) => {
      const out = new Array(wide);
      for (let j = 0; j < wide; j += 1) out[j] = 0.0;
      for (let k = 0; k < row.length; k += 1) {
        const factor = row[k], from = B[k];
        for (let j = 0; j < wide; j += 1) out[j] += factor * from[j];
      }
      return out;
    });
  }
  /** Rows of A against rows of B: A times B transposed, without a copy of B that is turned. */
  function against(A, B) {
    return A.map((row) => B.map((other) => {
      let sum = 0;
      for (let k = 0; k < row.length; k += 1) sum += row[k] * other[k];
      return sum;
    }));
  }
  const turned = (A) => A[0].map((_, j) => A.map((row) => row[j]));
  const each = (f, A, B) => A.map((row, t) => row.map((v, i) => f(v, B[t][i])));
  const plus = (first, ...others) => others.reduce((sum, A) => each((a, b) => a + b, sum, A), first);

  // ---- each part returns its output and `back`, which makes the gradient of its input of that of its output

  /** LayerNorm with gain 1 and bias 0. */
  function norm(x) {
    const centred = x.map((row) => {
      const level = mean(row);
      return row.map((v) => v - level);
    });
    const root = centred.map((row) => Math.sqrt(dot(row, row) / row.length + EPS));
    const y = centred.map((row, t) => row.map((v) => v / root[t]));
    const back = (g) => g.map((row, t) => {
      const level = mean(row), along = dot(row, y[t]) / row.length;
      return row.map((v, i) => (v - level - along * y[t][i]) / root[t]);
    });
    return { y, back };
  }

  /** Self-attention with one head. */
  function attend(x, { Q, K, V }) {
    const [q, k, v] = [Q, K, V].map((W) => matmul(x, W)), root = Math.sqrt(Q[0].length);
    const weights = against(q, k).map((row) => softmax(row.map((s) => s / root)));
    const back = (g) => {
      const towards = against(g, v); // the weights' gradient
      const scores = weights.map((row, t) => row.map((w, s) => (w * (towards[t][s] - dot(row, towards[t]))) / root));
      return plus(against(matmul(scores, k), Q), against(matmul(turned(scores), q), K),
        against(matmul(turned(weights), g), V));
    };
    return { y: matmul(weights, v), back };
  }

  /** The feed-forward network, without biases. */
  function network(x, { W_1, W_2 }) {
    const hidden = matmul(x, W_1), kept = hidden.map((row) => row.map((v) => Math.max(0, v)));
    const back = (g) => against(each((v, h) => (h > 0 ? v : 0), against(g, W_2), hidden), W_1);
    return { y: matmul(kept, W_2), back };
  }

  /** One sub-layer f with its residual connection, if any, and its norm, if any. */
  function wrap(x, f, order, residual) {
    const before = order === "before" ? norm(x) : { y: x, back: (g) => g };
    const inside = f(before.y), sum = residual ? plus(x, inside.y) : inside.y;
    const after = order === "after" ? norm(sum) : { y: sum, back: (g) => g };
    const back = (g) => {
      const at = after.back(g), branch = before.back(inside.back(at));
      return residual ? plus(at, branch) : branch;
    };
    return { y: after.y, back };
  }

  const size = (A) => Math.sqrt(mean(A.map((row) => dot(row, row) / row.length)));
  function likeness(A) {
    const unit = A.map((row) => row.map((v) => v / Math.sqrt(dot(row, row))));
    return (A.length * mean(against(unit, unit).flat()) - 1) / (A.length - 1); // without the cosine of each with itself
  }

  /**
   * Size and likeness at the input and after each layer, and for the first N layers as a stack of their own the size of
   * each gradient; the loss is the sum of upstream times the output.
   */
  function stacked(x, layers, upstream, order, residual) {
    const states = [x], parts = [];
    for (const layer of layers) {
      const first = wrap(states.at(-1), (z) => attend(z, layer), order, residual);
      const second = wrap(first.y, (z) => network(z, layer), order, residual);
      parts.push([first, second]);
      states.push(second.y);
    }
    function gradient(N) {
      let g = order === "before" ? norm(states[N]).back(upstream) : upstream;
      const gradients = [g];
      for (const [first, second] of parts.slice(0, N).reverse()) gradients.unshift((g = first.back(second.back(g))));
      return gradients.map((one) => Math.hypot(...one.flat()));
    }
    return { size: states.map(size), likeness: states.map(likeness), gradient };
  }

  /** The same for all of its layers. */
  function run(x, layers, upstream, order, residual) {
    const stack = stacked(x, layers, upstream, order, residual);
    return { ...stack, gradient: stack.gradient(layers.length) };
  }

  /** Input, layers and upstream gradient from one seed: normal numbers, and Glorot's weights times `scale`. */
  function draw(seed, N, scale) {
    const next = random(seed);
    const gaussian = () => Array.from({ length: T }, () => Array.from({ length: D }, () => normal(next)));
    const glorot = (a, b) => Array.from({ length: a }, () => Array.from({ length: b }, () => scale * Math.sqrt(6 / (a + b)) * (2 * next() - 1)));
    const x = gaussian(), upstream = gaussian();
    const layers = Array.from({ length: N }, () =>
      ({ Q: glorot(D, D), K: glorot(D, D), V: glorot(D, D), W_1: glorot(D, D_FF), W_2: glorot(D_FF, D) }));
    return { x, upstream, layers };
  }

  // ---- the page

  const KINDS = { size: "size of the vectors", gradient: "their gradient", likeness: "likeness of five words" };
  const LEFT = 40, WIDE = 316, TOP = 34, HIGH = 150, DECADES = 6;

  function build(root, say) {
    const plain = (d) => svg("path", { class: "wire", d });
    const box = (x, y, name, wide) => svg("g", {}, svg("rect", { class: "box", x, y, width: wide, height: 28, rx: 6 }),
      svg("text", { x: x + wide / 2, y: y + 19, "text-anchor": "middle" }, name));
    const path = svg("path", { class: "wire thick", d: "M40 70H238" }), sum = svg("g", {},
      svg("circle", { class: "box", cx: 238, cy: 70, r: 10 }), svg("path", { class: "wire", d: "M232 70h12M238 64v12" }));
    const first = box(62, 22, "norm", 54), last = box(268, 56, "norm", 54), formula = svg("text", { class: "code", x: 0, y: 13 });
    const circuit = canvas(360, 92, "One sub-layer f with its residual path and its norm, as the formula says", formula,
      svg("path", { class: "wire thick", d: "M10 70H40M238 70H350" }), plain("M40 70V36H238V70"), path, sum, first, box(134, 22, "f", 60), last);
    const lines = Object.keys(ORDERS).flatMap((order) => [true, false].map((residual) => ({ order, residual, path: svg("path", { class: "wire" }) })));
    const axis = svg("g"), title = svg("text", { x: 0, y: 13 }), numbers = readings(), redraw = once(show);
    const dots = Array.from({ length: DEEPEST + 1 }, () => svg("circle", { class: "obar", r: 3.5 }));
    const residual = toggle({ label: "residual connection", value: true, change: redraw });
    const order = choice({ label: "Norm", value: "after", options: ORDERS, change: redraw });
    const kind = choice({ label: "Show", value: "size", options: KINDS, change: redraw });
    const depth = slider({ label: "layers N", min: 1, max: DEEPEST, value: 12, change: redraw });
    const scale = slider({ label: "weights times", min: -2, max: 2, step: 0.5, value: 0, show: (v) => words(2 ** v), change: redraw });

    const { x, upstream, layers } = draw(1, DEEPEST, 1); // a stack of fewer layers is the beginning of this one
    const known = new Map(); // what was worked out: all six stacks take longer than a frame
    const kept = (key, make) => known.get(key) ?? known.set(key, make()).get(key);
    const times = (factor) => (layer) => Object.fromEntries(Object.entries(layer).map(([name, W]) => [name, W.map((row) => row.map((w) => factor * w))]));
    const scaled = () => kept(scale.value, () => layers.map(times(2 ** scale.value)));
    const stackOf = (line) => `${scale.value} ${line.order} ${line.residual}`;
    const keyOf = (line) => (kind.value === "gradient" ? `${stackOf(line)} ${depth.value}` : stackOf(line));
    function curve(line, which) {
      const N = depth.value, stack = kept(stackOf(line), () => stacked(x, scaled(), upstream, line.order, line.residual));
      return which === "gradient" ? kept(`${stackOf(line)} ${N}`, () => stack.gradient(N)) : stack[which].slice(0, N + 1);
    }
    const up = (v) => TOP + HIGH * (kind.value === "likeness" ? 1 - clamp(v, 0, 1) : 0.5 - clamp(Math.log10(v), -DECADES, DECADES) / (2 * DECADES));
    const along = (l) => LEFT + (WIDE * l) / depth.value;
    const beyond = (v) => kind.value !== "likeness" && !(Math.abs(Math.log10(v)) <= DECADES);
    function inside(values) { // a line ends where it leaves the frame
      const last = values.findIndex(beyond);
      return last < 0 ? values : values.slice(0, last + 1);
    }
    const trace = (line) => set(line.path, { d: inside(curve(line, kind.value)).map((v, l) => `${l ? "L" : "M"}${along(l).toFixed(2)} ${up(v).toFixed(2)}`).join("") });
    let frame = 0, drawn = null;
    function scaling(linear) {
      const ticks = linear ? [0, 0.5, 1] : [-6, -3, 0, 3, 6];
      renew(axis, ...ticks.flatMap((tick) => {
        const y = up(linear ? tick : 10 ** tick);
        const name = linear ? [String(tick)] : ["10", svg("tspan", { dy: -5, "font-size": 12.5 }, String(tick).replace("-", "\u2212"))];
        return [svg("line", { class: "rule", x1: LEFT, x2: LEFT + WIDE, y1: y, y2: y }), svg("text", { class: "soft", x: LEFT - 4, y: y + 5, "text-anchor": "end" }, ...name)];
      }));
    }
    function others() { // the thin lines that are still missing, one a frame
      const line = lines.find((one) => !known.has(keyOf(one)));
      if (!line) return;
      trace(line);
      frame = requestAnimationFrame(others);
    }

    function show() {
      const N = depth.value;
      const text = order.value === "after" ? ["norm(x + f(x))", "norm(f(x))"] : order.value === "before" ? ["x + f(norm(x))", "f(norm(x))"] : ["x + f(x)", "f(x)"];
      write(formula, text[residual.value ? 0 : 1]);
      for (const [part, on] of [[path, residual.value], [sum, residual.value], [first, order.value === "before"], [last, order.value === "after"]]) {
        set(part, { visibility: on ? "visible" : "hidden" });
      }
      if (drawn !== (kind.value === "likeness")) scaling(drawn = kind.value === "likeness");
      write(title, `${KINDS[kind.value]}, layer 0 to ${N}; thin: other stacks`);
      const chosen = lines.find((line) => line.order === order.value && line.residual === residual.value);
      const mine = Object.fromEntries(Object.keys(KINDS).map((which) => [which, curve(chosen, which)]));
      for (const line of lines) {
        set(line.path, { class: line === chosen ? "wire thick o" : "wire" });
        if (known.has(keyOf(line))) trace(line);
      }
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(others);
      dots.forEach((dot, l) => set(dot, l > N || beyond(mine[kind.value][l]) ? { visibility: "hidden" } : { visibility: "visible", cx: along(l), cy: up(mine[kind.value][l]) }));
      const short = (v) => (v !== 0 && (v >= 1e4 || v < 0.01) ? scientific(v, 1) : words(v));
      const at = [...new Set([0, Math.round(N / 2), N])];
      numbers.show(["layer", ...at], Object.entries(KINDS).map(([key, name]) => [name, ...at.map((l) => short(mine[key][l]))]));
      say(`${formula.textContent}: after ${N} layers the size is ${short(mine.size[N])}; the gradient at layer 0 is ${short(mine.gradient[0])}; the likeness is ${words(mine.likeness[N])}.`);
    }
    root.append(el("div", { class: "controls" }, residual, order), circuit, kind, el("div", { class: "controls" }, depth, scale),
      canvas(360, TOP + HIGH + 8, "The chosen stack as a thick line with dots, the five others thin", title, axis, lines.map((line) => line.path), dots),
      el("p", { class: "note" }, "Thick: the stack that is chosen. Thin: the five others that the residual connection and the norm can make. "
        + "The gradient is that of a random weighting of the outputs; with the norm before, they pass one more norm, as such a stack has at its end."), numbers);
    show();
  }

  explorer("stack", "A stack of layers, part by part", build);
  if (typeof module !== "undefined") module.exports = { norm, attend, network, wrap, run, draw };
})();
