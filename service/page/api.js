// The one place that talks to the service. The API key stays in this module's memory.

/** Seconds that an answer may take, and that the event stream may be silent: the service sends a heartbeat every 15. */
export const limits = { answer: 30, silence: 40 };

let key = "";
let askForKey = null;
let asking = null;
let declined = false;
const keyListeners = new Set();

/** A refusal of the service (RFC 9457), or a service that cannot be reached (status 0). */
export class Problem extends Error {
  constructor(status, title, detail, { errors = [], requestId = "", retryAfter = null } = {}) {
    super(detail || title);
    Object.assign(this, { status, title, detail, errors, requestId, retryAfter });
  }
}

/** Set the function `(why) -> Promise<string | null>` that asks a person for a key. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Ask again, after a person has given no key. */
export function askAgain() {
  declined = false;
}

/** Call a function with whether there is a key, at each change. */
export function onKeyChange(listener) {
  keyListeners.add(listener);
  listener(Boolean(key));
}

/** Use another key; "" forgets it. */
export function setKey(given) {
  key = given;
  for (const listener of keyListeners) listener(Boolean(key));
}

/** Call the service; returns the Response of a success. Throws Problem. */
export async function call(method, path, { query, body, signal, headers = {}, type, endless = method !== "GET" } = {}) {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const address = search.size ? `${path}?${search}` : path;
  const sent = { ...headers };
  if (method !== "GET") askAgain(); // a person has asked for it
  if (body !== undefined) sent["content-type"] = type ?? "application/json";
  for (;;) {
    const used = key;
    if (used) sent.authorization = `Bearer ${used}`;
    let response;
    try {
      // Without credentials a browser asks for no password of its own when the answer is 401.
      response = await fetch(address, {
        method, headers: sent, credentials: "omit", cache: "no-store",
        signal: AbortSignal.any([signal, !endless && AbortSignal.timeout(1000 * limits.answer)].filter(Boolean)),
        body: body === undefined || typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "No connection", "The service does not answer, or the network is down.");
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.status !== 401 || !(await renewed(used, problem))) throw problem;
  }
}

async function renewed(used, problem) {
  if (used !== key) return true; // another request has asked meanwhile
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

async function problemOf(response) {
  const found = await response.json().catch(() => ({}));
  return new Problem(response.status, found.title ?? response.statusText, found.detail ?? found.error ?? "", {
    errors: found.errors ?? [],
    requestId: found.request_id ?? response.headers.get("x-request-id") ?? "",
    retryAfter: Number(response.headers.get("retry-after")) || null,
  });
}

export const api = {
  get: async (path, query, options) => (await call("GET", path, { query, ...options })).json(),
  text: async (path, query, options) => (await call("GET", path, { query, ...options })).text(),
  post: async (path, body, options) => (await call("POST", path, { body, ...options })).json(),
  del: async (path, query, options) => (await call("DELETE", path, { query, ...options })).json(),
};

/**
 * Follow `/v1/events` until `signal` is aborted; connects again by itself, also where the stream is silent for too
 * long, and rests while the page is hidden: a browser has few connections to one host.
 *
 * By fetch and not EventSource, which cannot send a key. `onEvent(name, data)`; `onState("live" | "waiting" | "off")`, and
 * `onState("refused", why)` where the key may not read; `onBack()` where events may have been missed before "live".
 */
export async function follow({ onEvent, onState, onBack, signal }) {
  let pause = 1000;
  let hasMissed = false;
  while (!signal.aborted) {
    await visible(signal);
    const rest = new AbortController();
    const either = AbortSignal.any([signal, rest.signal]);
    document.addEventListener("visibilitychange", () => document.hidden && rest.abort(), { signal: either });
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => rest.abort(), 1000 * limits.silence);
    };
    heard();
    try {
      const response = await call("GET", "/v1/events", { signal: either, endless: true, headers: { accept: "text/event-stream" } });
      onState("live");
      if (hasMissed) onBack();
      pause = 1000;
      await readEvents(response.body, onEvent, heard);
      pause = 100; // the service ends a stream now and then
    } catch (error) {
      if (signal.aborted) return;
      if ([401, 403].includes(error.status)) return onState("refused", error.detail);
      if (error.status === 404) return onState("off");
    } finally {
      clearTimeout(silence);
      rest.abort(); // and the listener with it
    }
    if (signal.aborted) return;
    hasMissed = true;
    onState("waiting");
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 30000);
  }
}

function visible(signal) {
  if (!document.hidden) return null;
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
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
