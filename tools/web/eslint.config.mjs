// How the page's scripts are checked: tools/web/lint.py runs this beside the packages that it imports.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: {
      ecmaVersion: 2024,
      sourceType: "script",
      globals: { ...globals.browser, ...globals.worker, annotated: "readonly", module: "writable" },
    },
    rules: {
      "eqeqeq": ["error", "smart"],
      "no-control-regex": "off", // text has control characters, and the model reads them as Python does
      "no-unused-vars": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  { // Sphinx's search, which the scorer speaks to
    files: ["book/_ext/scorer.js"],
    languageOptions: { globals: { Search: "readonly", Stemmer: "readonly", splitQuery: "readonly", stopwords: "readonly" } },
  },
  { files: ["tools/web/*.js"], languageOptions: { globals: globals.node } },
];
