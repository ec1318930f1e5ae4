// Table 3: rows to choose, the paper's differences from its base model beside ours seed by seed, and what is shown.
// The numbers come with the page, as the attribute data-numbers: see book/_ext/annotated_explorers.py.
"use strict";

(() => {
  const { mean, el, svg, renew, canvas, choice, table, fitted, words, once } = globalThis.annotated;
  const MEASURES = {
    ppl: { name: "perplexity", axis: "log perplexity − base's; less is better", digits: 2, form: Math.log, better: -1 },
    bleu: { name: "BLEU", axis: "BLEU − base's; more is better", digits: 2, form: Number, better: 1 },
  };
  const ORDERS = { table: "Table 3's", paper: "the paper's", ours: "ours" };
  const ROW = 24;

  /** Where the mean over all seeds lies, with 95 % confidence; t are Student's factors by n − 1. */
  function interval(values, t) {
    const n = values.length;
    const middle = mean(values);
    const s = Math.sqrt(values.reduce((sum, x) => sum + (x - middle) ** 2, 0) / (n - 1));
    const reach = (t[n - 1] * s) / Math.sqrt(n);
    return [middle - reach, middle + reach];
  }

  /** Each row's differences from base, the paper's and ours by seed, their interval, and what it shows. */
  function compare({ rows, t }, key) {
    const { form, better } = MEASURES[key];
    const base = rows.find((row) => row.name === "base");
    return rows.map((row) => {
      const seeds = row.ours[key].map((value, i) => form(value) - form(base.ours[key][i]));
      const ends = interval(seeds, t);
      const side = ends[1] < 0 ? -1 : ends[0] > 0 ? 1 : 0;
      return {
        name: row.name, group: row.group, value: mean(row.ours[key]), published: row.paper[key],
        seeds, ends, ours: mean(seeds), paper: form(row.paper[key]) - form(base.paper[key]),
        shown: row === base ? "" : side === 0 ? "undecided" : side === better ? "better" : "worse",
      };
    });
  }

  /** The rows of a group, or all but base, in one of ORDERS. */
  function chosen(rows, group, order) {
    const kept = rows.filter((row) => row.name !== "base" && (group === "all" || row.group === group));
    return order === "table" ? kept : kept.sort((a, b) => a[order] - b[order]);
  }

  function draw(width, all, rows, measure) {
    const values = all.flatMap((row) => [...row.seeds, ...row.ends, row.paper]);
    const [left, right, height] = [112, width - 16, rows.length * ROW + 66];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (value) => left + 8 + ((value - low) / (high - low)) * (right - left - 16);
    const step = [0.1, 0.2, 1, 2, 5, 10].find((one) => (high - low) / one <= 6);
    const ticks = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
    const bottom = height - 42;
    const label = `Differences from base, ${measure.axis}: ${rows.map((row) => `${row.name} ${words(row.paper, measure.digits)} in the paper, ${words(row.ours, measure.digits)} here`).join("; ")}.`;
    return canvas(width, height, label,
      svg("path", { class: "wire dash", d: `M${x(0)} 12V${bottom}` }),
      ticks.map((tick) => svg("text", { class: "small soft", "text-anchor": "middle", x: x(tick), y: bottom + 16 }, words(tick, step < 1 ? 1 : 0))),
      svg("text", { class: "small", "text-anchor": "end", x: right, y: height - 6 }, measure.axis),
      rows.flatMap((row, i) => {
        const y = 26 + i * ROW;
        return [
          svg("text", { class: "small", x: 2, y: y + 4 }, row.name),
          svg("path", { class: "rule", d: `M${left} ${y}H${right}` }),
          svg("rect", { class: "block", x: x(row.ends[0]), y: y - 6, width: x(row.ends[1]) - x(row.ends[0]), height: 12 }),
          svg("circle", { class: "box", cx: x(row.paper), cy: y, r: 5 }),
          ...row.seeds.map((seed) => svg("circle", { class: "dot o", cx: x(seed), cy: y, r: 3 })),
        ];
      }));
  }

  function build(root, say, { host }) {
    const data = JSON.parse(host.dataset.numbers);
    const groups = [...new Set(data.rows.slice(1).map(({ group }) => group))].map((group) => [group, group]);
    const controls = [
      choice({ label: "rows", options: Object.fromEntries([...groups, ["all", "all"]]), value: "all", change: () => show() }),
      choice({ label: "by", options: { ppl: "perplexity", bleu: "BLEU" }, value: "ppl", change: () => show() }),
      choice({ label: "order", options: ORDERS, value: "table", change: () => show() }),
    ];
    const state = () => {
      const [group, key, order] = controls.map((one) => one.value);
      const all = compare(data, key);
      return { key, group, all, rows: chosen(all, group, order) };
    };
    const drawing = fitted((room) => {
      const box = el("div");
      return { drawing: box, show: ({ all, rows, key }) => renew(box, draw(room, all, rows, MEASURES[key])) };
    }, state);
    const redraw = once(drawing.redraw);
    const numbers = el("div");

    function show() {
      const { key, group, all, rows } = state();
      const { name, digits, better } = MEASURES[key];
      const signed = (x) => (x >= 0.5 / 10 ** digits ? "+" : "") + words(x, digits);
      const base = all.find((row) => row.name === "base");
      const verdict = ({ shown, paper, seeds }) => {
        if (!shown) return `${seeds.length} seeds`;
        if (shown === "undecided") return shown;
        if (!paper) return `${shown}, equal in the paper`;
        return `${shown}, ${shown === (paper * better > 0 ? "better" : "worse") ? "as in the paper" : "unlike the paper"}`;
      };
      const lines = [base, ...rows].map((row) => [
        el("span", { class: "layer" }, row.name, el("small", {}, `ours: ${verdict(row)}`)),
        words(row.published, key === "ppl" ? 2 : 1), signed(row.paper), words(row.value, key === "ppl" ? 2 : 1), signed(row.ours),
      ]);
      renew(numbers, table([name, "paper's", "− base", "ours", "− base"], lines));
      const count = (shown) => rows.filter((row) => row.shown === shown).length;
      say(`Rows ${group} by ${name}: ours are better than base in ${count("better")}, worse in ${count("worse")}, undecided in ${count("undecided")}`);
      redraw();
    }

    root.append(
      el("div", { class: "controls" }, controls), drawing,
      el("p", { class: "note" }, "Filled: ours, a dot a seed. Shaded: where the mean over all seeds lies, with 95 % confidence; if it holds 0, ours is undecided. Hollow: the paper's. Differences of perplexity are those of its logarithm."),
      numbers,
    );
    show();
  }

  globalThis.annotated.explorer("ablation", "Table 3, the paper's differences from base beside ours", build);
  if (typeof module !== "undefined") module.exports = { interval, compare, chosen };
})();
