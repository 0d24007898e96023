// One unit: RUL, interval, reasons, when to act, life; outcome, rename, delete.

import { actPanel, ratioOf } from "./act.js";
import { figures, reasons } from "./answer.js";
import { follow } from "./api.js";
import { every, keepAges } from "./clock.js";
import { h, put } from "./dom.js";
import { age, moment, nameText, number } from "./format.js";
import { lifeCharts } from "./life.js";
import { badge, empty, failed, loading, stateOf } from "./parts.js";
import { deleteUnit, renameUnit, reportOutcome } from "./unit-changes.js";

const MOST = 1000; // maximum cycles per request
const MOST_PAGES = 10;
const REFRESH_SECONDS = 10;

export async function show(root, params, context) {
  const { model, unit } = params;
  const asked = params.query?.get("cycle");
  if (asked && !/^\d{1,9}$/.test(asked)) throw new Error(`cycle: expected a whole number, got ${asked}`);
  const at = asked ? Number(asked) : null;
  if (/^\.{1,2}$/.test(unit)) throw new Error("Browsers remove the names . and .. from an address. Rename this unit by the Python client, gRPC or curl --path-as-is.");
  const { api, signal } = context;
  const path = `/v1/units/${encodeURIComponent(unit)}`;
  root.classList.add("unit");
  put(root, loading(`Loading unit ${nameText(unit)}`));
  const [{ known, explained }, loaded] = await Promise.all([
    history(api, path, { model, cycle: at }, signal),
    api.get(`/v1/models/${encodeURIComponent(model)}`, {}, { signal }),
  ]);
  const view = new UnitView(root, { model, unit, path, at, known, manifest: loaded.manifest, costs: { ratio: ratioOf(loaded.costs) }, explained }, context);
  await view.draw();
  keepAges(root, signal);
  every(signal, REFRESH_SECONDS, () => view.refresh());
  follow({
    signal,
    onEvent: (name, units) => view.hear(name, units),
    onState: (state, why) => context.live((view.connection = state), why),
    onBack: () => view.refresh(),
  });
}

/** Read a unit and the explained answer to its stored readings; without an answer `prediction` is null and `why` has the reason. */
async function history(api, path, { model, cycle }, signal) {
  const known = await wholeLife(api, path, model, signal);
  if (!known.readings.cycles.length) return { known, explained: { prediction: null } };
  try {
    const { prediction } = await api.get(`${path}/explanation`, { model, cycle }, { signal });
    return { known, explained: { prediction } };
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return { known, explained: { prediction: null, why: error.detail } };
  }
}

/** Read a stored unit page by page, newest cycles first, at most `MOST_PAGES`. */
async function wholeLife(api, path, model, signal) {
  const read = (before) => api.get(path, { model, limit: MOST, before }, { signal });
  const known = await read();
  const { cycles, columns } = known.readings;
  let { next } = known;
  for (let pages = 1; next !== null && pages < MOST_PAGES; pages++) {
    const page = await read(next);
    known.predictions.push(...page.predictions);
    cycles.unshift(...page.readings.cycles);
    for (const name of Object.keys(columns)) columns[name].unshift(...page.readings.columns[name]);
    next = page.next;
  }
  return known;
}

class UnitView {
  constructor(root, facts, context) {
    Object.assign(this, facts);
    this.root = root;
    this.context = context;
    for (const name of ["pointerdown", "keydown", "focusin"]) root.addEventListener(name, () => (this.isUsed = true), { signal: context.signal });
    const closeMenus = (target) => {
      for (const menu of root.querySelectorAll("details.menu[open]")) menu.open = menu.contains(target);
    };
    for (const name of ["click", "focusin"]) document.addEventListener(name, ({ target }) => closeMenus(target), { signal: context.signal });
    root.addEventListener("keydown", ({ key, target }) => {
      if (key !== "Escape") return;
      target.closest("details.menu")?.querySelector("summary").focus();
      closeMenus(null);
    }, { signal: context.signal });
    context.signal.addEventListener("abort", () => this.charts?.destroy());
  }

  /** The newest stored prediction of each cycle, in ascending order of cycles. */
  get predictions() {
    const newest = new Map();
    for (const one of this.known.predictions) if (!newest.has(one.last_cycle)) newest.set(one.last_cycle, one);
    return [...newest.values()].reverse().map((one) => ({
      cycle: one.last_cycle, rul: one.rul, lower: one.interval.lower, upper: one.interval.upper, truth: one.truth,
    }));
  }

  /** The cycle of the unit's last reading or prediction. */
  get last() {
    return Math.max(...this.known.readings.cycles, this.known.predictions[0]?.last_cycle ?? 0);
  }

  /** Whether the last answer is of an earlier cycle, because the model refuses the newest readings. */
  get isBehind() {
    return this.at === null && !this.explained.prediction && this.known.predictions[0]?.last_cycle < this.last;
  }

  async draw() {
    const { known, explained, manifest, last } = this;
    const { readings } = known;
    const latest = known.predictions[0];
    const prediction = explained.prediction ?? asPrediction(this.at === null ? latest : known.predictions.find((one) => one.last_cycle === this.at));
    if (!prediction) {
      put(this.root, this.head(null, last), this.at === null
        ? empty("No prediction yet", h("p", {}, explained.why || "Send readings of this unit to get one."))
        : empty(`No answer at cycle ${this.at}`, explained.why && h("p", {}, explained.why), h("p", {}, this.toLatest(last))));
      return;
    }
    const cycle = this.at ?? (prediction.attention?.cycles.at(-1) || latest?.last_cycle || last);
    this.cycle = cycle;
    const life = { model: manifest, predictions: this.predictions, readings, prediction, at: cycle, end: known.outcome };
    const charts = await lifeCharts(life, {
      explainAt: readings.cycles.length ? (chosen) => this.explainAt(chosen === last ? null : chosen) : null,
      heads: manifest.heads > 1 && readings.cycles.length ? () => this.heads(readings) : null,
    });
    if (this.context.signal.aborted) return charts.destroy();
    const [top, hadFocus] = [scrollY, this.root.contains(document.activeElement)];
    this.charts?.destroy();
    this.charts = charts;
    const answer = h("div", { class: "card answer" },
      h("section", { class: "answer-figures", "aria-label": "Answer" }, figures(prediction, { last: cycle, cap: manifest.cap, ended: known.outcome !== null, ago: this.isBehind ? last - cycle : 0 })),
      h("section", { class: "why", "aria-label": "Why" }, reasons(prediction), explained.why && h("p", { class: "muted" }, explained.why)),
      !known.outcome && this.at === null && !this.isBehind && this.act());
    this.isUsed = false;
    this.news = h("p", { class: "notice card", role: "status", hidden: true });
    put(this.root,
      this.head(prediction, last),
      this.news,
      this.at !== null && this.past(last),
      known.outcome && this.end(),
      answer,
      h("div", { class: "columns" }, h("section", { class: "card charts", "aria-label": "Life" }, charts.root), charts.side));
    if (hadFocus) this.root.parentElement.focus({ preventScroll: true });
    scrollTo(0, top);
  }

  head(prediction, last) {
    const { known, context, model, unit, path } = this;
    const latest = known.predictions[0] ?? prediction;
    const state = known.outcome?.kind ?? (latest && stateOf(latest));
    const tools = { api: context.api, path, model, unit, last };
    const menu = h("details", { class: "menu" }, h("summary", { "aria-label": "More" }, "⋯"),
      h("div", { class: "card" },
        h("button", { type: "button", class: "ghost", onclick: () => (menu.open = false, renameUnit(tools).then((to) => to && this.go(to))) }, "Rename"),
        h("button", { type: "button", class: "ghost danger", onclick: () => (menu.open = false, deleteUnit(tools).then((done) => done && context.navigate("#/"))) }, "Delete")));
    const report = h("button", { type: "button", onclick: () => reportOutcome({ ...tools, known: known.outcome }).then((done) => done && (this.context.announce("Outcome reported"), this.reload())) }, known.outcome ? "Correct outcome" : "Report outcome");
    const newest = known.predictions[0]?.predicted_at;
    const { isBehind } = this;
    return h("header", { class: "unit-head" },
      h("p", { class: "crumb" }, h("a", { href: "#/" }, "Fleet"), " / ", h("a", { href: `#/models/${encodeURIComponent(model)}` }, model)),
      h("div", { class: "title" }, h("h1", {}, `Unit ${nameText(unit)}`), state && badge(state)),
      h("p", { class: "muted" }, last && `Cycle ${number(last)}`, newest && " · ", newest && h("span", { title: moment(newest), class: isBehind && "stale" }, isBehind ? `not answered since cycle ${number(latest.last_cycle)}, ` : "answered ", h("time", { datetime: newest }, age(newest)), " ago")),
      h("div", { class: "unit-tools" }, report, menu));
  }

  past(last) {
    return h("p", { class: "notice card" }, `The answer as it was at cycle ${this.at}. `, this.toLatest(last));
  }

  toLatest(last) {
    return h("a", { href: this.address() }, `To the latest, cycle ${last}`);
  }

  end() {
    const { outcome, scores } = this.known;
    const score = scores?.at(-1);
    return h("p", { class: "notice card" },
      h("strong", {}, `${outcome.kind === "failed" ? "Failed" : "Removed"} at cycle ${outcome.cycle}.`),
      score?.mean_absolute_error != null && ` The predictions of this unit had a mean absolute error of ${number(score.mean_absolute_error, 1)} cycles; the interval held the truth in ${number(100 * score.coverage)}% of ${score.with_error}.`);
  }

  act() {
    const { api, signal } = this.context;
    return actPanel({
      ask: (costs) => api.get(`${this.path}/decision`, { model: this.model, ...costs }, { signal }),
      onAct: (cycle) => this.charts.setAct(cycle),
      signal,
      costs: this.costs,
    });
  }

  address(cycle = null) {
    return `#/unit/${encodeURIComponent(this.model)}/${encodeURIComponent(this.unit)}${cycle === null ? "" : `?cycle=${cycle}`}`;
  }

  explainAt(cycle) {
    this.context.navigate(this.address(cycle));
  }

  go(unit) {
    this.unit = unit;
    this.context.navigate(this.address());
  }

  /** Read the attention of each head for the displayed answer, by the Open Inference Protocol. */
  async heads({ cycles, columns }) {
    // The answered window begins anew after a long gap.
    const first = this.explained.prediction?.attention?.cycles[0] ?? Math.max(cycles[0], this.cycle - this.manifest.context + 1);
    const window = Array.from({ length: this.cycle - first + 1 }, (_, i) => first + i);
    const names = this.manifest.columns.map((column) => column.name);
    const at = new Map(cycles.map((cycle, i) => [cycle, i]));
    const data = window.flatMap((cycle) => names.map((name) => columns[name]?.[at.get(cycle)] ?? null));
    const tensor = (name, datatype, shape, values) => ({ name, datatype, shape, data: values });
    const { outputs } = await this.context.api.post(`/v2/models/${encodeURIComponent(this.model)}/infer`, {
      inputs: [tensor("readings", "FP32", [1, window.length, names.length], data), tensor("lengths", "INT64", [1], [window.length]), tensor("last_cycle", "FP32", [1], [this.cycle])],
      outputs: [{ name: "head_attention" }],
    }, { signal: this.context.signal });
    const [{ shape, data: flat }] = outputs;
    const heads = Array.from({ length: shape[1] }, (_, head) => flat.slice(head * shape[2], head * shape[2] + window.length));
    return { cycles: window, heads };
  }

  /** Renew the view if an event has a newer prediction of this unit. */
  hear(name, units) {
    if (name !== "units" || this.at !== null || document.hidden) return;
    const found = units.find((one) => one.unit === this.unit && one.model === this.model);
    if (found && found.last_cycle !== this.known.predictions[0]?.last_cycle) this.renew(`There is an answer for cycle ${found.last_cycle}.`);
  }

  /** Renew the view if the unit has changed without an event, after missed events or an outcome. */
  async refresh() {
    if (this.at !== null || this.connection === "refused") return;
    const { api, signal } = this.context;
    // A page of one cycle has the last reading, the last prediction, or both.
    const news = ({ predictions, readings, outcome }) => {
      const ends = [predictions[0]?.last_cycle ?? -1, readings.cycles.at(-1) ?? -1];
      return JSON.stringify([ends.map((end) => end === Math.max(...ends) && end), outcome]);
    };
    try {
      const found = await api.get(this.path, { model: this.model, limit: 1 }, { signal });
      if (news(found) !== news(this.known)) this.renew("This unit has changed.");
    } catch (error) {
      if (error.status === 404) this.renew("This unit was deleted or renamed.");
    }
  }

  /** Read and draw again; if the page is in use, ask first. */
  renew(why) {
    if (!this.isUsed || !this.news?.isConnected) return void this.reload();
    this.tell(why, "Show it");
  }

  /** Show a notice above the answer, with a button that reads and draws again. */
  tell(why, action) {
    put(this.news, why, " ", h("button", { type: "button", onclick: () => this.reload() }, action));
    this.news.hidden = false;
  }

  async reload() {
    const { api, signal } = this.context;
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      Object.assign(this, await history(api, this.path, { model: this.model, cycle: this.at }, signal));
      await this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (this.news?.isConnected && error.status !== 404) this.tell(`This unit could not be read again: ${error.detail || error.message}`, "Try again");
      else put(this.root, failed(error, this.context.again));
    } finally {
      this.isLoading = false;
    }
  }
}

function asPrediction(past) {
  return past && { ...past, failure_probability: past.failure_probability ?? {}, warnings: [], sensor_contributions: past.explanation?.sensor_contributions, trust: past.explanation?.trust, explanation: undefined };
}
