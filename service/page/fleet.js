// The fleet by urgency: summary, filters, one row a unit. Rows follow the events of the service.

import { follow } from "./api.js";
import { every, keepAges } from "./clock.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";
import { RowList } from "./list.js";
import { empty, failed, loading, stateOf } from "./parts.js";
import { unitRow } from "./row.js";
import { Summary } from "./summary.js";

const PAGE = 200; // units per request
const MOST = 1000; // maximum units per request
const REFRESH_SECONDS = 10;

const keyOf = (unit) => `${unit.model}\n${unit.unit}`;
const byUrgency = (a, b) => a.interval.lower - b.interval.lower || compare(a.model, b.model) || compare(a.unit, b.unit);
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export async function show(root, params, context) {
  await new Fleet(root, params.query, context).start();
}

class Fleet {
  constructor(root, query, context) {
    Object.assign(this, { root, context });
    this.filter = { q: query.get("q") ?? "", state: query.get("state") ?? "", model: query.get("model") ?? "" };
    this.horizon = null;
    this.units = new Map();
    this.next = null;
    this.summary = null;
    this.models = [];
    this.scale = new Map(); // cycles at the right end of the interval bars, by model
    this.paused = false;
    this.parts = this.build();
    this.hash = location.hash; // the address may change before the view ends
  }

  async start() {
    const { signal } = this.context;
    put(this.root, this.parts.head, this.parts.summary.element, this.parts.tools, this.parts.body);
    const { top = 0, units, key } = history.state ?? {}; // the reader's place in the list
    const models = this.context.api.get("/v1/models", {}, { signal }).then((found) => this.takeModels(found.models), () => {});
    await this.load(units);
    if (signal.aborted) return;
    scrollTo(0, top);
    this.list.focus(key);
    void models;
    keepAges(this.root, signal);
    every(signal, REFRESH_SECONDS, () => this.refresh());
    addEventListener("keydown", (event) => this.shortcut(event), { signal });
    addEventListener("scrollend", () => this.remember(), { signal });
    this.root.addEventListener("click", ({ target }) => this.remember(target.closest("[data-key]")?.dataset.key));
    void follow({ signal, onEvent: (name, data) => name === "units" && this.take(data), onState: (state, why) => this.fresh(state, why), onBack: () => this.paused || this.reload() });
  }

  build() {
    const { signal } = this.context;
    this.list = new RowList({
      key: keyOf, row: (unit) => this.row(unit), signal,
      height: () => parseFloat(getComputedStyle(document.documentElement).fontSize) * (matchMedia("(max-width: 860px)").matches ? 7 : 3),
      onEnd: () => this.more(),
    });
    const search = h("input", {
      type: "search", id: "search", placeholder: "Search units", "aria-label": "Search units by name", value: this.filter.q, autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/",
      oninput: (event) => this.typed(event.target.value),
    });
    const model = h("select", { "aria-label": "Model", onchange: (event) => this.choose({ model: event.target.value }) }, h("option", { value: "" }, "All models"));
    const pause = h("button", { type: "button", class: "ghost", "aria-pressed": "false", onclick: () => this.pause() }, "Pause");
    const count = h("p", { class: "count muted small", role: "status" });
    return {
      search, model, pause, count,
      head: h("div", { class: "head" }, h("h1", {}, "Fleet"), count),
      summary: new Summary({
        onState: (state) => this.choose({ state: this.filter.state === state ? "" : state }),
        onHorizon: (horizon) => ((this.isChosen = true), this.setHorizon(horizon), this.drawSummary()),
      }),
      tools: h("div", { class: "toolbar" }, h("div", { class: "search" }, search, h("kbd", { "aria-hidden": "true" }, "/")), model, h("span", { class: "space" }), pause),
      body: h("section", { "aria-label": "Units by urgency" }, loading("Loading the fleet")),
    };
  }

  // ---- data

  /** Read a page of the units that match the filter. */
  read(more) {
    return this.context.api.get("/v1/units", { ...this.filter, ...more }, { signal: this.context.signal });
  }

  /** Read the first `units` units, and the summary of all states if the filter has a state. */
  async begin(units) {
    const [page, every] = await Promise.all([this.read({ limit: Math.min(MOST, units) }), this.filter.state ? this.read({ limit: 1, state: "" }) : null]);
    while (page.next && page.units.length < units) {
      const more = await this.read({ limit: MOST, after: page.next });
      page.units.push(...more.units);
      page.next = more.next;
    }
    return [page, every];
  }

  /** Read the first page of the list; a larger `units` keeps the reader's place. On failure, `isKept` leaves the list as it is. */
  async load(units = PAGE, { isKept = false } = {}) {
    const turn = (this.turn = {});
    try {
      const [page, every] = await this.begin(units);
      if (turn !== this.turn) return; // the filter has changed
      this.isLoaded = true;
      this.units.clear();
      this.takePage(page);
      this.takeSummary(page.summary, every?.summary);
      this.draw();
    } catch (error) {
      if (error.name === "AbortError" || turn !== this.turn || isKept) return; // the next refresh tries again
      this.isLoaded = false;
      this.parts.summary.draw(null);
      this.parts.count.textContent = "";
      put(this.parts.body, error.status === 404 ? noStore(error) : failed(error, this.context.again));
      this.table = null;
    }
  }

  reload() {
    return this.load(Math.max(PAGE, this.units.size), { isKept: this.isLoaded });
  }

  async more() {
    if (!this.next || this.loadingMore) return;
    this.loadingMore = true;
    const turn = this.turn;
    try {
      const page = await this.read({ limit: PAGE, after: this.next });
      if (turn !== this.turn) return;
      this.takePage(page);
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.context.announce(error.message);
    } finally {
      this.loadingMore = false;
    }
  }

  /** Keep the reader's place in this entry of the browser's history, for going back. */
  remember(key = history.state?.key) {
    if (location.hash === this.hash) history.replaceState({ top: scrollY, units: this.units.size, key }, "");
  }

  takePage({ units, next }) {
    for (const unit of units) this.units.set(keyOf(unit), unit);
    this.next = next;
    this.end = next && units.at(-1); // the next page begins behind it
  }

  /** Take the summary of the units that match the filter, and that of all states. */
  takeSummary(fitting, every) {
    this.total = fitting?.units;
    this.summary = every ?? fitting;
  }

  takeModels(models) {
    this.models = models.map((model) => model.name).sort();
    const chosen = this.filter.model;
    put(this.parts.model, h("option", { value: "" }, "All models"), this.models.map((name) => h("option", { value: name, selected: name === chosen }, name)));
    this.parts.model.hidden = this.models.length < 2;
    for (const model of models) {
      this.scale.set(model.name, model.cap);
    }
    if (this.scale.size) this.list.redraw();
    if (this.isLoaded && !this.units.size) this.draw(); // the example names a model
  }

  /** Take the changed units of an event. */
  take(changed) {
    if (this.paused || !this.isLoaded) return;
    for (const unit of changed) {
      const key = keyOf(unit);
      const known = this.units.get(key);
      if (!this.fits(unit) || (this.end && byUrgency(unit, this.end) > 0)) this.units.delete(key);
      else this.units.set(key, { ...unit, changed: !known || stateOf(known) !== stateOf(unit) });
    }
    this.draw();
  }

  /** Whether a unit matches the filter, as the service decides it. */
  fits(unit) {
    const { q, state, model } = this.filter;
    if (model && unit.model !== model) return false;
    if (q && !unit.unit.toLowerCase().includes(q.toLowerCase())) return false;
    if (unit.outcome) return unit.outcome === state;
    return !state || [unit.health_state, unit.rul_state].includes(state);
  }

  /** Read the summary and the most urgent units again; if units were added or removed, the list too. */
  async refresh() {
    if (this.paused || this.connection === "refused" || !this.isLoaded) return;
    const before = this.total;
    const turn = this.turn;
    let page, every;
    try {
      [page, every] = await this.begin(PAGE);
    } catch {
      return; // the next refresh tries again
    }
    if (turn !== this.turn) return;
    this.takeSummary(page.summary, every?.summary);
    if (this.total !== before || this.differs(page)) return void (await this.reload());
    for (const unit of page.units) if (this.units.get(keyOf(unit)).last_cycle <= unit.last_cycle) this.units.set(keyOf(unit), unit);
    this.draw();
  }

  /** Whether a fresh first page has other units; one outcome and one new unit do not change the total. */
  differs({ units, next }) {
    const fresh = new Set(units.map(keyOf));
    const last = next ? units.at(-1).interval.lower : Infinity;
    return units.some((unit) => !this.units.has(keyOf(unit))) || [...this.units].some(([key, unit]) => unit.interval.lower < last && !fresh.has(key));
  }

  // ---- actions of a person

  typed(text) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.context.signal.aborted || this.choose({ q: text.trim() }), 200);
  }

  choose(change) {
    Object.assign(this.filter, change);
    const search = new URLSearchParams(Object.entries(this.filter).filter(([, value]) => value));
    history.replaceState(null, "", search.size ? `#/?${search}` : "#/");
    this.hash = location.hash;
    this.parts.search.value = this.filter.q;
    this.parts.model.value = this.filter.model;
    scrollTo(0, 0);
    return this.load();
  }

  pause() {
    this.paused = !this.paused;
    this.parts.pause.setAttribute("aria-pressed", this.paused);
    this.parts.pause.textContent = this.paused ? "Resume" : "Pause";
    this.fresh(this.connection);
    if (!this.paused) this.reload();
  }

  fresh(connection, why) {
    this.connection = connection;
    this.parts.pause.hidden = ["off", "refused"].includes(connection);
    this.context.live(this.paused && !this.parts.pause.hidden ? "paused" : connection, why);
  }

  shortcut(event) {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    event.preventDefault();
    this.parts.search.focus();
    this.parts.search.select();
  }

  // ---- drawing

  draw() {
    const units = [...this.units.values()].sort(byUrgency);
    this.checkHorizon(units);
    for (const unit of units) {
      if (!(this.scale.get(unit.model) >= unit.interval.upper)) this.scale.set(unit.model, unit.interval.upper);
    }
    this.drawSummary();
    if (!units.length) {
      this.table = null;
      put(this.parts.body, this.nothing());
    } else {
      if (!this.table) put(this.parts.body, (this.table = this.header()));
      this.table.setAttribute("aria-rowcount", this.next ? (this.total ?? -2) + 1 : units.length + 1);
    }
    this.list.set(units);
    const total = this.next ? this.total : units.length;
    this.parts.count.textContent = total === undefined ? `${number(units.length)} most urgent` : `${number(total)} ${total === 1 ? "unit" : "units"}, most urgent first`;
  }

  header() {
    const cell = (name, ...text) => h("div", { class: `cell ${name}`, role: "columnheader" }, text);
    this.fails = cell("fails", this.horizonText());
    return h(
      "div", { class: "table card", role: "table", "aria-label": "Units by urgency" },
      h("div", { class: "row heads", role: "row" }, cell("unit", "Unit"), cell("state", "State"), cell("rul", "RUL"), cell("range", "Interval, cycles"), this.fails, cell("trend", "Trend"), cell("cycle", "Cycle"), cell("age", "Age")),
      this.list.element,
    );
  }

  /** Keep the chosen horizon while a listed model has it; otherwise take the middle one of the model with the most units. */
  checkHorizon(units) {
    const models = new Map();
    for (const { model, failure_probability: chances } of units) {
      const known = models.get(model) ?? { units: 0, horizons: [] };
      known.units += 1;
      if (!known.horizons.length) known.horizons = Object.keys(chances ?? {}).map(Number);
      models.set(model, known);
    }
    const found = [...models.values()].filter(({ horizons }) => horizons.length);
    if (!found.length || (this.isChosen && found.some(({ horizons }) => horizons.includes(this.horizon)))) return;
    this.isChosen = false;
    this.setHorizon(middle(found.reduce((most, one) => (one.units > most.units ? one : most)).horizons));
  }

  horizonText() {
    return this.horizon === null ? "Fails" : `Fails in ${this.horizon}`;
  }

  row(unit) {
    const row = unitRow(unit, { horizon: this.horizon, scale: this.scale.get(unit.model) });
    if (unit.changed) {
      unit.changed = false;
      row.classList.add("changed");
    }
    return row;
  }

  drawSummary() {
    const { summary, filter, horizon } = this;
    const isEmpty = !summary || (!summary.units && !filter.state);
    this.parts.summary.draw(isEmpty ? null : summary, { state: filter.state, horizon });
  }

  setHorizon(horizon) {
    if (horizon === this.horizon) return;
    this.horizon = horizon;
    if (this.table) this.fails.textContent = this.horizonText();
    this.list.redraw();
  }

  nothing() {
    const { q, state, model } = this.filter;
    if (q || state || model) {
      return empty("No unit matches", h("p", { class: "muted" }, "Change the search or the filter."), h("p", {}, h("button", { type: "button", onclick: () => this.choose({ q: "", state: "", model: "" }) }, "Show all units")));
    }
    return empty(
      "No running units",
      h("p", { class: "muted" }, "A unit appears here with its first reading or prediction. Those with an outcome: ", h("a", { href: "#/?state=failed" }, "failed"), ", ", h("a", { href: "#/?state=removed" }, "removed"), "."),
      h("pre", { class: "code", tabindex: "0", "aria-label": "Commands" }, [
        "# a simulated fleet in fast time", `rul demo --url ${location.origin}`, "", "# or your own readings, one cycle or many",
        `curl '${location.origin}/v1/units/UNIT/cycles?model=${this.models[0] ?? "MODEL"}' \\`, "  --header 'content-type: text/csv' --data-binary @readings.csv",
      ].join("\n")),
      h("p", {}, h("a", { class: "button", href: "#/try" }, "Try a prediction")),
    );
  }
}

function noStore(error) {
  return empty("This service stores no units", h("p", { class: "muted" }, error.detail), h("p", {}, h("a", { class: "button", href: "#/try" }, "Try a prediction")));
}

function middle(numbers) {
  return numbers.length ? numbers.sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)] : null;
}
