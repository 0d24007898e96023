import { h, put } from "./dom.js";

export async function show(root, params) {
  put(root, h("h1", {}, params.unit ?? "Try"));
}
