// The address holds the state: what ran (models by fingerprint, prompts, samplers, touches) and what is shown
// of it. `#s=` and base64url of its JSON, so that a link is text that survives a chat window.

const PREFIX = "#s=";

function encodeState(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

// The JSON that a link holds, as text: the server checks it against its schema, and nothing reads it before.
function decodeLink(link, most = Infinity) {
  const at = link.indexOf(PREFIX);
  if (at < 0) throw new LiveError({ kind: "usage", message: "This is no link of a live page.", remedy: "It has “#s=” in it." });
  const code = link.slice(at + PREFIX.length).trim();
  try {
    if (code.length > 1.5 * most) throw new RangeError("too long");
    const text = atob(code.replace(/-/g, "+").replace(/_/g, "/"));
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(text, (c) => c.charCodeAt(0)));
  } catch { throw brokenLink("it is cut off or was changed"); }
}

const brokenLink = (why) => new LiveError({ kind: "usage", message: `This link cannot be read: ${why}.`, remedy: "Copy it again, whole." });

// What is shown, in small values.
function viewState(page) {
  const { viewer, pattern } = page, first = viewer.views[0];
  if (!first) return {};
  const end = viewer.atEnd();  // so that the address stays as it is while steps come
  return { step: end ? null : first.scene.json.steps[first.step], layer: viewer.layer, head: viewer.head, colour: viewer.mode, grid: viewer.grid,
    key: viewer.selected ? viewer.selectedIn(first) : null, end,
    pattern: pattern.at ? pattern.at.run === page.lanes[1] ? 1 : 0 : null, row: pattern.at ? pattern.cursor.query : null };
}

// The state of the runs shown; a branch says which of them it left.
function stateOf(page) {
  const runs = page.lanes.filter((run) => run && run.state);
  return { v: 1, view: viewState(page), runs: runs.map((run) => {
    const parent = run.from ? runs.findIndex((other) => other.id === run.from.run) : -1;
    return { ...run.state, from: parent >= 0 ? { run: parent, step: run.from.step } : null };
  }) };
}
