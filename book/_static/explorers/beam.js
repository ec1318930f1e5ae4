// Chapter 11: a beam search of the live model, step by step, as a tree that grows from left to right.
// needs: engine, live, beam-first
"use strict";

(() => {
  const { words, el, svg, canvas, once, renew, slider, table, explorer, live } = globalThis.annotated;
  const { shown, written, sentence, player, LONGEST } = live;
  const START = { text: "What are you thinking of?", beam: 2, alpha: 0.6, step: 4 }; // the chapter's search
  const COLUMN = 92, ROW = 46, WIDE = 76, HIGH = 36, TOP = 26; // of the tree, in px: it is not scaled
  const DROPPED = 2; // of each step's dropped candidates, so many are drawn
  const LISTED = 3; // and so many stand in the list
  const PAUSE = 900; // ms between two steps when it plays

  const penalty = (length, alpha) => ((5 + length) / 6) ** alpha;

  /** After a step: the best score of what is finished, the best that the rest can reach, and whether the search is over. */
  function verdict(hypotheses, length, limit, alpha) {
    const of = (numbers) => (numbers.length ? Math.max(...numbers) : null);
    const best = of(hypotheses.filter((one) => one.score !== null).map((one) => one.score));
    const likeliest = of(hypotheses.filter((one) => one.score === null).map((one) => one.logP));
    const reach = (n) => likeliest / penalty(n, alpha);
    const attainable = likeliest === null ? null : Math.max(reach(length), reach(limit));
    return { best, likeliest, attainable, over: likeliest === null || (best !== null && best >= attainable) };
  }

  /** The boxes of a tree up to a step: { step, row, parent, label, logP, kind }, kinds kept, finished, waiting, dropped. */
  function boxes(steps, last) {
    return steps.slice(0, last).flatMap(({ hypotheses, candidates }, t) => {
      const before = t ? steps[t - 1].hypotheses : [];
      const places = hypotheses.map(({ tokens, logP, score, parent }, row) => {
        const waiting = t > 0 && before[parent].score !== null;
        const kind = waiting ? "waiting" : score === null ? "kept" : "finished";
        return { step: t + 1, row, parent, label: shown(tokens.at(-1)), logP, kind };
      });
      const dropped = candidates.filter(({ kept }) => !kept).slice(0, DROPPED).map(({ parent, token, logP }, i) =>
        ({ step: t + 1, row: hypotheses.length + i, parent, label: shown(token), logP, kind: "dropped" }));
      return [...places, ...dropped];
    });
  }

  /** The place in each step of the hypothesis that ends best, from the first step on. */
  function winner(steps) {
    const { hypotheses } = steps.at(-1);
    let place = hypotheses.reduce((top, { score }, i) => ((score ?? -Infinity) > (hypotheses[top].score ?? -Infinity) ? i : top), 0);
    const way = [];
    for (let t = steps.length - 1; t >= 0; t--) {
      way.unshift(place);
      place = steps[t].hypotheses[place].parent;
    }
    return way;
  }

  /** Ask for a search; what is kept of the answer is what is shown. */
  async function search(model, text, { beam, alpha, signal }) {
    const { text: said, source, steps, cut: left } = await model.translate(text, { beam, alpha, longest: LONGEST, top: beam + LISTED, signal });
    return { said, steps, limit: source.length + 50, vocab: model.config.vocab, beam, alpha, cut: left };
  }

  const first = (model) => search(model, START.text, START);

  // ---- the drawing

  const CLASSES = { kept: "ofill", finished: "vfill", waiting: "frame", dropped: "empty" };
  const cut = (label) => (label.length > 10 ? `${label.slice(0, 9)}\u2026` : label);

  function tree({ steps, beam }, step) {
    const at = (t, row) => [8 + COLUMN * t, TOP + ROW * row];
    const way = step === steps.length ? winner(steps) : [];
    const wires = svg("g"), marks = svg("g");
    const root = at(0, 0)[1] + HIGH / 2;
    marks.append(svg("text", { x: 8, y: root + 5, class: "strong" }, "bos"));
    for (const box of boxes(steps, step)) {
      const [x, y] = at(box.step, box.row);
      const [left, from] = box.step === 1 ? [38, root] : [at(box.step - 1, 0)[0] + WIDE, at(0, box.parent)[1] + HIGH / 2];
      const middle = (left + x) / 2, best = way[box.step - 1] === box.row;
      const d = `M${left} ${from}C${middle} ${from} ${middle} ${y + HIGH / 2} ${x} ${y + HIGH / 2}`;
      const wire = { kept: "wire o", finished: "wire v", waiting: "wire", dropped: "wire dash" }[box.kind];
      wires.append(svg("path", { d, class: best ? "wire hand" : wire }));
      const label = box.kind === "waiting" ? "finished" : cut(box.label);
      const face = box.kind === "dropped" || box.kind === "waiting" ? "small soft" : "small";
      marks.append(svg("g", { class: `node ${box.kind}` },
        svg("rect", { x, y, width: WIDE, height: HIGH, rx: 4, class: CLASSES[box.kind] }),
        best ? svg("rect", { x, y, width: WIDE, height: HIGH, rx: 4, class: "ring" }) : null,
        svg("text", { x: x + WIDE / 2, y: y + 15, class: face, "text-anchor": "middle" }, label),
        svg("text", { x: x + WIDE / 2, y: y + 30, class: face, "text-anchor": "middle" }, words(box.logP))));
    }
    for (let t = 1; t <= steps.length; t++) {
      marks.append(svg("text", { x: at(t, 0)[0] + WIDE / 2, y: 14, class: "small soft", "text-anchor": "middle" }, `step ${t}`));
    }
    const width = at(steps.length, 0)[0] + COLUMN, height = TOP + ROW * (beam + DROPPED);
    const picture = canvas(width, height, `The search up to step ${step}; the table lists its candidates`, wires, marks);
    picture.setAttribute("style", `width: ${width}px; max-width: none; margin: 0`);
    return picture;
  }

  const name = (tokens, token) => [`${written(tokens)} `, el("b", {}, shown(token))];

  /** What was compared in a step, the best first. */
  function list({ steps }, step) {
    const { candidates } = steps[step - 1], before = step > 1 ? steps[step - 2].hypotheses : [{ tokens: [] }];
    const kept = candidates.filter((one) => one.kept).length;
    return table(["hypothesis", "token", "log P", ""], candidates.slice(0, kept + LISTED).map((one) =>
      [el("span", { lang: "de" }, name(before[one.parent].tokens, one.token)), words(Math.log(one.p)), words(one.logP), one.kept ? "kept" : ""]));
  }

  /** What is finished after a step, best score first. */
  function finished({ steps, alpha }, step) {
    const done = steps[step - 1].hypotheses.filter(({ score }) => score !== null).sort((a, b) => b.score - a.score);
    if (!done.length) return table(["finished", "L", "log P", "lp(L)", "score"], [["none yet", "", "", "", ""]]);
    return table(["finished", "L", "log P", "lp(L)", "score"], done.map(({ ids, tokens, logP, score }) =>
      [el("span", { lang: "de" }, written(tokens)), String(ids.length), words(logP), words(penalty(ids.length, alpha)), words(score, 3)]));
  }

  function reason({ steps, limit, alpha, beam }, step) {
    const { best, likeliest, attainable, over } = verdict(steps[step - 1].hypotheses, step, limit, alpha);
    if (likeliest === null) return `It stops: ${beam === 1 ? "the hypothesis is" : "all hypotheses are"} finished.`;
    const most = `the unfinished can reach ${words(attainable, 3)} at most`;
    if (best === null) return `It goes on: nothing is finished; ${most}.`;
    return over ? `It stops: the best finished score is ${words(best, 3)}, and ${most}.`
      : `It goes on: the best finished score is ${words(best, 3)}, but ${most}.`;
  }

  // ---- the element

  function build(root, say) {
    let found = globalThis.annotated.first.beam, step = START.step;
    const stage = el("div", { class: "tree", tabindex: 0, role: "region", "aria-label": "The tree of the search" });
    const below = el("div", { class: "below" }), where = el("output", { class: "where", "aria-live": "off" }); // say() says it
    const width = slider({ label: "Beam width k", min: 1, max: 8, value: START.beam, change: () => line.again() });
    const alpha = slider({ label: "Length penalty \u03b1", min: 0, max: 2, step: 0.1, value: START.alpha, show: (x) => words(x, 1), change: () => line.again() });
    const line = sentence({
      root, value: START.text, say,
      ask: async (model, text, signal) => ({ ...await search(model, text, { beam: width.value, alpha: alpha.value, signal }), text }),
      show: (answer) => {
        steps.halt();
        const whole = step === found.steps.length, fresh = answer.text !== line.told;
        line.told = answer.text;
        found = answer;
        step = fresh || whole ? found.steps.length : Math.min(step, found.steps.length);
        draw();
      },
    });
    line.told = START.text;

    function draw() {
      const left = stage.scrollLeft;
      renew(stage, tree(found, step));
      stage.scrollLeft = Math.max(left, COLUMN * (step + 1) - stage.clientWidth);
      if (COLUMN * step < stage.scrollLeft) stage.scrollLeft = COLUMN * (step - 1);
      where.textContent = `step ${step} of ${found.steps.length}`;
      steps.told();
      const over = step === found.steps.length ? [" The translation: ", el("span", { lang: "de" }, found.said)] : [];
      const going = step > 1 ? found.steps[step - 2].hypotheses.filter(({ score }) => score === null).length : 1;
      renew(below,
        el("p", { class: "verdict" }, reason(found, step), ...over),
        el("p", {}, `The best of ${going} \u00d7 ${words(found.vocab, 0)} candidates, by log P; in the tree, dashed boxes are not kept:`), list(found, step), finished(found, step));
      say(`Step ${step}. ${reason(found, step)}${over.length ? ` The translation: ${found.said}` : ""}`);
    }
    const steps = player({
      first: 1, last: () => found.steps.length, at: () => step, pause: PAUSE,
      go: (to) => {
        step = to;
        draw();
      },
    });
    root.append(line.input, el("div", { class: "controls" }, width, alpha),
      el("div", { class: "controls" }, steps.buttons, where, line.status), stage, below);
    draw();
    once(draw)(); // when the page has given it a width, the tree is scrolled to its step
  }

  explorer("beam", "A beam search of the model, step by step", build);
  if (typeof module !== "undefined") module.exports = { START, penalty, verdict, boxes, winner, search, first };
})();
