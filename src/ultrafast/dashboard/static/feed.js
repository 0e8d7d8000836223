// Reads the server's frames. fetch instead of EventSource, because that cannot send a key.

const RETRY_MS = [500, 1000, 2000, 5000];
const STALE_MS = 3000;

/** The API key: in this variable and nowhere else. */
let key = "";

export function setKey(value) {
  key = value.trim();
}

export function hasKey() {
  return key !== "";
}

export function authHeaders() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** A path of this server, also where a proxy serves it under a prefix. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

/** Yields the data of server-sent events; comments go to `onComment`, other fields are skipped. */
export async function* eventData(body, onComment = () => {}) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event.startsWith("data: ")) yield event.slice(6);
        else if (event.startsWith(": ")) onComment(event.slice(2));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Keeps one connection while the page is visible. Calls onFrame(frame) and onStatus("live" | "stale" | "locked" | "busy" | "lost", text). */
export class Feed {
  constructor(onFrame, onStatus) {
    this.onFrame = onFrame;
    this.onStatus = onStatus;
    this.isPaused = false;
    this.abort = null;
    this.lastFrameMs = 0;
    this.numFailures = 0;
    document.addEventListener("visibilitychange", () => this.restart());
    setInterval(() => this.checkStale(), 1000);
  }

  setPaused(isPaused) {
    this.isPaused = isPaused;
    this.restart();
  }

  restart() {
    this.abort?.abort();
    this.abort = null;
    if (!document.hidden && !this.isPaused) this.run();
  }

  async run() {
    const abort = (this.abort = new AbortController());
    while (!abort.signal.aborted) {
      const goesOn = await this.connect(abort.signal);
      if (!goesOn || abort.signal.aborted) return;
      const pauseMs = RETRY_MS[Math.min(this.numFailures++, RETRY_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }

  /** Returns whether trying again can help without the reader's doing. */
  async connect(signal) {
    try {
      const response = await fetch(address("dashboard/events"), { headers: authHeaders(), signal, cache: "no-store" });
      if (response.status === 401) {
        this.onStatus("locked", hasKey() ? "This key is not accepted here." : "");
        return false;
      }
      if (!response.ok) {
        this.onStatus(response.status === 429 ? "busy" : "lost", await errorText(response));
        return true;
      }
      for await (const data of eventData(response.body)) {
        this.numFailures = 0;
        this.lastFrameMs = performance.now();
        this.onStatus("live", "");
        this.onFrame(JSON.parse(data));
      }
      if (!signal.aborted) this.onStatus("lost", "The server has closed the connection; trying again.");
    } catch (error) {
      if (!signal.aborted) this.onStatus("lost", `No connection to the server (${error.message}); trying again.`);
    }
    return true;
  }

  checkStale() {
    if (this.abort && this.lastFrameMs && performance.now() - this.lastFrameMs > STALE_MS) {
      this.onStatus("stale", "No news from the server for some seconds; the figures are old.");
    }
  }
}

/** The server's own words about an error. */
export async function errorText(response) {
  try {
    const { error } = await response.json();
    return error.hint ? `${error.message} (${error.hint})` : error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}
