// The editor of a route: weights that make 100, shadows, or whatever is latest; before and after.

import { call, modelPath } from "./api.js";
import { difference, openDialog, toast } from "./dialog.js";
import { attr, h, shown, text } from "./dom.js";
import { routeText } from "./format.js";
import { HUES } from "./ram.js";

/** Return the wish of the form, or a sentence that says what is missing. Pure. */
export function wishOf(mode, rows) {
  if (mode === "latest") return { wish: { latest: true } };
  const split = rows.filter((r) => r.weight > 0).map(({ version, weight }) => ({ version, weight })).sort((a, b) => a.version - b.version);
  const shadow = rows.filter((r) => r.isShadow).map((r) => r.version);
  const sum = split.reduce((total, s) => total + s.weight, 0);
  if (rows.some((r) => !Number.isInteger(r.weight) || r.weight < 0 || r.weight > 100)) return { problem: "Each share is a whole number from 0 to 100." };
  if (sum !== 100) return { problem: `The shares make ${sum} %, they must make 100 %.` };
  const both = split.find((s) => shadow.includes(s.version));
  if (both) return { problem: `v${both.version} cannot answer and shadow at once.` };
  return { wish: { split, shadow } };
}

/** Return a route as a bar of shares; a version has one colour before and after. */
function bar(split) {
  return h("span", { class: "bar shares", "aria-hidden": "true" }, split.map((s) =>
    h("span", { class: `seg own hue${s.version % HUES}`, style: { "flex-grow": String(s.weight) } }, h("span", {}, s.weight >= 12 ? `v${s.version}` : ""))));
}

const both = (route) => h("span", {}, route ? bar(route.split) : null, h("span", {}, routeText(route)));

/** Edit the route of a model; now(): the model as the stream last said, or nothing. */
export function editRoute(model, now) {
  const { route } = model;
  const ready = model.versions.filter((v) => v.state === "READY").reverse();
  const rows = ready.map((version) => ({
    version: version.version,
    weight: route?.split.find((s) => s.version === version.version)?.weight ?? 0,
    isShadow: route?.shadow.includes(version.version) ?? false,
  }));
  let mode = route?.latest ? "latest" : "split";
  const change = difference(both(route), "");
  const problem = h("p", { class: "hint warn", role: "status" });
  const table = h("table", { class: "plain weights" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Version"), h("th", { scope: "col" }, "Share, %"), h("th", { scope: "col" }, "Shadow"), h("th", { scope: "col" }, "All"))),
    h("tbody", {}, rows.map(weightRow)));
  const lax = h("input", { type: "checkbox" });
  const modes = h("fieldset", { class: "modes" }, h("legend", { class: "hidden-label" }, "Where requests go"),
    ["split", "latest", ...(route ? ["none"] : [])].map((value) => {
      const radio = h("input", { type: "radio", name: "mode", value, on: { change: () => { mode = value; show(); } } });
      radio.checked = value === mode;
      return h("label", { class: "check" }, radio, { split: "Split by share", latest: "Follow the latest", none: "Remove the route" }[value]);
    }));

  function weightRow(row) {
    const weight = h("input", {
      type: "number", min: 0, max: 100, step: 1, value: row.weight, "aria-label": `Share of v${row.version} in percent`,
      on: { input: () => { row.weight = weight.value === "" ? 0 : Number(weight.value); show(); } },
    });
    const shadow = h("input", {
      type: "checkbox", "aria-label": `v${row.version} is a shadow`,
      on: { change: () => { row.isShadow = shadow.checked; show(); } },
    });
    shadow.checked = row.isShadow;
    row.draw = () => {
      if (Number(weight.value || 0) !== row.weight) weight.value = row.weight;
      shadow.checked = row.isShadow;
    };
    const all = h("button", {
      type: "button", "aria-label": `All to v${row.version}`,
      on: { click: () => {
        for (const other of rows) other.weight = other === row ? 100 : 0;
        row.isShadow = false;
        show();
      } },
    }, "100 %");
    return h("tr", {}, h("th", { scope: "row" }, `v${row.version}`), h("td", {}, weight), h("td", {}, shadow), h("td", {}, all));
  }

  function after() {
    if (mode === "none") return { wish: null };
    return wishOf(mode, rows);
  }

  function show() {
    for (const row of rows) row.draw();
    shown(table, mode === "split");
    const found = after();
    text(problem, found.problem ?? "");
    shown(problem, Boolean(found.problem));
    const latest = ready[0]?.version;
    const then = found.wish === null ? null
      : mode === "latest" ? { latest: true, split: [{ version: latest, weight: 100 }], shadow: [] } : found.wish;
    change.update(both(route), found.problem ? h("span", { class: "muted" }, "…") : both(then));
    dialog?.allow(!found.problem);
  }

  let dialog = null;
  dialog = openDialog({
    title: `Route of ${model.name}`, confirm: "Change route", isWide: true,
    body: h("div", {}, modes, table, problem, change.node,
      h("label", { class: "check" }, lax, "Mix versions although their inputs or outputs differ"),
      h("p", { class: "hint" }, "Only READY versions are listed. The present traffic stays in memory, so that a rollback is instant.")),
    submit: async (reason) => {
      const { wish } = after();
      const path = `${modelPath(model.name)}/route`;
      if (wish === null) await call("DELETE", path, { query: { reason }, etag: route.etag });
      else await call("PUT", path, { body: lax.checked ? { ...wish, allow_incompatible: true } : wish, query: { reason }, etag: route?.etag });
      toast(`The route of ${model.name} is changed`);
    },
  });
  show();
  const watch = setInterval(() => {
    const its = now(model.name);
    if (!dialog.node.isConnected) clearInterval(watch);
    else if ((its?.route?.etag ?? null) !== (route?.etag ?? null)) dialog.say("Somebody changed the route meanwhile: close this and look again.");
  }, 1000);
  attr(dialog.node, "data-model", model.name);
}
