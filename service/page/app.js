// The shell: router, theme, key. A view is a module that exports `async show(root, params, context)`.

import { api, askAgain, onKeyChange, onKeyNeeded, setKey } from "./api.js";
import { announce, h, put } from "./dom.js";
import * as fleet from "./fleet.js";
import { clock, nameText } from "./format.js";
import * as models from "./models.js";
import { failed } from "./parts.js";
import * as tried from "./try.js";
import * as unit from "./unit.js";

// All modules load with the page: one that loads later may be of the next version of the service.
const ROUTES = [
  { pattern: /^\/$/, view: "fleet", title: () => "Fleet", module: fleet },
  { pattern: /^\/unit\/([^/]*)\/([^/]*)$/, view: "fleet", names: ["model", "unit"], title: (p) => nameText(p.unit), module: unit },
  { pattern: /^\/try$/, view: "try", title: () => "Try", module: tried },
  { pattern: /^\/models(?:\/([^/]*))?$/, view: "models", names: ["model"], title: (p) => p.model ?? "Models", module: models },
];

const main = document.getElementById("main");
let leave = new AbortController();
let shown = null;
let freshAt = new Date();

function parse(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?");
  for (const route of ROUTES) {
    const match = route.pattern.exec(path || "/");
    if (!match) continue;
    const named = (route.names ?? []).map((name, i) => [name, match[i + 1] && decoded(match[i + 1])]);
    if (named.some(([, value]) => value === null)) return null;
    return { route, params: { ...Object.fromEntries(named), query: new URLSearchParams(search) } };
  }
  return null;
}

/** Decode a part of the address; null if encodeURIComponent cannot have made it. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return null;
  }
}

async function render() {
  askAgain();
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const found = parse(location.hash);
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const isHere = link.dataset.view === found?.route.view;
    isHere ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  live("");
  if (!found) {
    document.title = "No such page · rulserve";
    put(main, h("div", { class: "empty", role: "alert" }, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "#/" }, "To the fleet"))));
    return;
  }
  const title = found.route.title(found.params);
  document.title = `${title} · rulserve`;
  const moved = shown !== null && shown !== location.hash.split("?")[0];
  shown = location.hash.split("?")[0];
  const root = put(main, h("div", { class: `view ${found.route.view}` })).firstChild;
  if (moved) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    announce(title);
  }
  const context = { api, signal, announce, live, again: render, navigate: (hash) => (location.hash = hash) };
  try {
    await found.route.module.show(root, found.params, context);
  } catch (error) {
    if (!signal.aborted && error.name !== "AbortError") put(root, failed(error, render));
  }
}

/** Show how fresh the view is: "live", "waiting", "yielded", "paused", "off", "" or "refused"; a notice gives the reason of a refusal. */
function live(state, why) {
  const place = document.getElementById("live");
  const notice = document.getElementById("stale");
  if (place.dataset.state === "live" || state === "") freshAt = new Date();
  const text = { live: "Live", waiting: "Connecting", yielded: "Every 10 s", paused: "Paused" }[state] ?? "";
  place.dataset.state = text && state;
  if (place.textContent !== text) place.textContent = text;
  notice.hidden = state !== "refused" || main.querySelector("[role=alert]") !== null; // an alert has its own "Try again"
  if (!notice.hidden) put(notice, `Not updated since ${clock(freshAt)}: ${why}. `, h("button", { type: "button", onclick: render }, "Try again"));
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const name = () => {
    const dark = document.documentElement.dataset.theme === "dark";
    button.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
    button.dataset.icon = dark ? "sun" : "moon";
  };
  button.addEventListener("click", () => window.toggleTheme());
  document.addEventListener("themechange", name);
  name();
}

/** Ask for a key in a dialog; null if the person closes it. */
function keyDialog(why) {
  return new Promise((resolve) => {
    const field = h("input", { id: "key-field", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "key-note" });
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const refusal = h("p", { class: "error", role: "alert" }, why);
    const submit = (event) => {
      event.preventDefault();
      const given = field.value.trim();
      if (/^[\x20-\x7e]*$/.test(given)) close(given);
      else put(refusal, "A key has ASCII characters only; the browser can send no others.");
    };
    const form = h(
      "form",
      { method: "dialog", onsubmit: submit },
      h("h2", { id: "key-title" }, "API key"),
      h("p", { id: "key-note" }, "This service needs a key. The key stays in memory until you close or reload the page, and is stored nowhere."),
      refusal,
      h("label", { for: "key-field" }, "Key"),
      field,
      h("div", { class: "actions" }, h("button", { type: "button", class: "ghost", onclick: () => close(null) }, "Cancel"), h("button", { class: "primary" }, "Use key")),
    );
    const dialog = h("dialog", { "aria-labelledby": "key-title", oncancel: (event) => (event.preventDefault(), close(null)) }, form);
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
}

function setUpKey() {
  const button = document.getElementById("key");
  onKeyNeeded(keyDialog);
  onKeyChange((known) => (button.hidden = !known));
  button.textContent = "Forget key";
  button.addEventListener("click", () => {
    setKey("");
    render();
  });
}

/** Skip to the content without changing the address: going back or reloading would find no view at `#main`. */
function setUpSkip() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
}

setUpTheme();
setUpKey();
setUpSkip();
addEventListener("hashchange", render);
render();
