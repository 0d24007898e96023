// A list of any length: the document has only the rows near the viewport; in print, all rows.

import { h } from "./dom.js";

const BEYOND = 8; // rows kept above and below the viewport

/**
 * Rows of equal height that scroll with the page.
 *
 * `key(item)`, `row(item)` -> element, `height()` -> pixels, `onEnd()` near the last row.
 */
export class RowList {
  constructor({ key, row, height, onEnd, signal }) {
    Object.assign(this, { key, row, height, onEnd });
    this.items = [];
    this.shown = new Map(); // key -> { element, item }
    this.element = h("div", { class: "rows", role: "rowgroup" });
    this.draw = this.draw.bind(this);
    addEventListener("scroll", () => this.later(), { passive: true, signal });
    addEventListener("resize", () => this.later(), { signal });
    for (const name of ["beforeprint", "afterprint"]) addEventListener(name, () => ((this.isPrinting = name === "beforeprint"), this.draw()), { signal });
    this.element.addEventListener("keydown", (event) => this.move(event));
    this.element.addEventListener("pointerdown", () => (this.isPressed = true));
    // The click comes after "pointerup", and before the next task. A context menu may take "pointerup".
    for (const name of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(name, () => this.isPressed && setTimeout(() => ((this.isPressed = false), this.draw())), { signal });
  }

  /** Show these items, in this order. */
  set(items) {
    this.items = items;
    this.draw();
  }

  later() {
    this.frame ??= requestAnimationFrame(this.draw);
  }

  /** Draw all rows again, because they look different now. */
  redraw() {
    for (const { element } of this.shown.values()) element.remove();
    this.shown.clear();
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    if (this.isPressed) return; // a row that moved away would lose the click
    const height = this.height();
    this.element.style.height = `${this.items.length * height}px`;
    const top = -this.element.getBoundingClientRect().top;
    const first = this.isPrinting ? 0 : Math.max(0, Math.floor(top / height) - BEYOND);
    const last = this.isPrinting ? this.items.length : Math.min(this.items.length, Math.ceil((top + innerHeight) / height) + BEYOND);
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    const at = focused ? this.items.findIndex((item) => this.key(item) === focused) : -1; // this row stays in any place
    const wanted = new Map();
    const want = (i) => wanted.set(this.key(this.items[i]), i);
    if (at >= 0 && at < first) want(at);
    for (let i = first; i < last; i++) want(i);
    if (at >= last) want(at);
    for (const [key, { element, item }] of this.shown) {
      if (wanted.has(key)) this.renew(element, item, this.items[wanted.get(key)]);
      else {
        element.remove();
        this.shown.delete(key);
      }
    }
    let before = null;
    for (const [key, i] of wanted) {
      const known = this.shown.get(key);
      const element = known?.element ?? this.made(key, this.items[i]);
      element.style.transform = `translateY(${i * height}px)`;
      element.setAttribute("aria-rowindex", i + 2);
      // Tab and screen readers follow the order in the document, so it equals that on the screen.
      const place = before ? before.nextSibling : this.element.firstChild;
      if (element !== place) this.element.insertBefore(element, place);
      before = element;
    }
    if (focused && wanted.has(focused) && !this.element.contains(document.activeElement)) this.link(focused)?.focus({ preventScroll: true });
    if (last > 0 && !this.isPrinting && last >= this.items.length - 2 * BEYOND) this.onEnd();
  }

  made(key, item) {
    const element = this.row(item);
    element.dataset.key = key;
    this.shown.set(key, { element, item });
    return element;
  }

  /** Show an item's new values in its row. The first cell has its link and stays: the link may have the focus. */
  renew(element, item, changed) {
    if (item === changed) return;
    const { className, title, children } = this.row(changed);
    Object.assign(element, { className, title });
    [...children].slice(1).forEach((cell, i) => element.children[i + 1].replaceWith(cell));
    this.shown.set(this.key(changed), { element, item: changed });
  }

  /** Focus the row of this key, if it is near the viewport. */
  focus(key) {
    this.draw();
    this.link(key)?.focus({ preventScroll: true });
  }

  link(key) {
    return this.shown.get(key)?.element.querySelector("a");
  }

  /** Move through the rows by the arrow keys. */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const key = event.target.closest("[data-key]")?.dataset.key;
    if (!step || key === undefined) return;
    const at = this.items.findIndex((item) => this.key(item) === key) + step;
    if (at < 0 || at >= this.items.length) return;
    event.preventDefault();
    const next = this.key(this.items[at]);
    if (!this.shown.has(next)) this.draw(); // a key may come before the next frame
    const link = this.link(next);
    link?.focus();
    link?.closest("[data-key]").scrollIntoView({ block: "nearest" });
  }
}
