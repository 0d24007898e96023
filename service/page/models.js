// The models that serve.
import { h, put } from "./dom.js";

export async function show(root, _params, { api, signal }) {
  const { models } = await api.get("/v1/models", {}, { signal });
  put(root, h("h1", {}, "Models"), h("ul", {}, models.map((m) => h("li", {}, m.name))));
}
