// Chapter 3: who may attend to whom in the three uses of attention, and what a decoder that sees its label can learn.
"use strict";

(() => {
  const { softmax, random, normal, shade, words, el, svg, set, canvas, once, choice, toggle, table, explorer } = globalThis.annotated;
  const SOURCE = "the dog sees the cat eos pad pad".split(" ");
  const TARGET = "bos der Hund sieht die Katze pad".split(" ");
  const USES = {
    encoder: { queries: SOURCE, keys: SOURCE, causal: false },
    decoder: { queries: TARGET, keys: TARGET, causal: true },
    cross: { queries: TARGET, keys: SOURCE, causal: false },
  };
  const BY = { padding: ", hidden by the padding mask", later: ", hidden by the causal mask", both: ", hidden by both masks", "": "" };
  const next = random(7); // scores that nothing but this seed has chosen
  const SCORES = SOURCE.map(() => SOURCE.map(() => Math.round(10 * normal(next)) / 10));
  const LEFT = 46, TOP = 54, WIDE = 35, HIGH = 30, WIDTH = 360;

  /** The twelve sentences of the chapter's experiment: three subjects, two verbs, two objects for each. */
  const NOUNS = ["der Hund", "die Katze", "das Pferd"];
  const SENTENCES = NOUNS.flatMap((subject) => ["sieht", "hört"].flatMap((verb) =>
    NOUNS.filter((other) => other !== subject).map((other) =>
      `bos ${subject} ${verb} ${other.replace("der", "den")} eos`.split(" "))));
  const VOCAB = new Set(SENTENCES.flat()).size;

  const german = (word) => el("span", { lang: "de" }, word);

  /** Why query t may not attend to key s: "padding", "later", "both", or "" where it may. */
  function reason(keys, t, s, padding, causal) {
    const padded = padding && keys[s] === "pad", later = causal && s > t;
    return padded && later ? "both" : padded ? "padding" : later ? "later" : "";
  }

  /** The least mean loss that any predictor of the word after position t can have which sees these positions. */
  function bestLoss(t, seen) {
    const groups = new Map();
    for (const sentence of SENTENCES) {
      const key = seen.map((s) => sentence[s]).join(" ");
      groups.set(key, [...(groups.get(key) ?? []), sentence[t + 1]]);
    }
    let loss = 0;
    for (const labels of groups.values()) {
      for (const label of labels) {
        loss -= Math.log(labels.filter((other) => other === label).length / labels.length) / SENTENCES.length;
      }
    }
    return loss;
  }

  /**
   * What each of the six positions must predict, and its best loss with this mask in training and in use.
   *
   * A position sees its own word in any case, on the residual path. In use nothing stands behind it: who has learned
   * to read there finds an empty place and has never met one; even guesses are assumed.
   */
  function leak(allowed) {
    return TARGET.slice(0, 6).map((word, t) => {
      const seen = TARGET.slice(0, 6).map((_, s) => s).filter((s) => s === t || allowed[t][s]);
      const training = bestLoss(t, seen);
      const label = TARGET[t + 1] === "pad" ? "eos" : TARGET[t + 1];
      return { word, label, leaks: seen.some((s) => s > t), training, use: seen.some((s) => s > t) ? Math.log(VOCAB) : training };
    });
  }

  function build(root, say) {
    let cells = [], flipped = new Set(), at = [0, 0];
    const drawing = canvas(WIDTH, TOP + SOURCE.length * HIGH + 2, { group: "Who may attend to whom: a row for each query, a column for each key" });
    const marks = svg("defs", {},
      svg("pattern", { id: "mask-padding", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
        svg("path", { class: "rule", d: "M2.5 0V5" })),
      svg("pattern", { id: "mask-later", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
        svg("path", { class: "rule", d: "M-1 7L7 -1M-1 1L1 -1M5 7L7 5" })));
    const ring = svg("rect", { class: "ring", width: WIDE, height: HIGH }); // above the cells, which would hide half of one
    const legend = el("p", {}), below = el("div");
    const use = choice({
      label: "Attention", value: "decoder",
      options: { encoder: "encoder", decoder: "decoder", cross: "cross-attention" },
      change() {
        causal.value = USES[use.value].causal;
        causal.querySelector("input").disabled = use.value === "cross"; // (T, T) does not fit (T, S)
        padding.value = true;
        flipped = new Set();
        grid();
        redraw();
      },
    });
    const anew = () => {
      flipped = new Set();
      redraw();
    };
    const padding = toggle({ label: "padding mask", value: true, change: anew });
    const causal = toggle({ label: "causal mask", value: true, change: anew });
    const name = (t, s) => `${t},${s}`;

    function go(t, s) {
      if (!cells[t]?.[s]) return;
      cells[at[0]][at[1]].box.setAttribute("tabindex", -1);
      at = [t, s];
      cells[t][s].box.setAttribute("tabindex", 0);
      cells[t][s].box.focus();
    }

    function cell(t, s) {
      const place = { x: LEFT + s * WIDE, y: TOP + t * HIGH, width: WIDE, height: HIGH };
      const ground = svg("rect", place), hatch = svg("rect", place), also = svg("rect", place);
      const text = svg("text", { x: place.x + WIDE / 2, y: place.y + HIGH / 2 + 5, "text-anchor": "middle" });
      const flip = () => {
        if (!flipped.delete(name(t, s))) flipped.add(name(t, s));
        redraw();
      };
      const box = svg("g", {
        class: "query", role: "checkbox", tabindex: -1,
        onfocus: () => set(ring, { x: place.x, y: place.y, class: box.matches(":focus-visible") ? "ring seen" : "ring" }),
        onkeyup: () => set(ring, { class: "ring seen" }), // after a touch, too
        onblur: () => set(ring, { class: "ring" }),
        onclick: () => (go(t, s), flip()),
        onkeydown(event) {
          const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
          if (way) go(t + way[0], s + way[1]);
          else if (event.key === " " || event.key === "Enter") flip();
          else return;
          event.preventDefault();
        },
      }, ground, hatch, also, text);
      return { box, ground, hatch, also, text };
    }

    function grid() {
      const { queries, keys } = USES[use.value];
      cells = queries.map((_, t) => keys.map((_, s) => cell(t, s)));
      at = [0, 0];
      cells[0][0].box.setAttribute("tabindex", 0);
      drawing.replaceChildren(marks,
        svg("g", { "aria-hidden": true }, // the cells say their words
        svg("text", { class: "k", x: LEFT + 14, y: 13 }, "keys"), svg("text", { class: "q", x: 0, y: 13 }, "queries"),
        svg("text", { x: LEFT + keys.length * WIDE + 4, y: TOP - 6 }, "sum"),
        ...keys.map((word, s) => svg("text", { class: "k", x: LEFT + (s + 0.5) * WIDE, y: TOP - (s % 2 ? 22 : 6), "text-anchor": "middle" }, word)),
        ...queries.map((word, t) => svg("text", { class: "q", x: LEFT - 5, y: TOP + (t + 0.5) * HIGH + 5, "text-anchor": "end" }, word))),
        ...cells.map((row, t) => svg("g", { role: "group", "aria-label": `query ${t}, ${queries[t]}` }, ...row.map((one) => one.box),
          svg("text", { class: "sum", "aria-hidden": true, x: LEFT + keys.length * WIDE + 8, y: TOP + (t + 0.5) * HIGH + 5 }))), ring);
    }

    function draw() {
      const { queries, keys } = USES[use.value];
      const why = queries.map((_, t) => keys.map((_, s) => reason(keys, t, s, padding.value, causal.value)));
      const allowed = why.map((row, t) => row.map((x, s) => (x === "") !== flipped.has(name(t, s))));
      const sums = drawing.querySelectorAll(".sum");
      allowed.forEach((row, t) => {
        const weights = softmax(SCORES[t].slice(0, keys.length), row);
        sums[t].textContent = row.some(Boolean) ? "1" : "0";
        row.forEach((may, s) => {
          const { box, ground, hatch, also, text } = cells[t][s], hidden = may ? "" : why[t][s];
          ground.setAttribute("class", may ? shade(weights[s]) : "empty");
          hatch.setAttribute("fill", hidden && hidden !== "later" ? "url(#mask-padding)" : "none");
          also.setAttribute("fill", hidden && hidden !== "padding" ? "url(#mask-later)" : "none");
          text.setAttribute("class", may ? (weights[s] < 0.45 ? "on" : "under") : "");
          text.textContent = may ? words(weights[s]).replace(/^0/, "").replace("1.00", "1") : "0";
          box.setAttribute("aria-checked", may);
          box.setAttribute("aria-label", `${queries[t]} may attend to ${keys[s]}, place ${s}: weight ${words(weights[s])}${BY[hidden]}`);
        });
      });
      tell(allowed);
    }

    function tell(allowed) {
      const pairs = `${allowed.flat().filter(Boolean).length} of ${allowed.flat().length} pairs are allowed.`;
      if (use.value !== "decoder") {
        below.replaceChildren(el("p", {}, "No label stands among these keys: the source is there as a whole before the first word is written."));
        return say(pairs);
      }
      const rows = leak(allowed), mean = (what) => rows.reduce((sum, row) => sum + row[what] / rows.length, 0);
      below.replaceChildren(
        el("p", {}, "The lowest loss possible with what each word sees, over twelve sentences like this one. "
          + `In use there are no later words: the table lets a model that relied on one guess evenly among ${VOCAB} words.`),
        table(["reads", "predicts", "in training", "in use"], [
          ...rows.map((row) => [german(row.word), german(row.label), words(row.training) + (row.leaks ? " (leak)" : ""), words(row.use)]),
          ["mean", "", words(mean("training")), words(mean("use"))]]));
      say(`${pairs} The best mean loss is ${words(mean("training"))} in training and ${words(mean("use"))} in use.`);
    }
    const redraw = once(draw);
    legend.append("Stripes: hidden, upright by the padding mask, slanted by the causal mask. A touch hides or shows one pair; so does the space bar, and the arrow keys move from pair to pair.");
    grid();
    root.append(use, el("div", { class: "controls" }, padding, causal), drawing, legend, below);
    draw();
  }

  explorer("masks", "Who may attend to whom, and what a leak does to the loss", build);
  if (typeof module !== "undefined") module.exports = { reason, bestLoss, leak, SCORES, SENTENCES, USES, VOCAB };
})();
