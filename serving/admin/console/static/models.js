// The table of models and versions.

import { attr, fill, h, keyed, shown, text, theirs } from "./dom.js";
import { ago, bytes, duration, NONE, rate, routeText } from "./format.js";
import { HUES } from "./ram.js";
import { spark } from "./spark.js";

const SIGNS = { READY: "●", LOADING: "◐", DRAINING: "◑", FAILED: "✕", UNLOADED: "○" };
const HEADS = ["Version", "State", "Traffic", "Requests/s", "p50", "p99", "Errors/s", "Own", "Shared", "Private each", "Actions"];
const NUMERIC = new Set(["Requests/s", "p50", "p99", "Errors/s", "Own", "Shared", "Private each", "Actions"]);
const NOTHING = { requests_per_s: 0, refused_per_s: 0, failed_per_s: 0, p50_s: null, p99_s: null };

/** Return what a version is to the route of its model. */
export function roleOf(model, version) {
  const { route } = model;
  if (!route) return { weight: 0 };
  const weight = route.split.find((s) => s.version === version)?.weight ?? 0;
  const previous = route.previous;
  return {
    weight,
    isShadow: route.shadow.includes(version),
    isPrevious: Boolean(previous && (previous.split.some((s) => s.version === version) || previous.shadow.includes(version))),
  };
}

/** Say whether a row is to be seen. */
export function matches(model, version, filter, onlyLoaded) {
  if (onlyLoaded && version.state === "UNLOADED") return false;
  if (!filter) return true;
  const aliases = Object.entries(model.aliases).filter(([, a]) => a.version === version.version).map(([name]) => name);
  const words = [model.name, `v${version.version}`, version.state, ...aliases].join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => words.includes(word));
}

function button(label, scope, listener, kind = "") {
  return h("button", { type: "button", class: kind, data: { scope }, on: { click: listener } }, label);
}

/** Return {update(state, filter, onlyLoaded)}; actions: what the buttons do. */
export function modelTable(root, histories, actions, allow) {
  const table = h("table", { class: "versions" },
    h("thead", {}, h("tr", {}, HEADS.map((name) => h("th", { scope: "col", class: NUMERIC.has(name) ? "num" : "" }, name)))));
  const empty = h("p", { class: "empty", hidden: true });
  const more = h("p", { class: "muted more", hidden: true });
  fill(root, table, empty, more);

  function modelPart() {
    let model = null;
    const swatch = h("i", { "aria-hidden": "true", title: "Its colour in the memory bar" });
    const name = h("span", { class: "model-name" });
    const route = h("span", { class: "route" });
    const swapped = h("span", { class: "muted swapped" });
    const load = h("b", { class: "num" });
    const line = spark(120, 22);
    const edit = button("Route…", "promote", () => actions.route(model));
    const back = button("Roll back…", "promote", () => actions.rollback(model));
    const head = h("tr", { class: "model" }, h("th", { scope: "rowgroup", colspan: HEADS.length },
      h("div", { class: "model-line" }, h("span", { class: "model-title" }, swatch, name), route, swapped,
        h("span", { class: "model-load" }, line.node, load), h("span", { class: "buttons" }, edit, back))));
    const node = h("tbody", {});
    return {
      node,
      update({ model: now, hue, versions, rates }) {
        model = now;
        swatch.className = `swatch hue${hue}`;
        fillOnce(name, now.name);
        text(route, routeText(now.route));
        const changed = now.route?.changed;
        const why = changed?.reason ? `: ${changed.reason}` : "";
        text(swapped, changed ? `swapped ${ago(changed.time)} by ${changed.who}${why}` : "");
        attr(swapped, "title", changed ? `${changed.time} ${changed.who}${why}` : null);
        // Its unit goes with it: it stands under no column of its own.
        text(load, rates?.requests_per_s ? `${rate(rates.requests_per_s)}/s` : NONE);
        attr(load, "aria-label", `${rate(rates?.requests_per_s)} requests a second`);
        line.update(histories.of(`${now.name} 0`));
        allow(edit, now.versions.some((v) => v.state === "READY") || now.route ? "" : "No version is READY: load one first");
        attr(edit, "aria-label", `Edit the route of ${now.name}`);
        allow(back, now.route?.previous ? "" : "There is no traffic before the present one");
        attr(back, "aria-label", `Roll back ${now.name}`);
        const items = versions.map((version) => ({ model: now, version, rates: rates?.versions?.[version.version] }));
        // The first row is the model's own.
        keyed(node, [null, ...items], (item) => item?.version.version ?? 0,
          (item) => (item ? versionPart() : { node: head, update() {} }));
      },
    };
  }

  function versionPart() {
    let model = null;
    let version = null;
    const number = h("button", { type: "button", class: "link num", on: { click: () => actions.details(model, version) } });
    const aliases = h("span", { class: "chips" });
    const sign = h("span", { class: "sign", "aria-hidden": "true" });
    const state = h("span", {});
    const reason = h("span", { class: "reason muted" });
    const badge = h("span", { class: "state" }, sign, state);
    const share = h("span", { class: "share", "aria-hidden": "true" }, h("i"));
    const traffic = h("span", {});
    const line = spark();
    const cells = { rps: h("span", { class: "rps" }), p50: h("span"), p99: h("span"), errors: h("span"), own: h("span"), shared: h("span"), each: h("span") };
    const load = button("Load…", "promote", () => actions.load(model, version), "primary-quiet");
    const unload = button("Unload…", "promote", () => actions.unload(model, version));
    const alias = button("Alias…", "promote", () => actions.alias(model, version));
    const remove = button("Delete…", "admin", () => actions.remove(model, version));
    const cell = (label, extra, ...children) => h("td", { class: extra, data: { label } }, children);
    const node = h("tr", { class: "version" },
      h("th", { scope: "row", data: { label: "Version" } }, number, aliases),
      cell("State", "state-cell", badge, reason),
      cell("Traffic", "traffic-cell", share, traffic),
      cell("Requests/s", "num", line.node, cells.rps),
      cell("p50", "num", cells.p50), cell("p99", "num", cells.p99), cell("Errors/s", "num", cells.errors),
      cell("Own", "num", cells.own), cell("Shared", "num", cells.shared), cell("Private each", "num", cells.each),
      cell("Actions", "buttons", load, unload, alias, remove));

    function update({ model: its, version: now, rates = NOTHING }) {
      model = its;
      version = now;
      const called = `${model.name} version ${now.version}`;
      text(number, `v${now.version}`);
      attr(number, "aria-label", `Details of ${called}`);
      const names = Object.keys(model.aliases).filter((name) => model.aliases[name].version === now.version);
      keyed(aliases, names, (name) => name, (name) => ({
        node: h("button", {
          type: "button", class: "chip", data: { scope: "promote" }, title: `Remove the alias ${name}…`,
          "aria-label": `Alias ${name} of ${model.name}: remove it`,
          on: { click: () => actions.unalias(model, name) },
        }, theirs(name)),
        update() { allow(this.node, ""); },
      }));
      node.dataset.state = now.state;
      text(sign, SIGNS[now.state] ?? "?");
      text(state, now.state);
      text(reason, now.state === "READY" || now.state === "UNLOADED" ? "" : now.reason);
      attr(badge, "title", now.reason || null);
      const role = roleOf(model, now.version);
      share.firstChild.style.setProperty("width", `${role.weight}%`);
      shown(share, role.weight > 0);
      text(traffic, role.weight ? `${role.weight} %` : role.isShadow ? "shadow" : role.isPrevious ? "previous" : "");
      attr(traffic, "title", role.isPrevious ? "A rollback would go back to it, so it stays READY" : null);
      line.update(histories.of(`${model.name} ${now.version}`));
      text(cells.rps, rate(rates.requests_per_s));
      text(cells.p50, duration(rates.p50_s));
      text(cells.p99, duration(rates.p99_s));
      const bad = rates.failed_per_s + rates.refused_per_s;
      text(cells.errors, rate(bad));
      cells.errors.className = rates.failed_per_s ? "bad" : "";
      attr(cells.errors, "title", bad ? `${rate(rates.failed_per_s)} failed (5xx), ${rate(rates.refused_per_s)} refused (4xx) a second` : null);
      const isHeld = now.object_bytes > 0;
      text(cells.own, isHeld ? bytes(now.object_bytes - now.shared_bytes) : NONE);
      text(cells.shared, isHeld && now.shared_bytes ? bytes(now.shared_bytes) : NONE);
      text(cells.each, isHeld ? bytes(now.private_bytes_per_worker) : NONE);
      attr(cells.each, "title", "In each worker");
      // Cards leave out what says nothing.
      for (const item of [traffic, ...Object.values(cells)]) {
        attr(item.parentNode, "data-empty", item.textContent === NONE || item.textContent === "" ? "" : null);
      }
      const isBusy = now.state === "LOADING" || now.state === "DRAINING";
      const isIn = now.state === "READY" || now.state === "DRAINING";
      shown(load, !isIn);
      shown(unload, isIn);
      shown(alias, now.state === "READY");
      shown(remove, now.state === "UNLOADED" || now.state === "FAILED");
      const busy = isBusy ? `It is ${now.state}` : "";
      allow(load, busy);
      allow(unload, busy);
      allow(alias, "");
      allow(remove, busy);
      attr(load, "aria-label", `Load ${called}`);
      attr(unload, "aria-label", `Unload ${called}`);
      attr(alias, "aria-label", `Set an alias of ${called}`);
      attr(remove, "aria-label", `Delete ${called}`);
    }
    return { node, update };
  }

  return {
    update(state, filter, onlyLoaded) {
      const seen = state.models.models.map((model, index) => ({
        model, hue: index % HUES,
        versions: model.versions.filter((v) => matches(model, v, filter, onlyLoaded)).reverse(),
        rates: state.rates.models[model.name],
      })).filter((item) => item.versions.length);
      keyed(table, seen, (item) => item.model.name, modelPart);
      const count = state.models.models.length;
      shown(table, seen.length > 0);
      shown(empty, seen.length === 0);
      text(empty, count ? "No version matches the filter." : "No model yet. Bring one with: ramrack push NAME FILE --load");
      shown(more, state.models.left_out > 0);
      text(more, `and ${state.models.left_out} older versions that are not loaded: ramrack ls shows all`);
      return seen.reduce((sum, item) => sum + item.versions.length, 0);
    },
  };
}

function fillOnce(node, name) {
  if (node.textContent !== name) fill(node, theirs(name));
}
