// Dialogs that change a unit: report an outcome, rename, delete. Each resolves to the result; null if it is cancelled.

import { h, put } from "./dom.js";
import { nameText } from "./format.js";

/** Open a dialog whose form calls `act`; it shows an error of the service. */
function ask({ title, fields, action, danger = false, act }) {
  return new Promise((resolve) => {
    const refusal = h("p", { class: "error", role: "alert" });
    const button = h("button", { class: danger ? "primary danger" : "primary" }, action);
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        close(await act(new FormData(event.target)));
      } catch (error) {
        put(refusal, error.detail || error.message);
        button.disabled = false;
      }
    };
    const dialog = h("dialog", { "aria-labelledby": "ask-title", oncancel: (event) => (event.preventDefault(), close(null)) },
      h("form", { method: "dialog", onsubmit: submit }, h("h2", { id: "ask-title" }, title), fields, refusal,
        h("div", { class: "actions" }, h("button", { type: "button", class: "ghost", onclick: () => close(null) }, "Cancel"), button)));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function reportOutcome({ api, path, model, unit, last, known }) {
  const choice = (value, text, checked) => h("label", { class: "choice" }, h("input", { type: "radio", name: "kind", value, checked }), text);
  return ask({
    title: known ? `Correct the outcome of unit ${nameText(unit)}` : `How did unit ${nameText(unit)} end?`,
    fields: [
      h("fieldset", {}, h("legend", { class: "unseen" }, "Outcome"),
        choice("failed", "It failed", known?.kind !== "removed"), choice("removed", "It was removed while it still ran", known?.kind === "removed")),
      h("label", { for: "outcome-cycle" }, "Its last cycle"),
      h("input", { id: "outcome-cycle", name: "cycle", type: "number", min: 1, step: 1, required: true, value: known?.cycle ?? last ?? "" }),
      h("p", { class: "muted small" }, "The unit leaves the fleet, and its predictions are scored against the outcome."),
    ],
    action: known ? "Correct" : "Report",
    act: (given) => api.post(`${path}/outcomes`, { model, kind: given.get("kind"), cycle: Number(given.get("cycle")), ...(known && { replace: true }) }),
  });
}

export function renameUnit({ api, path, model, unit }) {
  return ask({
    title: `Rename unit ${nameText(unit)}`,
    fields: [h("label", { for: "new-name" }, "New name"), h("input", { id: "new-name", name: "to", required: true, maxlength: 256, value: unit, autocomplete: "off" })],
    action: "Rename",
    act: async (given) => (await api.post(`${path}/rename`, { model, to: given.get("to") })).unit,
  });
}

export function deleteUnit({ api, path, model, unit }) {
  return ask({
    title: `Delete unit ${nameText(unit)}?`,
    fields: [h("p", {}, "Its readings, predictions and outcome are removed from the store. This cannot be undone.")],
    action: "Delete",
    danger: true,
    act: () => api.del(path, { model }),
  });
}
