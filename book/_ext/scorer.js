// What the search page does besides Sphinx's own: this file becomes a part of language_data.js, behind searchtools.js.
// A result that is about the words stands before one in which they occur: entries of the index (the glossary's terms),
// then headings that have all words of the query, questions first if the query asks one, and of long ones all words but one;
// then Sphinx's results.
if (typeof Search !== "undefined") {
  const same = {sqrt: "root", kv: "key value", norm: "normalisation", layernorm: "layer normalisation",
    ffn: "feed forward", lr: "learning rate", mha: "multi head attention", pos: "position", enc: "encoding",
    warmup: "warm up", multihead: "multi head", multiple: "multi", several: "multi", help: "improve", helps: "improve"};
  const asking = /^(why|how|what|which|does|do|is|are|can|could|should|must|when|where)$/;
  const most = 30;  // results: for each the page is fetched, for its snippet
  const chapter = /^notebooks\/\d/;
  const stemmer = new Stemmer();

  // Tables and the like are words of their own: table3, section3x2x1.
  const numbered = /\b(table|figure|fig|equation|eq|section)s?\b[.\s]*\(?(\d+(?:\.\d+)*)\)?/g;
  const kinds = {fig: "figure", eq: "equation"};

  // What a text says, each word once and in its stem; of a question also without the word that asks.
  const words = (text, asks = true) => {
    const small = text.replace(/<[^>]*>/g, " ").toLowerCase().replace(/iz(e|ing|ation|ed)/g, "is$1");
    const plain = small.replace(numbered, (all, kind, n) => (kinds[kind] ?? kind) + n.replaceAll(".", "x"));
    const split = splitQuery(plain.replace(/-/g, " ")).flatMap(word => (Object.hasOwn(same, word) ? same[word] : word).split(" "));
    const kept = split.filter(word => !stopwords.includes(word) && !/^\d+$/.test(word) && (asks || !asking.test(word)));
    return [...new Set((kept.length ? kept : split).map(word => stemmer.stemWord(word)))];
  };
  // The share of a heading that a query names; 0 unless all of the query is there, but for `less` words. They may be unfinished.
  const covered = (asked, title, less = 0) => {
    const there = words(title);
    const found = asked.filter(word => there.some(other => other === word || word.length > 2 && other.startsWith(word)));
    return found.length + less >= asked.length && there.length ? Math.min(1, found.length / there.length) : 0;
  };
  // How well a heading answers: as it is asked, by all that is asked about, or by all but one of three words or more.
  const answer = (asked, about, title) => {
    const whole = covered(asked, title);
    if (whole) return 1 + whole;
    return .9 * covered(about, title) || (about.length > 2 ? .5 * covered(about, title, 1) : 0);
  };
  const own = query => {
    const {titles, docnames, filenames, alltitles, indexentries} = Search._index;
    const question = asking.test(query.trim().split(/\s/)[0].toLowerCase());
    const asked = words(query), about = question ? words(query, false) : asked;
    const out = [];
    if (!asked.length) return out;
    const add = (file, name, id, score) => {
      const part = chapter.test(docnames[file]) ? 1 : /^book\/api/.test(docnames[file]) ? 0.4 : 0.8;
      out.push([docnames[file], name, id ? "#" + id : "", null, Math.round(1000 * score * part) / 10, filenames[file]]);
    };
    for (const [entry, places] of Object.entries(indexentries)) {
      const share = covered(about, entry);
      if (share) places.forEach(([file, , main]) => add(file, titles[file], "", 1 + share + (main ? .1 : 0)));
    }
    for (const [title, places] of Object.entries(alltitles)) {
      const share = question && title.trim().endsWith("?") ? answer(asked, about, title) : covered(asked, title);
      if (!share) continue;
      for (const [file, id] of places) {
        const name = id === null ? titles[file] : `${titles[file]} > ${title}`;
        add(file, name, id, share + (id === null ? .6 : 0));
      }
    }
    return out;
  };

  // A heading's formula, as one would say it: results show no mathematics.
  const signs = {epsilon: "ε", alpha: "α", beta: "β", times: "×", cdot: "·", le: "≤", ge: "≥"};
  const readable = title => title.replace(/\\(?:text|mathrm|mathbf)\{([^{}]*)\}/g, "$1").replace(/\\sqrt\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}/g, "√$1")
    .replace(/\\([a-z]+)/g, (all, name) => signs[name] ?? all).replace(/([_^])\{([^{}]*)\}/g, "$1$2");

  const plain = Search._performSearch;
  Search._performSearch = (query, ...rest) => {
    for (const known of [Search._index.terms, Search._index.titleterms])  // a word that every object has of itself
      if (!Object.hasOwn(known, "constructor")) known.constructor = [];
    const best = new Map();  // place -> its best result
    const ahead = own(query).sort((a, b) => a[4] - b[4]);
    for (const result of ahead) best.set(result[0] + result[2], result);
    const twice = ([page, name, id]) => best.has(page + id) || best.get(page)?.[1] === name;  // a page's title is the page
    const others = plain(query, ...rest).filter(result => !twice(result));
    // Sphinx shows the last one first; of equals, the page's own place in the book decides.
    const first = [...best.values()].sort((a, b) => a[4] - b[4] || (a[5] < b[5] ? 1 : -1));
    return [...others, ...first].slice(-most).map(([page, name, ...more]) => [page, readable(name), ...more]);
  };

  // A snippet is text that one can read: no formulas, buttons and folds.
  const text = Search.htmlToText;
  Search.htmlToText = (page, anchor) => {
    const tree = new DOMParser().parseFromString(page, "text/html");
    for (const e of tree.querySelectorAll("article div.math, article svg, article .export-line, article summary, article .place, article .opening, article .here, .bd-header-article, .prev-next-footer, .onlyprint, .bd-sidebar-secondary, footer")) e.remove();
    for (const e of tree.querySelectorAll("article .math")) e.textContent = e.querySelector("math")?.textContent ?? readable(e.textContent).replace(/\\[()]|[\\{}$]/g, "");
    return text(tree.documentElement.outerHTML, anchor);
  };
}
