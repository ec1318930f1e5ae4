// needs: engine, live
// <annotated-attention data-model="tatoeba-en-de" data-heads="4 2 4" data-first="The dog sees the cat.">: the three kinds
// of attention of a model that computes in the page, layer by layer and head by head, on the reader's own sentence.
// `data-heads` has the layers of the encoder, those of the decoder, and the heads of each.
"use strict";

(() => {
  const { el, svg, canvas, shade, button, choice, reachable, explorer, live } = annotated;
  const { shown, meanOf, sentence, LONGEST } = live;
  const KINDS = { encoder: "encoder", decoder: "decoder", cross: "encoder-decoder" };
  const CELL = 24, LETTER = 8;
  const TOLD = 0.005; // smaller weights are not told

  // ---- arithmetic

  /** The names of the rows, which look, and of the columns, which are looked at: a decoder's row writes a token. */
  function names({ source, target }, kind) {
    const read = source.map(shown), written = target.map(shown);
    const before = ["bos", ...written.slice(0, -1)]; // what the decoder has read when it writes each of them
    return [kind === "encoder" ? read : written.map((token) => `\u2192 ${token}`), kind === "decoder" ? before : read];
  }

  /** The weights of one head, or for "mean" of all heads of the layer. */
  const matrix = (layer, head) => (head === "mean" ? meanOf(layer) : layer[head].map((row) => Array.from(row)));

  /** What a query attends to most, in words. */
  const said = (query, row, keys) => live.said(query, row, keys, TOLD);

  // ---- the drawing: a row for each query, one of them chosen

  function draw(weights, [queries, keys], chosen, choose) {
    const left = 12 + LETTER * Math.max(...queries.map((name) => name.length));
    const top = 12 + LETTER * Math.max(...keys.map((name) => name.length));
    const columns = keys.map((name, s) => {
      const place = `translate(${left + CELL * (s + 0.65)} ${top - 6}) rotate(-90)`;
      return svg("text", { class: "k", transform: place }, name);
    });
    const rows = queries.map((name, t) => {
      const y = top + CELL * t;
      const cells = weights[t].map((weight, s) =>
        svg("rect", { class: shade(weight), x: left + CELL * s, y, width: CELL, height: CELL }));
      const at = { class: `query ${t === chosen ? "chosen" : ""}`, role: "radio", "aria-checked": String(t === chosen) };
      const row = svg("g", { ...at, tabindex: t === chosen ? 0 : -1, "aria-label": said(name, weights[t], keys) },
        svg("text", { class: "q", x: left - 8, y: y + CELL * 0.7, "text-anchor": "end" }, name), cells);
      row.addEventListener("click", () => choose(t));
      row.addEventListener("keydown", (event) => {
        const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
        if (!way) return;
        event.preventDefault();
        choose((t + way + queries.length) % queries.length);
      });
      return row;
    });
    const ring = svg("rect", {
      class: "ring", x: left - 1, y: top + CELL * chosen - 1, width: CELL * keys.length + 2, height: CELL + 2 });
    const width = Math.max(left + CELL * keys.length + 6, 320);
    const picture = canvas(width, top + CELL * queries.length + 6, { group: "Attention weights: choose a query" }, columns, rows, ring);
    picture.setAttribute("role", "radiogroup");
    picture.style.maxWidth = `${width}px`; // a short sentence is not blown up,
    picture.style.minWidth = `${width}px`; // and a long one is scrolled, not made too small to read
    return picture;
  }

  // ---- the element

  explorer("attention", "The attention of a model in the page", (root, say, { host, still }) => {
    const [N, M, h] = host.dataset.heads.split(" ").map(Number);
    const numbers = (n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [i, i + 1]));
    let result = null, row = 0;

    const stage = el("div", { class: "stage" }, ...Array.from(still.childNodes, (node) => node.cloneNode(true)));
    const output = el("output", { class: "translation", lang: "de", "aria-live": "off" }); // say() says it
    const hint = el("p", { class: "hint" });
    const line = sentence({
      root, value: host.dataset.first, say, name: host.dataset.model,
      ask: (model, text, signal) => model.translate(text, { beam: 1, longest: LONGEST, signal }),
      show(answer) {
        result = answer;
        output.textContent = answer.text;
        show(stage.contains(document.activeElement));
        say(`German: ${answer.text} ${hint.textContent}`);
      },
      fail() {
        output.textContent = "";
        root.classList.toggle("waiting", result !== null); // the still says which sentence it shows
      },
    });
    const kind = choice({ label: "Attention", options: KINDS, value: "cross", change() {
      fit();
      update();
    } });
    const layer = choice({ label: "Layer", options: numbers(Math.max(N, M)), value: M - 1, change: () => update() });
    const head = choice({ label: "Head", options: { ...numbers(h), mean: "mean" }, value: "mean", change: () => update() });

    function fit() { // the stacks may be of different depth
      const depth = kind.value === "encoder" ? N : M;
      layer.value = Math.min(Number(layer.value), depth - 1);
      layer.querySelectorAll("input").forEach((input, i) => { input.disabled = i >= depth; });
    }
    fit();

    function show(focus = false) {
      const weights = matrix(result.attention[kind.value][layer.value], head.value);
      const both = names(result.tokens, kind.value);
      row = Math.min(row, both[0].length - 1);
      stage.replaceChildren(draw(weights, both, row, (t) => {
        row = t;
        show(true);
      }));
      hint.textContent = said(both[0][row], weights[row], both[1]);
      reachable(stage, "Attention weights");
      if (focus) stage.querySelector(".chosen").focus();
      else say(hint.textContent);
    }

    function update() {
      if (result) show();
      else line.again();
    }

    root.append(line.input, el("div", { class: "controls" }, button("Look", line.again), line.status), output,
      el("div", { class: "controls" }, kind, layer, head), stage, hint);
  });

  if (typeof module !== "undefined") module.exports = { names, matrix, said };
})();
