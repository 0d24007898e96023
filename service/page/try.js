// Try a model on a file or on a simulated unit; nothing is stored.

import { actPanel, ratioOf } from "./act.js";
import { figures, reasons } from "./answer.js";
import { calls } from "./calls.js";
import { BadFile, decoded, match, parse, units } from "./csv.js";
import { h, put } from "./dom.js";
import { nameText, number } from "./format.js";
import { lifeCharts } from "./life.js";
import { badge, failed, loading, stateOf } from "./parts.js";

const MOST_BYTES = 30_000_000;
const MOST_POINTS = 48;
const MOST_READINGS = 500_000;
const MOST_LISTED = 8;
const PAUSE_MS = 200;

export async function show(root, params, context) {
  put(root, loading());
  const { models } = await context.api.get("/v1/models", {}, { signal: context.signal });
  const view = new TryView(root, models.map((model) => model.name), context);
  await view.choose(params.query?.get("model") ?? view.names[0]);
}

function listed(names) {
  return names.length > MOST_LISTED ? `${names.slice(0, MOST_LISTED).join(", ")} and ${names.length - MOST_LISTED} more` : names.join(", ");
}

class TryView {
  constructor(root, names, context) {
    Object.assign(this, { root, names, context, seed: 7, source: null });
    this.place = h("div", { class: "try-source" });
    this.result = h("div", { class: "try-result", "aria-live": "off" });
    context.signal.addEventListener("abort", () => this.charts?.destroy());
  }

  /** Begin what a person asks for; returns whether something else was asked for since, as a function. */
  begin() {
    clearTimeout(this.waiting);
    const mine = (this.turn = {});
    return () => mine !== this.turn;
  }

  /** Use a model, and match the chosen file with it again. */
  async choose(name, isOver = this.begin()) {
    const { manifest, costs } = await this.context.api.get(`/v1/models/${encodeURIComponent(name)}`, {}, { signal: this.context.signal });
    if (isOver()) return;
    this.model = name;
    this.manifest = manifest;
    this.costs = { ratio: ratioOf(costs) };
    put(this.root, this.head(), this.place, this.result);
    if (this.file) await this.matchFile(match(this.file.header, this.columns));
    else await this.simulate();
  }

  get columns() {
    return this.manifest.columns.map((column) => column.name);
  }

  head() {
    const model = h("select", { id: "try-model", onchange: () => {
      const name = model.value;
      this.guarded((isOver) => this.choose(name, isOver)).then(() => (model.value = this.model));
    } }, this.names.map((name) => h("option", { value: name, selected: name === this.model }, name)));
    const file = h("input", { type: "file", class: "unseen", id: "try-file", accept: ".csv,.txt,.tsv,text/*", onchange: () => file.files.length && this.read(file.files[0]).then(() => (file.value = "")) });
    const drop = h("label", { class: "drop", for: "try-file" }, h("strong", {}, "Drop a CSV file"), h("span", { class: "muted" }, " or choose one: a row for each cycle, a column for each sensor"));
    for (const name of ["dragover", "dragleave", "drop"]) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", name === "dragover");
        if (name === "drop" && event.dataTransfer.files[0]) this.read(event.dataTransfer.files[0]);
      });
    }
    const simulated = h("button", { type: "button", onclick: () => ((this.file = null), (this.seed += 1), this.simulate()) }, "Take a simulated unit");
    return h("section", { class: "card try-head", "aria-label": "Readings" },
      h("h1", {}, "Try a model"),
      h("p", { class: "muted" }, "Nothing is stored. Only the readings of a file are sent, and only to this service."),
      h("div", { class: "try-choose" },
        h("div", { class: "field" }, h("label", { for: "try-model" }, "Model"), model),
        h("div", { class: "field grow" }, file, drop), simulated));
  }

  async simulate() {
    const { api, signal } = this.context;
    const { seed } = this;
    await this.guarded(async (isOver) => {
      const found = await api.get(`/v1/models/${encodeURIComponent(this.model)}/simulated`, { seed }, { signal });
      if (isOver()) return;
      const life = { cycles: found.cycles, columns: found.columns, fails: found.cycles.at(-1) };
      put(this.place, h("p", { class: "notice card" }, h("strong", {}, `Simulated unit ${seed}`), ` lives ${found.cycles.length} cycles. The model sees its readings up to the chosen cycle.`));
      await this.use(`simulated-${seed}`, life, found.cycles[Math.floor(0.72 * found.cycles.length)], isOver);
    });
  }

  async read(file) {
    this.file = null;
    put(this.place);
    await this.guarded(async (isOver) => {
      if (file.size > MOST_BYTES) throw new BadFile(`The file has ${number(file.size / 1e6)} MB; this page reads up to ${MOST_BYTES / 1e6} MB. For larger files: rul predict --url ${location.origin}`);
      const buffer = await file.arrayBuffer();
      if (isOver()) return;
      this.file = { name: file.name, ...parse(decoded(buffer)) };
      await this.matchFile(match(this.file.header, this.columns));
    });
  }

  /** Show how the file's columns match the model's, and answer for a unit. */
  async matchFile(matched) {
    const { file } = this;
    const focused = document.activeElement?.id;
    const isOpen = this.place.querySelector("details")?.open;
    const { units: found, notes } = units(file, matched);
    const names = [...found.keys()];
    const unit = h("select", { id: "try-unit", onchange: () => this.useOf(found, unit.value) }, names.map((name) => h("option", { value: name }, nameText(name))));
    const missing = this.columns.filter((name) => !matched.columns[name]);
    const tooFew = missing.length > this.manifest.max_missing_fraction * this.columns.length;
    const used = new Set([matched.unit, matched.cycle, ...Object.values(matched.columns)]);
    const spare = file.header.filter((name) => !used.has(name));
    const choice = (label, id, chosen, none, set) =>
      h("div", { class: "field" }, h("label", { for: id }, label),
        h("select", { id, onchange: (event) => this.guarded(() => this.matchFile(set(event.target.value))) },
          h("option", { value: "", selected: !chosen }, none), file.header.map((name) => h("option", { value: name, selected: name === chosen }, name))));
    const said = [...file.notes, ...notes];
    if (missing.length) said.push(`The file has no column for ${listed(missing)}: missing in every reading.`);
    if (spare.length) said.push(`The model does not read ${listed(spare)}.`);
    put(this.place,
      h("section", { class: "card try-file", "aria-label": "Columns of the file" },
        h("p", {}, h("strong", {}, file.name), h("span", { class: "muted" }, ` ${number(file.rows.length)} rows · ${found.size === 1 ? "1 unit" : `${number(found.size)} units`} · ${this.columns.length - missing.length} of ${this.columns.length} columns of ${this.model}`)),
        h("div", { class: "try-choose" },
          names.length > 1 && h("div", { class: "field" }, h("label", { for: "try-unit" }, "Unit"), unit),
          choice("Column of units", "try-units", matched.unit, "none: one unit", (name) => ({ ...matched, unit: name })),
          choice("Column of cycles", "try-cycles", matched.cycle, "none: count the rows", (name) => ({ ...matched, cycle: name }))),
        said.length > 0 && h("div", { class: "warnings" }, h("ul", { "aria-label": "Mismatches" }, said.map((text) => h("li", {}, text)))),
        h("details", { class: "fold", open: isOpen || tooFew }, h("summary", {}, "Match the columns"),
          h("div", { class: "matching" }, this.columns.map((name, i) =>
            choice(name, `try-column-${i}`, matched.columns[name], "missing", (from) => ({ ...matched, columns: { ...matched.columns, [name]: from } })))))));
    if (focused?.startsWith("try-")) document.getElementById(focused)?.focus();
    if (tooFew) {
      const least = Math.ceil((1 - this.manifest.max_missing_fraction) * this.columns.length);
      put(this.result, h("p", { class: "notice card" }, `${this.model} needs ${least} of its ${this.columns.length} columns. Choose them above, or another model.`));
      return;
    }
    unit.value = found.has(this.unit) ? this.unit : names[0];
    await this.useOf(found, unit.value);
  }

  useOf(found, name) {
    const life = found.get(name);
    return this.guarded((isOver) => this.use(name, life, life.cycles.at(-1), isOver));
  }

  /** Answer for a unit at a cycle, and at points along its life. */
  async use(unit, life, cycle, isOver) {
    Object.assign(this, { unit, life });
    put(this.result, loading("Asking the model"));
    const past = await this.predictions(life);
    if (isOver()) return;
    this.past = past;
    await this.answer(cycle, isOver);
  }

  /** Read the answers along a life by one request of limited size. */
  async predictions({ cycles, fails }) {
    const most = Math.min(MOST_POINTS, Math.floor(MOST_READINGS / (this.manifest.context * this.columns.length)));
    const step = Math.max(1, Math.ceil(cycles.length / Math.max(1, most)));
    const ends = cycles.filter((_, i) => (cycles.length - 1 - i) % step === 0);
    const body = { model: this.model, explain: "none", store: false, partial: true, windows: ends.map((end) => this.window(end)) };
    const { predictions } = await this.context.api.post("/v1/predict", body, { signal: this.context.signal });
    return predictions.flatMap((one, i) => (one.error ? [] : [{
      cycle: ends[i], rul: one.rul, lower: one.interval.lower, upper: one.interval.upper,
      ...(fails && { truth: Math.min(this.manifest.cap, fails - ends[i]) }),
    }]));
  }

  window(end) {
    const { cycles, columns } = this.life;
    const to = cycles.indexOf(end) + 1;
    const from = Math.max(0, to - this.manifest.context);
    const given = Object.entries(columns).map(([name, values]) => [name, values.slice(from, to)]);
    return { unit: this.unit, last_cycle: end, columns: Object.fromEntries(given.filter(([, values]) => values.some((value) => value !== null))) };
  }

  async answer(cycle, isOver) {
    const { api, signal } = this.context;
    const body = { model: this.model, explain: "full", store: false, windows: [this.window(cycle)] };
    const { predictions: [prediction] } = await api.post("/v1/predict", body, { signal });
    if (isOver()) return;
    const { cycles, columns, fails } = this.life;
    const to = cycles.indexOf(cycle) + 1;
    const seen = { cycles: cycles.slice(0, to), columns: Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(0, to)])) };
    const charts = await lifeCharts({
      model: this.manifest, predictions: this.past.filter((one) => one.cycle <= cycle), readings: seen, prediction, at: cycle, end: null, fails,
    });
    if (signal.aborted || isOver()) return charts.destroy();
    this.charts?.destroy();
    this.charts = charts;
    const hadFocus = document.activeElement?.id === "try-cycle";
    put(this.result,
      this.cycleBar(cycle, prediction),
      h("div", { class: "card answer" },
        h("section", { class: "answer-figures", "aria-label": "Answer" }, figures(prediction, { last: cycle, cap: this.manifest.cap })),
        h("section", { class: "why", "aria-label": "Why" }, reasons(prediction)),
        this.act(body)),
      h("div", { class: "columns" }, h("section", { class: "card charts", "aria-label": "Life" }, charts.root), charts.side),
      calls(body));
    if (hadFocus) document.getElementById("try-cycle").focus();
  }

  cycleBar(cycle, prediction) {
    const { cycles, fails } = this.life;
    const said = h("output", { for: "try-cycle" }, `${cycle}`);
    const slider = h("input", {
      type: "range", id: "try-cycle", min: 0, max: cycles.length - 1, value: cycles.indexOf(cycle), "aria-valuetext": `cycle ${cycle}`,
      oninput: () => {
        const chosen = cycles[Number(slider.value)];
        put(said, chosen);
        slider.setAttribute("aria-valuetext", `cycle ${chosen}`);
        clearTimeout(this.waiting);
        this.waiting = setTimeout(() => this.guarded((isOver) => this.answer(chosen, isOver)), PAUSE_MS);
      },
    });
    return h("div", { class: "card try-cycle" },
      h("div", { class: "title" }, h("h2", {}, `Unit ${nameText(this.unit)}`), badge(stateOf(prediction)), fails && h("span", { class: "muted" }, `true RUL ${number(fails - cycle)} cycle${fails - cycle === 1 ? "" : "s"}`)),
      h("label", { for: "try-cycle" }, "Answer at cycle ", said), slider);
  }

  act(body) {
    const { api, signal } = this.context;
    return actPanel({
      ask: async (costs) => {
        const { predictions: [found] } = await api.post("/v1/predict", { ...body, explain: "none", costs }, { signal });
        return { decision: found.decision ?? null };
      },
      onAct: (cycle) => this.charts.setAct(cycle),
      signal,
      costs: this.costs,
    });
  }

  /** Do what a person asks for, and show its failure, unless something else was asked for since. */
  async guarded(work) {
    const isOver = this.begin();
    try {
      await work(isOver);
    } catch (error) {
      if (error.name === "AbortError" || isOver()) return;
      put(this.result, error instanceof BadFile ? h("p", { class: "notice card error", role: "alert" }, error.message) : failed(error, () => this.guarded(work)));
    }
  }
}
