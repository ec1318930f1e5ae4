// Chapter 6: two positions as waves, clock hands and binary digits, and their inner product while both move.
"use strict";

(() => {
  const { dot, words, el, svg, set, write, canvas, once, slider, choice, readings, explorer } = globalThis.annotated;
  const LENGTH = 64, CLOCKS = 8; // positions shown; clocks of as many pairs, evenly spaced
  const LEFT = 24, STEP = 5.25, MAP = [20, 110], PRODUCT = [160, 76], WAVE = [268, 44], HANDS = 358, RADIUS = 18;

  /** The angle by which pair i of features turns from one position to the next. */
  const rate = (i, d_model) => 10000 ** (-2 * i / d_model);

  /** Row `pos` of the positional encoding: sines in the even features, cosines in the odd ones. */
  function encoding(pos, d_model) {
    return Array.from({ length: d_model }, (_, j) => {
      const turn = pos * rate(Math.floor(j / 2), d_model);
      return j % 2 ? Math.cos(turn) : Math.sin(turn);
    });
  }

  /** What the inner product of two positions at distance k is, wherever they stand. */
  const product = (k, d_model) => Array.from({ length: d_model / 2 }, (_, i) => Math.cos(rate(i, d_model) * k)).reduce((a, b) => a + b, 0);

  /** The binary digits of a position, the lowest first. */
  const digits = (pos) => Array.from({ length: CLOCKS }, (_, i) => (pos >> i) & 1);

  /** From -1, orange, over 0, nearly white, to 1, purple: the map of the chapter's figure in three steps. */
  function colour(x) {
    const [low, middle, high] = [[179, 88, 6], [247, 247, 247], [84, 39, 136]], end = x < 0 ? low : high;
    return middle.map((m, i) => Math.round(m + (end[i] - m) * Math.abs(x)));
  }

  /** The encodings of all positions as a picture: a column for each position, a row for each feature. */
  function picture(rows, d_model) {
    const paper = el("canvas", { width: LENGTH, height: d_model }), pen = paper.getContext("2d");
    const image = pen.createImageData(LENGTH, d_model);
    rows.forEach((row, pos) => row.forEach((x, j) => image.data.set([...colour(x), 255], 4 * (j * LENGTH + pos))));
    pen.putImageData(image, 0, 0);
    return paper.toDataURL();
  }

  const middle = (pos) => LEFT + (pos + 0.5) * STEP;

  /** A curve over the positions between -1 and 1, with a dot on it for each of the two. */
  function curve([top, high]) {
    const y = (value) => top + (high / 2) * (1 - value), line = svg("path", { class: "wire" });
    const dots = { here: svg("circle", { class: "qbar", r: 4.5 }), there: svg("circle", { class: "kbar", r: 4.5 }) };
    const title = svg("text", { x: 0, y: top - 9 });
    const axis = svg("line", { class: "rule", x1: LEFT, x2: LEFT + LENGTH * STEP, y1: y(0), y2: y(0) });
    const ends = [[1, "1"], [-1, "\u22121"]].map(([value, name]) =>
      svg("text", { class: "soft", x: LEFT - 6, y: y(value) + 5 - 4 * (value < 0), "text-anchor": "end" }, name));
    function show(words, f, places) {
      write(title, words);
      set(line, { d: Array.from({ length: LENGTH }, (_, pos) => `${pos ? "L" : "M"}${middle(pos)} ${y(f(pos)).toFixed(2)}`).join("") });
      for (const [name, pos] of Object.entries(places)) set(dots[name], { cx: middle(pos), cy: y(f(pos)) });
    }
    return { group: svg("g", {}, title, axis, ends, line, dots.there, dots.here), show };
  }

  function clock(i) {
    const x = 22 + 45 * i, y = HANDS;
    const hands = { there: svg("path", { class: "wire thick k dash" }), here: svg("path", { class: "wire thick q" }) };
    const ring = svg("circle", { class: "box", cx: x, cy: y, r: RADIUS }), name = svg("text", { x, y: y - RADIUS - 6, "text-anchor": "middle" });
    const digit = { here: svg("text", { class: "q code", x: x - 7, "text-anchor": "middle", y: y + RADIUS + 17 }),
      there: svg("text", { class: "k code", x: x + 7, "text-anchor": "middle", y: y + RADIUS + 17 }) };
    function show(pair, chosen, speed, places) {
      write(name, pair);
      set(name, { class: chosen ? "strong" : "soft" });
      set(ring, { class: chosen ? "ring" : "box" });
      for (const [who, pos] of Object.entries(places)) { // sine to the right, cosine upwards, as in the drawing
        const [dx, dy] = [Math.sin(speed * pos), -Math.cos(speed * pos)].map((c) => c * (RADIUS - 3));
        set(hands[who], { d: `M${x} ${y}l${dx} ${dy}` });
        write(digit[who], digits(pos)[i]);
      }
    }
    return { group: svg("g", {}, ring, hands.there, hands.here, name, digit.here, digit.there), show };
  }

  function build(root, say) {
    let rows = [], drawn = 0;
    const map = svg("image", { x: LEFT, y: MAP[0], width: LENGTH * STEP, height: MAP[1], preserveAspectRatio: "none", style: "image-rendering: pixelated" });
    const frames = { there: svg("rect", { class: "wire k thick" }), here: svg("rect", { class: "wire q thick" }) };
    const [alike, wave] = [curve(PRODUCT), curve(WAVE)], clocks = Array.from({ length: CLOCKS }, (_, i) => clock(i));
    const numbers = readings(), equal = el("p", { class: "equal" }), redraw = once(draw);
    const width = choice({ label: "d_model", value: 32, options: { 16: "16", 32: "32", 512: "512" }, change: redraw });
    const pairOf = (c) => c * Number(width.value) / 2 / CLOCKS;
    const start = slider({ label: "position p", min: 0, max: 40, value: 20, change: redraw });
    const apart = slider({ label: "distance k", min: 0, max: 23, value: 3, change: redraw });
    const which = slider({ label: "pair i", min: 0, max: CLOCKS - 1, value: 2, show: (c) => String(pairOf(c)), change: redraw });

    function draw() {
      const d_model = Number(width.value), p = start.value, k = apart.value, places = { here: p, there: p + k };
      if (d_model !== drawn) {
        rows = Array.from({ length: LENGTH }, (_, pos) => encoding(pos, d_model));
        map.setAttribute("href", picture(rows, d_model));
        drawn = d_model;
        const pair = which.value;
        which.value = pair; // its number is that of another pair now
      }
      for (const [who, pos] of Object.entries(places)) {
        set(frames[who], { x: LEFT + pos * STEP - 1, y: MAP[0] - 2, width: STEP + 2, height: MAP[1] + 4 });
      }
      const found = dot(rows[p], rows[p + k]), speed = rate(pairOf(which.value), d_model);
      alike.show(`inner product of p with every position, ÷ ${d_model / 2}`, (pos) => dot(rows[p], rows[pos]) / (d_model / 2), places);
      wave.show(`wave of pair ${pairOf(which.value)}: sin(ω pos), ω = ${words(speed, 4)}`, (pos) => Math.sin(speed * pos), places);
      clocks.forEach((one, i) => one.show(pairOf(i), i === which.value, rate(pairOf(i), d_model), places));
      numbers.show(["position", p, p + k], [["sin", Math.sin], ["cos", Math.cos]].map(([name, f]) =>
        [`${name}, pair ${pairOf(which.value)}`, ...[p, p + k].map((pos) => words(f(speed * pos)))]));
      write(equal, `PE(${p}) · PE(${p + k}) = ${words(found)}, and Σ cos(${k} ω) = ${words(product(k, d_model))}. `
        + `A position with itself: ${words(dot(rows[p], rows[p]))}.`);
      say(`Positions ${p} and ${p + k}: their inner product is ${words(found)}.`);
    }
    root.append(width, el("div", { class: "controls" }, start, apart, which),
      canvas(360, HANDS + RADIUS + 44, "Two positions in a map of the encodings, on two curves and on eight clocks, as the table says",
        svg("text", { x: 0, y: 13 }, "features, downwards, of positions 0 to 63"), map, frames.there, frames.here, alike.group, wave.group,
        clocks.map((one) => one.group), svg("text", { class: "soft", x: 0, y: HANDS + RADIUS + 38 }, "below: the two positions in binary, lowest digit first")),
      el("p", { class: "note" }, el("span", { class: "ofq" }, "\u25cf position p"), " ", el("span", { class: "ofk" }, "\u25cf position p + k"), ": a frame, two dots and a hand of every clock for each, dashed for the second"),
      el("div", {}, numbers, equal));
    draw();
  }

  explorer("positions", "Two positions that move together", build);
  if (typeof module !== "undefined") module.exports = { rate, encoding, product, digits };
})();
