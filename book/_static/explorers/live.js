// What explorers with the live model share: a line to write in, the model fetched at the first question, answers in order.
"use strict";

(() => {
  const { cut, mean, el, write, field, once, still, button } = globalThis.annotated;
  const MODEL = "tatoeba-en-de"; // the weights that most of them share
  const LONGEST = 40; // tokens of a sentence: what is typed is answered while one types

  /** A piece as one reads it: a dot stands before a piece that continues a word. */
  const shown = (token) => {
    if (/^<.*>$/.test(token)) return token.slice(1, -1);
    return token.startsWith("\u2581") ? token.slice(1) || "\u2423" : `\u00b7${token}`;
  };

  /** Pieces as the text that they spell; a letter without a piece of its own is spelt by bytes. */
  const written = (tokens) => tokens.filter((x) => !/^<[a-z]+>$/.test(x)).join("").replace(/(<0x[0-9A-F]{2}>)+/g, (run) =>
    new TextDecoder().decode(Uint8Array.from(run.matchAll(/<0x(..)>/g), ([, hex]) => parseInt(hex, 16)))).replaceAll("\u2581", " ").trim();

  /** What a token attends to most, in words; after the largest weight only those that are `least` or more. */
  const said = (name, row, names, least) => {
    const best = Array.from(row, (weight, s) => ({ weight, s })).sort((a, b) => b.weight - a.weight).slice(0, 3);
    const some = best.filter(({ weight }, i) => i === 0 || weight >= least);
    return `${name} attends to ${some.map(({ weight, s }) => `${names[s]} ${Math.round(100 * weight)} %`).join(", ")}`;
  };

  /** The mean of a layer's heads, [head][query][key] -> [query][key]. */
  const meanOf = (heads) => heads[0].map((row, t) => Array.from(row, (_, s) => mean(heads.map((one) => one[t][s]))));

  /**
   * A sentence and the model's answer to it: sentence({ root, value, ask, show, say, name }).
   *
   * ask(model, text, signal) puts the question, show(answer, text) its answer; again() asks once more, because a control has
   * changed. A question that a later one overtakes is called off. Nothing is fetched before the first question.
   */
  function sentence({ root, value, ask, show, say, fail = () => {}, name = MODEL }) {
    const working = el("span"), part = el("span", { "aria-live": "polite" }); // a part is told once, not with each answer
    const status = el("p", { class: "status" }, working, " ", part);
    const input = field({ label: "English sentence", value, max: 160, change: () => again() });
    let control = new AbortController(), fetched = false;

    function tell(text) {
      working.textContent = text;
      write(part, "");
      say(text);
    }

    async function question() {
      control.abort();
      control = new AbortController();
      const { signal } = control, text = input.value;
      root.classList.add("waiting");
      if (!cut(text.replaceAll("\u2581", " ")).length) { // nothing that the engine would read
        fail();
        tell("Write an English sentence.");
        return;
      }
      try {
        if (!fetched) tell("Fetching the model \u2026");
        const model = await globalThis.annotated.load(name);
        fetched = true;
        if (signal.aborted) return;
        working.textContent = "The model is working \u2026";
        const answer = await ask(model, text, signal);
        if (signal.aborted) return;
        root.classList.remove("waiting");
        working.textContent = "";
        write(part, answer.cut ? `Only the first ${LONGEST} tokens are read.` : "");
        show(answer, text);
      } catch (error) {
        if (signal.aborted) return;
        fail();
        tell(`It cannot be done here: ${error.message}.`);
      }
    }
    const later = once(question);
    const again = () => {
      control.abort(); // at once: an answer that comes before the next frame is that to an older question
      later();
    };
    return { input, status, again };
  }

  /**
   * Buttons to go back, forward and by itself: player({ first, last(), at(), go(step), pause }), where go() draws a step.
   * Under reduced motion nothing goes by itself, and Play leads to the end at once.
   */
  function player({ first, last, at, go, pause }) {
    let clock = null;
    const to = (step) => go(Math.min(last(), Math.max(first, step)));
    const halt = () => {
      clearInterval(clock);
      clock = null;
      play.textContent = "Play";
    };
    const by = (way) => () => {
      halt();
      to(at() + way);
    };
    const play = button("Play", () => {
      if (clock) return halt();
      if (still()) return to(last());
      play.textContent = "Stop";
      clock = setInterval(() => (at() < last() ? to(at() + 1) : halt()), pause);
      to(at() === last() ? first : at() + 1); // last, since a step that the model has to answer first halts
    });
    const back = button("\u25c0 Back", by(-1)), on = button("Forward \u25b6", by(1));
    const told = () => { // not disabled, or the focus would be lost
      back.setAttribute("aria-disabled", at() === first);
      on.setAttribute("aria-disabled", at() === last());
      play.setAttribute("aria-disabled", still() && at() === last()); // there is nothing left to lead to
    };
    return { buttons: [back, on, play], halt, told };
  }

  const live = { LONGEST, shown, written, said, meanOf, sentence, player };
  globalThis.annotated = Object.assign(globalThis.annotated, { live });
  if (typeof module !== "undefined") module.exports = live;
})();
