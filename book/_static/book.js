// Tables scroll inside themselves on narrow screens; what scrolls can be reached with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  const scrolling = () => {
    for (const box of document.querySelectorAll(".bd-article pre, .bd-article .pst-scrollable-table-container, .bd-article .cell_output .text_html, .bd-article div.math")) {
      if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  scrolling();
  addEventListener("resize", scrolling);
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
  }
  // A reader who prints wants to see what is folded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".bd-article details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });
});
