// Chapter 4: heads of the live model switched off, and what its translation becomes.
// needs: engine, live, without-first
"use strict";

(() => {
  const { words, el, button, explorer, live } = globalThis.annotated;
  const { sentence, LONGEST } = live;
  const KINDS = { encoder: "encoder", decoder: "decoder", cross: "cross-attention" };
  const DECODER = [0, 1].flatMap((layer) => [0, 1, 2, 3].map((head) => ["decoder", layer, head]));
  const START = { text: "Can you tell me what you saw yesterday?", without: DECODER }; // the heads that look back

  /** A longest common subsequence of words: for each of b, whether it belongs to it. */
  function common(a, b) {
    const long = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0)); // of a[i:] and b[j:]
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) long[i][j] = a[i] === b[j] ? 1 + long[i + 1][j + 1] : Math.max(long[i + 1][j], long[i][j + 1]);
    }
    const kept = b.map(() => false);
    for (let i = 0, j = 0; i < a.length && j < b.length;) {
      if (a[i] === b[j]) kept[(i++, j++)] = true;
      else if (long[i + 1][j] >= long[i][j + 1]) i++;
      else j++;
    }
    return kept;
  }

  /** Text, and the geometric mean of the probabilities of its tokens. */
  async function translated(model, text, options) {
    const { text: said, ids, steps, cut } = await model.translate(text, { beam: 1, longest: LONGEST, ...options });
    return { said, cut, sure: Math.exp(steps.at(-1).hypotheses[0].logP / ids.length) };
  }

  /** Greedy translations of the whole model, and of the model without some heads, each [kind, layer, head]. */
  async function ask(model, text, without, signal) {
    const whole = await translated(model, text, { signal });
    const { N, N_decoder, h } = model.config;
    return { whole, cut: whole.cut, less: await translated(model, text, { without, signal }), config: { N, N_decoder, h } };
  }

  const first = (model) => ask(model, START.text, START.without);

  // ---- the element

  function build(root, say) {
    const { config, ...begun } = globalThis.annotated.first.without;
    const off = new Set(START.without.map(String)), boxes = [], named = [];
    const line = sentence({
      root, value: START.text, say, show,
      ask: async (model, text, signal) => {
        const without = boxes.filter((box) => !box.checked).map((box) => box.head);
        return { ...await ask(model, text, without, signal), n: without.length };
      },
    });
    const result = el("div", { class: "result" });

    function show({ whole, less, n }) {
      const [before, after] = [whole.said, less.said].map((x) => x.split(" "));
      const kept = common(before, after);
      const said = (title, sure, ...text) => el("div", {},
        el("dt", {}, title), el("dd", { lang: "de" }, text.flat()), el("dd", { class: "sure" }, `geometric mean of its tokens' probabilities ${words(sure)}`));
      result.replaceChildren(el("dl", {},
        said("With all heads", whole.sure, whole.said),
        said(`Without ${n} of ${boxes.length} heads`, less.sure,
          after.flatMap((word, i) => [kept[i] ? word : el("strong", { class: "changed" }, word), " "]))));
      say(`Without ${n} heads: ${less.said}`);
    }

    function changed() {
      for (const name of named) name();
      line.again();
    }

    const row = (kind, layer) => {
      const place = `${KINDS[kind]}, layer ${layer + 1}`;
      const own = Array.from({ length: config.h }, (_, head) => {
        const input = el("input", { type: "checkbox", checked: !off.has(String([kind, layer, head])), autocomplete: "off",
          "aria-label": `${place}, head ${head + 1}`, onchange: changed });
        input.head = [kind, layer, head];
        return input;
      });
      boxes.push(...own);
      const all = button("", () => {
        const on = own.some((input) => !input.checked);
        for (const input of own) input.checked = on;
        changed();
      });
      named.push(() => { // by what a click does
        all.textContent = own.some((input) => !input.checked) ? "on" : "off";
        all.setAttribute("aria-label", `${place}, all heads ${all.textContent}`);
      });
      return el("tr", {}, el("th", { scope: "row" }, place), own.map((input) => el("td", {}, input)), el("td", {}, all));
    };
    const rows = Object.keys(KINDS).flatMap((kind) =>
      Array.from({ length: kind === "encoder" ? config.N : config.N_decoder }, (_, layer) => row(kind, layer)));
    const heads = el("tr", {}, el("th", { scope: "col" }, "heads"),
      Array.from({ length: config.h }, (_, i) => el("th", { scope: "col" }, String(i + 1))), el("th", { scope: "col" }, "all"));
    root.append(line.input, el("div", { class: "readings" }, el("table", {}, el("thead", {}, heads), el("tbody", {}, rows))),
      line.status, result);
    for (const name of named) name();
    show({ ...begun, n: off.size });
  }

  explorer("without", "A translation without some of the model's heads", build);
  if (typeof module !== "undefined") module.exports = { START, common, ask, first };
})();
