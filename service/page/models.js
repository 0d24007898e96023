// The loaded models: card, measured accuracy, live figures.

import { every } from "./clock.js";
import { h, put } from "./dom.js";
import { number, percent } from "./format.js";
import { STATES, empty, failed, loading } from "./parts.js";

const REFRESH_SECONDS = 10;
const ENOUGH_JUDGED = 200; // minimum predictions for a verdict on coverage
const ALIKE = 20; // predictions that count as one trial, because those of one unit resemble each other
const STATE_NAMES = { estimated: "Estimated", at_least_cap: "At least the cap", insufficient_history: "Little history", out_of_distribution: "Unlike training" };

export async function show(root, params, context) {
  const { models } = await context.api.get("/v1/models", {}, { signal: context.signal });
  const names = models.map((model) => model.name).sort();
  const name = params.model ?? names[0];
  const place = h("div", {}, loading("Loading the model"));
  put(
    root,
    h("h1", { class: "head" }, "Models"),
    h("nav", { class: "tabs", "aria-label": "Models" }, names.map((one) => h("a", { href: `#/models/${encodeURIComponent(one)}`, "aria-current": one === name ? "true" : null }, one))),
    place,
  );
  if (!names.includes(name)) {
    put(place, empty("No such model", h("p", { class: "muted" }, `No model ${name} is loaded.`), h("p", {}, h("a", { href: "#/models" }, "To the loaded models"))));
    return;
  }
  const model = await context.api.get(`/v1/models/${encodeURIComponent(name)}`, {}, { signal: context.signal });
  const now = h("div", { class: "now" }, loading("Loading figures"));
  const columns = h("div", { class: "card scroll", role: "region", tabindex: "0", "aria-label": "Columns" });
  put(place, card(model), h("h2", { class: "section" }, "Now"), now, accuracy(model.manifest), reference(model.manifest, columns));
  drawColumns(columns, model.manifest, null);
  await watch(name, now, columns, model, context);
}

/** Show the live figures of a model; read them again every ten seconds. After a swap, show the view again. */
async function watch(name, place, columns, model, { api, signal, again }) {
  let serving = null;
  let said = null;
  const draw = async () => {
    try {
      const found = await api.get(`/v1/models/${encodeURIComponent(name)}/monitoring`, {}, { signal });
      serving ??= found.model.sha256;
      if (found.model.sha256 !== serving) return void again();
      said = null;
      put(place, drift(found), entropy(found), coverage(found), answers(found));
      drawColumns(columns, model.manifest, found);
    } catch (error) {
      if (error.name === "AbortError" || error.message === said) return; // an alert that is drawn again is read aloud again
      said = error.message;
      put(place, error.status === 403 ? empty("Figures need another key", h("p", { class: "muted" }, error.detail)) : failed(error, again));
    }
  };
  await draw();
  every(signal, REFRESH_SECONDS, draw);
}

// ---- the card

function facts(entries) {
  return h("dl", { class: "facts" }, entries.map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function card({ name, version, sha256, provider, manifest }) {
  const { training, health_bounds: health } = manifest;
  const roles = (role) => manifest.columns.filter((column) => column.role === role).length;
  return h(
    "section", { class: "card model-card", "aria-label": "Card" },
    h("header", {}, h("h2", {}, name), h("span", { class: "muted" }, version)),
    facts([
      ["Network", manifest.network],
      ["Reads", `${roles("sensor")} sensors, ${roles("setting")} settings, the last ${number(manifest.context)} cycles`],
      ["Cap", `${number(manifest.cap)} cycles; above it the answer is “at least”`],
      ["Interval", `${percent(manifest.nominal_coverage)} of outcomes, by calibration`],
      ["Health", `critical below ${number(health.critical_below)}, degrading below ${number(health.degrading_below)} cycles`],
      ["Fails within", manifest.horizons.map((horizon) => number(horizon)).join(", ") + " cycles"],
      ["Trained on", `${training.data_name}, ${number(training.units)} units, ${manifest.regimes.length} operating ${manifest.regimes.length === 1 ? "regime" : "regimes"}`],
      ["Runs on", provider.replace("ExecutionProvider", "")],
      ["SHA-256", h("code", { title: sha256 }, sha256.slice(0, 16), "…")],
    ]),
  );
}

// ---- live figures

function panel(title, verdict, ...content) {
  return h("section", { class: "card panel", "aria-label": title }, h("header", {}, h("h3", {}, title), verdict), content);
}

function verdict(text, tone) {
  return h("span", { class: `badge ${tone}` }, text);
}

/** A bar of a drift index, with a mark at its limit. */
function gauge({ psi, limit, drifting }, known) {
  const top = 2 * limit;
  return h(
    "div", { class: `gauge ${known ? (drifting ? "critical" : "healthy") : "neutral"}`, "aria-hidden": "true" },
    h("span", { style: { width: `${Math.min(100, (100 * psi) / top)}%` } }),
    h("i", { style: { left: "50%" } }),
  );
}

function drift({ windows, enough, columns, prediction, unseen, unseen_limit: limit }) {
  const known = windows >= enough;
  const drifting = Object.entries(columns).filter(([, index]) => index.drifting).map(([name]) => name);
  const found = drifting.length + prediction.drifting + (unseen > limit);
  const said = !known ? verdict("Too few readings", "neutral") : found ? verdict("Drift", "critical") : verdict("As in training", "healthy");
  return panel(
    "Drift", said,
    h("p", { class: "muted small" }, known ? `The last ${number(windows)} windows against training.` : `${number(windows)} of ${number(enough)} windows needed for a comparison.`),
    known && drifting.length > 0 && h("p", {}, "Drifting columns: ", h("b", {}, drifting.join(", "))),
    h(
      "div", { class: "bars" },
      line("Worst column", worst(columns), known),
      line("Predictions", prediction, known),
      h("div", { class: "line" }, h("span", {}, "New operation"), h("div", { class: `gauge ${unseen > limit ? "critical" : "healthy"}`, "aria-hidden": "true" }, h("span", { style: { width: `${Math.min(100, (50 * unseen) / limit)}%` } }), h("i", { style: { left: "50%" } })), h("span", { class: "num" }, percent(unseen))),
    ),
  );
}

function line(name, index, known) {
  return h("div", { class: "line" }, h("span", {}, name), gauge(index, known), h("span", { class: "num", title: `Population stability index; drift above ${number(index.limit, 2)}` }, known ? number(index.psi, 2) : "–"));
}

function worst(columns) {
  return Object.values(columns).reduce((a, b) => (b.psi - b.limit > a.psi - a.limit ? b : a), { psi: 0, limit: 1, drifting: false });
}

/** Attention entropy of all heads and of each head, against its reference band. */
function entropy({ entropy: heads, windows, enough }) {
  const known = windows >= enough;
  const off = heads.filter((head) => head.drift.drifting);
  const said = !windows ? verdict("No windows yet", "neutral") : !known ? verdict("Too few windows", "neutral") : off.length ? verdict("Changed", "critical") : verdict("In its band", "healthy");
  const rows = heads.map((head) => {
    const name = head.head === "mean" ? "All heads" : `Head ${Number(head.head) + 1}`;
    const inside = 1 - head.below - head.above;
    const title = `Mean ${number(head.mean, 3)}, band of full windows ${number(head.low, 3)} to ${number(head.high, 3)}; ${percent(head.below, 1)} of windows below their band, ${percent(head.above, 1)} above`;
    return h("div", { class: "line", title }, h("span", {}, name), gauge(head.drift, known), h("span", { class: "num" }, windows && inside > 0 ? percent(inside) : "–"));
  });
  return panel(
    "Attention entropy", said,
    h("p", { class: "muted small" }, "Windows whose entropy lies in training’s band for their length: 99% in training. The bar is the drift, the mark its limit."),
    h("div", { class: "bars" }, rows),
  );
}

function coverage({ coverage: c }) {
  if (!c.predictions && !c.removed) {
    return panel("Coverage", verdict("No outcomes yet", "neutral"), h("p", { class: "muted small" }, `Report the failures of units, and this shows how often the ${percent(c.nominal)} interval held the truth.`));
  }
  const [low, high] = wilson(c.coverage, c.predictions / ALIKE);
  const holds = low <= c.nominal && c.nominal <= high;
  const said = !c.predictions ? verdict("No failures yet", "neutral") : c.predictions < ENOUGH_JUDGED ? verdict("Few failures yet", "neutral") : holds ? verdict("As promised", "healthy") : c.coverage > c.nominal ? verdict("Wider than promised", "degrading") : verdict("Below its promise", "critical");
  return panel(
    "Coverage", said,
    h("p", { class: "muted small" }, `${number(c.predictions)} predictions of units that failed, since the service started.`),
    c.predictions > 0 && h("p", { class: "big" }, percent(c.coverage, 1), h("span", { class: "muted small" }, ` of truths in the interval; promised ${percent(c.nominal)}`)),
    facts([
      ["Mean absolute error", `${number(c.mean_absolute_error, 1)} cycles`],
      ["Bias", c.bias === null ? "–" : `${number(Math.abs(c.bias), 1)} cycles ${c.bias > 0 ? "late" : "early"}`],
      ...(c.removed ? [["Removed units", `${number(c.contradicted)} of ${number(c.removed)} predictions outlived`]] : []),
    ]),
  );
}

/** 95 % interval of a share `p` of `n` independent trials (Wilson). */
function wilson(p, n) {
  if (!n) return [0, 1];
  const z = 1.96;
  const centre = (p + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z / (1 + (z * z) / n)) * Math.sqrt((p * (1 - p)) / n + (z * z) / (4 * n * n));
  return [centre - half, centre + half];
}

function answers({ states }) {
  const total = Object.values(states).reduce((a, b) => a + b, 0);
  if (!total) return panel("Answers", verdict("None yet", "neutral"), h("p", { class: "muted small" }, "No window was predicted since the service started."));
  return panel(
    "Answers", null,
    h("p", { class: "muted small" }, `${number(total)} windows since the service started.`),
    h("div", { class: "bars" }, Object.entries(states).map(([state, n]) =>
      h("div", { class: "line" }, h("span", {}, STATE_NAMES[state] ?? state), h("div", { class: `gauge ${STATES[state]?.tone ?? "plain"}`, "aria-hidden": "true" }, h("span", { style: { width: `${(100 * n) / total}%` } })), h("span", { class: "num" }, percent(n / total))))),
  );
}

// ---- measured before serving

const MEASURES = [
  ["rmse", "RMSE", 2], ["rmse_below_cap", "RMSE below the cap", 2], ["mae", "Mean absolute error", 2], ["bias", "Bias", 2], ["score", "NASA score per window", 2], ["coverage", "Coverage of the interval", 2], ["width", "Width of the interval", 1],
];

const FAITH = [
  ["agreement", "Evidence of a cycle agrees with hiding it", 2], ["sensors", "Contribution of a sensor agrees with hiding it", 2], ["leak", "Influence left where evidence is least", 2], ["hidden_20_over_random", "Most evident 20% over random cycles, when hidden", 2],
];

function accuracy({ metrics, training }) {
  const accurate = measured("Accuracy", `Cross-validation on ${number(training.units)} units in ${number(training.folds)} folds: each predicted by a network that never saw it. In cycles; 95% by bootstrap over ${training.config.group === undefined ? "units" : "groups of units"}.`, metrics, "crossvalidation", MEASURES);
  const faithful = measured("What its explanations are worth", "Rank correlations and ratios on held-out units, where cycles and sensors were hidden; 1 is best for an agreement, 0 for what is left.", metrics, "attention", FAITH);
  return (accurate || faithful) && [h("h2", { class: "section" }, "Measured before it served"), h("div", { class: "now" }, accurate, faithful)];
}

function measured(title, note, metrics, prefix, measures) {
  const rows = measures.flatMap(([key, label, digits]) => {
    const value = metrics[`${prefix}_${key}`];
    if (value === undefined) return [];
    const low = metrics[`${prefix}_${key}_low`], high = metrics[`${prefix}_${key}_high`];
    return [h("tr", {}, h("th", { scope: "row" }, label), h("td", { class: "num" }, number(value, digits)), h("td", { class: "num muted small" }, low === undefined ? "" : `${number(low, digits)} to ${number(high, digits)}`))];
  });
  if (!rows.length) return null;
  return h(
    "section", { class: "card panel measured", "aria-label": title },
    h("h3", {}, title), h("p", { class: "muted small" }, note),
    h("table", { class: "figures" }, h("tbody", {}, rows)),
  );
}

function reference({ regimes }, columns) {
  const note = regimes.length > 1 ? `Mean and standard deviation of training in its ${regimes.length} operating regimes: lowest and highest.` : "Mean and standard deviation of training.";
  return [h("h2", { class: "section" }, "Columns and their reference"), h("p", { class: "muted small note" }, note), columns];
}

/** Draw the columns with their reference in each regime, and their drift. */
function drawColumns(place, manifest, found) {
  const scrolled = place.scrollLeft;
  const known = found && found.windows >= found.enough;
  put(
    place,
    h(
      "table", { class: "figures" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), ["Mean", "Deviation", "Drift"].map((name) => h("th", { scope: "col", class: "num" }, name)), ["Unit", "Meaning"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, manifest.columns.map((column, i) => {
        const means = manifest.regimes.map((regime) => regime.mean[i]);
        const deviations = column.low === column.high ? [0] : manifest.regimes.map((regime) => regime.standard_deviation[i]);
        const index = found?.columns[column.name];
        return h(
          "tr", {},
          h("th", { scope: "row" }, column.name, column.role === "setting" && h("span", { class: "muted small" }, " setting")),
          h("td", { class: "num" }, span(means)), h("td", { class: "num" }, span(deviations)),
          h("td", { class: "num" }, known && index ? (index.drifting ? verdict(number(index.psi, 2), "critical") : number(index.psi, 2)) : "–"),
          h("td", { class: "muted" }, column.unit ?? ""), h("td", { class: "muted" }, column.description ?? ""),
        );
      })),
    ),
  );
  place.scrollLeft = scrolled;
}

function span(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const near = Math.abs(high - low) < 1e-9 * Math.max(1, Math.abs(high));
  return near ? significant(low) : `${significant(low)} to ${significant(high)}`;
}

/** Format a number with four significant digits, at most five decimals and no exponent. */
function significant(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size < 5e-6) return "0";
  return number(value, Math.max(0, Math.min(5, 3 - Math.floor(Math.log10(size)))));
}
