// What the buttons do: each shows what would change, asks for a reason, and then does it.

import { ApiError, call, modelPath, versionPath } from "./api.js";
import { difference, facts, openDialog, toast } from "./dialog.js";
import { fill, h, shown, theirs } from "./dom.js";
import { bytes, clock, routeText } from "./format.js";
import { roleOf } from "./models.js";

// A load that fails at once is told in the dialog; a longer one goes on among the operations.
const WAIT_S = 2;

const named = (model, version) => `${model.name}/${version.version}`;

async function operate(path, reason, what) {
  const operation = await call("POST", path, { body: {}, query: { reason, wait: WAIT_S } });
  toast(operation.state === "running" ? `${what} is under way` : `${what}: done`);
}

/** Show what a load would take, then load. */
export function load(model, version) {
  const body = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Asking the server what it would take…"));
  const path = versionPath(model.name, version.version);
  const dialog = openDialog({
    title: `Load ${named(model, version)}`, body, confirm: "Load",
    submit: async (reason) => {
      try {
        await operate(`${path}:load`, reason, `Load of ${named(model, version)}`);
      } catch (error) {
        if (error instanceof ApiError && error.details.plan) fill(body, planFacts(error.details.plan));
        throw error;
      }
    },
  });
  call("POST", `${path}:plan`, { body: {} }).then(
    (plan) => fill(body, planFacts(plan), model.route ? null
      : h("p", { class: "hint" }, "The model has no route: this version becomes it, and answers requests that name no version.")),
    (error) => {
      fill(body, h("p", { class: "muted" }, "There is no plan."));
      dialog.say(error.message);
    });
}

/** Return a plan in words and as a bar. */
export function planFacts(plan) {
  const fits = plan.fits;
  const after = plan.free_bytes - plan.needs_bytes;
  const bar = h("div", { class: `bar meter plan${fits ? "" : " over"}`, role: "img", "aria-label": `needs ${bytes(plan.needs_bytes)} of ${bytes(plan.free_bytes)} free` },
    h("span", { class: "seg used", style: { "flex-grow": String(Math.min(plan.needs_bytes, plan.free_bytes)) } }),
    h("span", { class: "seg free", style: { "flex-grow": String(Math.max(0, after)) } }));
  const verdict = fits
    ? h("p", { class: "verdict good" }, plan.is_estimated ? "It fits, as far as is known." : "It fits.")
    : h("p", { class: "verdict bad" }, "It does not fit.");
  const evict = plan.would_evict.map((e) => h("li", {}, theirs(`${e.model}/${e.version}`), ` gives ${bytes(e.frees_bytes)}`));
  return h("div", { class: "stack" }, verdict, bar, facts([
    ["Needs", `${plan.is_estimated ? "at least " : ""}${bytes(plan.needs_bytes)}`],
    ["Free now", bytes(plan.free_bytes)],
    ["Free then", fits ? bytes(after) : null],
    ["New weights", plan.new_bytes === plan.object_bytes ? bytes(plan.new_bytes)
      : `${bytes(plan.new_bytes)} of ${bytes(plan.object_bytes)}; other versions hold the rest`],
    ["Private", plan.private_bytes_per_worker === null ? "not known before the first load"
      : `${bytes(plan.private_bytes_per_worker)} in each of ${plan.workers} workers`],
    ["Note", plan.reason ? theirs(plan.reason) : null],
  ]), evict.length ? h("div", {}, h("p", {}, plan.fits_after_evicting
    ? "It would fit after unloading these, which nothing names:" : "Even unloading all that nothing names is not enough:"), h("ul", {}, evict)) : null);
}

/** Show what an unload gives back and what stands in its way, then unload. */
export function unload(model, version, memory) {
  const role = roleOf(model, version.version);
  const names = Object.keys(model.aliases).filter((name) => model.aliases[name].version === version.version);
  const held = [
    role.weight ? `the route sends ${role.weight} % of the requests to it` : "",
    role.isShadow ? "it is a shadow" : "",
    role.isPrevious ? "a rollback would go back to it" : "",
    names.length ? `${names.length === 1 ? "the alias" : "the aliases"} ${names.join(", ")} ${names.length === 1 ? "names" : "name"} it` : "",
  ].filter(Boolean);
  const back = version.object_bytes - version.shared_bytes + version.private_bytes;
  const free = memory.free_bytes;
  openDialog({
    title: `Unload ${named(model, version)}`, confirm: "Unload", isDanger: true,
    body: h("div", {},
      difference(h("span", {}, `${version.state}, ${bytes(free)} free`), h("span", {}, `UNLOADED, about ${bytes(free + back)} free`)).node,
      held.length ? h("p", { class: "hint warn" }, "The server will refuse it, because ", theirs(held.join("; ")), ".")
        : h("p", { class: "hint" }, "No route and no alias names it. Requests that ask for it by number will be refused.")),
    submit: (reason) => operate(`${versionPath(model.name, version.version)}:unload`, reason, `Unload of ${named(model, version)}`),
  });
}

/** Let a new or known alias name a version. */
export function alias(model, version) {
  const known = Object.keys(model.aliases);
  const name = h("input", { type: "text", required: true, autocomplete: "off", spellcheck: "false", maxlength: 32, list: "known-aliases", placeholder: "prod" });
  const change = difference("", "");
  const show = () => {
    const wanted = name.value.trim();
    const now = model.aliases[wanted];
    change.update(h("span", {}, theirs(wanted || "…"), now ? ` names v${now.version}` : " is not set"),
      h("span", {}, theirs(wanted || "…"), ` names v${version.version}`));
  };
  name.addEventListener("input", show);
  show();
  openDialog({
    title: `Alias for ${named(model, version)}`, confirm: "Set alias",
    body: h("div", {}, h("label", { class: "field" }, h("span", {}, "Alias"), name),
      h("datalist", { id: "known-aliases" }, known.map((value) => h("option", { value }))), change.node),
    submit: async (reason) => {
      const wanted = name.value.trim();
      if (!wanted) {
        name.focus();
        throw new Error("Alias: give a name, such as prod.");
      }
      await call("PUT", `${modelPath(model.name)}/aliases/${encodeURIComponent(wanted)}`, {
        body: { version: version.version }, query: { reason }, etag: model.aliases[wanted]?.etag,
      });
      toast(`${wanted} names ${named(model, version)}`);
    },
  });
  name.focus();
}

/** Remove an alias. */
export function unalias(model, name) {
  const now = model.aliases[name];
  openDialog({
    title: `Remove the alias ${name}`, confirm: "Remove alias", isDanger: true,
    body: h("div", {}, difference(h("span", {}, theirs(name), ` names ${model.name}/${now.version}`), h("span", {}, theirs(name), " names nothing")).node,
      h("p", { class: "hint" }, "Requests that ask for the alias will be refused. The version stays.")),
    submit: async (reason) => {
      await call("DELETE", `${modelPath(model.name)}/aliases/${encodeURIComponent(name)}`, { query: { reason }, etag: now.etag });
      toast(`The alias ${name} is gone`);
    },
  });
}

/** Go back to the traffic before. */
export function rollback(model) {
  const { route } = model;
  const then = { ...route.previous, latest: false };
  openDialog({
    title: `Roll back ${model.name}`, confirm: "Roll back",
    body: h("div", {}, difference(h("span", {}, routeText(route)), h("span", {}, routeText(then))).node,
      h("p", { class: "hint" }, route.latest ? "The route will follow the latest version no more. " : "", "What it goes back to is in memory: it waits for nothing.")),
    submit: async (reason) => {
      await call("POST", `${modelPath(model.name)}/route:rollback`, { body: {}, query: { reason }, etag: route.etag });
      toast(`${model.name} is back at ${routeText(then)}`);
    },
  });
}

/** Delete a version for good. */
export function remove(model, version) {
  openDialog({
    title: `Delete ${named(model, version)}`, confirm: "Delete", isDanger: true,
    body: h("div", {}, facts([["Published", clock(version.published)], ["On disk", bytes(version.disk_bytes)]]),
      h("p", { class: "hint warn" }, "It cannot be brought back, and its number is never given again. The disk space returns with the next garbage collection.")),
    submit: async (reason) => {
      await call("DELETE", versionPath(model.name, version.version), { query: { reason } });
      toast(`${named(model, version)} is deleted`);
    },
  });
}

/** Replace the workers one by one. */
export function restart(workers) {
  openDialog({
    title: "Restart the workers", confirm: "Restart",
    body: h("p", {}, `${workers.length} workers are replaced one by one. No request fails and no connection is closed; meanwhile the private memory of one worker more is needed.`),
    submit: async (reason) => operate("/admin/v1/workers:restart", reason, "Restart of the workers"),
  });
}

/** Drop objects that no version uses. */
export function collect() {
  openDialog({
    title: "Collect garbage", confirm: "Collect",
    body: h("p", {}, "Objects on disk that no version uses are removed. It is safe at any moment and touches no memory."),
    submit: async (reason) => {
      const { objects, bytes: size } = await call("POST", "/admin/v1/gc", { body: {}, query: { reason } });
      toast(`${objects} objects dropped, ${bytes(size)} given back`);
    },
  });
}

/** Show everything about a version. */
export function details(model, version) {
  const body = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Reading…"));
  const dialog = openDialog({ title: named(model, version), body, isWide: true });
  call("GET", versionPath(model.name, version.version)).then((v) => {
    const json = (value) => h("pre", {}, JSON.stringify(value, null, 1));
    const lines = (values) => (values?.length ? h("pre", {}, values.map((value) => JSON.stringify(value)).join("\n")) : null);
    fill(body, facts([
      ["State", h("span", {}, `${v.state}: `, theirs(v.reason))],
      ["Published", clock(v.published)], ["Loaded in", v.load_s === null ? null : `${v.load_s.toFixed(2)} s`],
      ["Digest", h("code", {}, v.digest)],
      ["Weights", v.weights ? h("span", {}, `${v.weights.mode}: `, theirs(v.weights.reason)) : null],
      ["Batching", v.batching ? h("span", {}, v.batching.allowed ? "yes: " : "no: ", theirs(v.batching.reason)) : null],
      ["On disk", bytes(v.memory.disk_bytes)], ["In RAM now", bytes(v.memory.resident_bytes)],
      ["Shared with", v.memory.shared_with.length ? theirs(v.memory.shared_with.map((o) => `${o.model}/${o.version}`).join(", ")) : null],
      ["Meta", Object.keys(v.meta ?? {}).length ? facts(Object.entries(v.meta).map(([key, value]) => [theirs(key), theirs(typeof value === "object" ? JSON.stringify(value) : value)])) : null],
      ["Source", Object.keys(v.source ?? {}).length ? json(v.source) : null],
      ["Parity", v.parity ? json(v.parity) : null],
      ["Inputs", lines(v.signature.inputs)], ["Outputs", lines(v.signature.outputs)],
    ]));
  }, (error) => {
    shown(body, false);
    dialog.say(error.message);
  });
}
