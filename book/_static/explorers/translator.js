// needs: engine, live
// <annotated-translator data-model="tatoeba-en-de" data-heads="2 4" data-examples="[...]">: a sentence to edit, its
// translation, and the cross-attention between the two. The weights are fetched at the first change; before it one sees
// the still.
"use strict";

(() => {
  const { el, svg, canvas, button, choice, field, explorer, once, live, still: quiet } = annotated;
  const SOON = 16; // after so many turns, of 70 ms, all tokens are there
  const STEP = 25, TOP = 44, LEFT = 130, RIGHT = 228, WIDTH = 360;
  const LEAST = 0.08; // thinner lines would only be grey
  const TOLD = 0.05; // and smaller weights are not told

  // ---- arithmetic

  /** A piece as one reads it, even one who has not met eos. */
  const shown = (token) => (token === "<eos>" ? "end" : live.shown(token));

  /** The attention (T, S) of one head, or for null the mean of the last layer's heads. */
  const chosen = (cross, head) => (head ? cross[head[0]][head[1]] : live.meanOf(cross.at(-1)));

  /** The lines to draw, thickest last: { t, s, weight }. */
  function lines(weights) {
    const all = weights.flatMap((row, t) => Array.from(row, (weight, s) => ({ t, s, weight })));
    return all.filter(({ weight }) => weight >= LEAST).sort((a, b) => a.weight - b.weight);
  }

  // ---- the drawing

  function draw({ tokens, attention }, head, tell, fresh) {
    const source = tokens.source.map(shown), target = tokens.target.map(shown);
    const weights = chosen(attention.cross, head), rows = Math.max(source.length, target.length);
    const y = (i, n) => TOP + STEP * (n > 1 ? ((rows - 1) / (n - 1)) * i : 0);
    const turn = (t) => t * Math.min(1, SOON / target.length);
    const paths = lines(weights).map(({ t, s, weight }) => {
      const [a, b, middle] = [y(s, source.length), y(t, target.length), (LEFT + RIGHT) / 2];
      const d = `M${LEFT + 8} ${a}C${middle} ${a} ${middle} ${b} ${RIGHT - 8} ${b}`;
      const style = `stroke-width: ${4.5 * weight}; --turn: ${turn(t)}`;
      return svg("path", { d, class: "wire q arc", style, "data-t": t });
    });
    const english = source.map((name, s) =>
      svg("text", { x: LEFT, y: y(s, source.length) + 5, class: "k", "text-anchor": "end" }, name));
    const german = target.map((name, t) => svg("text", {
      x: RIGHT, y: y(t, target.length) + 5, class: "q token", style: `--turn: ${turn(t)}`, "data-t": t,
      role: "option", "aria-selected": "false", tabindex: t ? -1 : 0, "aria-label": live.said(name, weights[t], source, TOLD) }, name));
    const picture = canvas(WIDTH, TOP + STEP * rows, { group: "The translation, and what each token attends to" },
      svg("text", { x: LEFT, y: 19, class: "strong", "text-anchor": "end" }, "English"),
      svg("text", { x: RIGHT, y: 19, class: "strong" }, "German"), paths, english,
      svg("g", { role: "listbox", "aria-label": "German tokens" }, german)); // where the focus is, is what is chosen
    const light = (t) => {
      picture.classList.toggle("one", t !== null);
      for (const part of [...paths, ...german]) part.classList.toggle("lit", part.dataset.t === t);
      for (const token of german) token.setAttribute("aria-selected", String(token.dataset.t === t));
      tell(t === null ? "" : german[t].getAttribute("aria-label"));
    };
    for (const token of german) {
      token.addEventListener("pointerenter", () => light(token.dataset.t));
      token.addEventListener("pointerleave", () => light(german.find((one) => one === document.activeElement)?.dataset.t ?? null));
      token.addEventListener("click", () => light(token.dataset.t));
      token.addEventListener("focus", () => {
        for (const one of german) one.tabIndex = one === token ? 0 : -1; // one tab stop, however the focus came
        light(token.dataset.t);
      });
      token.addEventListener("blur", () => light(null));
      token.addEventListener("keydown", (event) => {
        const way = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
        const next = way && german[Number(token.dataset.t) + way];
        if (!next) return;
        event.preventDefault();
        next.focus();
      });
    }
    if (fresh && !quiet()) picture.classList.add("appearing");
    return picture;
  }

  // ---- the element

  explorer("translator", "A translator in the page", (root, say, { host, still }) => {
    const examples = JSON.parse(host.dataset.examples ?? "[]");
    const [layers, h] = host.dataset.heads.split(" ").map(Number);
    const names = Array.from({ length: layers * h }, (_, i) => [Math.floor(i / h), i % h]);
    let control = new AbortController(), result = null, head = null, failed = false;

    const output = el("output", { class: "translation", lang: "de", "aria-live": "off" }, host.dataset.first ?? ""); // say() says it, once it rests
    const hint = el("p", { class: "hint" });
    const stage = el("div", { class: "stage" }, ...Array.from(still.childNodes, (node) => node.cloneNode(true)));
    const reference = el("p", { class: "reference" });
    const input = field({ label: "Write an English sentence", value: examples[0]?.source ?? "", max: 160, change() {
      control.abort(); // at once: an answer that comes before the next frame is that to an older sentence
      later();
    } });
    const width = choice({ label: "Search", options: { 1: "greedy", 4: "beam of 4" }, value: 4, change: () => later() });
    const heads = el("select", { class: "control", autocomplete: "off", "aria-label": "Attention drawn", onchange: chooseHead },
      el("option", { value: "" }, "last layer, mean of its heads"),
      names.map(([n, i]) => el("option", { value: `${n}.${i}` }, `layer ${n + 1}, head ${i + 1}`)));

    function chooseHead() {
      head = heads.value ? heads.value.split(".").map(Number) : null;
      if (result && !failed) show();
      else later();
    }

    const tell = (text) => { hint.textContent = text || "Point at a German token, or move to it by keyboard. A dot joins a piece of a word to the one before."; };

    function show(fresh = false) { // with the focus on a token, it stays in the drawing
      const held = stage.contains(document.activeElement) ? Number(document.activeElement.dataset.t) : null;
      stage.replaceChildren(...(result.text ? [draw(result, head, tell, fresh)] : []));
      if (result.text) tell("");
      else hint.textContent = ""; // there is nothing to point at
      if (held === null) return;
      const tokens = [...stage.querySelectorAll(".token[tabindex]")], next = tokens[Math.min(held, tokens.length - 1)];
      for (const one of tokens) one.tabIndex = one === next ? 0 : -1;
      (next ?? input.querySelector("input")).focus();
    }

    function put(text, lang = "en") {
      output.lang = lang;
      output.textContent = text;
    }

    async function translate() {
      control.abort(); // what was asked before is of no use any more
      control = new AbortController();
      const { signal } = control, text = input.value;
      root.classList.add("waiting"); // what is still to be seen answers another sentence
      try {
        if (!result) {
          put("Fetching the model …");
          say(output.textContent);
        }
        const model = await annotated.load(host.dataset.model);
        const found = await model.translate(text, { beam: Number(width.value), longest: live.LONGEST, signal });
        root.classList.remove("waiting");
        failed = false;
        result = found;
        if (found.text) put(found.text + (found.cut ? " …" : ""), "de");
        else put("Write an English sentence.");
        const known = examples.find(({ source, reference: by }) => by && source === text);
        const part = found.cut ? `Only the first ${live.LONGEST} tokens are read.` : "";
        reference.textContent = known ? `A person wrote: ${known.reference}` : part;
        say(found.text ? `German: ${found.text} ${part}`.trim() : "Nothing to translate.");
        show(true);
      } catch (error) {
        if (signal.aborted) return;
        failed = true;
        root.classList.toggle("waiting", result !== null); // what is still to be seen answers another sentence
        reference.textContent = "";
        put("");
        hint.textContent = `The model cannot be fetched or run here (${error.message}). Change the sentence to try again.`;
        say(hint.textContent);
      }
    }
    const later = once(translate);

    function take({ source }) {
      input.value = source;
      later();
    }
    function another() { // the one after that which is shown, or the first
      take(examples[(examples.findIndex(({ source }) => source === input.value) + 1) % examples.length]);
    }
    const example = (one) => button(one.source, () => take(one));
    const list = (title, group) => [
      el("p", { class: "list" }, title), el("div", { class: "examples" }, group.map(example))];
    root.append(
      input, output, reference, ...(examples.length > 1 ? [button("Another example", another)] : []), stage, hint, el("div", { class: "controls" }, width, heads),
      el("details", {}, el("summary", {}, "Other sentences, from its best by BLEU to its worst"),
        ...list("Among the better half by BLEU", examples.filter(({ reference: by, fails }) => by && !fails)),
        ...list("Among the worse half by BLEU", examples.filter(({ reference: by, fails }) => by && fails))));
  });

  if (typeof module !== "undefined") module.exports = { shown, chosen, lines };
})();
