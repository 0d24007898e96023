// A heatmap of rows by cycle on the axis of a stack of charts, for mouse and keyboard.

import { colour, FONT, nearest, RIGHT } from "./charts.js";
import { h } from "./dom.js";

const AXIS = 22;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000];
const MOVES = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [0, -10], PageDown: [0, 10], Home: [0, -Infinity], End: [0, Infinity],
};

/**
 * Rows `{ name, values [T] }` at `cycles` [T]; a click or the arrow keys pick a cell.
 *
 * Values below zero have the colour `--takes`, above zero `--adds`, or `--share` if `isShare`.
 * `onCell(row, cycle)` receives the picked cell; `word(row, at)` returns its text.
 */
export class Heatmap {
  constructor(stack, { title, note = "", label, cycles, rows, rowHeight = 16, isShare = false, onCell = () => {}, word }) {
    Object.assign(this, { stack, cycles, rows, rowHeight, isShare, onCell, word });
    this.most = largest(rows);
    this.picked = { row: 0, at: cycles.length - 1 };
    this.hovered = null;
    this.canvas = h("canvas", {
      class: "heatmap", tabindex: "0", role: "application", "aria-roledescription": "heatmap",
      "aria-label": `${label} Arrow keys move between cells.`,
    });
    this.said = h("span", { class: "unseen", role: "status" });
    this.readout = h("span", { class: "readout", "aria-hidden": "true" });
    this.figure = h("figure", { class: "chart" },
      h("figcaption", {}, h("span", { class: "chart-title" }, title), note && h("span", { class: "chart-note" }, note), this.readout),
      this.canvas, this.said);
    this.listen();
    stack.add(this);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("click", (event) => this.pick(...this.cellAt(event)));
    canvas.addEventListener("pointermove", (event) => {
      const [row, at] = this.cellAt(event);
      this.stack.point(this.cycles[at]);
      this.readout.textContent = this.word(this.rows[row], at);
    });
    canvas.addEventListener("pointerleave", () => {
      this.stack.point(null);
      this.readout.textContent = this.said.textContent;
    });
    canvas.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      this.pick(this.picked.row + move[0], this.picked.at + move[1]);
    });
  }

  pick(row, at) {
    this.picked = { row: clamp(row, this.rows.length), at: clamp(at, this.cycles.length) };
    const [chosen, cycle] = [this.rows[this.picked.row], this.cycles[this.picked.at]];
    this.said.textContent = this.word(chosen, this.picked.at);
    this.readout.textContent = this.said.textContent;
    this.stack.pin(cycle);
    this.onCell(chosen, cycle);
  }

  cellAt(event) {
    const { stack, cycles } = this;
    const box = this.canvas.getBoundingClientRect();
    const [low, high] = stack.range;
    const share = (event.clientX - box.left - stack.gutter) / (stack.width - stack.gutter - RIGHT);
    const row = Math.floor((event.clientY - box.top) / this.rowHeight);
    return [clamp(row, this.rows.length), cycles.indexOf(nearest(cycles, low + share * (high - low)))];
  }

  /** The x of a cycle in pixels of the canvas. */
  place(cycle) {
    const [low, high] = this.stack.range;
    return this.stack.gutter + ((cycle - low) / (high - low)) * (this.stack.width - this.stack.gutter - RIGHT);
  }

  resize() {
    this.redraw();
  }

  point(cycle) {
    if (this.hovered === cycle) return;
    this.hovered = cycle;
    if (this.figure.isConnected) this.redraw();
  }

  destroy() {}

  redraw() {
    const { canvas, stack, rows, rowHeight } = this;
    const { width, gutter } = stack;
    const height = rows.length * rowHeight + AXIS;
    const scale = devicePixelRatio;
    Object.assign(canvas, { width: width * scale, height: height * scale });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const ctx = canvas.getContext("2d");
    ctx.scale(scale, scale);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    this.drawNames(ctx);
    ctx.save();
    ctx.beginPath();
    ctx.rect(gutter, 0, width - gutter - RIGHT, height);
    ctx.clip();
    this.drawCells(ctx);
    this.drawCursor(ctx);
    ctx.restore();
    ctx.fillStyle = colour("--muted");
    ctx.textAlign = "center";
    for (const at of ticksOf(stack.range, (width - gutter) / 60)) ctx.fillText(String(at), this.place(at), height - AXIS / 2);
  }

  drawNames(ctx) {
    const { gutter } = this.stack;
    ctx.textAlign = "right";
    this.rows.forEach((row, r) => {
      ctx.fillStyle = colour(r === this.picked.row ? "--ink" : "--muted");
      ctx.fillText(fitted(ctx, row.name, gutter - 10), gutter - 6, (r + 0.5) * this.rowHeight);
    });
  }

  drawCells(ctx) {
    const { rows, rowHeight } = this;
    const [empty, adds, takes] = [colour("--sunken"), colour(this.isShare ? "--share" : "--adds"), colour("--takes")];
    this.cycles.forEach((cycle, at) => {
      const left = this.place(cycle - 0.5);
      const width = this.place(cycle + 0.5) - left + 0.3;
      rows.forEach((row, r) => {
        const value = row.values[at];
        ctx.globalAlpha = 1;
        ctx.fillStyle = empty;
        ctx.fillRect(left, r * rowHeight, width, rowHeight - 1);
        if (!value) return;
        ctx.globalAlpha = Math.min(1, Math.abs(value) / this.most) ** 0.7;
        ctx.fillStyle = value > 0 ? adds : takes;
        ctx.fillRect(left, r * rowHeight, width, rowHeight - 1);
      });
    });
    ctx.globalAlpha = 1;
  }

  drawCursor(ctx) {
    const { cycles, picked, rowHeight, hovered } = this;
    const left = this.place(cycles[picked.at] - 0.5);
    ctx.strokeStyle = colour("--ink");
    ctx.lineWidth = 1.5;
    ctx.strokeRect(left - 0.5, picked.row * rowHeight - 0.5, this.place(cycles[picked.at] + 0.5) - left + 1, rowHeight);
    if (hovered === null) return;
    ctx.globalAlpha = 0.5;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(this.place(hovered), 0);
    ctx.lineTo(this.place(hovered), this.rows.length * rowHeight);
    ctx.stroke();
  }
}

function clamp(value, count) {
  return Math.max(0, Math.min(count - 1, value));
}

/** Return the 98 % quantile of absolute values, so that one extreme cell does not make the others pale. */
function largest(rows) {
  const sizes = rows.flatMap((row) => row.values).map(Math.abs).filter((value) => value > 0).sort((a, b) => a - b);
  return sizes[Math.floor(sizes.length * 0.98)] ?? 1;
}

function fitted(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let kept = text; // names of sensors differ at their ends
  while (kept && ctx.measureText(`…${kept}`).width > room) kept = kept.slice(1);
  return `…${kept}`;
}

function ticksOf([low, high], most) {
  const step = STEPS.find((each) => (high - low) / each <= most) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}
