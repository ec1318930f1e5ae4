// Chapter 7: the whole model on the reader's own sentence. The boxes of Figure 1, which is the still, show their numbers.
// needs: engine, live, boxes, model-first
"use strict";

(() => {
  const { words, el, svg, canvas, shade, choice, table, explorer, live, boxes } = globalThis.annotated;
  const { shown, sentence, player } = live;
  const { NOTES, BOXES, PARTS, kindOf, partsOf, perHead, nameOf, has, look, ask } = boxes;
  const START = { text: "The dog sees the cat.", box: "decoder.cross_attention", part: "weights", layer: 1, head: 0, step: 2 };
  const MODEL = "tatoeba-cpu"; // normalises after each sub-layer, as Figure 1 draws it
  const FIRST = "decoder.layers.1.cross_attention.weights"; // all of a trace that the first view needs
  const SHOWN = 4; // numbers of a vector in the table
  const PAUSE = 1500; // ms between two steps when it plays

  const first = async (model) => {
    const { values, ...found } = await ask(model, START.text);
    return { ...found, values: { [FIRST]: values[FIRST] } };
  };

  // ---- the drawing

  const titleOf = (box) => box.replace("add_norm", "add and norm").replace(/\.(\d)/, (_, i) => ` ${Number(i) + 1}`).replace(".", ": ").replaceAll("_", " ");

  /** The still with its boxes as buttons: part(box) is the group of each. */
  function figure(still, choose) {
    const drawing = still.querySelector("svg.drawing").cloneNode(true), parts = {};
    const shapes = [...drawing.querySelectorAll("rect.box, circle.box")].sort((a, b) => (a.tagName > b.tagName ? -1 : a.tagName < b.tagName ? 1 : 0));
    if (shapes.length !== BOXES.length) throw new Error("the still is not Figure 1");
    shapes.forEach((shape, i) => {
      const box = BOXES[i], group = svg("g", { class: "part", role: "button", tabindex: -1 });
      shape.before(group);
      group.append(shape);
      const inside = shape.tagName === "circle" ? "path" : "text"; // a sign of plus, or the words in the box
      while (group.nextElementSibling?.tagName === inside && (inside === "text" || group.children.length < 2)) group.append(group.nextElementSibling);
      const touch = shape.cloneNode(); // larger than the shape, for a finger
      touch.setAttribute("class", "touch");
      group.append(touch);
      const lines = [...group.querySelectorAll("text")], said = lines.map((line) => line.textContent);
      for (const line of lines) line.after(" "); // two lines are two words where they are read aloud
      group.setAttribute("aria-label", [`${titleOf(box)}:`, ...said].join(" "));
      group.addEventListener("click", () => choose(box));
      group.addEventListener("keydown", (event) => {
        const way = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
        if (!way && event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const next = way ? neighbour(parts, box, way) : box;
        choose(next);
        parts[next].focus();
      });
      parts[box] = group;
    });
    drawing.setAttribute("aria-label", "Figure 1, whose boxes can be chosen one by one, with the arrow keys from one to the next");
    drawing.setAttribute("role", "group");
    return { drawing, parts };
  }

  /** The next box in a direction, in its own stack for up and down. */
  function neighbour(parts, box, [dx, dy]) {
    const at = (one) => parts[one].firstElementChild.getBBox(), here = at(box), same = (one) => one.startsWith(box.slice(0, 7));
    const ahead = BOXES.filter((one) => (dx ? !same(one) && (at(one).x - here.x) * dx > 0 : same(one) && (at(one).y - here.y) * dy > 0));
    return ahead.sort((a, b) => Math.abs(at(a).y - here.y) - Math.abs(at(b).y - here.y))[0] ?? box;
  }

  function map({ labels, columns, rows }) { // the weights as coloured cells with their numbers
    const name = (x) => (x.length > 11 ? `${x.slice(0, 10)}\u2026` : x);
    const cell = 31, high = 26, top = 74, left = 16 + 8 * Math.max(...labels.map((x) => name(x).length));
    const heads = columns.map((x, s) => svg("text", { class: "k", transform: `translate(${left + cell * (s + 0.4)} ${top - 6}) rotate(-50)` }, name(x)));
    const cells = rows.flatMap((row, t) => [
      svg("text", { class: "q", x: left - 8, y: top + high * t + 18, "text-anchor": "end" }, name(labels[t])),
      ...row.flatMap((weight, s) => [
        svg("rect", { class: shade(weight), x: left + cell * s, y: top + high * t, width: cell, height: high }),
        svg("text", { class: `small ${weight < 0.45 ? "on" : "under"}`, x: left + cell * (s + 0.5), y: top + high * t + 18, "text-anchor": "middle" }, words(weight)),
      ])]);
    const width = left + cell * columns.length + 36, height = top + high * rows.length + 4;
    const picture = canvas(width, height, "The attention weights of one head, each from a query to a key", heads, cells);
    picture.setAttribute("style", `width: ${width}px; max-width: none; margin: 0`);
    return el("div", { class: "tree", tabindex: 0, role: "region", "aria-label": "Attention weights" }, picture);
  }

  /** A token of the translation as one reads it, to be spoken in its language. */
  const german = (text) => el("span", { lang: "de" }, text);

  function cache({ tokens }, step) { // which keys and values each decoder layer holds; none while the encoder reads
    const row = (label, names, filled) => el("p", { class: "cache" }, `${label}: `, names.map((token, i) =>
      el("span", { lang: label === "target" ? "de" : null, class: i < filled ? (label === "target" && i === filled - 1 ? "held new" : "held") : "" }, shown(token))));
    return el("div", { role: "group", "aria-label": "Keys and values that each decoder layer holds" },
      el("p", {}, "Keys and values in each decoder layer:"),
      row("source", tokens.source, step ? tokens.source.length : 0), row("target", tokens.read, step));
  }

  // ---- the element

  function build(root, say, { still }) {
    let found = globalThis.annotated.first.model;
    const state = { ...START };
    delete state.text;
    let drawn = { ...state }, asked = START.text; // what is to be seen, and of which sentence
    const { drawing, parts } = figure(still, (box) => choose(box));
    const where = el("p", { class: "verdict" }), panel = el("div", { class: "panel" }), choices = el("div");
    const line = sentence({
      root, value: START.text, say, ask, name: MODEL,
      show: (answer, text) => {
        found = answer;
        asked = text;
        state.step = Math.min(state.step, found.steps.length);
        draw();
      },
      fail: () => { // the controls go back to what is to be seen
        steps.halt();
        Object.assign(state, drawn);
        offer();
        draw();
        root.classList.toggle("waiting", line.input.value !== asked);
      },
    });

    function draw() {
      if (!has(found, state)) { // the model has not been asked for this yet; a step more would ask again
        steps.halt();
        return line.again();
      }
      drawn = { ...state };
      const { box, part, layer, head, step } = state, { shape, sizes, labels, columns, rows } = look(found, state);
      for (const [name, group] of Object.entries(parts)) {
        group.setAttribute("aria-pressed", name === box);
        group.setAttribute("tabindex", name === box ? 0 : -1);
        group.classList.toggle("off", name.startsWith("decoder") === (step === 0)); // what this step does not compute
      }
      where.replaceChildren(...(step
        ? [`Step ${step} of ${found.steps.length}: the decoder reads `, german(shown(found.tokens.read[step - 1])), " and writes ", german(shown(found.tokens.written[step - 1])), ". Dashed boxes are not computed in this step."]
        : [`The encoder reads all ${found.tokens.source.length} tokens at once, and is not run again. Dashed boxes wait.`]));
      const note = PARTS[kindOf(box)]?.[part] ?? NOTES[box], width = rows[0].length;
      const numbers = columns ? map({ labels, columns, rows })
        : table(width > 1 ? ["", ...Array.from({ length: SHOWN }, (_, k) => String(k + 1)), "\u2026"] : ["", box.split(".")[1]],
          rows.map((row, i) => [box.startsWith("decoder") ? german(labels[i]) : labels[i], ...row.slice(0, SHOWN).map((x) => words(x)), ...(width > 1 ? ["\u2026"] : [])]));
      const place = [...(/layers/.test(nameOf(state)) ? [`layer ${layer + 1}`] : []), ...(perHead(part) ? [`head ${head + 1}`] : [])].join(", ");
      const old = panel.querySelector(".tree"), left = old?.scrollLeft ?? 0, held = old && old === document.activeElement;
      panel.replaceChildren(
        el("p", {}, el("b", {}, titleOf(box)), place ? `, ${place}` : ""), el("p", {}, note),
        el("p", { class: "shape" }, el("code", {}, `${part === "output" ? "" : `${part} `}${shape}`), ` = (${sizes.map((n) => words(n, 0)).join(", ")})`), numbers);
      const fresh = panel.querySelector(".tree");
      if (fresh) fresh.scrollLeft = left; // the same keys are to be seen
      if (fresh && held) fresh.focus({ preventScroll: true });
      steps.told();
      memory.replaceChildren(cache(found, step));
      say(`${titleOf(box)}, ${place}. ${where.textContent}`);
    }

    const layersOf = (box) => (box.startsWith("encoder") ? found.config.N : found.config.N_decoder);

    function choose(box) { // a box's own parts; a box of the decoder needs a step of the decoder
      if (kindOf(box) !== kindOf(state.box)) state.part = partsOf(box)[0];
      state.box = box;
      state.layer = Math.min(state.layer, layersOf(box) - 1); // the stacks may be of different depth
      if (box.startsWith("decoder") && !state.step) state.step = 1;
      offer();
      draw();
    }

    function offer() {
      const { box, part, layer, head } = state, { h } = found.config;
      const numbered = (n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [i, String(i + 1)]));
      const set = (name, number) => (x) => { state[name] = number ? Number(x) : x; if (name === "part") offer(); draw(); };
      const held = choices.contains(document.activeElement) ? document.activeElement.closest("fieldset")?.querySelector("legend").textContent : null;
      choices.replaceChildren(...[
        partsOf(box).length > 1 && choice({ label: "Part", options: Object.fromEntries(partsOf(box).map((x) => [x, x])), value: part, change: set("part") }),
        /layers/.test(nameOf(state)) && choice({ label: "Layer", options: numbered(layersOf(box)), value: layer, change: set("layer", true) }),
        perHead(part) && kindOf(box) === "attention" && choice({ label: "Head", options: numbered(h), value: head, change: set("head", true) }),
      ].filter(Boolean));
      if (held) [...choices.children].find((one) => one.querySelector("legend").textContent === held)?.querySelector("input:checked").focus();
    }

    const steps = player({
      first: 0, last: () => found.steps.length, at: () => state.step, pause: PAUSE,
      go: (to) => {
        state.step = to;
        if (state.box.startsWith(to ? "decoder" : "encoder")) draw();
        else choose(to ? "decoder.softmax" : "encoder.self_attention");
      },
    });
    const memory = el("div", { class: "held-row" });
    root.append(line.input,
      el("div", { class: "controls" }, steps.buttons, line.status),
      where, memory, el("div", { class: "two" }, drawing, el("div", {}, choices, panel)));
    offer();
    draw();
  }

  explorer("model", "The whole model, a box and a step at a time", build);
  if (typeof module !== "undefined") module.exports = { ...boxes, START, first };
})();
