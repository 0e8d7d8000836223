// Small charts as SVG paths. They hold no text: labels are HTML beside them, so that they stay legible at any width.

import { el, setText, svg } from "./format.js";

const WIDTH = 600;

/** A round number at or above the value: 1, 2, 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value * 0.999) * power;
}

/** A chart with a title, its scale on the left and its time on the right; returns {node, draw}. */
function frame(title, classes, height) {
  const top = el("span", { class: "scale" });
  const paths = classes.map((name) => svg("path", { class: name }));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
    svg("path", { class: "grid", d: `M0 .5H${WIDTH}M0 ${height / 2}H${WIDTH}` }), ...paths,
    svg("path", { class: "axis", d: `M0 ${height - 0.5}H${WIDTH}` }));
  const node = el("div", { class: "chart" }, top, picture);
  return { node, top, picture, paths };
}

/** Bars of the last steps, height = duration, one class per kind. */
export function stepChart(container) {
  const height = 90;
  const numShown = 160;
  const chart = frame("Duration of the last steps", ["decode", "mixed", "prefill"], height);
  const legend = el("p", { class: "legend" }, "Duration of the last steps:",
    ...[["decode", "decode only"], ["mixed", "decode and prefill"], ["prefill", "prefill only"]].map(([name, text]) =>
      el("span", {}, el("i", { class: `box ${name}` }), text)));
  container.replaceChildren(legend, chart.node);
  return (rows, format) => {
    const shown = rows.slice(-numShown);
    const scale = roundUp(Math.max(0.001, ...shown.map((row) => row[1])));
    const width = WIDTH / numShown;
    const bars = ["", "", ""];
    shown.forEach(([, durationS, numDecodes, numPrefillTokens], index) => {
      const kind = numPrefillTokens === 0 ? 0 : numDecodes ? 1 : 2;
      const x = (numShown - shown.length + index) * width;
      const y = Math.max(1, (durationS / scale) * height);
      bars[kind] += `M${x.toFixed(2)} ${height}v${-y.toFixed(1)}h${(width * 0.8).toFixed(2)}V${height}z`;
    });
    chart.paths.forEach((path, kind) => path.setAttribute("d", bars[kind]));
    setText(chart.top, format(scale));
    const longest = format(Math.max(0, ...shown.map((row) => row[1])));
    chart.picture.setAttribute("aria-label", `Duration of the last ${shown.length} steps; the longest took ${longest}`);
  };
}

/** An area over time; `name` is its class. */
export function areaChart(container, title, name) {
  const height = 60;
  const now = el("span", { class: "value" });
  const chart = frame(title, [`area ${name}`, `line ${name}`], height);
  container.append(el("p", { class: "chart-title" }, el("span", {}, el("i", { class: `box ${name}` }), title), now), chart.node,
    el("p", { class: "time-axis", "aria-hidden": "true" }, el("span", {}, "2 min ago"), el("span", {}, "now")));
  return (values, text, unit) => {
    const scale = roundUp(Math.max(10, ...values));
    const points = values.map((value, index) =>
      `${((index / (values.length - 1)) * WIDTH).toFixed(1)} ${(height - 0.5 - (value / scale) * (height - 2)).toFixed(1)}`);
    const line = `M${points.join("L")}`;
    chart.paths[0].setAttribute("d", `${line}V${height}H0z`);
    chart.paths[1].setAttribute("d", line);
    setText(chart.top, `${scale.toLocaleString("en")}/s`);
    setText(now, `${text} ${unit}`);
    chart.picture.setAttribute("aria-label", `${title}: now ${text} ${unit}, at most ${Math.max(...values)} in two minutes`);
  };
}

/** A bar in parts; draw([[class, label, value, shown], ...]) with its legend under it. */
export function partsBar(label) {
  const bar = el("div", { class: "bar", role: "img", "aria-label": label });
  const legend = el("p", { class: "legend" });
  const node = el("div", {}, bar, legend);
  const pieces = new Map();
  const draw = (parts) => {
    const total = parts.reduce((sum, part) => sum + part[2], 0) || 1;
    for (const [name, text, value, shown] of parts) {
      if (!pieces.has(name)) {
        const piece = { fill: el("span", { class: `piece ${name}` }), text: el("b", {}) };
        pieces.set(name, piece);
        bar.append(piece.fill);
        legend.append(el("span", {}, el("i", { class: `box ${name}` }), `${text} `, piece.text));
      }
      const piece = pieces.get(name);
      // In thousandths: shares that sum to a little less than 1 would leave a part of the bar empty.
      piece.fill.style.flexGrow = (1000 * value) / total;
      setText(piece.text, shown);
    }
    bar.setAttribute("aria-label", `${label}: ${parts.map((part) => `${part[1]} ${part[3]}`).join(", ")}`);
  };
  return { node, draw };
}
