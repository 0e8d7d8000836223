// The page: connects the feed to the views.

import { areaChart, partsBar, stepChart } from "./charts.js";
import { Feed, setKey } from "./feed.js";
import { NONE, byId, count, duration, el, plural, rate, setClass, setText, share } from "./format.js";
import { laneList } from "./lanes.js";
import { mine, playground } from "./playground.js";
import { tierViews } from "./tiers.js";

const MAX_STEPS = 160;
/** So long a lost engine stays on top of the page. */
const NEWS_S = 600;
const CARDS = [
  ["running", "Running"], ["waiting", "Waiting"], ["output", "Output"], ["prefill", "Prefill"],
  ["kv", "KV in use"], ["hits", "Prefix-cache hits"], ["step", "Last step"], ["restarts", "Engine restarts"],
];

function cards(container) {
  const values = {};
  for (const [name, title] of CARDS) {
    const value = el("span", {}, NONE);
    const unit = el("span", { class: "unit" });
    container.append(el("div", { class: "card" }, el("dt", {}, title), el("dd", {}, value, unit)));
    values[name] = (text, more = "") => {
      setText(value, text);
      setText(unit, more);
    };
  }
  return values;
}

const card = cards(byId("cards"));
const drawSteps = stepChart(byId("steps"));
const drawTiers = tierViews();
const drawLanes = laneList(byId("lanes"), byId("lanes-line"));
const drawOutput = areaChart(byId("throughput"), "Output", "decode");
const drawPrefill = areaChart(byId("throughput"), "Prefill", "prefill");
const kvBar = partsBar("KV cache");
const cacheBar = partsBar("Prompt tokens");
byId("kv").append(kvBar.node);
byId("cache").append(cacheBar.node);
let steps = [];
let alertedRestarts = -1;

/** What a person should know first about the engine: [class, word, sentence]. */
function engineState(engine) {
  const age = engine.last_step_age_s;
  if (engine.is_draining) return ["warn", "draining", "shutting down, takes nothing new"];
  if (engine.is_stalled) return ["bad", "stalled", `no step for ${duration(age)} although there is work`];
  if (engine.state !== "ready") return [engine.state === "failed" ? "bad" : "warn", engine.state, ""];
  if (engine.has_work) return ["good", "working", age === null ? "" : `last step ${duration(age)} ago`];
  return ["good", "idle", age === null ? "no step yet" : `last step ${duration(age)} ago`];
}

function drawEngine({ engine, uptime_s: uptimeS, model, version }) {
  const [kind, word, more] = engineState(engine);
  const state = byId("state");
  setText(state, word);
  setClass(state, `chip ${kind}`);
  setText(byId("state-more"), [more, `up ${duration(uptimeS)}`].filter(Boolean).join(" · "));
  setText(byId("model"), model);
  setText(byId("version"), `Ultrafast ${version} ·`);
  const restart = engine.last_restart_age_s;
  card.restarts(count(engine.num_restarts), restart === null ? "since the start" : `last ${duration(restart)} ago`);
  const alert = byId("alert");
  const isNews = restart !== null && restart < NEWS_S;
  // Written once per restart, with the time of day: an alert that counts seconds would be read out every second.
  if (isNews && alertedRestarts !== engine.num_restarts) {
    alertedRestarts = engine.num_restarts;
    const at = new Date(Date.now() - restart * 1000).toLocaleTimeString();
    setText(alert, `The engine was lost at ${at} (${engine.last_restart_reason}) and replaced; live requests go on.`);
  }
  alert.hidden = !isNews;
}

function drawResources(frame) {
  const { kv, queues, step } = frame;
  card.running(count(queues.num_running), "requests");
  card.waiting(count(queues.num_waiting), "requests");
  card.output(rate(frame.output_rate), "tokens/s");
  card.prefill(rate(frame.prefill_rate), "tokens/s");
  const [hits, looked] = [frame.num_cache_hit, frame.num_cache_queried];
  card.hits(share(hits, looked), "of prompt tokens");
  setText(byId("cache-line"), looked ? `prompt tokens of the last ${frame.window_s} s` : "no prompt looked up in the last minute");
  byId("cache").hidden = !looked;
  cacheBar.draw([["cached", "found", hits, count(hits)], ["prefill", "computed", looked - hits, count(looked - hits)]]);
  if (kv) {
    const capacity = kv.num_running + kv.num_cached + kv.num_free;
    card.kv(share(kv.num_running, capacity), `of ${plural(capacity, "block")}`);
    setText(byId("kv-line"), `${plural(capacity, "block")} of ${kv.block_tokens} tokens`);
    kvBar.draw([["running", "running", kv.num_running, count(kv.num_running)], ["cached", "cached for reuse", kv.num_cached, count(kv.num_cached)],
      ["free", "free", kv.num_free, count(kv.num_free)]]);
  }
  if (step) {
    card.step(duration(step.duration_s), step.num_prefills ? (step.num_decodes ? "decode and prefill" : "prefill") : "decode");
    const prefill = step.num_prefills ? `, ${plural(step.num_prefills, "prefill chunk")} with ${plural(step.num_prefill_tokens, "token")}` : "";
    setText(byId("step-line"), `step ${count(step.step)}: ${duration(step.duration_s)}, ${plural(step.num_decodes, "decode")}${prefill}; planned in ${duration(step.schedule_s)}`);
  }
}

/** Frames overlap when a connection begins; a restarted server counts from 1 again. */
function takeSteps(rows) {
  const newest = rows.at(-1);
  if (!newest) return;
  if (newest[0] < (steps.at(-1)?.[0] ?? 0)) steps = [];
  const seen = steps.at(-1)?.[0] ?? 0;
  steps = [...steps, ...rows.filter((row) => row[0] > seen)].slice(-MAX_STEPS);
}

function onFrame(frame) {
  takeSteps(frame.steps);
  setText(byId("window"), String(frame.window_s));
  drawEngine(frame);
  drawResources(frame);
  drawTiers(frame);
  drawSteps(steps, duration);
  drawLanes(frame, mine);
  drawOutput(frame.seconds.map((second) => second[0]), rate(frame.output_rate), "tokens/s");
  drawPrefill(frame.seconds.map((second) => second[1]), rate(frame.prefill_rate), "tokens/s");
}

function onStatus(status, text) {
  document.body.classList.toggle("old", status !== "live");
  const isLocked = status === "locked";
  byId("unlock").hidden = !isLocked;
  setText(byId("unlock-error"), isLocked ? text : "");
  if (status === "live") return;
  setText(byId("state"), isLocked ? "locked" : status === "stale" ? "no news" : "not connected");
  setClass(byId("state"), `chip ${isLocked ? "warn" : "bad"}`);
  setText(byId("state-more"), isLocked ? "" : text);
}

const feed = new Feed(onFrame, onStatus);
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("unlock-key").value);
  byId("key").value = byId("unlock-key").value;
  feed.restart();
});
byId("pause").addEventListener("click", ({ currentTarget: button }) => {
  const isPaused = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(isPaused));
  setText(button, isPaused ? "Resume" : "Pause");
  feed.setPaused(isPaused);
  if (isPaused) {
    setText(byId("state"), "paused");
    setClass(byId("state"), "chip warn");
  }
});
playground(() => feed.restart());
feed.restart();
