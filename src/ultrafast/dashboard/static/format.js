// Numbers as people read them, always with their unit; and small helpers that build elements.

export const TIERS = ["ultrafast", "priority", "default", "flex"];
export const OUTCOMES = ["completed", "rejected", "invalid", "expired", "aborted", "failed"];
export const PARTS = ["network", "queue", "compute", "output"];
export const NONE = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Seconds as µs, ms, s, min, h or d; a decimal below ten. */
export function duration(s) {
  if (s === null || s === undefined) return NONE;
  if (s < 0.0000005) return "0 ms";
  if (s < 0.001) return `${digits(s * 1e6)} µs`;
  if (s < 0.9995) return `${digits(s * 1e3)} ms`;
  if (s < 120) return `${digits(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

function digits(value) {
  return value < 9.95 ? value.toFixed(1) : whole.format(value);
}

export function count(value) {
  return whole.format(value);
}

/** A rate without its unit. */
export function rate(value) {
  return value > 0 && value < 9.95 ? value.toFixed(1) : whole.format(value);
}

/** A share in [0, 1]; never rounded up to 100 %. */
export function share(part, total) {
  if (!total) return NONE;
  const value = (100 * part) / total;
  if (value >= 99.95 && part < total) return "99.9 %";
  return value >= 99.95 || value === 0 ? `${value.toFixed(0)} %` : `${value.toFixed(1)} %`;
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Only touches the page when something changed: screen readers and selections stay calm. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

/** el("p", {class: "soft"}, "text", child, ...) */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}
