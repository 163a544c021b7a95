// The start: theme, keys and what the server says of itself; then the page, and what its address asks for.

function dressTheme() {
  const root = document.documentElement, system = window.matchMedia("(prefers-color-scheme: dark)"), theme = at("theme");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); });
  system.addEventListener("change", label);
  label();
}

function dressKeys() {
  const list = at("keys-list"), toggle = at("keys");
  list.replaceChildren(make("dl", {}, ...KEYS.map(([key, what]) => make("div", {}, make("dt", {}, key), make("dd", {}, what)))));
  toggle.addEventListener("click", () => {
    list.hidden = !list.hidden;
    toggle.setAttribute("aria-expanded", String(!list.hidden));
  });
  at("skip").addEventListener("click", () => (at("viewer").hidden ? at("run") : at("viewer")).focus());
}

(async () => {
  dressTheme();
  dressKeys();
  try {
    const page = new Page(await new Client().setup());
    window.floatscopeLive = page;
    page.refreshBar();
    await page.openAddress();
  } catch (error) {
    document.body.dataset.state = "failed";
    at("notice").hidden = false;
    at("notice").textContent = inWords(error);
  }
})();
