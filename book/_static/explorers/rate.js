// The learning rate of section 5.3 under the reader's hand: its two curves, the lower of them, its peak, one step to read.
"use strict";

(() => {
  const { el, svg, renew, canvas, slider, button, table, fitted, path, plot, scientific, words, once } = globalThis.annotated;
  const PAPER = { d_model: 512, warmup: 4000 };
  const STEPS = 100000; // of the paper's base model
  const WIDTHS = [64, 128, 256, 512, 1024, 2048];
  const WARMUPS = [400, 600, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 40000];
  const HEIGHT = 270;

  const rising = (step, { d_model, warmup }) => d_model ** -0.5 * step * warmup ** -1.5;
  const falling = (step, { d_model }) => (d_model * step) ** -0.5;
  const learningRate = (step, at) => Math.min(rising(step, at), falling(step, at));
  const whole = (x) => words(x, 0);

  function draw(width, at, step) {
    const peaks = [at, PAPER].map((one) => learningRate(one.warmup, one));
    const top = [1e-3, 2e-3, 5e-3, 1e-2].find((height) => height > 1.1 * Math.max(...peaks));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => [part * top, `${1000 * part * top}`]);
    const { frame, x, y } = plot({
      width, height: HEIGHT, left: 40,
      x: { from: 0, to: STEPS, label: "step", ticks: [0, 25000, 50000, 75000, 100000].map((n) => [n, n ? `${n / 1000}k` : "0"]) },
      y: { from: 0, to: top, label: "rate, in thousandths", ticks },
    });
    const line = (points, f, one) => path(points.map((n) => [x(n), y(f(n, one))]));
    const highest = (one) => 1 / (one.d_model * top ** 2); // the step in which the falling curve comes down into the frame
    // A straight line needs its two ends; the falling curve is drawn at every other pixel.
    const rise = (one, upTo) => line([0, Math.min(STEPS, upTo)], rising, one);
    const fall = (one, from) => line([from, ...[...Array(width / 2 | 0).keys()].map((i) => (2 * i * STEPS) / width).filter((n) => n > from), STEPS], falling, one);
    const rate = (one) => rise(one, one.warmup) + fall(one, one.warmup).replace("M", "L");
    const here = [x(step), y(learningRate(step, at))];
    const peak = [x(at.warmup), y(peaks[0])];
    const label = `The learning rate over ${whole(STEPS)} steps: it rises to ${scientific(peaks[0])} in step ${whole(at.warmup)}, then falls.`;
    return canvas(width, HEIGHT, label, frame,
      svg("path", { class: "wire", d: rate(PAPER) }),
      svg("path", { class: "wire dash", d: rise(at, top / rising(1, at)) }),
      svg("path", { class: "wire dash", d: fall(at, highest(at)) }),
      svg("path", { class: "wire o thick", d: rate(at) }),
      svg("path", { class: "wire dash", d: `M${peak[0]} ${peak[1]}V${y(0)}` }),
      svg("circle", { class: "dot o", cx: peak[0], cy: peak[1], r: 4 }),
      svg("path", { class: "wire hand", d: `M${here[0]} ${here[1]}V${y(0)}` }),
      svg("circle", { class: "ring", cx: here[0], cy: here[1], r: 6 }));
  }

  function build(root, say) {
    const over = (label, values, value) => slider({
      label, min: 0, max: values.length - 1, value: values.indexOf(value), show: (i) => whole(values[i]), change: () => show(),
    });
    const width = over("d_model", WIDTHS, PAPER.d_model);
    const warmup = over("warmup_steps", WARMUPS, PAPER.warmup);
    const reading = slider({
      label: "step to read", min: 0, max: STEPS, step: 500, value: 4 * PAPER.warmup,
      show: (n) => whole(Math.max(1, n)), change: () => show(),
    });
    const state = () => [{ d_model: WIDTHS[width.value], warmup: WARMUPS[warmup.value] }, Math.max(1, reading.value)];
    const drawing = fitted((room) => draw(room, ...state()));
    const numbers = el("div");
    const redraw = once(drawing.redraw);

    function show() {
      const [at, step] = state();
      const row = (name, n) => {
        const lower = n < at.warmup ? "rising" : n > at.warmup ? "falling" : "both";
        return [name, whole(n), scientific(learningRate(n, at)), lower];
      };
      renew(numbers, table(["", "step", "rate", "lower curve"], [
        row("first", 1), row("peak", at.warmup), row("read", step), row("last", STEPS)]));
      say(`Peak ${scientific(learningRate(at.warmup, at))} in step ${whole(at.warmup)}; step ${whole(step)}: ${scientific(learningRate(step, at))}`);
      redraw();
    }

    root.append(
      el("div", { class: "controls" }, width, warmup, reading, button("as in the paper", () => {
        width.value = WIDTHS.indexOf(PAPER.d_model);
        warmup.value = WARMUPS.indexOf(PAPER.warmup);
        show();
      })),
      drawing,
      el("p", { class: "note" }, "Thick: the rate. Dashed: the two curves, of which it is the lower one. Thin: the paper's base model."),
      numbers,
    );
    show();
  }

  globalThis.annotated.explorer("rate", "The learning rate, with its width, its warm-up and its steps to choose", build);
  if (typeof module !== "undefined") module.exports = { PAPER, STEPS, WIDTHS, WARMUPS, learningRate };
})();
