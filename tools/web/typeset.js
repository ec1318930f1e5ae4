// Typeset formulas as MathJax does in a page, but at build time: node tools/web/typeset.js FOLDER < formulas.json
// In: [[tex, display], ...]. Out: {"html": [...], "css": "..."}; the css covers the glyphs in use.
const fs = require("fs");
const path = require("path");

const folder = path.resolve(process.argv[2]);
const formulas = JSON.parse(fs.readFileSync(0, "utf8"));
const options = {
  loader: {
    paths: {mathjax: folder},
    load: ["adaptors/liteDOM", "input/tex", "output/chtml", "a11y/assistive-mml"],
    require,
  },
  chtml: {fontURL: "mathjax/output/chtml/fonts/woff-v2"},
  startup: {typeset: false},
};

require(path.join(folder, "node-main.js")).init(options).then(MathJax => {
  const {adaptor, document, output} = MathJax.startup;
  const width = tex => {
    const item = new document.options.MathItem(tex, document.inputJax[0], true);
    item.setMetrics(16, 8, 1e6, 1e6, 1);
    item.compile(document);
    return output.getBBox(item, document).w;
  };
  const html = formulas.map(([tex, display]) => {
    const node = MathJax.tex2chtml(tex, {display});
    // How wide it is, so that a narrow page can set it smaller.
    if (display) adaptor.setStyle(node, "--wide", width(tex).toFixed(1));
    return adaptor.outerHTML(node);
  });
  const css = adaptor.textContent(MathJax.chtmlStylesheet());
  process.stdout.write(JSON.stringify({html, css}));
}).catch(error => {
  console.error(error);
  process.exit(1);
});
