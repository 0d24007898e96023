// One unit's life on one cycle axis: RUL, contributions, attention, sensors, heatmap; the readings of a cycle.
//
// life = { model: manifest, predictions: [{ cycle, rul, lower, upper, truth }] ascending, readings: { cycles, columns },
//          prediction: an answer, explained if it can be, at: its last cycle, end: { kind, cycle } | null,
//          fails: the last cycle of a simulated unit }

import { colour, Stack, traces, uplot } from "./charts.js";
import { h, put } from "./dom.js";
import { factsOf, isFlat, readingAt, truthText, usualAt, worded } from "./facts.js";
import { percent, rulWithInterval, signed } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { readingsPanel, table } from "./readings.js";

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

/** The range of the explained cycles, plus a quarter of their number ahead. */
function window_({ explained, last }) {
  return [explained[0] - 0.5, Math.min(last, explained.at(-1) + 0.25 * explained.length) + 0.5];
}

function toolbar(stack, facts) {
  if (!facts.explained || facts.explained.length < 3 || facts.explained[0] === facts.first) return null;
  const whole = h("button", { type: "button", onclick: () => stack.zoom(null) }, "Whole life");
  const last = h("button", { type: "button", onclick: () => stack.zoom(window_(facts)) }, `Last ${facts.explained.length} cycles`);
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
    note: `cycles, with the ${percent(prediction.interval.coverage)} interval${hasTruth ? `; dashed: truth${facts.end?.kind === "removed" ? " is at least this" : ""}` : ""}`,
    kind: "tall",
    height: 224,
    ticks: true,
    cycles: past.map((one) => one.cycle),
    series,
    bands: [{ upper: 0, lower: 1, fill: "--band" }],
    range: () => [0, top],
    label: `Remaining useful life from cycle ${facts.first} to ${facts.latest}. Latest: ${rulWithInterval(latest)} cycles.${failed ? ` The unit failed at cycle ${facts.end.cycle}.` : ""}`,
    word: (i) => (past[i].rul === undefined ? "" : `${rulWithInterval(past[i])}${past[i].truth === undefined ? "" : `, truth ${truthText(facts, past[i].truth)}`}`),
    paint: (u, ctx) => {
      paintZone(u, ctx, facts.model.health_bounds.critical_below);
      if (facts.end) paintMark(u, ctx, facts.end.cycle, facts.end.kind, "--ink");
      else if (prediction.rul_state !== "out_of_distribution") paintAhead(u, ctx, facts);
      if (facts.fails) paintMark(u, ctx, facts.fails, "fails", "--muted");
      if (state.act !== null && !facts.end) paintMark(u, ctx, state.act, `act at ${state.act}`, "--accent", facts.fails ? 1 : 0);
    },
  });
}

/** Draw a cone from the last cycle to the cycles at which the interval reaches zero. */
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

function paintMark(u, ctx, cycle, text, stroke, line = 0) {
  const x = u.valToPos(cycle, "x", true);
  if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
  ctx.strokeStyle = ctx.fillStyle = colour(stroke);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x, u.bbox.top);
  ctx.lineTo(x, u.bbox.top + u.bbox.height);
  ctx.stroke();
  ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  const width = ctx.measureText(text).width;
  const gap = 5 * devicePixelRatio;
  const room = x + gap + width <= u.bbox.left + u.bbox.width;
  ctx.textAlign = room ? "left" : "right";
  ctx.fillText(text, x + (room ? gap : -gap), u.bbox.top + (3 + 20 * line) * devicePixelRatio);
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
    tick: (share) => `${Number((100 * share).toFixed(2))}%`, // an axis may have steps of 2.5%
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
  const names = new Set([...facts.sensors.map(({ name }) => name), ...Object.keys(contributions)]);
  const rows = [...names].filter((name) => contributions[name]).map((name) => ({ name, values: contributions[name] }));
  const map = new Heatmap(stack, {
    title: "Sensor by cycle",
    note: "cycles of RUL that each reading adds or takes",
    label: `Contribution of ${rows.length} columns at each of ${facts.explained.length} cycles.`,
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

function sensorCharts(stack, facts) {
  const { cycles, columns } = facts.readings;
  if (!cycles.length) return null;
  const draw = ({ name, unit, description }) => {
    const usual = cycles.map((cycle) => usualAt(facts, name, cycle) ?? [null, null]);
    const weight = facts.prediction.sensor_contributions?.[name];
    const values = columns[name] ?? cycles.map(() => null);
    // With several regimes, settings change readings more than wear does: scale by the healthy range.
    const isScaled = facts.explanation?.usual?.[name] && !isFlat(facts.explanation.usual[name]);
    const scaled = (value, [lower, upper]) => (value === null || lower === null ? null : (2 * value - lower - upper) / (upper - lower || 1));
    const drawn = (all) => (isScaled ? all.map((value, i) => scaled(value, usual[i])) : all);
    const series = [
      { label: "usual to", values: drawn(usual.map(([, upper]) => upper)), width: 0 },
      { label: "usual from", values: drawn(usual.map(([lower]) => lower)), width: 0 },
      { label: name, values: drawn(values), stroke: "--trace" },
    ];
    traces(stack, {
      title: unit ? `${name}, ${unit}` : name,
      note: [isScaled && "±1 is the edge of its healthy range", description, weight !== undefined && `${signed(weight)} cycles in all`].filter(Boolean).join(" · "),
      height: 74,
      ends: true,
      tick: isScaled ? signed : (value) => worded(facts, name, value),
      cycles,
      series,
      bands: [{ upper: 0, lower: 1, fill: "--usual" }],
      label: `${name}: latest ${worded(facts, name, values.findLast((value) => value !== null))} ${unit}.`,
      word: (i) => {
        const [lower, upper] = usual[i];
        const healthy = lower === null ? "" : ` (healthy ${worded(facts, name, lower)}–${worded(facts, name, upper)})`;
        return worded(facts, name, values[i]) + healthy;
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
    if (!details.open || place.querySelector("canvas")) return;
    put(place, h("p", { class: "muted" }, "Loading"));
    try {
      const { cycles, heads } = await load();
      const rows = heads.map((values, i) => ({ name: `head ${i + 1}`, values }));
      const map = new Heatmap(stack, {
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
