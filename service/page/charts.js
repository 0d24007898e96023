// Charts: uPlot, loaded when the first one is drawn.

import { script } from "./dom.js";

/** uPlot's constructor. */
export async function uplot() {
  await script("/page/vendor/uPlot.iife.min.js");
  return window.uPlot;
}
