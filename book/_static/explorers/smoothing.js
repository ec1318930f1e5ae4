// Label smoothing under the reader's hand: five logits and eps_ls, the target against the prediction, the loss and its floor.
"use strict";

(() => {
  const { el, svg, set, write, canvas, slider, button, readings, fitted, softmax, words, once } = globalThis.annotated;
  const TOKENS = ["der", "Hund", "Katze", "sieht", "eos"];
  const RIGHT = 1;
  const START = { eps: 0.1, logits: [0.5, 3, 1.5, 0, -0.5] };
  const REACH = 8; // of a logit, to either side
  const HEIGHT = 240;

  const sum = (list) => list.reduce((a, b) => a + b, 0);

  /** What is left to the right token, and what every token gets. */
  const target = (eps, vocab, right) => Array.from({ length: vocab }, (_, i) => eps / vocab + (i === right ? 1 - eps : 0));

  /** Target and prediction, the loss between them, what the right token adds to it, and what no prediction gets below. */
  function smoothed(logits, right, eps) {
    const q = target(eps, logits.length, right);
    const p = softmax(logits);
    const top = Math.max(...logits);
    const all = top + Math.log(sum(logits.map((z) => Math.exp(z - top))));
    const parts = q.map((share, i) => share * (all - logits[i]));
    const floor = -sum(q.map((share) => (share > 0 ? share * Math.log(share) : 0)));
    return { q, p, loss: sum(parts), right: parts[right], floor };
  }

  /** So many moves against the gradient, which is p − q. */
  function downhill(logits, right, eps, steps, rate = 1) {
    const q = target(eps, logits.length, right);
    for (let step = 0; step < steps; step++) {
      const p = softmax(logits);
      logits = logits.map((z, i) => z + rate * (q[i] - p[i]));
    }
    return logits;
  }

  /** The bars of q and p at one width, to be moved. */
  function bars(width) {
    const [wide, zero, tall] = [width / TOKENS.length, HEIGHT - 58, HEIGHT - 84];
    const bar = (left, kind) => {
      const block = svg("rect", { class: kind, x: left, width: wide * 0.38 });
      const number = svg("text", { class: "small", "text-anchor": "middle", x: left + wide * 0.19 });
      const show = (share) => {
        set(block, { y: zero - share * tall, height: share * tall });
        set(number, { y: zero - share * tall - 6 });
        write(number, words(share, 2));
      };
      return { parts: [block, number], show };
    };
    const columns = TOKENS.map((token, i) => {
      const middle = (i + 0.5) * wide;
      const given = bar(middle - wide * 0.42, "ofill"), found = bar(middle + wide * 0.04, "block");
      const name = svg("text", { class: i === RIGHT ? "strong" : "", "text-anchor": "middle", x: middle, y: zero + 19 }, token);
      const arrow = svg("text", { class: "small", "text-anchor": "middle", x: middle, y: zero + 38 });
      const show = (q, p) => {
        const push = q - p;
        given.show(q);
        found.show(p);
        write(arrow, `${push < -0.005 ? "↓" : push > 0.005 ? "↑" : "·"} ${words(Math.abs(push), 2)}`);
      };
      return { parts: [...given.parts, ...found.parts, name, arrow], show };
    });
    const drawing = canvas(width, HEIGHT, "",
      svg("path", { class: "wire", d: `M4 ${zero}H${width - 4}` }), columns.map(({ parts }) => parts).flat(),
      svg("text", { class: "small soft", x: 4, y: HEIGHT - 3 }, "arrows: how the loss pushes each logit, q − p"));
    const show = ({ q, p }) => {
      columns.forEach((column, i) => column.show(q[i], p[i]));
      set(drawing, { "aria-label": `Target against prediction: ${TOKENS.map((token, i) => `${token} ${words(q[i])} against ${words(p[i])}`).join(", ")}.` });
    };
    return { drawing, show };
  }

  function build(root, say) {
    const eps = slider({ label: "eps_ls", min: 0, max: 0.5, step: 0.01, value: START.eps, show: (x) => words(x, 2), change: () => redraw() });
    const logits = TOKENS.map((token, i) => slider({
      label: `logit of ${token}`, min: -REACH, max: REACH, step: 0.01, value: START.logits[i], show: (x) => words(x, 2), change: () => redraw(),
    }));
    const now = () => smoothed(logits.map((one) => one.value), RIGHT, eps.value);
    const drawing = fitted(bars, now);
    const redraw = once(show);
    const numbers = readings();
    const lost = el("strong");
    const first = [el("strong", {}, "loss"), lost];
    const put = (values) => {
      logits.forEach((one, i) => (one.value = values[i]));
      redraw();
    };

    function show() {
      const { loss, right, floor } = now();
      write(lost, words(loss, 3));
      numbers.show(["in nats", ""], [
        first,
        [`the right word, ${TOKENS[RIGHT]}`, words(right, 3)],
        ["the other four", words(loss - right, 3)],
        ["floor, where p is q", words(floor, 3)],
        ["above the floor", words(loss - floor, 3)],
      ]);
      say(`Loss ${words(loss, 3)}, floor ${words(floor, 3)}`);
      drawing.redraw();
    }

    root.append(
      el("div", { class: "controls" }, eps,
        button("100 steps downhill", () => put(downhill(logits.map((one) => one.value), RIGHT, eps.value, 100))),
        button("as at first", () => {
          eps.value = START.eps;
          put(START.logits);
        })),
      drawing,
      el("p", { class: "note" }, `Left, coloured: the target q, with ${TOKENS[RIGHT]} as the right word. Right, grey: the prediction p, the softmax of the logits.`),
      el("div", { class: "controls" }, el("div", { class: "sliders" }, logits), numbers),
    );
    show();
  }

  globalThis.annotated.explorer("smoothing", "Label smoothing, with its share and the logits to choose", build);
  if (typeof module !== "undefined") module.exports = { TOKENS, RIGHT, START, target, smoothed, downhill };
})();
