// One unit's life on one cycle axis: RUL, contributions, attention, sensors, heatmap; the readings of a cycle.
//
// life = { model: manifest, predictions: [{ cycle, rul, lower, upper, truth }] ascending, readings: { cycles, columns },
//          prediction: an explained answer, at: its last cycle, end: { kind, cycle } | null }

import { colour, heatmap, Stack, traces, uplot } from "./charts.js";
import { h, put } from "./dom.js";
import { number, percent, signed } from "./format.js";

const FEW_SENSORS = 4;

/** Draw a life; returns `{ root, side, setAct(cycle), destroy() }`. */
export async function lifeCharts(life, { explainAt, heads } = {}) {
  const uPlot = await uplot();
  const facts = factsOf(life);
  const side = readingsPanel(facts, { explainAt, onCycle: (cycle) => stack.pin(cycle) });
  let waiting = null;
  const stack = new Stack(uPlot, {
    first: facts.first,
    last: facts.last,
    onCycle: (cycle) => {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => side.show(cycle));
    },
  });
  const state = { act: null };
  rulChart(stack, facts, state);
  if (facts.attention) whyCharts(stack, facts);
  if (facts.contributions) contributionMap(stack, facts, side);
  const sensors = sensorCharts(stack, facts);
  const root = h("div", { class: "life" }, toolbar(stack, facts), stack.root, sensors, heads && headView(stack, facts, heads), table(facts));
  stack.pinned = facts.at;
  side.show(facts.at);
  if (facts.explained && matchMedia("(max-width: 640px)").matches) stack.range = window_(facts);
  return {
    root,
    side: side.root,
    setAct(cycle) {
      state.act = cycle;
      stack.redraw();
    },
    destroy: () => stack.destroy(),
  };
}

/** Everything that the charts look up, by cycle. */
function factsOf(life) {
  const { prediction } = life;
  const { attention, explanation } = prediction;
  const predictions = new Map(life.predictions.map((one) => [one.cycle, one]));
  const seen = [...predictions.keys(), ...life.readings.cycles, ...(attention?.cycles ?? []), life.at];
  const interval = prediction.interval;
  const lived = Math.max(...seen) - Math.min(...seen);
  const reach = Math.min(interval.upper, Math.max(40, 0.6 * lived));
  const fails = life.fails ?? 0;
  const ahead = life.end ? Math.max(0, life.end.cycle - Math.max(...seen)) : reach;
  const weights = (name) => new Map((attention?.cycles ?? []).map((cycle, i) => [cycle, attention[name]?.[i] ?? null]));
  const explained = explanation?.cycles ?? attention?.cycles;
  return {
    ...life,
    attention,
    explanation,
    explained,
    contributions: explanation?.contributions,
    byCycle: { predictions, contributions: weights("contributions"), evidence: weights("evidence"), attention: weights("weights") },
    place: new Map(life.readings.cycles.map((cycle, i) => [cycle, i])),
    explainedPlace: new Map((explanation?.cycles ?? []).map((cycle, i) => [cycle, i])),
    sensors: sensorsByWeight(life),
    decimals: decimalsOf(life.model),
    first: Math.min(...seen),
    last: Math.max(fails, Math.ceil(Math.max(...seen) + ahead)),
    latest: Math.max(...seen),
  };
}

/** The sensors: those that the sentence names, then those that move the answer most. */
function sensorsByWeight({ model, prediction }) {
  const named = (prediction.explanation?.clauses ?? []).map((clause) => clause.column).reverse();
  const weigh = ({ name }) => 1e6 * (named.indexOf(name) + 1) + Math.abs(prediction.sensor_contributions?.[name] ?? 0);
  return model.columns.filter((column) => column.role === "sensor").sort((a, b) => weigh(b) - weigh(a));
}

/** The decimals that tell readings apart: two to three digits of how a column varies within a regime. */
function decimalsOf({ columns, regimes }) {
  const spread = (i) => Math.min(...regimes.map((regime) => regime.standard_deviation[i]).filter((one) => one > 1e-9));
  return Object.fromEntries(columns.map(({ name }, i) => [name, Math.min(5, Math.max(0, Math.ceil(0.7 - Math.log10(spread(i))) || 0))]));
}

/** A reading of a column as text. */
function worded(facts, name, value) {
  return number(value, facts.decimals[name]);
}

/** The explained cycles, and a quarter as many ahead. */
function window_({ explained, last }) {
  return [explained[0] - 0.5, Math.min(last, explained.at(-1) + 0.25 * explained.length) + 0.5];
}

function toolbar(stack, facts) {
  if (!facts.explained || facts.explained.length < 3 || facts.explained[0] === facts.first) return null;
  const whole = h("button", { type: "button", class: "segment", onclick: () => stack.zoom(null) }, "Whole life");
  const last = h("button", { type: "button", class: "segment", onclick: () => stack.zoom(window_(facts)) }, `Last ${facts.explained.length} cycles`);
  stack.onZoom = ([low]) => {
    whole.setAttribute("aria-pressed", String(low === stack.full[0] && stack.range[1] === stack.full[1]));
    last.setAttribute("aria-pressed", String(low === window_(facts)[0]));
  };
  return h("div", { class: "life-tools" }, h("div", { class: "segments", role: "group", "aria-label": "Cycles shown" }, whole, last), h("span", { class: "muted small" }, "Drag in a chart to zoom, click to pick a cycle"));
}

function rulChart(stack, facts, state) {
  const { prediction, at } = facts;
  const past = [...facts.predictions];
  if (!facts.byCycle.predictions.has(at)) {
    past.push({ cycle: at, rul: prediction.rul, lower: prediction.interval.lower, upper: prediction.interval.upper });
    past.sort((a, b) => a.cycle - b.cycle);
  }
  const failed = facts.end?.kind === "failed";
  if (failed && past.at(-1).cycle < facts.end.cycle) past.push({ cycle: facts.end.cycle, truth: 0 });
  const values = (name) => past.map((one) => one[name] ?? null);
  const hasTruth = past.some((one) => one.truth !== undefined);
  const top = Math.max(facts.model.cap, ...past.map((one) => one.upper ?? 0)) * 1.12;
  const series = [
    { label: "upper", values: values("upper"), width: 0, spans: true },
    { label: "lower", values: values("lower"), width: 0, spans: true },
    { label: "RUL", values: values("rul"), stroke: "--rul", width: 2, points: past.length < 3, spans: true },
  ];
  if (hasTruth) series.push({ label: "truth", values: values("truth"), stroke: "--ink", width: 1.5, dash: [5, 4], spans: true });
  const latest = past.findLast((one) => one.rul !== undefined);
  return traces(stack, {
    title: "Remaining useful life",
    note: `cycles, with the ${percent(prediction.interval.coverage)} band${hasTruth ? "; dashed: truth" : ""}`,
    kind: "tall",
    height: 210,
    ticks: true,
    cycles: past.map((one) => one.cycle),
    series,
    bands: [{ upper: 0, lower: 1, fill: "--band" }],
    range: () => [0, top],
    label: `Remaining useful life from cycle ${facts.first} to ${facts.latest}. Latest: ${number(latest.rul)} cycles, between ${number(latest.lower)} and ${number(latest.upper)}.${failed ? ` The unit failed at cycle ${facts.end.cycle}.` : ""}`,
    word: (i) => (past[i].rul === undefined ? "" : `${number(past[i].rul)} (${number(past[i].lower)}–${number(past[i].upper)})${past[i].truth === undefined ? "" : `, truth ${number(past[i].truth)}`}`),
    paint: (u, ctx) => {
      paintZone(u, ctx, facts.model.health_bounds.critical_below);
      if (facts.end) paintMark(u, ctx, facts.end.cycle, facts.end.kind, "--ink");
      else paintAhead(u, ctx, facts);
      if (facts.fails) paintMark(u, ctx, facts.fails, "fails", "--muted");
      if (state.act !== null && !facts.end) paintMark(u, ctx, state.act, `act at ${state.act}`, "--accent");
    },
  });
}

/** Where the RUL reaches zero if the answer is right: a cone from the last cycle to the interval. */
function paintAhead(u, ctx, { at, prediction }) {
  const { rul, interval } = prediction;
  const point = (cycle, value) => [u.valToPos(cycle, "x", true), u.valToPos(value, "y", true)];
  const path = (...points) => {
    ctx.beginPath();
    points.forEach((one, i) => (i ? ctx.lineTo(...one) : ctx.moveTo(...one)));
  };
  ctx.fillStyle = colour("--cone");
  path(point(at, interval.lower), point(at, interval.upper), point(at + interval.upper, 0), point(at + interval.lower, 0));
  ctx.fill();
  ctx.strokeStyle = colour("--rul");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3, 4].map((part) => part * devicePixelRatio));
  path(point(at, rul), point(at + rul, 0));
  ctx.stroke();
  ctx.setLineDash([]);
}

function paintZone(u, ctx, below) {
  const top = u.valToPos(below, "y", true);
  ctx.fillStyle = colour("--critical-soft");
  ctx.fillRect(u.bbox.left, top, u.bbox.width, u.bbox.top + u.bbox.height - top);
}

function paintMark(u, ctx, cycle, text, stroke) {
  const x = u.valToPos(cycle, "x", true);
  ctx.strokeStyle = ctx.fillStyle = colour(stroke);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, u.bbox.top);
  ctx.lineTo(x, u.bbox.top + u.bbox.height);
  ctx.stroke();
  ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  const width = ctx.measureText(text).width;
  const room = x + width + 12 < u.bbox.left + u.bbox.width;
  ctx.textAlign = room ? "left" : "right";
  ctx.fillText(text, x + (room ? 5 : -5) * devicePixelRatio, u.bbox.top + 3 * devicePixelRatio);
}

function whyCharts(stack, facts) {
  const { cycles, contributions, evidence, weights } = facts.attention;
  const side = (sign) => contributions.map((value) => (value * sign > 0 ? value : null));
  traces(stack, {
    title: "Contribution of each cycle",
    note: "cycles of RUL that it adds or takes",
    height: 96,
    cycles,
    series: [
      { label: "adds", values: side(1), stroke: "--adds", fill: "--adds", bars: true, width: 0 },
      { label: "takes", values: side(-1), stroke: "--takes", fill: "--takes", bars: true, width: 0 },
    ],
    range: (_u, low, high) => [Math.min(0, low ?? 0) * 1.1 - 0.01, Math.max(0, high ?? 0) * 1.1 + 0.01],
    tick: signed,
    label: `Contribution of each of the last ${cycles.length} cycles; ${extreme(cycles, contributions)}.`,
    word: (i) => signed(contributions[i]),
  });
  const shares = [{ label: "attention", values: weights, stroke: "--attention", dash: [4, 3] }];
  if (evidence) shares.unshift({ label: "evidence", values: evidence, stroke: "--share", width: 2, fill: "--share-soft" });
  traces(stack, {
    title: evidence ? "Evidence and attention" : "Attention",
    note: evidence ? "share of the answer that rests on a cycle; dashed: where the network looked" : "where the network looked",
    height: 88,
    cycles,
    series: shares,
    range: (_u, _low, high) => [0, (high || 1) * 1.1],
    tick: percent,
    label: `${evidence ? "Evidence" : "Attention"} of each of the last ${cycles.length} cycles; most at cycle ${cycles[largestAt(evidence ?? weights)]}.`,
    word: (i) => (evidence ? `evidence ${percent(evidence[i], 1)}, ` : "") + `attention ${percent(weights[i], 1)}`,
  });
}

function extreme(cycles, values) {
  const at = largestAt(values.map(Math.abs));
  return `cycle ${cycles[at]} weighs most with ${signed(values[at])} cycles`;
}

function largestAt(values) {
  return values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
}

function contributionMap(stack, facts, side) {
  const { contributions } = facts;
  const rows = facts.sensors.filter(({ name }) => contributions[name]).map(({ name }) => ({ name, values: contributions[name] }));
  const map = heatmap(stack, {
    title: "Sensor by cycle",
    note: "cycles of RUL that each reading adds or takes",
    label: `Contribution of ${rows.length} sensors at each of ${facts.explained.length} cycles.`,
    cycles: facts.explained,
    rows,
    onCell: (row, cycle) => side.show(cycle, row.name),
    word: (row, i) => {
      const cycle = facts.explained[i];
      return `${row.name}, cycle ${cycle}: ${worded(facts, row.name, readingAt(facts, row.name, cycle))}, ${signed(row.values[i])} cycles`;
    },
  });
  map.figure.append(
    h("div", { class: "key" }, h("span", { class: "swatch takes" }), "takes cycles", h("span", { class: "swatch adds" }), "adds cycles"),
  );
}

function readingAt(facts, name, cycle) {
  const at = facts.place.get(cycle);
  return at === undefined ? null : (facts.readings.columns[name]?.[at] ?? null);
}

/** The usual range of a sensor at a cycle; a range that is the same at every explained cycle holds for all. */
function usualAt(facts, name, cycle) {
  const usual = facts.explanation?.usual?.[name];
  if (!usual) return null;
  const at = facts.explainedPlace.get(cycle) ?? (isFlat(usual.lower) && isFlat(usual.upper) ? 0 : undefined);
  return at === undefined ? null : [usual.lower[at], usual.upper[at]];
}

function isFlat(values) {
  return values.every((value) => value === values[0]);
}

function sensorCharts(stack, facts) {
  const { cycles, columns } = facts.readings;
  if (!cycles.length) return null;
  const draw = ({ name, unit, description }) => {
    const usual = cycles.map((cycle) => usualAt(facts, name, cycle) ?? [null, null]);
    const weight = facts.prediction.sensor_contributions?.[name];
    const series = [
      { label: "usual to", values: usual.map(([, upper]) => upper), width: 0 },
      { label: "usual from", values: usual.map(([lower]) => lower), width: 0 },
      { label: name, values: columns[name] ?? cycles.map(() => null), stroke: "--trace" },
    ];
    traces(stack, {
      title: unit ? `${name}, ${unit}` : name,
      note: [description, weight !== undefined && `${signed(weight)} cycles in all`].filter(Boolean).join(" · "),
      height: 74,
      ends: true,
      tick: (value) => worded(facts, name, value),
      cycles,
      series,
      bands: [{ upper: 0, lower: 1, fill: "--usual" }],
      label: `${name}: latest ${worded(facts, name, columns[name]?.findLast((value) => value !== null))} ${unit}.`,
      word: (i) => {
        const [lower, upper] = usual[i];
        const healthy = lower === null ? "" : ` (healthy ${worded(facts, name, lower)}–${worded(facts, name, upper)})`;
        return worded(facts, name, columns[name]?.[i]) + healthy;
      },
    });
  };
  const [shown, rest] = [facts.sensors.slice(0, FEW_SENSORS), facts.sensors.slice(FEW_SENSORS)];
  stack.root.append(h("h3", { class: "cycle-title" }, "Sensors", h("span", { class: "muted" }, " that move the answer most; shaded: healthy range")));
  shown.forEach(draw);
  if (!rest.length) return null;
  const more = h("button", {
    type: "button", class: "more",
    onclick: () => {
      rest.forEach(draw);
      more.remove();
      stack.drawnWidth = null;
      stack.resize();
    },
  }, `Show ${rest.length} more sensors`);
  return more;
}

function headView(stack, facts, load) {
  const place = h("div", {});
  const details = h("details", { class: "fold" }, h("summary", {}, "Head by head: pick a cycle, see where it looks"), place);
  details.addEventListener("toggle", async () => {
    if (!details.open || place.hasChildNodes()) return;
    put(place, h("p", { class: "muted" }, "Loading"));
    try {
      const { cycles, heads } = await load();
      const rows = heads.map((values, i) => ({ name: `head ${i + 1}`, values }));
      const map = heatmap(stack, {
        title: "Attention of each head", note: "share of a head's attention; each row sums to 100%", isShare: true, rowHeight: 22,
        label: `Attention of ${heads.length} heads at each of ${cycles.length} cycles.`, cycles, rows,
        onCell: (_row, cycle) => put(words, ...headsAt(rows, cycles.indexOf(cycle), cycle)),
        word: (row, i) => `${row.name}, cycle ${cycles[i]}: ${percent(row.values[i], 1)}`,
      });
      const words = h("div", { class: "heads-at" }, ...headsAt(rows, cycles.length - 1, cycles.at(-1)));
      put(place, map.figure, words);
      map.resize();
    } catch (error) {
      put(place, h("p", { class: "error", role: "alert" }, error.detail || error.message));
    }
  });
  return details;
}

function headsAt(rows, at, cycle) {
  const most = Math.max(...rows.map((row) => row.values[at]), 1e-9);
  return [
    h("h3", {}, `At cycle ${cycle}`),
    h("ul", { class: "risks" }, rows.map(({ name, values }) =>
      h("li", {}, h("span", {}, name), h("span", { class: "risk share", style: { "--size": values[at] / most } }), h("span", { class: "num" }, percent(values[at], 1))))),
  ];
}

/** The readings of one cycle, and what they say. */
function readingsPanel(facts, { explainAt, onCycle }) {
  const slider = h("input", {
    type: "range", "aria-label": "Cycle", min: facts.first, max: facts.latest, value: facts.at,
    oninput: () => onCycle(Number(slider.value)),
  });
  const title = h("h2", {});
  const body = h("div", {});
  const again = explainAt && h("button", { type: "button", onclick: () => explainAt(shown) });
  let shown = facts.at;
  let marked = null;

  function show(cycle, name = marked) {
    shown = cycle ?? facts.at;
    marked = name;
    slider.value = shown;
    put(title, `Cycle ${shown}`);
    slider.setAttribute("aria-valuetext", `Cycle ${shown}: ${wordsAt(facts, shown)}`);
    put(body, cycleFacts(facts, shown), readingsAt(facts, shown, marked));
    if (again) {
      again.hidden = shown === facts.at || !facts.place.has(shown);
      put(again, `Explain the answer at cycle ${shown}`);
    }
  }
  const root = h("section", { class: "card readings", "aria-label": "Readings of a cycle" },
    title, slider, body, again);
  return { root, show };
}

function wordsAt(facts, cycle) {
  const past = facts.byCycle.predictions.get(cycle);
  const takes = facts.byCycle.contributions.get(cycle);
  return [past?.rul !== undefined && `${number(past.rul)} cycles left`, takes !== undefined && `contribution ${signed(takes)}`].filter(Boolean).join(", ") || "no prediction";
}

function cycleFacts(facts, cycle) {
  const past = facts.byCycle.predictions.get(cycle);
  const rows = [
    ["RUL then", past?.rul !== undefined && `${number(past.rul)} (${number(past.lower)}–${number(past.upper)})`],
    ["Truth", past?.truth !== undefined && number(past.truth)],
    ["Contribution", facts.byCycle.contributions.has(cycle) && signed(facts.byCycle.contributions.get(cycle))],
    ["Evidence", facts.byCycle.evidence.get(cycle) != null && percent(facts.byCycle.evidence.get(cycle), 1)],
    ["Attention", facts.byCycle.attention.has(cycle) && percent(facts.byCycle.attention.get(cycle), 1)],
  ].filter(([, value]) => value);
  return rows.length > 0 && h("dl", { class: "cycle-facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function readingsAt(facts, cycle, marked) {
  if (!facts.place.has(cycle)) return h("p", { class: "muted small" }, "No reading is stored for this cycle.");
  const at = facts.explainedPlace.get(cycle);
  const settings = facts.model.columns.filter((column) => column.role === "setting");
  const row = ({ name, unit, role }) => {
    const value = readingAt(facts, name, cycle);
    const usual = usualAt(facts, name, cycle);
    const side = value === null || !usual ? "" : value > usual[1] ? "above" : value < usual[0] ? "below" : "";
    const takes = at === undefined ? null : facts.contributions?.[name]?.[at];
    return h("tr", { class: name === marked ? "marked" : null },
      h("th", { scope: "row" }, name, unit && h("span", { class: "muted" }, ` ${unit}`)),
      h("td", { class: "num" }, side && h("span", { class: "outside", title: `${side} its healthy range` }, side === "above" ? "▲ " : "▼ ", h("span", { class: "unseen" }, `${side} healthy `)), worded(facts, name, value)),
      facts.explanation && h("td", { class: "num muted" }, usual ? `${worded(facts, name, usual[0])}–${worded(facts, name, usual[1])}` : role === "setting" ? "setting" : ""),
      facts.contributions && h("td", { class: `num ${takes > 0.005 ? "adds" : takes < -0.005 ? "takes" : ""}` }, takes === null || takes === undefined ? "" : signed(takes)));
  };
  return h("table", { class: "dense" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), h("th", { scope: "col", class: "num" }, "Reading"), facts.explanation && h("th", { scope: "col", class: "num" }, "Healthy"), facts.contributions && h("th", { scope: "col", class: "num" }, "Cycles"))),
    h("tbody", {}, [...facts.sensors, ...settings].map(row)));
}

/** Everything that the charts show, as a table; made when it is opened. */
function table(facts) {
  const place = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers of the charts" });
  const details = h("details", { class: "fold" }, h("summary", {}, "The numbers as a table"), place);
  details.addEventListener("toggle", () => {
    if (!details.open || place.hasChildNodes()) return;
    const names = facts.sensors.map(({ name }) => name);
    const cycles = [...new Set([...facts.byCycle.predictions.keys(), ...facts.readings.cycles])].sort((a, b) => b - a);
    const line = (cycle) => {
      const past = facts.byCycle.predictions.get(cycle) ?? {};
      const figures = [past.rul, past.lower, past.upper, past.truth].map((value) => number(value, 1));
      const shares = [signed(facts.byCycle.contributions.get(cycle)), percent(facts.byCycle.evidence.get(cycle), 1), percent(facts.byCycle.attention.get(cycle), 1)];
      return h("tr", {}, h("th", { scope: "row" }, cycle), [...figures, ...shares, ...names.map((name) => worded(facts, name, readingAt(facts, name, cycle)))].map((text) => h("td", { class: "num" }, text)));
    };
    const heads = ["Cycle", "RUL", "From", "To", "Truth", "Contribution", "Evidence", "Attention", ...names];
    put(place, h("table", { class: "dense" }, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, cycles.map(line))));
  });
  return details;
}
