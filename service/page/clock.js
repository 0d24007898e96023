// Timers of a view.

import { age } from "./format.js";

const AGES_SECONDS = 5;

/** Run a function every `seconds` until `signal` is aborted; skip a run if the page is hidden or the last run is not over. */
export function every(signal, seconds, run) {
  let running = false;
  const timer = setInterval(async () => {
    if (running || document.hidden) return;
    running = true;
    try {
      await run();
    } finally {
      running = false;
    }
  }, 1000 * seconds);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
}

/** Update the ages in a view's `time` elements. */
export function keepAges(root, signal) {
  every(signal, AGES_SECONDS, () => {
    for (const place of root.querySelectorAll("time")) {
      const text = age(place.dateTime);
      if (place.textContent !== text) place.textContent = text;
    }
  });
}
