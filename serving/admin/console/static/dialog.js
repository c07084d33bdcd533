// The one dialog: what will happen, why, the button that does it, and what the server said.

import { fill, h, shown, text } from "./dom.js";

const MAX_REASON = 1000;

/**
 * Show a modal dialog. The browser keeps the focus in it, closes it with Esc, and gives the focus
 * back. submit(reason): does it; what it raises is shown in place. Returns what update() needs.
 */
export function openDialog({ title, body, confirm, submit, isDanger = false, hasReason = true, cancel = "Cancel", isWide = false }) {
  const id = `dialog-${(openDialog.count = (openDialog.count ?? 0) + 1)}`;
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const reason = h("input", { type: "text", maxlength: MAX_REASON, autocomplete: "off", placeholder: "goes into the events" });
  const go = confirm ? h("button", { type: "submit", class: isDanger ? "danger" : "primary" }, confirm) : null;
  const form = h("form", { novalidate: true },
    h("h2", { id }, title),
    h("div", { class: "dialog-body" }, body),
    hasReason && confirm ? h("label", { class: "field" }, h("span", {}, "Reason ", h("small", { class: "muted" }, "optional")), reason) : null,
    error,
    h("div", { class: "dialog-foot" },
      h("button", { type: "button", on: { click: () => node.close() } }, confirm ? cancel : "Close"), go));
  const node = h("dialog", { "aria-labelledby": id, class: isWide ? "wide" : "" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!go || go.disabled) return;
    go.disabled = true;
    go.setAttribute("aria-busy", "true");
    shown(error, false);
    try {
      await submit(reason.value.trim());
      node.close();
    } catch (failure) {
      text(error, failure.message);
      shown(error, true);
      go.disabled = false;
    } finally {
      go.removeAttribute("aria-busy");
    }
  });
  node.addEventListener("close", () => node.remove());
  // A click beside it closes it, as Esc does.
  node.addEventListener("mousedown", (event) => {
    if (event.target === node) node.close();
  });
  document.body.append(node);
  node.showModal();
  return {
    node,
    go,
    allow(is) {
      if (go) go.disabled = !is;
    },
    say(message) {
      text(error, message);
      shown(error, Boolean(message));
    },
  };
}

/** Return a definition list of name and value pairs; what has no value is left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Return before and after, one above the other. */
export function difference(before, after) {
  const box = h("div", { class: "difference" });
  const update = (from, to) => fill(box,
    h("div", { class: "from" }, h("span", { class: "muted" }, "Now"), from),
    h("div", { class: "to" }, h("span", { class: "muted" }, "Then"), to));
  update(before, after);
  return { node: box, update };
}

/** Tell the person something that happened; it goes away by itself. */
export function toast(message, isBad = false) {
  const node = h("p", { class: isBad ? "toast bad" : "toast" }, message);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), isBad ? 12_000 : 5_000);
}
