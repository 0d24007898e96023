// The same call as curl, Python and gRPC, to copy.

import { onKeyChange } from "./api.js";
import { h, put } from "./dom.js";

const SHOWN = 3;

let hasKey = false;
onKeyChange((known) => (hasKey = known));

/** Make the texts of a call with this body of POST /v1/predict; `short` omits most values, for display. */
function texts(body, short) {
  const shorten = (values) => (short && values.length > 2 * SHOWN ? [...values.slice(0, SHOWN), "…", ...values.slice(-SHOWN)] : values);
  const [window] = body.windows;
  const entries = Object.entries(window.columns);
  const shown = short && entries.length > 4 ? [...entries.slice(0, 2), null, entries.at(-1)] : entries;
  const host = location.host;
  const json = (values) => `[${shorten(values).map((value) => (value === "…" ? "…" : JSON.stringify(value))).join(", ")}]`;
  const lines = (indent, word) => shown.map((entry) => indent + (entry ? word(entry[0], entry[1]) : "…")).join(",\n");
  const head = `"model": ${JSON.stringify(body.model)}, "explain": "full", "store": false`;
  const id = JSON.stringify(window.unit);
  const curlKey = hasKey ? ` --header "x-api-key: $RUL_API_KEY"` : "";
  const grpcKey = hasKey ? ` -H "x-api-key: $RUL_API_KEY"` : "";
  const series = (values) => `{"values": [${shorten(values).map((value) => (value === null ? '"NaN"' : value)).join(", ")}]}`;
  const python = (values) => `[${shorten(values).map((value) => (value === null ? "None" : value)).join(", ")}]`;
  return {
    curl: `curl --silent --show-error ${location.origin}/v1/predict \\
  --header 'content-type: application/json'${curlKey} --data @- <<'JSON'
{${head},
 "windows": [{"unit": ${id}, "last_cycle": ${window.last_cycle}, "columns": {
${lines("  ", (name, values) => `${JSON.stringify(name)}: ${json(values)}`)}}}]}
JSON`,
    Python: `${hasKey ? "import os\n" : ""}from rul_client.api import Client

columns = {
${lines("    ", (name, values) => `${JSON.stringify(name)}: ${python(values)}`)},
}
client = Client("${location.origin}"${hasKey ? ', api_key=os.environ["RUL_API_KEY"]' : ""})
answer = client.predict(columns, model=${JSON.stringify(body.model)}, unit=${id}, last_cycle=${window.last_cycle}, explain="full", store=False)[0]
print(f"{answer.rul:.0f} cycles left, {answer.interval.lower:.0f} to {answer.interval.upper:.0f}")`,
    gRPC: `grpcurl ${location.protocol === "https:" ? "" : "-plaintext "}-d @${grpcKey} ${host.includes(":") ? host : `${host}:${location.protocol === "https:" ? 443 : 80}`} rul.v1.RulService/Predict <<'JSON'
{"model": ${JSON.stringify(body.model)}, "explain": "EXPLAIN_FULL", "store": false,
 "windows": [{"unit": ${id}, "last_cycle": ${window.last_cycle}, "columns": {"columns": {
${lines("  ", (name, values) => `${JSON.stringify(name)}: ${series(values)}`)}}}}]}
JSON`,
  };
}

/** Make tabs with the calls; "Copy" copies all values, also those that are not displayed. */
export function calls(body) {
  const names = ["curl", "Python", "gRPC"];
  const code = h("pre", { id: "call-text", role: "tabpanel", tabindex: "0" });
  const copy = h("button", { type: "button" }, "Copy");
  const tabs = names.map((name) => h("button", { type: "button", role: "tab", "aria-controls": "call-text", onclick: () => choose(name) }, name));
  let chosen = names[0];
  function choose(name) {
    chosen = name;
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(names[i] === name));
      tab.tabIndex = names[i] === name ? 0 : -1;
    });
    code.setAttribute("aria-label", `The call as ${name}`);
    put(code, texts(body, true)[name]);
    put(copy, "Copy");
  }
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(texts(body, false)[chosen]);
      put(copy, "Copied");
    } catch {
      put(code, texts(body, false)[chosen]); // no clipboard: show and select the whole call
      getSelection().selectAllChildren(code);
      put(copy, "Selected");
    }
  });
  const list = h("div", { class: "segments", role: "tablist", "aria-label": "Language of the call" }, tabs);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (names.indexOf(chosen) + step + names.length) % names.length;
    choose(names[next]);
    tabs[next].focus();
  });
  choose(chosen);
  return h("section", { class: "card calls", "aria-label": "The same call" },
    h("div", { class: "calls-bar" }, h("h2", {}, "The same call"), list, copy), code,
    h("p", { class: "muted small" }, "Shortened here; Copy takes all values."));
}
