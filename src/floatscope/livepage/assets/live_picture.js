// The view as a picture: an SVG drawn from what the page shows, with text as text, and the same as a PNG. Each
// visible element gives its background, frame and words where the browser has put them; canvases become images.

const EDGES = 12;  // pixels around the picture

function pictureOf(root, parts, title) {
  root.classList.add("fsl-drawn");  // laid out without controls, and without what follows the window
  try { return drawnParts(root, parts, title); } finally { root.classList.remove("fsl-drawn"); }
}

function drawnParts(root, parts, title) {
  const svg = draw("svg", { xmlns: SVG }), box = boundsOf(parts), origin = { x: box.left, y: box.top };
  svg.append(draw("title", {}, title));
  svg.append(rectangle({ left: box.left, top: box.top, width: box.width, height: box.height }, origin, { fill: getComputedStyle(root).backgroundColor }));
  for (const part of parts) drawElement(svg, part, origin);
  for (const [name, value] of [["width", box.width], ["height", box.height], ["viewBox", `0 0 ${box.width} ${box.height}`]]) svg.setAttribute(name, value);
  return new XMLSerializer().serializeToString(svg);
}

function boundsOf(parts) {
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const left = Math.min(...boxes.map((b) => b.left)) - EDGES, top = Math.min(...boxes.map((b) => b.top)) - EDGES;
  return { left, top, width: Math.max(...boxes.map((b) => b.right)) + EDGES - left, height: Math.max(...boxes.map((b) => b.bottom)) + EDGES - top };
}

function rectangle(box, origin, look) {
  return draw("rect", { x: box.left - origin.x, y: box.top - origin.y, width: box.width, height: box.height, ...look });
}

const isSeen = (colour) => colour && colour !== "transparent" && !/, 0\)$/.test(colour);

function drawElement(svg, element, origin) {
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || !box.width || !box.height) return;
  if (element.tagName === "CANVAS") { drawImage(svg, element, box, origin); return; }
  if (element.namespaceURI === SVG) { drawSvg(svg, element, box, origin); return; }
  drawBox(svg, element, style, box, origin);
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) drawText(svg, child, style, origin);
    else if (child.nodeType === Node.ELEMENT_NODE) drawElement(svg, child, origin);
  }
  drawMarks(svg, element, box, origin);
}

function drawBox(svg, element, style, box, origin) {
  const cell = element.classList.contains("fsv-cell"), fill = cell ? style.getPropertyValue("--fsv-fill") : style.backgroundColor;
  const radius = parseFloat(style.borderTopLeftRadius) || 0;
  if (isSeen(fill)) svg.append(rectangle(box, origin, { fill, rx: radius }));
  if (element.classList.contains("fsv-ramp")) svg.append(rampOf(svg, style, box, origin));
  if (element.classList.contains("fsv-masked")) {
    svg.append(rectangle({ left: box.left + 4, top: box.top + 4, width: box.width - 8, height: box.height - 8 }, origin, { fill: style.getPropertyValue("--bg") }));
  }
  if (style.outlineStyle !== "none" && parseFloat(style.outlineWidth)) {
    svg.append(rectangle(box, origin, { fill: "none", stroke: style.outlineColor, "stroke-width": parseFloat(style.outlineWidth),
      ...(style.outlineStyle === "solid" ? {} : { "stroke-dasharray": "3 2" }) }));
  }
  for (const [side, at] of [["Top", [0, 0, 1, 0]], ["Bottom", [0, 1, 1, 1]], ["Left", [0, 0, 0, 1]], ["Right", [1, 0, 1, 1]]]) {
    const width = parseFloat(style[`border${side}Width`]);
    if (!width || style[`border${side}Style`] === "none" || !isSeen(style[`border${side}Color`])) continue;
    const x = box.left - origin.x, y = box.top - origin.y, [x1, y1, x2, y2] = at;
    svg.append(draw("line", { x1: x + x1 * box.width, y1: y + y1 * box.height, x2: x + x2 * box.width, y2: y + y2 * box.height,
      stroke: style[`border${side}Color`], "stroke-width": width }));
  }
}

// The scale of the legend: its colours are a gradient of the style.
function rampOf(svg, style, box, origin) {
  const stops = style.backgroundImage.match(/rgba?\([^)]*\)/g) || [], id = `ramp-${svg.querySelectorAll("linearGradient").length}`;
  svg.append(draw("linearGradient", { id }, ...stops.map((colour, i) => draw("stop", { offset: i / (stops.length - 1), "stop-color": colour }))));
  return rectangle(box, origin, { fill: `url(#${id})` });
}

// What the style draws beside an element: the anchor's line with its share, and the corners of what differs.
function drawMarks(svg, element, box, origin) {
  const { classList } = element, x = box.left - origin.x, y = box.top - origin.y;
  if (classList.contains("fsv-anchor")) {
    const ink = getComputedStyle(element, "::before").backgroundColor;
    svg.append(draw("rect", { x, y: y + box.height, width: box.width, height: 3, fill: ink }));
    svg.append(draw("text", { x: x + box.width / 2, y: y - 2, "text-anchor": "middle", "font-family": "system-ui, sans-serif", "font-size": 9, "font-weight": 600, fill: ink }, element.dataset.share));
  }
  const corner = getComputedStyle(element).getPropertyValue("--differ");
  if (element.tagName === "Q") {
    const { fontFamily, fontSize, color } = getComputedStyle(element), look = { y: y + 0.78 * box.height, "font-family": fontFamily, "font-size": fontSize, fill: color };
    svg.append(draw("text", { x, ...look }, "“"), draw("text", { x: x + box.width, "text-anchor": "end", ...look }, "”"));
  }
  if (classList.contains("fsv-key-strip")) for (let i = 0; i < 3; i++) svg.append(draw("rect", { x, y: y + 4 * i, width: box.width, height: 2, fill: getComputedStyle(element).getPropertyValue("--line") }));
  if (element.matches(".fsl-differs, .fsl-key-differs")) svg.append(draw("path", { d: `M${x + box.width - 6} ${y}h6v6z`, fill: corner }));
  if (element.matches(".fsl-order, .fsl-key-order")) svg.append(draw("path", { d: `M${x} ${y + box.height - 6}v6h6z`, fill: corner }));
}

// The words of a text node, line by line as they were broken.
function drawText(svg, node, style, origin) {
  if (!node.data.trim()) return;
  const range = document.createRange(), lines = [];
  for (let i = 0; i < node.data.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const line = lines.at(-1);
    if (line && Math.abs(line.top - box.top) < box.height / 2) { line.text += node.data[i]; line.right = box.right; }
    else lines.push({ text: node.data[i], left: box.left, right: box.right, top: box.top, height: box.height });
  }
  const size = parseFloat(style.fontSize);
  for (const { text, left, right, top, height } of lines) {
    svg.append(draw("text", { x: left - origin.x, y: top - origin.y + height / 2 + 0.35 * size, "font-family": style.fontFamily, "font-size": size, "font-weight": style.fontWeight,
      "font-style": style.fontStyle, fill: style.color, textLength: right - left, lengthAdjust: "spacingAndGlyphs", "xml:space": "preserve" }, text));
  }
}

function drawImage(svg, canvas, box, origin) {
  if (!canvas.width || !canvas.height) return;
  svg.append(draw("image", { x: box.left - origin.x, y: box.top - origin.y, width: box.width, height: box.height, preserveAspectRatio: "none", href: canvas.toDataURL() }));
}

const INHERITED = ["fill", "stroke", "stroke-width", "opacity", "font-size", "text-anchor", "font-family"];

function drawSvg(svg, element, box, origin) {
  const copy = element.cloneNode(true), from = [element, ...element.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => { const style = getComputedStyle(node); for (const name of INHERITED) to[i].setAttribute(name, style.getPropertyValue(name)); });
  for (const [name, value] of [["x", box.left - origin.x], ["y", box.top - origin.y], ["width", box.width], ["height", box.height]]) copy.setAttribute(name, value);
  svg.append(copy);
}

async function pngOf(text, scale = 2) {
  const image = new Image(), address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = make("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  } finally { URL.revokeObjectURL(address); }
}
