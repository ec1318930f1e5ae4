// BLEU of one sentence against one reference, while either is edited: which runs of words count, and what follows.
"use strict";

(() => {
  const { cut, el, renew, button, field, table, words } = globalThis.annotated;
  const ORDERS = [1, 2, 3, 4];
  const START = ["ich weiß dass der Hund die Katze sieht", "ich weiß dass der Hund der Katze"];

  const ngrams = (list, n) => list.slice(0, Math.max(0, list.length - n + 1)).map((_, i) => list.slice(i, i + n).join(" "));

  /** Which n-grams of the output count, in their order: each at most as often as the reference has it. */
  function matches(output, reference, n) {
    const left = new Map();
    for (const gram of ngrams(reference, n)) left.set(gram, (left.get(gram) ?? 0) + 1);
    const known = new Set(left.keys());
    const found = ngrams(output, n).map((gram) => {
      const free = (left.get(gram) ?? 0) > 0;
      if (free) left.set(gram, left.get(gram) - 1);
      return { lit: free, clipped: !free && known.has(gram) };
    });
    const count = (key) => found.filter((x) => x[key]).length;
    return { found, shared: count("lit"), clipped: count("clipped"), possible: found.length };
  }

  /** BLEU as sacreBLEU has it: an order without a match is given half a match, the next such order a quarter. */
  function score(output, reference) {
    const orders = ORDERS.map((n) => matches(output, reference, n));
    const c = output.length;
    const r = reference.length;
    const brevity = c < r ? (c > 0 ? Math.exp(1 - r / c) : 0) : 1;
    let given = 1;
    for (const order of orders) {
      const nothing = orders[0].shared === 0 || order.possible === 0;
      if (!nothing && order.shared === 0) given /= 2;
      order.given = !nothing && order.shared === 0 ? given : 0;
      order.precision = nothing ? 0 : (order.shared || given) / order.possible;
    }
    const mean = orders.reduce((product, order) => product * order.precision, 1) ** (1 / 4);
    return { orders, c, r, brevity, mean, bleu: 100 * brevity * mean };
  }

  const box = (word, kind) => el("span", { class: `word ${kind}` }, word);

  /** A word of the output: its box, and below it the runs of two, three and four words that it belongs to. */
  function column(output, i, orders) {
    const runs = [2, 3, 4].map((n) => {
      const lanes = [];
      for (let lane = 0; lane < n; lane++) {
        const first = i - ((((i - lane) % n) + n) % n); // in this lane runs begin at lane, lane + n, ...
        const run = first >= 0 ? orders[n - 1].found[first] : undefined;
        const ends = `${first === i ? "first" : ""} ${first === i - n + 1 ? "last" : ""}`;
        lanes.push(el("i", { class: run ? `${run.lit ? "lit" : "unlit"} ${ends}` : "" }));
      }
      return el("span", { class: "lanes" }, lanes);
    });
    return el("span", { class: "column" }, box(output[i], orders[0].found[i].lit ? "lit" : "unlit"), runs);
  }

  function build(root, say) {
    const fields = [
      field({ label: "reference", value: START[0], lang: "de", change: () => show() }),
      field({ label: "output", value: START[1], lang: "de", change: () => show() }),
    ];
    const seen = el("div", { class: "bleu" });
    const numbers = el("div", { class: "controls" });
    const halves = el("p", { class: "note" }, "* Where nothing matches, sacreBLEU counts half a match; in the next such row a quarter, then an eighth.");

    function show() {
      const [reference, output] = fields.map((one) => cut(one.value));
      const now = score(output, reference);
      const names = el("span", { class: "column names" }, el("span", { class: "word" }, "n = 1"),
        [2, 3, 4].map((n) => el("span", { class: "lanes" }, `n = ${n}`)));
      renew(seen,
        el("p", { class: "label" }, "reference"),
        el("div", { class: "line", lang: "de" }, reference.map((word) => box(word, "neutral"))),
        el("p", { class: "label" }, "output"),
        el("div", { class: "line", "aria-hidden": true }, names, output.map((_, i) => column(output, i, now.orders))),
      );
      const rows = now.orders.map((order, i) => {
        const counted = `${order.shared || order.given} of ${order.possible}`;
        return [`n = ${i + 1}`, order.given ? el("strong", {}, counted, " *") : counted, `${order.clipped}`, words(order.precision, 3)];
      });
      renew(numbers,
        table(["", "count", "clipped", "precision"], rows),
        table(["factor", "value"], [
          [!now.c ? "brevity of no words" : now.c < now.r ? `brevity exp(1 − ${now.r}/${now.c})` : `brevity, ${now.c} words for ${now.r}`, words(now.brevity, 3)],
          ["fourth root of the product", words(now.mean, 3)],
          [el("strong", {}, "BLEU"), el("strong", { class: "score" }, words(now.bleu, 1))],
        ]),
      );
      halves.hidden = !now.orders.some((order) => order.given);
      const found = now.orders.map((order, i) => `${order.shared} of ${order.possible} for n = ${i + 1}`).join(", ");
      say(`BLEU ${words(now.bleu, 1)}: ${found}; brevity penalty ${words(now.brevity, 3)}`);
    }

    const put = (make) => () => {
      fields[1].value = make(cut(fields[0].value)).join(" ");
      show();
    };
    root.append(
      el("div", { class: "controls" }, fields),
      el("div", { class: "controls" },
        el("span", {}, "Output:"),
        button("as at first", () => {
          fields.forEach((one, i) => (one.value = START[i]));
          show();
        }),
        button("the reference", put((list) => list)),
        button("its first half", put((list) => list.slice(0, Math.ceil(list.length / 2)))),
        button("backwards", put((list) => [...list].reverse())),
        button("one word repeated", put((list) => list.map(() => list[0])))),
      seen, el("p", { class: "note" }, "Filled: a word, or a run of n words, that counts. Dashed: one that does not."), numbers, halves,
    );
    show();
  }

  globalThis.annotated.explorer("bleu", "BLEU of a sentence that you edit", build);
  if (typeof module !== "undefined") module.exports = { START, cut, matches, score };
})();
