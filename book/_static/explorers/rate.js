// The learning rate of section 5.3 under the reader's hand: its two curves, the lower of them, its peak, one step to read.
"use strict";

(() => {
  const { el, svg, set, renew, canvas, slider, button, readings, fitted, path, plot, scientific, words, once } = globalThis.annotated;
  const PAPER = { d_model: 512, warmup: 4000 };
  const STEPS = 100000; // of the paper's base model
  const WIDTHS = [64, 128, 256, 512, 1024, 2048];
  const WARMUPS = [400, 600, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 40000];
  const HEIGHT = 270;

  const rising = (step, { d_model, warmup }) => d_model ** -0.5 * step * warmup ** -1.5;
  const falling = (step, { d_model }) => (d_model * step) ** -0.5;
  const learningRate = (step, at) => Math.min(rising(step, at), falling(step, at));
  const whole = (x) => words(x, 0);

  /** The curves at one width; what a slider does not change is left as it is. */
  function curves(width) {
    const frame = svg("g"), wire = (kind) => svg("path", { class: kind ? `wire ${kind}` : "wire" });
    const [paper, rises, falls, rate, drop, hand] = ["", "dash", "dash", "o thick", "dash", "hand"].map(wire);
    const dot = svg("circle", { class: "dot o", r: 4 }), ring = svg("circle", { class: "ring", r: 6 });
    const drawing = canvas(width, HEIGHT, "", frame, paper, rises, falls, rate, drop, dot, hand, ring);
    const across = Array.from({ length: Math.floor(width / 2) }, (_, i) => (2 * i * STEPS) / width); // every other pixel
    let height = 0, drawn = "", x, y;

    // A straight line needs its two ends.
    const rise = (one, upTo) => path([0, Math.min(STEPS, upTo)].map((n) => [x(n), y(rising(n, one))]));
    function fall(one) { // worked out once for all the steps that it may begin with
      const place = (n) => [x(n), y(falling(n, one))], points = across.map(place);
      return (from) => path([place(from), ...points.slice(across.findIndex((n) => n > from)), place(STEPS)]);
    }
    const both = (one, fallen) => rise(one, one.warmup) + fallen(one.warmup).replace("M", "L");

    function scale(top) {
      const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => [part * top, `${1000 * part * top}`]);
      const made = plot({
        width, height: HEIGHT, left: 40,
        x: { from: 0, to: STEPS, label: "step", ticks: [0, 25000, 50000, 75000, 100000].map((n) => [n, n ? `${n / 1000}k` : "0"]) },
        y: { from: 0, to: top, label: "rate, in thousandths", ticks },
      });
      [height, x, y] = [top, made.x, made.y];
      renew(frame, ...made.frame.childNodes);
      set(paper, { d: both(PAPER, fall(PAPER)) });
    }

    function choose(at) {
      const peaks = [at, PAPER].map((one) => learningRate(one.warmup, one));
      const top = [1e-3, 2e-3, 5e-3, 1e-2].find((high) => high > 1.1 * Math.max(...peaks));
      if (top !== height) scale(top);
      const fallen = fall(at), highest = 1 / (at.d_model * top ** 2); // the step in which the falling curve comes into the frame
      set(rises, { d: rise(at, top / rising(1, at)) });
      set(falls, { d: fallen(highest) });
      set(rate, { d: both(at, fallen) });
      const [px, py] = [x(at.warmup), y(peaks[0])];
      set(drop, { d: `M${px} ${py}V${y(0)}` });
      set(dot, { cx: px, cy: py });
      set(drawing, { "aria-label": `The learning rate over ${whole(STEPS)} steps: it rises to ${scientific(peaks[0])} in step ${whole(at.warmup)}, then falls.` });
    }

    function show([at, step]) {
      const chosen = `${at.d_model} ${at.warmup}`;
      if (chosen !== drawn) choose(at);
      drawn = chosen;
      const [sx, sy] = [x(step), y(learningRate(step, at))];
      set(hand, { d: `M${sx} ${sy}V${y(0)}` });
      set(ring, { cx: sx, cy: sy });
    }
    return { drawing, show };
  }

  function build(root, say) {
    const over = (label, values, value) => slider({
      label, min: 0, max: values.length - 1, value: values.indexOf(value), show: (i) => whole(values[i]), change: () => redraw(),
    });
    const width = over("d_model", WIDTHS, PAPER.d_model);
    const warmup = over("warmup_steps", WARMUPS, PAPER.warmup);
    const reading = slider({
      label: "step to read", min: 0, max: STEPS, step: 500, value: 4 * PAPER.warmup,
      show: (n) => whole(Math.max(1, n)), change: () => redraw(),
    });
    const state = () => [{ d_model: WIDTHS[width.value], warmup: WARMUPS[warmup.value] }, Math.max(1, reading.value)];
    const drawing = fitted(curves, state);
    const numbers = readings();
    const redraw = once(show);

    function show() {
      const [at, step] = state();
      const row = (name, n) => {
        const lower = n < at.warmup ? "rising" : n > at.warmup ? "falling" : "both";
        return [name, whole(n), scientific(learningRate(n, at)), lower];
      };
      numbers.show(["", "step", "rate", "lower curve"], [
        row("first", 1), row("peak", at.warmup), row("read", step), row("last", STEPS)]);
      say(`Peak ${scientific(learningRate(at.warmup, at))} in step ${whole(at.warmup)}; step ${whole(step)}: ${scientific(learningRate(step, at))}`);
      drawing.redraw();
    }

    root.append(
      el("div", { class: "controls" }, width, warmup, reading, button("as in the paper", () => {
        width.value = WIDTHS.indexOf(PAPER.d_model);
        warmup.value = WARMUPS.indexOf(PAPER.warmup);
        redraw();
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
