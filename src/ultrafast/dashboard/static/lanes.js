// One lane per live request: what the last step did for it, and how far it is.

import { TIERS, count, duration, el, plural, setClass, setText } from "./format.js";

const STATES = {
  decode: "decodes", prefill: "prefills", paused: "holds its place", waiting: "waits", preempted: "preempted, waits",
};

function detail(lane) {
  switch (lane.state) {
    case "prefill": {
      const [start, num] = lane.chunk;
      return `prompt ${count(start)}–${count(start + num)} of ${count(lane.num_prompt_tokens)}`;
    }
    case "waiting":
    case "preempted":
      return `${duration(lane.age_s)} · prompt ${count(lane.num_prompt_tokens)}`;
    default:
      return `${plural(lane.num_output_tokens, "token")} of ${count(lane.max_tokens)}`;
  }
}

class Row {
  constructor() {
    this.id = el("code", { role: "cell" });
    this.tier = el("span", { class: "tier", role: "cell" });
    this.state = el("span", { class: "state", role: "cell" });
    this.detail = el("span", { class: "detail", role: "cell" });
    this.cached = el("i", { class: "cached" });
    this.computed = el("i", { class: "computed" });
    this.chunk = el("i", { class: "chunk" });
    this.output = el("i", { class: "made" });
    this.bar = el("span", { class: "progress", "aria-hidden": "true" },
      el("span", { class: "prompt" }, this.computed, this.cached, this.chunk), el("span", { class: "answer" }, this.output));
    this.node = el("div", { class: "lane", role: "row" }, this.id, this.tier, this.state, this.bar, this.detail);
  }

  draw(lane, isMine) {
    setText(this.id, lane.id.split(":")[0]);
    setText(this.tier, lane.tier);
    setText(this.state, STATES[lane.state]);
    setText(this.detail, detail(lane));
    setClass(this.node, `lane tier-${lane.tier} is-${lane.state}${isMine ? " mine" : ""}`);
    const part = (tokens) => `${Math.min(100, (100 * tokens) / Math.max(1, lane.num_prompt_tokens))}%`;
    this.cached.style.width = part(lane.num_cached_tokens);
    this.computed.style.width = part(lane.num_computed_tokens);
    this.chunk.style.left = part(lane.chunk ? lane.chunk[0] : 0);
    this.chunk.style.width = part(lane.chunk ? lane.chunk[1] : 0);
    this.output.style.width = `${Math.min(100, (100 * lane.num_output_tokens) / lane.max_tokens)}%`;
  }
}

function queueLine({ queues, num_hidden: numHidden }) {
  const waiting = queues.waiting_by_tier.map((num, index) => (num ? `${TIERS[index]} ${count(num)}` : "")).filter(Boolean).join(", ");
  const hidden = numHidden ? `; ${count(numHidden)} not shown` : "";
  return `${count(queues.num_running)} running, ${count(queues.num_waiting)} waiting${waiting ? ` (${waiting})` : ""}${hidden}`;
}

/** Keeps a row per id, so that a request stays the same element while it lives. Returns draw(frame, idsOfMine). */
export function laneList(container, line) {
  const rows = new Map();
  const empty = el("p", { class: "soft empty" }, "Nobody is being served right now.");
  container.after(empty);
  return (frame, mine) => {
    const seen = new Set();
    frame.lanes.forEach((lane, index) => {
      seen.add(lane.id);
      if (!rows.has(lane.id)) rows.set(lane.id, new Row());
      const row = rows.get(lane.id);
      row.draw(lane, mine.has(lane.id.split(":")[0]));
      if (container.children[index] !== row.node) container.insertBefore(row.node, container.children[index] ?? null);
    });
    for (const [id, row] of rows) {
      if (!seen.has(id)) {
        row.node.remove();
        rows.delete(id);
      }
    }
    empty.hidden = seen.size > 0;
    setText(line, queueLine(frame));
  };
}
