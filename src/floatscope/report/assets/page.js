// The page's few acts: light or dark, copy a command, find an answer, folds open on paper, where the reader is.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (what) => [...document.querySelectorAll(what)];

  // Light or dark: the root's data-theme, which the viewer follows too.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const theme = document.querySelector(".theme");
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  theme.hidden = false;
  label();

  // Copy: the clipboard where there is one, else the text is selected for the reader to copy.
  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  const copy = async (button, text) => {
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      select(text);
      let done = false;
      try { done = document.execCommand("copy"); } catch { done = false; }
      if (!done) said = "Selected";
    }
    button.textContent = said;
    document.getElementById("said").textContent = `${said}: ${text.textContent}`;
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  };
  for (const button of all(".copy")) {
    button.hidden = false;
    const text = button.parentElement.querySelector("code");
    button.addEventListener("click", () => copy(button, text));
  }

  // Find: questions stay whose words, gold or answers hold what is typed.
  for (const field of all(".filter")) {
    const fold = field.closest("details");
    const asked = [...fold.querySelectorAll("tbody")];
    field.closest("p").hidden = false;
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      asked.forEach((one) => { one.hidden = !one.textContent.toLowerCase().includes(wanted); });
      const left = asked.filter((one) => !one.hidden).length;
      fold.querySelector(".found").textContent = wanted ? `${left} of ${asked.length}` : "";
    });
  }

  // A link to a claim opens it.
  const unfold = () => {
    const fold = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (fold && fold.matches("details.claim")) fold.open = true;
  };
  window.addEventListener("hashchange", unfold);
  document.addEventListener("click", (event) => { if (event.target.closest('a[href^="#claim-"]')) setTimeout(unfold); });
  unfold();

  // A figure that scrolls can be reached with the keyboard.
  const reach = () => all(".scrolls .ground").forEach((ground) => {
    if (ground.scrollWidth > ground.clientWidth) ground.tabIndex = 0;
    else ground.removeAttribute("tabindex");
  });
  window.addEventListener("resize", reach);
  window.addEventListener("load", reach);

  // On paper every fold is open; afterwards those that were closed close again.
  let opened = [];
  const open = () => {
    const closed = all("details:not([open])");
    closed.forEach((fold) => { fold.open = true; });
    opened = opened.concat(closed);
  };
  const close = () => { opened.forEach((fold) => { fold.open = false; }); opened = []; };
  window.addEventListener("beforeprint", open);
  window.addEventListener("afterprint", close);
  window.matchMedia("print").addEventListener("change", (paper) => (paper.matches ? open() : close()));

  // The bar marks the part that is being read.
  const links = new Map(all(".bar a").map((link) => [link.hash.slice(1), link]));
  const parts = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const mark = () => {
    const line = window.innerHeight / 3;
    const end = window.scrollY > 0 && window.innerHeight + window.scrollY >= root.scrollHeight - 2;
    const above = parts.filter((part) => part.getBoundingClientRect().top <= line);
    const here = end ? parts.at(-1) : above.at(-1);
    for (const [id, link] of links) {
      const now = Boolean(here) && here.id === id;
      if (now === link.hasAttribute("aria-current")) continue;
      if (!now) { link.removeAttribute("aria-current"); continue; }
      link.setAttribute("aria-current", "true");
      const list = link.closest("ul");
      list.scrollLeft = link.offsetLeft - list.clientWidth / 2;
    }
  };
  let waiting = false;
  window.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  }, { passive: true });
  mark();
})();
