// The fleet by urgency.
import { h, put } from "./dom.js";

export async function show(root, _params, { api, signal }) {
  const { units } = await api.get("/v1/units", { limit: 200 }, { signal });
  put(root, h("h1", {}, "Fleet"), h("ul", {}, units.map((u) => h("li", {}, h("a", { href: `#/unit/${encodeURIComponent(u.model)}/${encodeURIComponent(u.unit)}` }, u.unit)))));
}
