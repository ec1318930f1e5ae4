// What two explorers need: the custom element around each, its controls, its drawing, and a little arithmetic.
// A classic script without dependencies, so that a page works from a file as well as from a server.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // ---- arithmetic: pure functions over arrays, compared with Python's in tests/test_explorer_*.py

  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

  /** exp(x_i) / sum_j exp(x_j), where only the keys that `mask` allows count; none allowed gives zeros. */
  function softmax(scores, mask = null) {
    const kept = scores.filter((_, i) => !mask || mask[i]);
    const top = Math.max(...kept);
    const powers = scores.map((x, i) => (!mask || mask[i] ? Math.exp(x - top) : 0));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((x) => (sum > 0 ? x / sum : 0));
  }

  /** Rows of A against columns of B. */
  const matmul = (A, B) => A.map((row) => B[0].map((_, j) => row.reduce((sum, x, k) => sum + x * B[k][j], 0)));

  /** Numbers in [0, 1) that are the same on every machine for one seed. */
  function random(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
  }

  /** A normal deviate of mean 0 and variance 1, by Box and Muller. */
  const normal = (next) => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());

  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

  /** The words of a text, as Python's str.split() has them, and sacreBLEU with it. */
  const cut = (text) => text.split(/[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u).filter((word) => word);

  /** What write(digits) gives, toFixed or toExponential, but of two equally near numbers the even one, as in Python. */
  function rounded(write, digits) {
    const tie = /^(.*?)\.?50{29}(e.*)?$/.exec(write(digits + 30));
    return tie && "02468".includes(tie[1].at(-1)) ? tie[1] + (tie[2] ?? "") : write(digits);
  }

  /** A number as people read it: so many digits after the point, a true minus, thousands apart. */
  function words(x, digits = 2) {
    const write = (places) => Math.abs(x).toFixed(places);
    const near = (Math.abs(x) * 10 ** digits) % 1 === 0.5; // only then can it be a tie; to write it out takes long
    const text = near ? rounded(write, digits) : write(digits);
    const [whole, ...rest] = text.split(".");
    return (x < 0 && Number(text) !== 0 ? "\u2212" : "") + [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
  }

  /** A number of any size, in three digits: 6.99 · 10⁻⁴ */
  function scientific(x, digits = 2) {
    const [front, power] = rounded((places) => x.toExponential(places), digits).split("e");
    const raised = [...String(Number(power))].map((sign) => (sign === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[sign]));
    return `${front} \u00b7 10${raised.join("")}`;
  }

  // ---- the document

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, name.startsWith("aria-") ? "true" : "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.flat().filter((child) => child != null));
    return node;
  }

  /** An element: el("p", { class: "note" }, "words", otherElement); `onclick` and its kin are listeners. */
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

  /** The same for what stands inside an SVG. */
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /** Attributes of a node that is there: only what differs is written, since a browser works out anew what has been. */
  function set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
      if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
    }
  }

  /** The words of a node that is there: its text changes, since a new one would be styled, too. */
  function write(node, words) {
    const text = node.firstChild;
    if (text?.nodeType !== Node.TEXT_NODE) node.textContent = words;
    else if (text.data !== String(words)) text.data = words;
  }

  /** Make a node like `next`, or let `next` take its place where it is of another kind. */
  function become(node, next) {
    if (node === next) return;
    if (node.nodeName !== next.nodeName) node.replaceWith(next);
    else if (node.nodeType === Node.TEXT_NODE) {
      if (node.data !== next.data) node.data = next.data;
    } else {
      if (!node.matches(".readings")) { // what `scrolled` has told the keyboard stays
        for (const { name } of [...node.attributes]) if (!next.hasAttribute(name)) node.removeAttribute(name);
        for (const { name, value } of next.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
      }
      renew(node, ...next.childNodes);
    }
  }

  /**
   * box.replaceChildren(...nodes), for a drawing or a table that changes while one drags: what is the same stays, since
   * to style and lay out new elements takes a browser longer than to make them. Listeners of `nodes` are lost.
   */
  function renew(box, ...nodes) {
    const old = [...box.childNodes];
    box.append(...nodes.slice(old.length));
    old.forEach((node, i) => (i < nodes.length ? become(node, nodes[i]) : node.remove()));
  }

  /** A drawing of the book's vocabulary (drawing.css has its classes), scaled to its column; the label is words, or { group: words }. */
  function canvas(width, height, label, ...children) {
    const role = label.group ? "group" : "img"; // a group's parts are touched one by one
    const named = { role, "aria-label": label.group ?? label };
    return svg("svg", { class: "drawing", viewBox: `0 0 ${width} ${height}`, ...named }, ...children);
  }

  /** The class of a weight from 0 to 1 in the map of all figures (w0 to w10), for `<rect class=...>`. */
  const shade = (weight) => `w w${Math.round(clamp(weight, 0, 1) * 10)}`;

  /** Call `draw` once before the next frame, however often it is asked for. */
  function once(draw) {
    let asked = false;
    return () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        draw();
      });
    };
  }

  /**
   * A drawing whose units are pixels: make(width) gives { drawing, show }, again whenever its column changes, and
   * redraw() calls show(state()), which moves what is there.
   */
  function fitted(make, state, most = 672) {
    const box = el("div", { class: "fitted" });
    let width = 0, made = null;
    box.redraw = () => made?.show(state());
    new ResizeObserver(() => {
      const now = Math.round(clamp(box.clientWidth, 260, most));
      if (now === width) return;
      width = now;
      made = make(width);
      box.redraw();
      box.replaceChildren(made.drawing);
    }).observe(box);
    return box;
  }

  const tenth = (x) => Math.round(10 * x) / 10;

  /** A path through points; those that are no numbers interrupt it. */
  function path(points) {
    let drawn = "", off = true;
    for (const [x, y] of points) {
      const there = Number.isFinite(x + y);
      if (there) drawn += `${off ? "M" : "L"}${tenth(x)} ${tenth(y)}`;
      off = !there;
    }
    return drawn;
  }

  /**
   * The frame of a plot: `frame` to put first into its drawing, and where a value lies, x(value) and y(value).
   *
   * An axis is { from, to, ticks: [[value, "what is read"], ...], label, log }.
   */
  function plot({ width, height, x, y, left = 52 }) {
    const place = ({ from, to, log }, low, high) => {
      const f = log ? Math.log : Number;
      return (value) => low + ((f(value) - f(from)) / (f(to) - f(from))) * (high - low);
    };
    const [right, top, bottom] = [width - 20, 26, height - 44];
    const [X, Y] = [place(x, left, right), place(y, bottom, top)];
    const frame = svg("g", {},
      x.ticks.map(([value, text]) => [
        svg("path", { class: "rule", d: `M${X(value)} ${top}V${bottom}` }),
        svg("text", { class: "small soft", "text-anchor": "middle", x: X(value), y: bottom + 17 }, text)]).flat(),
      y.ticks.map(([value, text]) => [
        svg("path", { class: "rule", d: `M${left} ${Y(value)}H${right}` }),
        svg("text", { class: "small soft", "text-anchor": "end", x: left - 6, y: Y(value) + 4 }, text)]).flat(),
      svg("text", { class: "small", x: 2, y: 14 }, y.label),
      svg("text", { class: "small", "text-anchor": "end", x: right, y: height - 8 }, x.label));
    return { frame, x: X, y: Y };
  }

  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  // ---- controls: native inputs with their labels; each returns an element with `value`. Of a page that one goes back to
  // a browser would set them without an event, and the drawing would not follow: autocomplete "off" keeps their start.

  let count = 0;
  const fresh = () => `explorer-${++count}`;

  /** The control's `value` is a property of its input. */
  function reflect(box, input, name) {
    Object.defineProperty(box, "value", {
      get: () => input[name],
      set(x) {
        input[name] = x;
      },
    });
  }

  /** A range input with its label and its number: slider({ label, min, max, step, value, show, change }). */
  function slider({ label, min, max, step = 1, value, show = String, change = () => {} }) {
    const id = fresh();
    const output = el("output", { for: id, "aria-live": "off" }, show(value)); // the input says it
    const input = el("input", { type: "range", id, min, max, step, value, autocomplete: "off" });
    const told = () => {
      const words = show(input.valueAsNumber);
      write(output, words);
      set(input, { "aria-valuetext": words });
    };
    input.addEventListener("input", () => {
      told();
      change(input.valueAsNumber);
    });
    told();
    const box = el("div", { class: "control slider" }, el("label", { for: id }, label), input, output);
    Object.defineProperty(box, "value", {
      get: () => input.valueAsNumber,
      set(x) {
        input.value = x;
        told();
      },
    });
    return box;
  }

  /** Radio buttons: choice({ label, options: { value: "what is read" }, value, change }). */
  function choice({ label, options, value, change = () => {} }) {
    const name = fresh();
    const inputs = Object.entries(options).map(([key, shown]) => {
      const input = el("input", { type: "radio", name, value: key, checked: key === String(value), autocomplete: "off" });
      input.addEventListener("change", () => change(key));
      return el("label", {}, input, " ", shown);
    });
    const box = el("fieldset", { class: "control choice" }, el("legend", {}, label), inputs);
    Object.defineProperty(box, "value", {
      get: () => box.querySelector("input:checked")?.value,
      set(x) {
        for (const input of box.querySelectorAll("input")) input.checked = input.value === String(x);
      },
    });
    return box;
  }

  /** A checkbox: toggle({ label, value, change }). */
  function toggle({ label, value = false, change = () => {} }) {
    const input = el("input", { type: "checkbox", checked: value, autocomplete: "off" });
    input.addEventListener("change", () => change(input.checked));
    const box = el("label", { class: "control check" }, input, " ", label);
    reflect(box, input, "checked");
    return box;
  }

  const button = (label, click) => el("button", { type: "button", class: "control", onclick: click }, label);

  /** A line of text: field({ label, value, change, max, lang }). */
  function field({ label, value = "", change = () => {}, max = 200, lang = null }) {
    const id = fresh();
    const input = el("input", { type: "text", id, value, maxlength: max, lang, autocomplete: "off", spellcheck: "false" });
    input.addEventListener("input", () => change(input.value));
    const box = el("div", { class: "control field" }, el("label", { for: id }, label), input);
    reflect(box, input, "value");
    return box;
  }

  /**
   * A mark in a drawing that is dragged by pointer or moved by arrow keys: move(x, y) in the drawing's units.
   *
   * It is a slider to those who hear it, so that their arrow keys reach it; whoever draws it gives its values.
   */
  function drag(mark, { label, at, move, step = 5 }) {
    const place = (event) => {
      const matrix = mark.ownerSVGElement.getScreenCTM().inverse();
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
      move(x, y);
    };
    fill(mark, { tabindex: 0, role: "slider", "aria-label": label, "aria-roledescription": "point, moved by arrow keys", class: `${mark.getAttribute("class") ?? ""} handle` }, []);
    mark.addEventListener("pointerdown", (event) => {
      mark.setPointerCapture(event.pointerId);
      event.preventDefault();
      mark.focus();
    });
    mark.addEventListener("pointermove", (event) => {
      if (mark.hasPointerCapture(event.pointerId)) place(event);
    });
    mark.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!way) return;
      event.preventDefault();
      const [x, y] = at();
      const far = event.shiftKey ? 4 * step : step;
      move(x + far * way[0], y + far * way[1]);
    });
    return mark;
  }

  let wide = null;

  /** Let the keyboard reach a box if it is wider inside than outside. */
  function reachable(box, label) {
    const scrolls = box.scrollWidth > box.clientWidth;
    for (const [name, value] of [["tabindex", 0], ["role", "region"], ["aria-label", label]]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  }

  /** Let the keyboard reach a box for as long as it is wider inside than outside. */
  function scrolled(box) {
    wide ??= new ResizeObserver((entries) => {
      for (const { target } of entries) {
        if (!target.isConnected) {
          wide.unobserve(target);
          continue;
        }
        reachable(target, "Numbers");
      }
    });
    requestAnimationFrame(() => { if (box.isConnected) wide.observe(box); }); // not one that `renew` has only read
    return box;
  }

  /** A table of numbers: table(["head", ...], [[cell, ...], ...]); the first cell of a row names it. */
  function table(heads, rows) {
    const head = el("tr", {}, heads.map((x) => (x !== "" ? el("th", { scope: "col" }, x) : el("td"))));
    const body = rows.map(([first, ...rest]) =>
      el("tr", {}, el("th", { scope: "row" }, first), rest.map((x) => el("td", {}, x))));
    return scrolled(el("div", { class: "readings" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))));
  }

  /** A table whose numbers follow a control: show(heads, rows) makes it, and later writes into the cells that differ. */
  function readings() {
    const box = el("div");
    let cells = [];
    box.show = (heads, rows) => {
      const next = [heads, ...rows];
      if (next.length === cells.length && next.every((row, i) => row.length === cells[i].length)) {
        next.forEach((row, i) => row.forEach((x, j) => (x instanceof Node ? renew(cells[i][j], x) : write(cells[i][j], x))));
      } else {
        box.replaceChildren(table(heads, rows));
        cells = [...box.querySelectorAll("tr")].map((row) => [...row.cells]);
      }
    };
    return box;
  }

  // ---- the element

  const RESTING = 150; // milliseconds without a change

  /**
   * Define <annotated-NAME>: what it holds is its still, shown in print and wherever this script does not run.
   *
   * build(root, say, { host, still }) fills `root`; say(text) tells those who do not see the drawing what a change
   * has done, once it rests; the host has the attributes, and the still what stood in it.
   */
  function explorer(name, title, build) {
    class Explorer extends HTMLElement {
      connectedCallback() {
        if (this.querySelector(":scope > .explorer")) return;
        const kept = el("div", { class: "still" });
        kept.append(...this.childNodes);
        const root = el("div", { class: "explorer", role: "group", "aria-label": title });
        const live = el("p", { class: "told", "aria-live": "polite" }, "");
        let waiting;
        const say = (text) => {
          clearTimeout(waiting);
          if (root.isConnected) waiting = setTimeout(write, RESTING, live, text);
          else write(live, text);
        };
        try {
          build(root, say, { host: this, still: kept });
        } catch (error) {
          this.append(...kept.childNodes); // the still is better than half an explorer
          throw error;
        }
        root.append(live);
        this.append(kept, root);
        this.classList.add("alive");
      }
    }
    customElements.define(`annotated-${name}`, Explorer);
  }

  const shared = {
    dot, softmax, matmul, random, normal, mean, clamp, cut, words, scientific, el, svg, set, write, renew, canvas, shade, once,
    still, reachable, fitted, path, plot,
    slider, choice, toggle, button, field, drag, table, readings, explorer,
  };
  globalThis.annotated = Object.assign(globalThis.annotated ?? {}, shared);
  if (typeof module !== "undefined") module.exports = shared;
})();
