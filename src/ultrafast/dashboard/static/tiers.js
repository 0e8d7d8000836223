// What clients of each tier get: percentiles against the target, the parts of the time, the outcomes.

import { partsBar } from "./charts.js";
import { OUTCOMES, PARTS, TIERS, byId, count, duration, el, setClass, setText, share } from "./format.js";

const TABLES = [
  { field: "ttft", title: "Time to first token", fromS: 0.01, toS: 100, unit: "calls" },
  { field: "gap", title: "Gap between tokens", fromS: 0.001, toS: 10, unit: "gaps" },
];
const PERCENTILES = ["p50_s", "p90_s", "p99_s"];

/** Position on a logarithmic scale, in percent. */
function position(valueS, { fromS, toS }) {
  const part = Math.log(Math.max(valueS, fromS) / fromS) / Math.log(toS / fromS);
  return Math.min(100, part * 100);
}

function latencyTable(table) {
  const rows = new Map();
  const body = el("tbody");
  for (const tier of TIERS) {
    const cells = ["p50_s", "p90_s", "p99_s", "target", "within"].map((name) => el("td", { class: name }));
    const range = { track: el("div", { class: "range", "aria-hidden": "true" }), span: el("i", { class: "span" }), over: el("i", { class: "span over" }),
      dots: PERCENTILES.map((name) => el("i", { class: `dot ${name}` })), slo: el("i", { class: "slo" }) };
    range.track.append(range.span, range.over, ...range.dots, range.slo);
    body.append(el("tr", { class: `tier-${tier}` }, el("th", { scope: "row" }, el("i", { class: "tone" }), tier), el("td", { class: "graph" }, range.track), ...cells));
    rows.set(tier, { cells, range });
  }
  const ticks = el("div", { class: "ticks", "aria-hidden": "true" });
  for (let valueS = table.fromS; valueS <= table.toS * 1.001; valueS *= 100) {
    const tick = el("span", {}, duration(valueS).replace(".0", ""));
    tick.style.left = `${position(valueS, table)}%`;
    ticks.append(tick);
  }
  const head = el("tr", {}, el("th", { scope: "col" }, "Tier"), el("td", { class: "graph" }, ticks),
    ...["P50", "P90", "P99", "Target", "Within"].map((name) => el("th", { scope: "col" }, name)));
  const node = el("div", { class: "panel" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title },
    el("table", { class: "latency" }, el("caption", {}, table.title), el("thead", {}, head), body)));
  return { node, draw: (views) => views.forEach((view) => drawLatency(rows.get(view.tier), view[table.field], table)) };
}

function drawLatency({ cells, range }, view, table) {
  PERCENTILES.forEach((name, index) => {
    const isOver = view[name] !== null && view[name] > view.objective_s;
    setText(cells[index], duration(view[name]));
    setClass(cells[index], isOver ? `${name} bad` : name);
    range.dots[index].hidden = view[name] === null;
    range.dots[index].style.left = `${position(view[name] ?? table.fromS, table)}%`;
  });
  setText(cells[3], duration(view.objective_s).replace(".0", ""));
  setText(cells[4], share(view.num_within, view.num));
  setClass(cells[4], view.num && view.num_within < view.num * 0.99 ? "within bad" : "within");
  cells[4].title = view.num ? `${count(view.num_within)} of ${count(view.num)} ${table.unit}` : "";
  const slo = position(view.objective_s, table);
  range.slo.style.left = `${slo}%`;
  range.span.hidden = range.over.hidden = view.p50_s === null;
  if (view.p50_s === null) return;
  const from = position(view.p50_s, table);
  const to = position(view.p99_s, table);
  place(range.span, from, Math.max(from, Math.min(to, slo)));
  place(range.over, Math.max(from, slo), Math.max(to, slo));
}

function place(node, from, to) {
  node.style.left = `${from}%`;
  node.style.width = `${Math.max(0, to - from)}%`;
}

function partsPanel(container) {
  const rows = new Map();
  for (const tier of TIERS) {
    const total = el("span", { class: "value" });
    const bar = partsBar(`${tier}, mean time of a call`);
    const node = el("div", { class: `tier-${tier} parts` }, el("p", { class: "chart-title" }, el("span", {}, el("i", { class: "tone" }), tier), total), bar.node);
    container.append(node);
    rows.set(tier, { node, total, bar });
  }
  const empty = el("p", { class: "soft" }, "No completed call in the last minute.");
  container.append(empty);
  return (views) => {
    for (const { tier, parts_s: parts } of views) {
      const row = rows.get(tier);
      row.node.hidden = !parts;
      if (!parts) continue;
      setText(row.total, duration(parts.reduce((sum, part) => sum + part, 0)));
      row.bar.draw(PARTS.map((name, index) => [name, name, parts[index], duration(parts[index])]));
    }
    empty.hidden = views.some((view) => view.parts_s);
  };
}

function outcomeTable(table) {
  const cells = new Map();
  const body = el("tbody");
  for (const tier of TIERS) {
    const row = OUTCOMES.map((name) => el("td", { class: name }));
    cells.set(tier, row);
    body.append(el("tr", { class: `tier-${tier}` }, el("th", { scope: "row" }, el("i", { class: "tone" }), tier), ...row));
  }
  table.append(el("caption", { class: "hidden" }, "Calls that ended, by tier and outcome: in the last minute, and since the start"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Tier"), ...OUTCOMES.map((name) => el("th", { scope: "col" }, name)))), body);
  return (views) => {
    for (const view of views) {
      cells.get(view.tier).forEach((cell, index) => {
        setText(cell, `${count(view.outcomes[index])} / ${count(view.outcomes_total[index])}`);
        setClass(cell, index > 0 && view.outcomes[index] ? "bad" : view.outcomes_total[index] ? "" : "faint");
      });
    }
  };
}

/** Builds the three views; returns draw(frame). */
export function tierViews() {
  const tables = TABLES.map(latencyTable);
  byId("latency").append(...tables.map((table) => table.node));
  const parts = partsPanel(byId("parts"));
  const outcomes = outcomeTable(byId("outcomes"));
  return (frame) => {
    tables.forEach((table) => table.draw(frame.tiers));
    parts(frame.tiers);
    outcomes(frame.tiers);
  };
}
