// What happens as time passes while a view is shown.

import { age } from "./format.js";

const AGES_SECONDS = 5;

/** Run a function every so many seconds until `signal` is aborted: not in a hidden page, nor before its last run has ended. */
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

/** Keep the ages in a view's `time` elements true. */
export function keepAges(root, signal) {
  every(signal, AGES_SECONDS, () => {
    for (const place of root.querySelectorAll("time")) {
      const text = age(place.dateTime);
      if (place.textContent !== text) place.textContent = text;
    }
  });
}
