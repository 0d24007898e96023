// Only this module calls the service. The API key stays in its memory.

import { setClock } from "./format.js";

/** Timeouts in seconds: of an answer to GET, and of silence on the event stream, which has a heartbeat every 15 seconds. */
export const limits = { answer: 30, silence: 40 };

const STEADY_MS = 10_000; // a stream that lasted so long is opened again at once
const MOST_STREAMS = 4; // of all tabs of a browser, which opens six connections to one host by HTTP/1.1
const TAB = Math.random();
const YIELDED = "yielded";

let key = "";
let askForKey = null;
let asking = null;
let declined = false;
const keyListeners = new Set();

/** A problem that the service reports (RFC 9457), or no connection to the service (status 0). */
class Problem extends Error {
  constructor(status, title, detail, { errors = [], requestId = "", retryAfter = null } = {}) {
    super(detail || title);
    Object.assign(this, { status, title, detail, errors, requestId, retryAfter });
  }
}

/** Set the function `(why) -> Promise<string | null>` that asks a person for a key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Let the next 401 ask for a key again, after the person gave none. */
export function askAgain() {
  declined = false;
}

/** Call a function with whether there is a key, now and at each change. */
export function onKeyChange(listener) {
  keyListeners.add(listener);
  listener(Boolean(key));
}

/** Set the key; "" forgets it. */
export function setKey(given) {
  key = given;
  for (const listener of keyListeners) listener(Boolean(key));
}

/** Call the service; returns the Response of a success. Throws Problem. */
export async function call(method, path, { query, body, signal, headers = {}, type, endless = method !== "GET" } = {}) {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const address = search.size ? `${path}?${search}` : path;
  const sent = { ...headers };
  if (method !== "GET") askAgain(); // a person started this call
  if (body !== undefined) sent["content-type"] = type ?? "application/json";
  for (;;) {
    const used = key;
    if (used) sent.authorization = `Bearer ${used}`;
    let response;
    try {
      // Gateways want their cookie, mutual TLS the certificate. Elsewhere browsers do not say that a script asks, and
      // without credentials they show no password dialog of their own at a 401.
      response = await fetch(address, {
        method, headers: sent, credentials: isSecureContext ? "same-origin" : "omit", cache: "no-store",
        signal: AbortSignal.any([signal, !endless && AbortSignal.timeout(1000 * limits.answer)].filter(Boolean)),
        body: body === undefined || typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "No connection", "The service does not answer, or the network is down.");
    }
    setClock(response.headers.get("date"));
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.status !== 401 || !(await renewed(used, problem))) throw problem;
  }
}

async function renewed(used, problem) {
  if (used !== key) return true; // another request has set a new key
  if (!askForKey || declined) return false;
  asking ??= askForKey(used ? problem.detail : "").finally(() => (asking = null));
  const given = await asking;
  if (given === null) {
    declined = true;
    return false;
  }
  if (given !== key) setKey(given);
  return true;
}

/** Read an answer as JSON. Throws Problem if it is none, as of a gateway, or is cut off. */
async function json(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const status = [401, 403].includes(response.status) ? response.status : 0; // a 404 of a gateway is not about a unit
    throw new Problem(status, "No answer of the service", `Status ${response.status} without JSON: a gateway answered, or the answer was cut off.`);
  }
}

async function problemOf(response) {
  const found = await json(response).catch((problem) => problem);
  return new Problem(found.status ?? response.status, found.title ?? response.statusText, found.detail ?? found.error ?? "", {
    errors: found.errors ?? [],
    requestId: found.request_id ?? response.headers.get("x-request-id") ?? "",
    retryAfter: Number(response.headers.get("retry-after")) || null,
  });
}

export const api = {
  get: async (path, query, options) => json(await call("GET", path, { query, ...options })),
  post: async (path, body, options) => json(await call("POST", path, { body, ...options })),
  del: async (path, query, options) => json(await call("DELETE", path, { query, ...options })),
};

/**
 * Follow `/v1/events` until `signal` is aborted.
 *
 * Reconnects if the stream ends or is silent for too long; if streams do not last, later each time. A browser opens few
 * connections to one host: disconnects while the page is hidden, and after `MOST_STREAMS` other tabs have opened a
 * stream until this tab has the focus again. Uses fetch because EventSource cannot send a key. Calls
 * `onEvent(name, data)`; `onState("live" | "waiting" | "yielded" | "off")`; `onState("refused", why)` if the key may not
 * read; `onBack()` after a reconnect, because events may be missing.
 */
export async function follow({ onEvent, onState, onBack, signal }) {
  let pause = 1000;
  let hasMissed = false;
  while (!signal.aborted) {
    if (document.hidden) await event(document, "visibilitychange", signal);
    const rest = new AbortController();
    const either = AbortSignal.any([signal, rest.signal]);
    document.addEventListener("visibilitychange", () => document.hidden && rest.abort(), { signal: either });
    const tabs = tellTabs(() => rest.abort(YIELDED));
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => rest.abort(), 1000 * limits.silence);
    };
    heard();
    let opened = Infinity;
    try {
      const response = await call("GET", "/v1/events", { signal: either, endless: true, headers: { accept: "text/event-stream" } });
      if (hasMissed) onBack();
      opened = performance.now();
      await readEvents(response.body, onEvent, () => (heard(), onState("live"))); // a proxy may hold back what is sent
    } catch (error) {
      if (signal.aborted) return;
      if ([401, 403].includes(error.status)) return onState("refused", error.detail);
      if (error.status === 404) return onState("off");
    } finally {
      clearTimeout(silence);
      rest.abort(); // removes the listener too
      tabs.close();
    }
    if (signal.aborted) return;
    hasMissed = true;
    if (rest.signal.reason === YIELDED) {
      onState(YIELDED);
      await event(window, "focus", signal);
      continue;
    }
    onState("waiting");
    if (document.hidden || performance.now() - opened > STEADY_MS) pause = 100;
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 30000);
  }
}

/** Tell the other tabs that this one opens a stream; call `onMany` when `MOST_STREAMS` of them have opened one later. */
function tellTabs(onMany) {
  const later = new Set();
  const tabs = new BroadcastChannel("streams");
  tabs.onmessage = ({ data }) => later.add(data).size === MOST_STREAMS && onMany();
  tabs.postMessage(TAB);
  return tabs;
}

/** Wait for an event, or until `signal` is aborted. */
function event(target, name, signal) {
  return new Promise((resolve) => {
    target.addEventListener(name, resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

async function readEvents(stream, onEvent, heard) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = { event: "message", data: "" };
      for (const line of block.split("\n")) {
        const at = line.indexOf(":");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 1).trimStart();
      }
      if (fields.data) onEvent(fields.event, JSON.parse(fields.data));
    }
  }
}
