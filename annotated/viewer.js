// The viewer of chapter 19: fills each <div class="attention-viewer"> that `annotated.figures.viewer` has written.
// The element carries this text itself, so that a notebook or a saved page needs nothing else.
"use strict";

(() => {
  // ---- arithmetic, compared with Python's in tests/test_figures.py

  /** The names of rows and columns; a decoder's row is named by the token it writes. */
  function namesOf({ source, target, written }, kind) {
    const queries = kind === "encoder" ? source : written.map((token) => `\u2192 ${token}`);
    return [queries, kind === "decoder" ? target : source];
  }

  /** One head's rows of whole percent; the number after the last head asks for the mean of all. */
  function headOf(heads, head) {
    if (head < heads.length) return heads[head];
    return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, rows) => sum + rows[t][s], 0) / heads.length));
  }

  /** The keys of the three largest weights of a row that are not 0. */
  const largest = (row) => [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 3).filter((s) => row[s] > 0);

  /** A path of squares for each colour, as `_render_svg` draws them. */
  function squares(rows, colours) {
    const paths = Array(colours).fill("");
    rows.forEach((row, t) => row.forEach((w, s) => {
      paths[Math.min(colours - 1, Math.floor(w / 10))] += `M${s} ${t}h.94v.94h-.94z`;
    }));
    return paths;
  }

  // ---- the page

  const make = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text ?? "" }, more);

  function build(box) {
    const data = JSON.parse(box.dataset.maps), at = { ...data.start };
    const id = `attention-${Math.random().toString(36).slice(2)}`, cell = 19;
    const part = (name) => box.querySelector(`.${name}`), words = part("words");
    const names = () => namesOf(data.maps[at.sentence], at.kind);
    const matrix = () => headOf(data.maps[at.sentence].weights[at.kind][at.layer], at.head);

    const fields = {};

    function choose(name, label, options) {
      const field = fields[name] = make("select", "", { name, id: id + name, autocomplete: "off" });
      for (const [value, text] of options) field.append(make("option", text, { value, selected: value === at[name] }));
      field.onchange = () => {
        at[name] = name === "kind" ? field.value : Number(field.value);
        draw();
      };
      const row = make("span");
      row.append(make("label", label, { htmlFor: field.id }), " ", field);
      part("choices").append(row);
    }

    function show(row) {
      at.row = row;
      const [queries, keys] = names(), weights = matrix()[row];
      part("keys").replaceChildren(...weights.map((w, s) => {
        const item = make("li", keys[s]), bar = make("i");
        bar.style.width = `${w}%`;
        item.append(bar, make("span", `${Math.round(w)} %`));
        return item;
      }));
      const best = largest(weights).map((s) => `${keys[s]} (${Math.round(weights[s])} %)`);
      part("said").textContent = `${queries[row]} looks at ${best.join(", ")}.`;
      box.querySelectorAll("svg .row").forEach((r, t) => r.classList.toggle("on", t === row));
      words.querySelectorAll("input")[row].checked = true;
    }

    function list(queries) { // the words to look from
      words.replaceChildren(...queries.map((word, row) => {
        const label = make("label"), input = make("input", "", { type: "radio", name: id, autocomplete: "off", onchange: () => show(row) });
        label.onpointerenter = (event) => {
          if (event.pointerType === "mouse") show(row);
        };
        label.append(input, make("span", word));
        return label;
      }));
    }

    function map(queries, keys) {
      const svg = part("map"), left = 8 + 7 * Math.max(...[...queries, ...keys].map((word) => [...word].length));
      const [width, height] = [keys, queries].map(({ length }) => left + cell * length + 2);
      const add = (tag, more, text = "") => {
        const node = document.createElementNS(svg.namespaceURI, tag);
        for (const [name, value] of Object.entries(more)) node.setAttribute(name, value);
        node.textContent = text;
        svg.append(node);
        return node;
      };
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.setAttribute("width", width);
      const shape = `${queries.length} queries by ${keys.length} keys`;
      svg.setAttribute("aria-label", `Attention map: ${data.kinds[at.kind]}, ${shape}`);
      const transform = `translate(${left} ${left}) scale(${cell})`;
      squares(matrix(), data.colours.length).forEach((d, i) => d && add("path", { d, fill: data.colours[i], transform }));
      queries.forEach((word, t) => add("text", { x: left - 5, y: left + cell * (t + 0.7), "text-anchor": "end" }, word));
      const over = (s) => `translate(${left + cell * (s + 0.7)} ${left - 5}) rotate(-90)`;
      keys.forEach((word, s) => add("text", { transform: over(s) }, word));
      queries.forEach((_, t) => {
        const place = { x: left - 1, y: left + cell * t - 1, width: cell * keys.length + 1, height: cell + 1 };
        add("rect", { class: "row", ...place }).onpointerenter = () => show(t);
      });
    }

    function fit() { // the stacks may be of different depth
      const depth = data.maps[at.sentence].weights[at.kind].length;
      at.layer = Math.min(at.layer, depth - 1);
      [...fields.layer.options].forEach((option, i) => { option.disabled = i >= depth; });
      fields.layer.value = at.layer;
    }

    function draw() {
      fit();
      const [queries, keys] = names();
      at.row = Math.min(at.row, queries.length - 1);
      list(queries);
      map(queries, keys);
      show(at.row);
    }

    const { weights } = data.maps[0], count = (n) => Array.from({ length: n }, (_, i) => [i, i + 1]);
    choose("sentence", "Sentence", data.maps.map(({ title }, i) => [i, title]));
    choose("kind", "Attention", Object.entries(data.kinds));
    choose("layer", "Layer", count(Math.max(...Object.values(weights).map((layers) => layers.length))));
    choose("head", "Head", [...count(weights.encoder[0].length), [weights.encoder[0].length, "mean"]]);
    for (const hidden of box.querySelectorAll("[hidden]")) hidden.hidden = false;
    draw();
  }

  if (typeof module !== "undefined") module.exports = { namesOf, headOf, largest, squares };
  if (typeof document === "undefined") return; // node, for the tests
  for (const box of document.querySelectorAll(".attention-viewer:not([data-ready])")) {
    box.dataset.ready = "";
    build(box);
  }
})();
