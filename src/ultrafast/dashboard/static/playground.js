// One prompt, sent in each tier at the same moment; a stopwatch per tier, on one axis of time.

import { partsBar } from "./charts.js";
import { NONE, TIERS, byId, duration, el, plural, setText, svg } from "./format.js";
import { address, authHeaders, errorText, eventData, setKey } from "./feed.js";

const PLACES = ["1st", "2nd", "3rd", "4th"];
/** Ends of the completion ids of our own calls, to mark their lanes. */
export const mine = new Set();

/** A part of a server's timing in seconds, null where it is not told. */
function told(timing, name) {
  const found = new RegExp(`${name};dur=([0-9.]+)`).exec(timing);
  return found ? Number(found[1]) / 1000 : null;
}

/** The server's own timing of the first token: {queue, prefill, processing} in seconds. */
function serverTimes(headers) {
  const timing = headers.get("server-timing") ?? "";
  const processing = headers.get("openai-processing-ms");
  return { queue: told(timing, "queue"), prefill: told(timing, "prefill"), processing: processing === null ? null : Number(processing) / 1000 };
}

/** What the server says at the end of a stream, in a comment, about the whole answer; empty when it says nothing. */
function wholeTimes(comment) {
  const names = { queue: "queue", compute: "compute", output: "rest of the server" };
  const parts = Object.entries(names).map(([name, text]) => [text, told(comment, name)]).filter(([, value]) => value !== null);
  return parts.length ? ` By the server's clock: ${parts.map(([text, value]) => `${text} ${duration(value)}`).join(", ")}.` : "";
}

/** Divides the time to the first token; what the server does not explain is the network's (and the browser's). */
function divide(ttftS, { queue, prefill, processing }) {
  if (queue === null || processing === null) return null;
  const inside = Math.min(ttftS, Math.max(processing, queue + prefill));
  return [["network", "network and browser", ttftS - inside], ["queue", "queue", queue], ["compute", "compute (prefill)", prefill],
    ["output", "rest of the server", Math.max(0, inside - queue - prefill)]].map(([name, text, value]) => [name, text, value, duration(value)]);
}

class Runner {
  constructor(tier) {
    this.tier = tier;
    this.tokensS = [];
    this.ttftS = null;
    this.endS = null;
    this.numTokens = 0;
    this.place = el("span", { class: "place" });
    this.figures = el("span", { class: "value" });
    this.marks = svg("path", { class: "ticks" });
    this.wait = svg("path", { class: "wait" });
    this.picture = svg("svg", { viewBox: "0 0 600 18", preserveAspectRatio: "none", role: "img", "aria-label": `${tier}: nothing yet` }, this.wait, this.marks);
    this.parts = partsBar(`${tier}, time to the first token`);
    this.untold = el("p", { class: "soft small", hidden: true }, "The first token took so long that the stream began without the server's own times.");
    this.text = el("p", { class: "answer-text", tabindex: "0", "aria-label": `Answer of tier ${tier}` });
    this.note = el("p", { class: "soft small" });
    this.lane = el("div", { class: `track tier-${tier}` }, el("span", { class: "name" }, el("i", { class: "tone" }), tier, this.place), this.picture, this.figures);
    this.card = el("article", { class: `panel tier-${tier}` }, el("h3", {}, el("i", { class: "tone" }), tier), this.parts.node, this.untold, this.text, this.note);
  }

  async run(body, startMs, signal, onFirst) {
    const since = () => (performance.now() - startMs) / 1000;
    try {
      const response = await fetch(address("v1/chat/completions"), {
        method: "POST", signal, headers: { "content-type": "application/json", ...authHeaders() }, body: JSON.stringify({ ...body, service_tier: this.tier }),
      });
      if (!response.ok) throw new Error(await errorText(response));
      const times = serverTimes(response.headers);
      let timing = "";
      const onComment = (comment) => { if (comment.startsWith("server-timing ")) timing = comment; };
      for await (const data of eventData(response.body, onComment)) {
        if (data !== "[DONE]") this.take(JSON.parse(data), since(), times, onFirst);
      }
      this.endS = since();
      setText(this.note, `${plural(this.numTokens, "token")} in ${duration(this.endS)}${this.served ? `, served as ${this.served}` : ""}.${wholeTimes(timing)}`);
    } catch (error) {
      this.endS = since();
      setText(this.note, signal.aborted ? "Stopped." : `Failed: ${error.message}`);
      this.note.classList.toggle("bad", !signal.aborted);
    }
  }

  take(chunk, nowS, times, onFirst) {
    if (chunk.error) throw new Error(chunk.error.message);
    mine.add(chunk.id.slice(-6));
    this.served = chunk.service_tier;
    if (chunk.usage) this.numTokens = chunk.usage.completion_tokens;
    const delta = chunk.choices[0]?.delta;
    const text = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
    if (!text) return;
    this.tokensS.push(nowS);
    this.numTokens = Math.max(this.numTokens, this.tokensS.length);
    this.text.append(text);
    if (this.ttftS === null) {
      this.ttftS = nowS;
      setText(this.place, PLACES[onFirst()]);
      const parts = divide(nowS, times);
      if (parts) this.parts.draw(parts);
      this.parts.node.hidden = !parts;
      this.untold.hidden = Boolean(parts);
    }
  }

  draw(nowS, scaleS) {
    const x = (s) => Math.min(599, (s / scaleS) * 600).toFixed(1);
    const waitedS = this.ttftS ?? this.endS ?? nowS;
    this.wait.setAttribute("d", `M0 6H${x(waitedS)}V12H0z`);
    this.marks.setAttribute("d", this.tokensS.map((s) => `M${x(s)} 1v16`).join(""));
    const gaps = this.tokensS.slice(1).map((s, index) => s - this.tokensS[index]).sort((a, b) => a - b);
    const gap = gaps.length ? gaps[Math.floor(gaps.length / 2)] : null;
    const first = this.ttftS === null ? (this.endS === null ? `${duration(nowS)} …` : NONE) : duration(this.ttftS);
    setText(this.figures, `first ${first} · gap ${duration(gap)}`);
    this.picture.setAttribute("aria-label", `${this.tier}: first token after ${first}, ${this.tokensS.length} deltas`);
  }
}

async function modelName() {
  const response = await fetch(address("v1/models"), { headers: authHeaders() });
  if (!response.ok) throw new Error(await errorText(response));
  return (await response.json()).data[0].id;
}

/** Runs one race at a time. `onKey` is told when a key was typed. */
export function playground(onKey) {
  const form = byId("race");
  const status = byId("race-status");
  const start = byId("start");
  const stop = byId("stop");
  let abort = null;
  const boxes = TIERS.map((tier) => {
    const box = el("input", { type: "checkbox", checked: true, value: tier });
    byId("race-tiers").append(el("label", { class: `check tier-${tier}` }, box, el("i", { class: "tone" }), tier));
    return box;
  });

  async function race() {
    const runners = boxes.filter((box) => box.checked).map((box) => new Runner(box.value));
    if (!runners.length) return setText(status, "Choose at least one tier.");
    setText(status, "Running.");
    const model = await modelName();
    const body = {
      model, stream: true, stream_options: { include_usage: true }, cache: byId("use-cache").checked ? "on" : "off",
      max_completion_tokens: Number(byId("max-tokens").value), messages: [{ role: "user", content: byId("prompt").value }],
    };
    const axis = el("p", { class: "time-axis", "aria-hidden": "true" }, el("span", {}, "0 s"), el("span", {}));
    byId("race-result").replaceChildren(
      el("div", { class: "panel" }, el("p", { class: "legend" }, el("span", {}, el("i", { class: "box waiting" }), "waits for the first token"), el("span", {}, el("i", { class: "mark tick" }), "a piece of the answer arrives")), ...runners.map((runner) => runner.lane), el("div", { class: "track" }, el("span", {}), axis, el("span", {}))),
      el("div", { class: "cards answers" }, ...runners.map((runner) => runner.card)));
    let numFirst = 0;
    const startMs = performance.now();
    const draw = () => {
      const nowS = (performance.now() - startMs) / 1000;
      const isOver = runners.every((runner) => runner.endS !== null);
      const scaleS = isOver ? Math.max(...runners.map((runner) => runner.endS)) : nowS;
      runners.forEach((runner) => runner.draw(nowS, scaleS));
      setText(axis.lastChild, duration(scaleS));
    };
    const timer = setInterval(draw, 100);
    await Promise.all(runners.map((runner) => runner.run(body, startMs, abort.signal, () => numFirst++)));
    clearInterval(timer);
    draw();
    const ranked = runners.filter((runner) => runner.ttftS !== null).sort((a, b) => a.ttftS - b.ttftS);
    setText(status, ranked.length ? `First token: ${ranked.map((one) => `${one.tier} ${duration(one.ttftS)}`).join(", ")}.` : "No answer.");
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    abort = new AbortController();
    start.disabled = true;
    stop.disabled = false;
    try {
      await race();
    } catch (error) {
      setText(status, `Failed: ${error.message}`);
    } finally {
      start.disabled = false;
      stop.disabled = true;
    }
  });
  stop.addEventListener("click", () => abort?.abort());
  byId("key").addEventListener("change", (event) => {
    setKey(event.target.value);
    onKey();
  });
}
