// Colour scales, made in OKLCH so that equal steps look equal. Lightness always goes one way, so every
// scale can be read in grey; hue alone never carries a meaning. No document is touched here.

function oklch(lightness, chroma, hue) {
  const rgb = (c) => {
    const a = c * Math.cos((hue * Math.PI) / 180), b = c * Math.sin((hue * Math.PI) / 180);
    const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
    return [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ];
  };
  let c = chroma;  // less colour, rather than another lightness, where the screen has no such colour
  while (c > 0.002 && rgb(c).some((v) => v < -0.0005 || v > 1.0005)) c *= 0.93;
  return rgb(c).map((v) => {
    const x = Math.min(1, Math.max(0, v));
    return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
  });
}

const LEVELS = 256;
const mix = (a, b, t) => a + (b - a) * t;

// From zero: the page's own ground to its strongest contrast.
function sequentialRamp(dark) {
  return Array.from({ length: LEVELS }, (_, i) => {
    const t = i / (LEVELS - 1);
    return dark
      ? oklch(mix(0.23, 0.93, t), 0.02 + 0.13 * Math.sin(Math.PI * Math.min(1, t * 0.8 + 0.1)), mix(285, 95, t))
      : oklch(mix(0.99, 0.32, t), 0.14 * Math.sin(Math.PI * Math.min(1, 0.62 * t)), mix(195, 288, t));
  });
}

// Neutral in the middle; less goes to blue and towards the ground, more to orange and away from it.
function divergingRamp(dark) {
  return Array.from({ length: LEVELS }, (_, i) => {
    const t = (2 * i) / (LEVELS - 1) - 1, size = Math.abs(t);
    if (dark) {
      return t < 0 ? oklch(mix(0.38, 0.24, size), 0.11 * Math.sqrt(size), 255)
        : oklch(mix(0.38, 0.9, size), 0.15 * Math.sqrt(size) * (1 - 0.3 * size), mix(45, 85, size));
    }
    return t < 0 ? oklch(mix(0.87, 0.965, size), 0.07 * Math.sqrt(size), 225)
      : oklch(mix(0.87, 0.42, size), 0.15 * Math.sqrt(size), mix(70, 38, size));
  });
}

const css = (rgb) => `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;

// Dark or light letters, whichever stand out more (WCAG relative luminance).
function inkOn(rgb) {
  const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

const LIFT_OCTAVES = 4;

// A scale: where a value lies from 0 to 1, its colour, and the ticks of its legend.
function makeScale(mode, range, dark) {
  const ramp = mode === "share" ? sequentialRamp(dark) : divergingRamp(dark);
  let place, ticks, label;
  if (mode === "share") {
    const most = range.share || 1e-9;
    place = (v) => Math.sqrt(v / most);  // wide where most keys are; the ticks say so
    ticks = [0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1].filter((v) => v <= most * 1.001);
    label = "share of all attention (square-root scale from zero)";
  } else if (mode === "lift") {
    place = (v) => 0.5 + Math.log2(Math.max(v, 1e-9)) / (2 * LIFT_OCTAVES);
    ticks = [1 / 16, 1 / 4, 1, 4, 16];
    label = "lift: × uniform attention over the visible keys (logarithmic, 1 = chance)";
  } else {
    const most = range.change || 1e-9;
    place = (v) => 0.5 + 0.5 * Math.sign(v) * Math.sqrt(Math.abs(v) / most);
    ticks = [-1, -0.25, 0, 0.25, 1].map((f) => f * most);
    label = mode === "difference" ? "share here minus the share in the other run, in points (square-root scale)"
      : "change of the share since the step before, in points (square-root scale)";
  }
  const rgb = (v) => ramp[Math.min(LEVELS - 1, Math.max(0, Math.round(place(v) * (LEVELS - 1))))];
  return { mode, label, ramp, place, rgb, ticks: thinned(ticks, place) };
}

// Ticks that would overlap are left out, the later ones first.
function thinned(ticks, place) {
  const kept = [];
  for (const tick of ticks) if (!kept.length || place(tick) - place(kept[kept.length - 1]) > 0.11) kept.push(tick);
  return kept;
}

function tickText(mode, value) {
  if (mode === "lift") {
    const end = value >= 2 ** LIFT_OCTAVES ? "≥ " : value <= 2 ** -LIFT_OCTAVES ? "≤ " : "";
    return value < 1 ? `${end}1/${Math.round(1 / value)}×` : `${end}${value}×`;
  }
  if (mode === "share") return `${Number((100 * value).toPrecision(3))} %`;
  // The ends hold all heads' means of all steps; a single head may go beyond them.
  return value === 0 ? "0" : `${value > 0 ? "+" : "−"}${Number(Math.abs(100 * value).toPrecision(2))}`;
}
