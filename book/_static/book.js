// Tables scroll inside themselves on narrow screens; what scrolls can be reached with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  const boxes = document.querySelectorAll(".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output .text_html, .bd-article mjx-container[display]");
  const scrolling = box => {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  // To ask a box for its width lays it out: a narrow page is asked where one reads, a wide one altogether.
  const near = new IntersectionObserver(seen => {
    for (const { target, isIntersecting } of seen) if (isIntersecting) scrolling(target);
  }, { rootMargin: "100%" });
  const ask = () => {
    near.disconnect();
    for (const box of boxes) {
      if (innerWidth < 1200) near.observe(box);
      else scrolling(box);
    }
  };
  (window.requestIdleCallback ?? setTimeout)(ask);
  addEventListener("resize", ask);
  enlarging();
  sifting();
  focusing();
  telling();
  // A link of the narrow page's drawer leads to a section that the drawer hides: it closes first, and the button that has
  // opened it gets the focus.
  const drawer = document.querySelector("#pst-secondary-sidebar-modal");
  drawer?.addEventListener("click", event => {
    const link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    drawer.addEventListener("close", () => location.assign(link.href), { once: true }); // after focusing's own
    drawer.close();
  });
  // The theme's buttons: their names are what one sees on them.
  document.querySelector(".search-button-field")?.removeAttribute("aria-label");
  for (const button of document.querySelectorAll(".theme-switch-button")) {
    const quiet = () => {
      for (const icon of button.querySelectorAll("svg:not([aria-hidden]), i[title]")) {
        icon.removeAttribute("title");
        icon.removeAttribute("aria-labelledby");
        icon.setAttribute("aria-hidden", "true");
        icon.querySelector("title")?.remove();
      }
    };
    quiet();
    new MutationObserver(quiet).observe(button, { childList: true, subtree: true });
    const name = () => button.setAttribute("aria-label", `Colours: ${document.documentElement.dataset.mode || "auto"}`);
    name();
    new MutationObserver(name).observe(document.documentElement, { attributeFilter: ["data-mode"] });
  }
  // A reader who prints wants to see what is folded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".bd-article details:not([open])")];
    for (const box of opened) box.open = true;
    for (const image of document.querySelectorAll("img.only-light")) image.loading = "eager"; // paper is light
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });
});

// The theme takes the focus from the buttons of its head when they are clicked, and copying from the buttons of code:
// they get it back, those that open a dialog when that closes. A drawer that a wider page has no need of closes by itself.
function focusing() {
  let opener = null;
  const back = button => { if (document.activeElement === document.body) button.focus({ preventScroll: true }); };
  let copied = [];  // until the reader does something else
  for (const what of ["pointerdown", "keydown"]) document.addEventListener(what, () => copied.forEach(clearTimeout), true);
  document.addEventListener("click", event => {  // before the theme's own, one of which stops the event
    const button = event.target.closest(".theme-switch-button, .search-button, .search-button-field, .primary-toggle, .secondary-toggle");
    if (button) setTimeout(() => document.querySelector("dialog[open]") ? opener = button : back(button));
    const copies = event.target.closest(".copybtn");
    if (copies && event.detail === 0) copied = [0, 100, 400, 1000].map(wait => setTimeout(back, wait, copies));  // by the keyboard
  }, true);
  for (const [name, width] of [["primary", 992], ["secondary", 1200]]) {  // whether what they show is shown
    const bar = document.querySelector(`.bd-sidebar-${name}`), drawer = document.querySelector(`#pst-${name}-sidebar-modal`);
    const state = () => {
      const shown = Boolean(drawer?.open) || innerWidth >= width && !bar?.classList.contains("pst-sidebar-hidden");
      for (const button of document.querySelectorAll(`.${name}-toggle`)) button.setAttribute("aria-expanded", shown);
    };
    state();
    addEventListener("resize", state);
    const watch = new MutationObserver(state);
    if (bar) watch.observe(bar, { attributeFilter: ["class"] });
    if (drawer) watch.observe(drawer, { attributeFilter: ["open"] });
  }
  for (const dialog of document.querySelectorAll("dialog:not(.zoom)")) {
    dialog.addEventListener("close", () => {
      opener?.focus({ preventScroll: true });
      opener = null; // the next one may open by a key
    });
  }
  for (const [name, width] of [["primary", 960], ["secondary", 1200]]) {
    const drawer = document.querySelector(`#pst-${name}-sidebar-modal`);
    matchMedia(`(min-width: ${width}px)`).addEventListener("change", ({ matches }) => { if (matches && drawer?.open) drawer.close(); });
  }
}

// What a change on the page says to those who do not see it: that code was copied, how many pages a search has found.
function telling() {
  const told = document.createElement("p");
  told.className = "visually-hidden";
  told.setAttribute("role", "status");
  document.body.append(told);
  let waiting;
  const tell = (words, wait) => {
    clearTimeout(waiting);
    told.textContent = "";  // what is said twice is heard twice
    waiting = setTimeout(() => { told.textContent = words(); }, wait);
  };
  document.addEventListener("click", ({ target }) => {
    const button = target.closest(".copybtn");
    if (button) tell(() => button.classList.contains("success") ? "Copied" : "", 400);
  });
  addEventListener("load", () => {
    for (const button of document.querySelectorAll(".copybtn")) {
      button.type = "button";
      const first = button.parentElement.querySelector("pre")?.textContent.trim().split("\n")[0].slice(0, 60) ?? "";
      button.setAttribute("aria-label", `Copy: ${first}`);
    }
  });
  const results = document.querySelector("#search-results");
  if (results) new MutationObserver(() => tell(() => results.querySelector(".search-summary")?.textContent ?? "", 500)).observe(results, { childList: true, subtree: true });
  // a docstring's rest unfolds by Enter, too
  document.addEventListener("keydown", event => { if (event.key === "Enter" && !event.repeat && event.target.matches?.(".more")) event.target.click(); });
}

// Sections out of sight have a guessed height: what an address leads to must stay where it is while they get their own.
// A page that is opened begins at its place even if that has moved since the browser went there; one that is read again,
// or gone back to, begins at the section in which the reader was.
const READ = () => `read ${location.href}`;
addEventListener("pagehide", () => {
  const section = document.elementsFromPoint(innerWidth / 2, innerHeight / 2).map(e => e.closest(".bd-article section[id]")).find(Boolean);
  try {
    sessionStorage.setItem(READ(), JSON.stringify(section ? [section.id, section.getBoundingClientRect().top] : []));
  } catch { /* nothing may be kept */ }
});
function read() {
  try { return JSON.parse(sessionStorage.getItem(READ())) ?? []; } catch { return []; }
}
function arriving({ type }) {
  const own = ++arrivals;
  const way = performance.getEntriesByType("navigation")[0]?.type;
  const target = document.querySelector(":target");
  for (let e = target?.parentElement; e; e = e.parentElement) {
    if (e.localName !== "details" || e.open) continue;
    e.open = true;  // an address may lead to a folded cell
    target.scrollIntoView({ behavior: "instant" });
  }
  const [id, was = null] = type === "load" && way !== "navigate" ? read() : [];
  const section = id && document.getElementById(id);
  const place = section || target, kept = section ? was : null;
  touched &&= type === "load";
  if (!place || touched || innerWidth >= 1200) return;
  const opened = type === "load" && way === "navigate";
  const until = performance.now() + 2000;
  let top = kept;
  const hold = now => {
    if (now > until || touched || own !== arrivals) return;
    const here = place.getBoundingClientRect().top;
    if (top === null ? opened : kept === null && Math.abs(here - top) > 1) place.scrollIntoView({ behavior: "instant" });
    else if (kept !== null && Math.abs(here - top) > 1) scrollBy({ top: here - top, behavior: "instant" });
    if (opened || scrollY) top ??= place.getBoundingClientRect().top;
    requestAnimationFrame(hold);
  };
  requestAnimationFrame(hold);
}
let touched = false;  // by the reader, who may go elsewhere
let arrivals = 0;  // the last one holds its place, those before it no longer
for (const what of ["wheel", "touchstart", "pointerdown", "keydown"]) {
  addEventListener(what, () => { touched = true; }, { passive: true });
}
addEventListener("load", arriving);
addEventListener("hashchange", arriving);
addEventListener("popstate", () => { arrivals++; });  // at once: a frame may come between it and hashchange

// Figures enlarge at a touch, or by the button that the keyboard finds beside each; Escape, or a touch beside, closes.
function enlarging() {
  const dialog = document.createElement("dialog");
  dialog.className = "zoom";
  dialog.setAttribute("aria-label", "The figure, enlarged");
  dialog.innerHTML = '<button type="button" class="zoom-close" aria-label="Close">\u00d7</button><div class="zoom-pane" tabindex="0"></div>';
  const pane = dialog.querySelector(".zoom-pane");
  dialog.querySelector("button").onclick = () => dialog.close();
  dialog.onclose = () => { document.documentElement.style.overflow = ""; };
  dialog.onclick = event => { if (event.target === dialog) dialog.close(); };
  document.addEventListener("keydown", event => {  // by hand: Sphinx's highlighting of words takes Escape from the browser
    if (!dialog.open || event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    dialog.close();
  }, true);  // wherever the focus is
  const open = picture => {
    const large = picture.cloneNode(true);
    large.removeAttribute("id");
    large.removeAttribute("loading");
    pane.replaceChildren(large);
    document.documentElement.style.overflow = "hidden";  // else a wheel or a finger moves the page behind
    dialog.showModal();
    pane.focus();
  };
  const inside = picture => {  // what answers touches of its own
    for (let e = picture.parentElement; e && !e.matches(".bd-article"); e = e.parentElement)
      if (e.matches("a, button, summary, .zoom, .here, .model-map, .front") || e.localName.includes("-")) return true;
    return false;
  };
  for (const picture of document.querySelectorAll(".bd-article svg.drawing, .bd-article .cell_output img, .bd-article figure img")) {
    if (inside(picture)) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "zoom-open";
    const seen = picture.getAttribute("alt") ?? picture.getAttribute("aria-label") ?? "";
    button.setAttribute("aria-label", `Enlarge the figure: ${/^.{0,60}(?!\S)/s.exec(seen)?.[0] ?? ""}`);
    button.textContent = "\u2922";
    button.onclick = () => open(picture);
    const box = document.createElement("span");
    box.className = "zoomed";
    for (const theme of ["only-light", "only-dark"]) box.classList.toggle(theme, picture.classList.contains(theme));
    const whole = picture.closest("picture") || picture;  // it has another version for narrow screens
    whole.replaceWith(box);
    box.append(whole, button);
    picture.addEventListener("click", () => open(picture));
  }
  document.body.append(dialog);
}

// All questions: of the list stay those that hold all words of the line above it, formulas without their signs.
function sifting() {
  const line = document.querySelector("#sieve");
  if (!line) return;
  const plain = text => text.normalize("NFKD").toLowerCase().replace(/[^\p{L}\p{N}\s]/gu, "");
  const questions = [...document.querySelectorAll(".bd-article section li")].map(item => ({ item, text: plain(item.textContent) }));
  const sections = [...document.querySelectorAll(".bd-article section section")];
  const told = line.form.querySelector("output");
  const entries = new Map([...document.querySelectorAll(".page-toc a[href^='#']")].map(link => [link.hash.slice(1), link.closest("li")]));
  const sift = () => {
    const words = plain(line.value).split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { item, text } of questions) {
      item.hidden = !words.every(word => text.includes(word));
      left += !item.hidden;
    }
    for (const section of sections) {
      section.hidden = !section.querySelector("li:not([hidden])");
      entries.get(section.id)?.toggleAttribute("hidden", section.hidden);
    }
    told.textContent = !words.length ? (line.value.trim() && "Only letters and digits are looked for.") : left ? `${left} of ${questions.length}` : "None here. The book's search covers every page.";
  };
  line.form.addEventListener("submit", event => event.preventDefault());
  line.addEventListener("input", sift);
  addEventListener("pageshow", sift);  // a page that one goes back to keeps what was written, and has it only then
}
