// Load on an Ultrafast server for people who use k6: an open loop per tier, with thresholds on the objectives.
//
//   k6 run -e MODEL=smollm2-135m-instruct deploy/k6/ultrafast.js
//   k6 run -e URL=http://host:8080 -e KEY=... -e RATE=4 -e DURATION=5m -e TIERS=ultrafast,flex deploy/k6/ultrafast.js
//
// Plain k6 hands over an answer only when it is whole, so it cannot time single tokens. What it can time:
//   ttft   http_req_waiting, the time to the first byte. An Ultrafast server starts its answer with the first token, so
//          this is the time to first token. Behind a server that sends headers early, or after a ": ping" comment, it is
//          not: such answers are counted in `ultrafast_ttft_unknown` and not timed.
//   tpot   http_req_receiving / (output tokens - tokens of the first event): the mean, without the gaps.
// k6 connects and looks up names before `waiting`; the share that is not in it is in http_req_connecting.
// For single gaps, jitter and confidence intervals use `ultrafast bench` and `ultrafast gate`.

import http from "k6/http";
import exec from "k6/execution";
import { check } from "k6";
import { Counter, Rate, Trend } from "k6/metrics";

const URL = (__ENV.URL || "http://127.0.0.1:8080").replace(/\/+$/, "");
const MODEL = __ENV.MODEL || "smollm2-135m-instruct";
const TIERS = (__ENV.TIERS || "ultrafast,flex").split(",");
const RATE = Number(__ENV.RATE || 1);
const DURATION = __ENV.DURATION || "1m";
const MAX_TOKENS = Number(__ENV.MAX_TOKENS || 64);
const MAX_IN_FLIGHT = Number(__ENV.MAX_IN_FLIGHT || 200);

// Objectives in milliseconds: the defaults of `tiers.*`. Override: -e TTFT_ULTRAFAST=150 -e TPOT_ULTRAFAST=20
const OBJECTIVES = {
  ultrafast: { ttft: 200, tpot: 50 },
  priority: { ttft: 500, tpot: 75 },
  default: { ttft: 2000, tpot: 150 },
  flex: { ttft: 30000, tpot: 500 },
};

const ttft = new Trend("ultrafast_ttft", true);
const ttftUnknown = new Counter("ultrafast_ttft_unknown");
const tpot = new Trend("ultrafast_tpot", true);
const queue = new Trend("ultrafast_queue", true);
const prefill = new Trend("ultrafast_prefill", true);
const outputTokens = new Counter("ultrafast_output_tokens");
const failed = new Rate("ultrafast_failed");

export const options = {
  discardResponseBodies: false,
  scenarios: Object.fromEntries(TIERS.map((tier) => [tier, scenario(tier)])),
  thresholds: Object.assign({}, ...TIERS.map(thresholdsOf)),
  summaryTrendStats: ["min", "med", "p(90)", "p(99)", "max", "count"],
};

function scenario(tier) {
  return {
    executor: "constant-arrival-rate", // open loop: a slow server does not slow the arrivals down
    rate: RATE,
    timeUnit: "1s",
    duration: DURATION,
    preAllocatedVUs: Math.min(MAX_IN_FLIGHT, Math.max(4, Math.ceil(RATE * 4))),
    maxVUs: MAX_IN_FLIGHT,
    exec: "ask",
    env: { TIER: tier },
    tags: { tier },
  };
}

function objective(tier, name) {
  const given = __ENV[`${name}_${tier}`.toUpperCase()];
  if (given) return Number(given);
  if (!OBJECTIVES[tier]) throw new Error(`tier ${tier}: one of ${Object.keys(OBJECTIVES).join(", ")}`);
  return OBJECTIVES[tier][name];
}

function thresholdsOf(tier) {
  return {
    [`ultrafast_ttft{tier:${tier}}`]: [`p(99)<=${objective(tier, "ttft")}`],
    [`ultrafast_tpot{tier:${tier}}`]: [`p(99)<=${objective(tier, "tpot")}`],
    [`ultrafast_failed{tier:${tier}}`]: ["rate<=0.01"],
    // Calls that k6 could not start in time: its own limit, and the run then says nothing about the server.
    [`dropped_iterations{tier:${tier}}`]: ["count<1"],
  };
}

export function ask() {
  const tier = __ENV.TIER;
  const answer = http.post(`${URL}/v1/chat/completions`, JSON.stringify(body(tier)), params(tier));
  const stream = readStream(answer);
  const isWhole = answer.status === 200 && stream.isDone && stream.error === null && stream.tokens > 0;
  failed.add(!isWhole);
  check(answer, {
    "status is 200": () => answer.status === 200,
    "stream ends with [DONE]": () => stream.isDone,
    "no error inside the stream": () => stream.error === null,
    "usage is there": () => stream.usage !== null,
    "served in the tier that was asked for": () => stream.tier === tier,
  });
  if (isWhole) record(answer, stream);
}

function body(tier) {
  return {
    model: MODEL,
    // The number comes first: no prompt begins like another one, so no answer is fast because of a warm cache.
    messages: [{ role: "user", content: `${nonce()} Write a short story about a lighthouse.` }],
    service_tier: tier,
    max_tokens: MAX_TOKENS,
    stream: true,
    stream_options: { include_usage: true },
  };
}

function nonce() {
  return `${exec.scenario.name}-${exec.scenario.iterationInTest}-${Math.floor(Math.random() * 1e9)}`;
}

function params(tier) {
  // The body's service_tier decides; the header is for balancers on the way, which do not read bodies.
  const headers = { "content-type": "application/json", accept: "text/event-stream", "x-request-priority": tier };
  if (__ENV.KEY) headers.authorization = `Bearer ${__ENV.KEY}`;
  return { headers, tags: { tier }, timeout: "300s" };
}

// Server-sent events: comments and empty lines do not count, `data: ` lines do.
export function readStream(answer) {
  const found = { isDone: false, error: null, usage: null, tier: null, deltas: 0, tokens: 0, startsWithComment: false };
  if (answer.status !== 200 || typeof answer.body !== "string") return found;
  found.startsWithComment = answer.body.startsWith(":");
  for (const line of answer.body.split(/\r\n|\n|\r/)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") {
      found.isDone = true;
      continue;
    }
    let event;
    try {
      event = JSON.parse(data);
    } catch (error) {
      found.error = `not JSON: ${data.slice(0, 80)}`;
      continue;
    }
    if (event.error) found.error = event.error.message || "error";
    if (event.service_tier) found.tier = event.service_tier;
    if (event.usage) found.usage = event.usage;
    for (const choice of event.choices || []) {
      if (isOutput(choice.delta || {})) found.deltas += 1;
    }
  }
  // Without usage the number of tokens is not known; the number of events is not the number of tokens.
  found.tokens = found.usage ? found.usage.completion_tokens : 0;
  return found;
}

function isOutput(delta) {
  return Boolean(delta.content || delta.reasoning_content || (delta.tool_calls && delta.tool_calls.length));
}

function record(answer, stream) {
  outputTokens.add(stream.tokens);
  const timing = serverTiming(answer.headers["Server-Timing"] || "");
  if (timing.queue !== undefined) queue.add(timing.queue);
  if (timing.prefill !== undefined) prefill.add(timing.prefill);
  if (stream.startsWithComment || timing.prefill === undefined) {
    ttftUnknown.add(1);
    return;
  }
  ttft.add(answer.timings.waiting);
  // Taken as one token: what the first event brought; with one event there is nothing to divide by.
  if (stream.deltas > 1 && stream.tokens > 1) tpot.add(answer.timings.receiving / (stream.tokens - 1));
}

// "queue;dur=1.5, prefill;dur=12" -> {queue: 1.5, prefill: 12}
export function serverTiming(header) {
  const parts = {};
  for (const entry of header.split(",")) {
    const match = /^\s*([\w-]+)\s*;.*?\bdur=([\d.]+)/.exec(entry);
    if (match) parts[match[1]] = Number(match[2]);
  }
  return parts;
}
