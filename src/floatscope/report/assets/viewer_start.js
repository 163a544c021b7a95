// Where scenes come from: script elements of this page, or the server that sent it.

// Data stands in <script type="application/json"> elements; a scene is parsed when it is first shown.
function embeddedSource(id) {
  const read = (name) => JSON.parse(document.getElementById(`${id}-${name}`).textContent);
  return { ...read("index"), scene: (number) => read(`scene-${number}`) };
}

async function servedSource() {
  const get = async (path) => {
    const answer = await fetch(path);
    if (!answer.ok) {
      const said = await answer.json().catch(() => ({}));
      throw new Error(said.error ? said.error.message : `${answer.status} ${answer.statusText}`);
    }
    return answer.json();
  };
  const index = await get("index");
  const more = index.whole ? {} : {  // single heads that a scene left out
    heads: (id, step) => get(`scene/${id}/heads/${step}`), head: (id, layer, head) => get(`scene/${id}/head/${layer}/${head}`) };
  return { ...index, scene: (id) => get(`scene/${id}`), ...more };
}

window.floatscopeViewer = floatscopeViewer;
window.floatscopeEmbedded = (id) => floatscopeViewer(document.getElementById(id), embeddedSource(id));
window.floatscopeServed = async (id) => {
  const root = document.getElementById(id);
  try {
    floatscopeViewer(root, await servedSource());
  } catch (error) {
    root.textContent = `The traces could not be read: ${error.message}`;
  }
};
