// Label smoothing under the reader's hand: five logits and eps_ls, the target against the prediction, the loss and its floor.
"use strict";

(() => {
  const { el, svg, renew, canvas, slider, button, table, fitted, softmax, words, once } = globalThis.annotated;
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

  function draw(width, { q, p }) {
    const [wide, zero, tall] = [width / TOKENS.length, HEIGHT - 58, HEIGHT - 84];
    const bar = (share, left, kind) => [
      svg("rect", { class: kind, x: left, y: zero - share * tall, width: wide * 0.38, height: share * tall }),
      svg("text", { class: "small", "text-anchor": "middle", x: left + wide * 0.19, y: zero - share * tall - 6 }, words(share, 2)),
    ];
    const columns = TOKENS.map((token, i) => {
      const push = q[i] - p[i];
      const middle = (i + 0.5) * wide;
      return [
        bar(q[i], middle - wide * 0.42, "ofill"), bar(p[i], middle + wide * 0.04, "block"),
        svg("text", { class: i === RIGHT ? "strong" : "", "text-anchor": "middle", x: middle, y: zero + 19 }, token),
        svg("text", { class: "small", "text-anchor": "middle", x: middle, y: zero + 38 }, `${push < -0.005 ? "↓" : push > 0.005 ? "↑" : "·"} ${words(Math.abs(push), 2)}`),
      ].flat();
    });
    const label = `Target against prediction: ${TOKENS.map((token, i) => `${token} ${words(q[i])} against ${words(p[i])}`).join(", ")}.`;
    return canvas(width, HEIGHT, label,
      svg("path", { class: "wire", d: `M4 ${zero}H${width - 4}` }), columns.flat(),
      svg("text", { class: "small soft", x: 4, y: HEIGHT - 3 }, "arrows: how the loss pushes each logit, q − p"));
  }

  function build(root, say) {
    const eps = slider({ label: "eps_ls", min: 0, max: 0.5, step: 0.01, value: START.eps, show: (x) => words(x, 2), change: () => show() });
    const logits = TOKENS.map((token, i) => slider({
      label: `logit of ${token}`, min: -REACH, max: REACH, step: 0.01, value: START.logits[i], show: (x) => words(x, 2), change: () => show(),
    }));
    const now = () => smoothed(logits.map((one) => one.value), RIGHT, eps.value);
    const drawing = fitted((room) => draw(room, now()));
    const redraw = once(drawing.redraw);
    const numbers = el("div");
    const put = (values) => {
      logits.forEach((one, i) => (one.value = values[i]));
      show();
    };

    function show() {
      const { loss, right, floor } = now();
      renew(numbers, table(["in nats", ""], [
        [el("strong", {}, "loss"), el("strong", {}, words(loss, 3))],
        [`the right word, ${TOKENS[RIGHT]}`, words(right, 3)],
        ["the other four", words(loss - right, 3)],
        ["floor, where p is q", words(floor, 3)],
        ["above the floor", words(loss - floor, 3)],
      ]));
      say(`Loss ${words(loss, 3)}, floor ${words(floor, 3)}`);
      redraw();
    }

    root.append(
      el("div", { class: "controls" }, eps,
        button("100 steps downhill", () => put(downhill(logits.map((one) => one.value), RIGHT, eps.value, 100))),
        button("as at first", () => {
          eps.value = START.eps;
          put(START.logits);
        })),
      drawing,
      el("p", { class: "note" }, `Coloured: the target q, with ${TOKENS[RIGHT]} as the right word. Grey: the prediction p, the softmax of the logits.`),
      el("div", { class: "controls" }, el("div", { class: "sliders" }, logits), numbers),
    );
    show();
  }

  globalThis.annotated.explorer("smoothing", "Label smoothing, with its share and the logits to choose", build);
  if (typeof module !== "undefined") module.exports = { TOKENS, RIGHT, START, target, smoothed, downhill };
})();
