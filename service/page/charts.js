// Charts on one cycle axis, with one cursor for all, drawn by uPlot.
// This module knows cycles and numbers; it must not know units, models or requests.

import { h, script } from "./dom.js";
import { number } from "./format.js";

const NARROW = 640;
export const RIGHT = 12;
const PIN_DASH = [3, 3];
export const FONT = "11px system-ui, sans-serif";

/** uPlot's constructor, loaded when the first chart is drawn. */
export async function uplot() {
  await script("/page/vendor/uPlot.iife.min.js");
  return window.uPlot;
}

const palette = new Map();
document.addEventListener("themechange", () => palette.clear());

/** Return the value of a CSS colour variable in the current theme. */
export function colour(name) {
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return palette.get(name);
}

/**
 * A stack of charts with the same cycle axis, cursor, pin and zoom.
 *
 * `onCycle(cycle, pinned)` receives the cycle under the cursor, and the pinned one when the cursor leaves.
 */
export class Stack {
  constructor(uPlot, { first, last, onCycle = () => {} }) {
    this.uPlot = uPlot;
    this.full = [first - 0.5, last + 0.5];
    this.range = [...this.full];
    this.pinned = null;
    this.onCycle = onCycle;
    this.parts = [];
    this.root = h("div");
    this.resized = new ResizeObserver(() => this.resize());
    this.resized.observe(this.root);
    this.themed = () => this.redraw();
    document.addEventListener("themechange", this.themed);
  }

  get gutter() {
    return this.root.clientWidth < NARROW ? 54 : 92;
  }

  get width() {
    return Math.max(200, this.root.clientWidth);
  }

  /** Add a chart or heatmap: `{ figure, resize(), redraw(), point(cycle), destroy() }`. */
  add(part) {
    this.parts.push(part);
    this.root.append(part.figure);
    return part;
  }

  resize() {
    if (this.drawnWidth === this.width) return;
    this.drawnWidth = this.width;
    for (const part of this.parts) part.resize();
    this.onZoom?.(this.range);
    this.point(this.pinned);
  }

  redraw() {
    for (const part of this.parts) part.redraw();
  }

  /** Zoom every part; null shows everything. */
  zoom(range) {
    const [low, high] = range ?? this.full;
    if (high - low < 3) return;
    this.range = [low, high];
    this.refresh();
  }

  refresh() {
    this.redraw();
    this.onZoom?.(this.range);
    this.point(this.pinned);
  }

  /** Move the cursor of every part; null returns to the pinned cycle. */
  point(cycle) {
    const shown = cycle ?? this.pinned;
    for (const part of this.parts) part.point(shown);
    this.onCycle(shown, shown === this.pinned);
  }

  /** Pin the cursor to a cycle; zoom out if the cycle is out of view. */
  pin(cycle) {
    this.pinned = cycle;
    if (cycle < this.range[0] || cycle > this.range[1]) this.range = [...this.full];
    this.refresh();
  }

  destroy() {
    this.resized.disconnect();
    document.removeEventListener("themechange", this.themed);
    for (const part of this.parts) part.destroy();
  }
}

/**
 * A chart of traces.
 *
 * `cycles` [N] ascending; `series`: `{ label, values [N], stroke, fill, width, dash, points, bars, spans }` with colour variables;
 * `bands`: `{ upper, lower, fill }` by indices in `series`. `paint(u, context)` draws beneath the series.
 */
export function traces(stack, options) {
  const { title, note = "", label, height = 110, cycles, series, bands = [], range, ticks = false, paint } = options;
  const plot = h("div", { class: "plot", role: "img", "aria-label": label });
  const readout = h("span", { class: "readout", "aria-hidden": "true" });
  const figure = h(
    "figure", { class: `chart ${options.kind ?? ""}` },
    h("figcaption", {}, h("span", { class: "chart-title" }, title), note && h("span", { class: "chart-note" }, note), readout),
    plot,
  );
  const { uPlot } = stack;
  let chart = null;

  const paintable = (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint?.(u, ctx);
    ctx.restore();
  };
  const line = (one) => ({
    label: one.label,
    stroke: one.stroke ? () => colour(one.stroke) : undefined,
    fill: one.fill ? () => colour(one.fill) : undefined,
    width: one.width ?? 1.5,
    dash: one.dash,
    points: { show: one.points ?? false, size: 4, filter: one.stroke && !one.bars && !one.spans ? lone : undefined },
    spanGaps: one.spans ?? false,
    paths: one.bars ? uPlot.paths.bars({ size: [0.8, 14, 1] }) : undefined,
  });

  function make() {
    chart?.destroy();
    chart = new uPlot(
      {
        width: stack.width,
        height,
        legend: { show: false },
        padding: [6, RIGHT, ticks ? 0 : 4, 0],
        scales: { x: { time: false, range: () => stack.range }, y: { range: range ?? padded } },
        series: [{}, ...series.map(line)],
        bands: bands.map(({ upper, lower, fill }) => ({ series: [upper + 1, lower + 1], fill: () => colour(fill) })),
        axes: [cycleAxis(ticks), valueAxis(stack, options)],
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false },
          points: { show: series.every((one) => !one.bars), size: 5 },
          bind: { dblclick: () => () => stack.zoom(null) },
        },
        hooks: {
          drawClear: [paintable],
          draw: [(u) => drawPin(u, stack)],
          setSelect: [(u) => zoomTo(u, stack)],
        },
      },
      [cycles, ...series.map((one) => one.values)],
      plot,
    );
    const cycleAt = (event) => nearest(cycles, chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x"));
    chart.over.addEventListener("pointermove", (event) => stack.point(cycleAt(event)));
    chart.over.addEventListener("pointerleave", () => stack.point(null));
    chart.over.addEventListener("click", (event) => stack.pin(cycleAt(event)));
  }

  return stack.add({
    figure,
    readout,
    resize: make,
    redraw: () => chart?.setData(chart.data),
    point(cycle) {
      if (!chart) return;
      const left = cycle === null ? -10 : chart.valToPos(cycle, "x");
      chart.setCursor({ left, top: cycle === null ? -10 : 1 }, false);
      const at = cycles.indexOf(cycle);
      readout.textContent = at < 0 || !options.word ? "" : options.word(at);
    },
    destroy: () => chart?.destroy(),
  });
}

/** Return the indices of values without neighbours, which a line does not show. */
function lone(u, series) {
  const values = u.data[series];
  return values.flatMap((value, i) => (value != null && values[i - 1] == null && values[i + 1] == null ? [i] : []));
}

/** Return the entry of an ascending list that is nearest to a value. */
export function nearest(cycles, value) {
  let low = 0;
  let high = cycles.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (cycles[middle] <= value) low = middle;
    else high = middle;
  }
  return value - cycles[low] <= cycles[high] - value ? cycles[low] : cycles[high];
}

function padded(_u, low, high) {
  if (low === null || high === null) return [0, 1];
  const slack = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - slack, high + slack];
}

function cycleAxis(ticks) {
  return {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: ticks, stroke: () => colour("--line"), size: 4 },
    size: ticks ? 24 : 0,
    gap: 2,
    font: FONT,
    ...(ticks && { label: "cycle", labelSize: 14, labelGap: 0, labelFont: FONT }),
    values: ticks ? (_u, splits) => splits.map((at) => (Number.isInteger(at) ? at : "")) : () => [],
  };
}

function valueAxis(stack, { ends = false, tick = number, height = 110 }) {
  return {
    stroke: () => colour("--muted"),
    grid: { show: !ends, stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    size: stack.gutter,
    gap: 6,
    font: FONT,
    space: height < 100 ? 20 : 28,
    splits: ends ? (u) => inner(u.scales.y) : undefined,
    values: (_u, splits) => splits.map((at) => (at === 0 ? "0" : tick(at))),
  };
}

function inner({ min, max }) {
  const slack = (max - min) * 0.14;
  return [min + slack, max - slack];
}

function drawPin(u, stack) {
  if (stack.pinned === null) return;
  const x = Math.round(u.valToPos(stack.pinned, "x", true));
  const { ctx, bbox } = u;
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = colour("--ink");
  ctx.globalAlpha = 0.55;
  ctx.setLineDash(PIN_DASH.map((part) => part * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

function zoomTo(u, stack) {
  const { left, width } = u.select;
  if (width < 8) return;
  u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  stack.zoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
}
