// Tooltips: the first occurrence of each glossary term in a section shows its definition on hover and on focus.
// `terms` maps spellings to definitions. Text that comes from data carries translate="no" and is left alone.

function floatscopeTerms(terms) {
  const WITHIN = "h2, h3, p, li, th, dt, summary, figcaption, .label, .fsv-legend-label";
  const WITHOUT = 'code, pre, q, del, ins, button, a, select, textarea, label, svg, dfn, script, style, [translate="no"], '
    + '[role="img"], [role="status"], [role="alert"], [aria-live], .fsv li, .fsl li, .fsl-keys, .fsv-keys, .fsl-long, .fsl-row, .fsv-token-text';
  const SECTION = "section, article, header, footer, body";
  const SPACE = 6;  // pixels between a term and the tooltip, and around it
  const QUIET = 250;  // milliseconds without a change, after which new text is looked through

  // MDM and δ are written one way; other terms may begin with a capital letter.
  const exact = (word) => word !== word.toLowerCase() && word === word.toUpperCase();
  const key = (word) => (Object.hasOwn(terms, word) ? word : word.toLowerCase());
  const known = new Map(Object.entries(terms).map(([word, text]) => [exact(word) ? word : word.toLowerCase(), text]));
  const escaped = [...known.keys()].sort((a, b) => b.length - a.length)
    .map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replace(/ /g, "\\s+"));
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}_/.-])(?:${escaped.join("|")})(?![\\p{L}\\p{N}_/-])`, "giu");

  const tip = document.createElement("div");
  tip.id = "floatscope-term";
  tip.className = "term-tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  let shown = null;

  const hide = () => { tip.hidden = true; shown = null; };
  const show = (term) => {
    if (!term.isConnected) { hide(); return; }
    shown = term;
    tip.textContent = term.floatscopeDefinition;
    tip.hidden = false;
    const at = term.getClientRects()[0] || term.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const { clientWidth, clientHeight } = document.documentElement;
    const left = Math.max(SPACE, Math.min(at.left, clientWidth - box.width - SPACE));
    const below = at.bottom + SPACE + box.height <= clientHeight || at.top < box.height + SPACE;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 2 : at.top - box.height - 2}px`;
  };

  const termOf = (event) => (event.target instanceof Element ? event.target.closest("dfn.term") : null);
  document.addEventListener("pointerover", (event) => {
    const term = termOf(event);
    if (term) show(term);
    else if (shown && !tip.contains(event.target) && shown !== document.activeElement) hide();
  });
  document.addEventListener("focusin", (event) => { const term = termOf(event); if (term) show(term); else hide(); });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !shown) return;
    hide();
    event.stopPropagation();
  }, true);
  const follow = () => { if (shown) show(shown); };
  window.addEventListener("scroll", follow, { passive: true, capture: true });
  window.addEventListener("resize", follow);

  const wrap = (text, there) => {
    const pieces = [];
    let end = 0;
    for (const match of text.data.matchAll(pattern)) {
      const word = key(match[0].replace(/\s+/g, " "));
      const definition = known.get(word);
      if (!definition || there.has(definition)) continue;
      there.add(definition);
      const term = document.createElement("dfn");
      term.className = "term";
      term.tabIndex = 0;
      term.setAttribute("aria-describedby", tip.id);
      term.textContent = match[0];
      term.floatscopeDefinition = definition;
      pieces.push(text.data.slice(end, match.index), term);
      end = match.index + match[0].length;
    }
    if (pieces.length) text.replaceWith(...pieces.filter((piece) => piece !== ""), text.data.slice(end));
  };

  const mark = (root) => {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode, parent = text.parentElement;
      if (parent && text.data.trim() && parent.closest(WITHIN) && !parent.closest(WITHOUT)) found.push(text);
    }
    const marked = new Map();  // section → the definitions that it shows
    for (const text of found) {
      const section = text.parentElement.closest(SECTION);
      if (!marked.has(section)) {
        const terms = section.querySelectorAll("dfn.term");
        marked.set(section, new Set([...terms].map((term) => term.floatscopeDefinition)));
      }
      wrap(text, marked.get(section));
    }
  };

  // The viewer and the live page write text while they are used.
  let waiting = 0;
  const observer = new MutationObserver((changes) => {
    if (changes.every((change) => tip.contains(change.target))) return;
    clearTimeout(waiting);
    waiting = setTimeout(markAll, QUIET);
  });
  const markAll = () => {
    observer.disconnect();
    mark(document.body);
    observer.observe(document.body, { childList: true, subtree: true });
    if (shown && !shown.isConnected) hide();
  };
  markAll();
}
