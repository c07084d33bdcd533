// Puts the page together: the stream's state in, the panels out.

import * as actions from "./actions.js";
import { keepToken, token, whenUnauthorized } from "./api.js";
import { toast } from "./dialog.js";
import { attr, fill, h, keyed, shown, text } from "./dom.js";
import { duration, rate } from "./format.js";
import { modelTable } from "./models.js";
import { eventsPanel, operationsPanel, workersPanel } from "./panels.js";
import { ramPanel } from "./ram.js";
import { editRoute } from "./route.js";
import { Histories, spark } from "./spark.js";
import { Stream } from "./stream.js";
import { askToken } from "./token.js";

const $ = (id) => document.getElementById(id);
const state = {};
const histories = new Histories();
let scopes = new Set();

/** Let a button act or not: why is empty, or says what stands in its way. */
function allow(button, why) {
  const { scope } = button.dataset;
  const reason = scopes.has(scope) ? why : `Your token lacks the scope ${scope}`;
  if (button.disabled !== Boolean(reason)) button.disabled = Boolean(reason);
  attr(button, "title", reason || button.dataset.title || null);
}

const modelOf = (name) => state.models?.models.find((model) => model.name === name);
const table = modelTable($("model-table"), histories, {
  ...actions,
  unload: (model, version) => actions.unload(model, version, state.memory),
  route: (model) => editRoute(model, modelOf),
}, allow);
const ram = ramPanel($("ram"));
const operations = operationsPanel($("operations"), toast);
const workers = workersPanel($("workers"));
const events = eventsPanel($("events"));

function draw() {
  if (!state.models || !state.rates) return;
  shown($("main"), true);
  const loaded = state.models.models.flatMap((m) => m.versions).filter((v) => v.object_bytes > 0).length;
  const seen = table.update(state, $("filter").value.trim(), $("only-loaded").checked);
  text($("models-count"), `${seen} shown, ${loaded} in memory`);
  ram.update(state.models.models, state.memory);
  operations.update(state.operations);
  workers.update(state.workers.workers);
  events.update(state.events);
  totals();
  text($("release"), state.server.version);
  notice(state.server.ready ? "" : `Not ready: ${state.server.reason}`);
  allow($("restart"), "");
  allow($("gc"), "");
}

const line = spark(96, 24);
function totals() {
  const all = state.rates.all;
  line.update(histories.of("all"));
  const up = state.workers.workers.filter((w) => w.state === "serving").length;
  const items = [
    ["requests/s", rate(all.requests_per_s), ""],
    ["p50", duration(all.p50_s), ""],
    ["p99", duration(all.p99_s), ""],
    ["errors/s", rate(all.failed_per_s + all.refused_per_s), all.failed_per_s ? "bad" : ""],
    ["workers", `${up} of ${state.workers.workers.length}`, up < state.workers.workers.length ? "bad" : ""],
  ];
  keyed($("totals"), items, (item) => item[0], ([name]) => {
    const value = h("dd", { class: "num" });
    const node = h("div", {}, h("dt", {}, name), value, name === "requests/s" ? line.node : null);
    return { node, update: ([, shownValue, kind]) => { text(value, shownValue); value.className = `num ${kind}`; } };
  });
}

function notice(message) {
  text($("notice"), message);
  shown($("notice"), Boolean(message));
}

function status(name, label) {
  $("status").dataset.state = name;
  document.body.dataset.stream = name;
  text($("status-text"), label);
}

function note(rates) {
  const values = new Map([["all", rates.all.now_per_s]]);
  for (const [name, model] of Object.entries(rates.models)) {
    values.set(`${name} 0`, model.now_per_s);
    for (const [version, item] of Object.entries(model.versions)) values.set(`${name} ${version}`, item.now_per_s);
  }
  histories.push(values);
}

const stream = new Stream({
  event(kind, document_) {
    if (kind === "hello") {
      scopes = new Set(document_.scopes);
      shown($("forget"), token() !== null);
      // A link cannot send a token.
      shown($("docs"), token() === null);
      $("forget").title = `Looking as ${document_.who}`;
    } else if (kind === "look") {
      Object.assign(state, document_);
      // Rates that did not change are not sent again, and still are what the last second was.
      if (state.rates) note(state.rates);
      draw();
    }
  },
  state(name, detail) {
    if (name === "live") status("live", "Live");
    else if (name === "lost") status("lost", detail ? `Connection lost: ${detail}` : "Connection lost, trying again");
    else if (name === "connecting" && document.body.dataset.stream !== "live") status(document.body.dataset.stream === "lost" ? "lost" : "connecting", document.body.dataset.stream === "lost" ? $("status-text").textContent : "Connecting…");
  },
  refused(error) {
    shown($("main"), false);
    if (error.status === 401) {
      shown($("docs"), false);
      status("closed", "Token needed");
      notice("");
      needToken(error.message);
    } else {
      status("closed", "Not allowed");
      notice(error.message);
      shown($("forget"), true);
    }
  },
});

function needToken(why) {
  askToken(why, () => stream.start());
  fill($("notice"), "Nothing is shown without a token. ", h("button", { type: "button", on: { click: () => needToken(why) } }, "Enter a token"));
  shown($("notice"), true);
}
whenUnauthorized(needToken);

$("forget").addEventListener("click", () => {
  keepToken(null);
  for (const key of Object.keys(state)) delete state[key];
  shown($("main"), false);
  shown($("forget"), false);
  notice("");
  stream.start();
});
$("filter").addEventListener("input", draw);
$("only-loaded").addEventListener("change", draw);
$("restart").addEventListener("click", () => actions.restart(state.workers.workers));
$("gc").addEventListener("click", () => actions.collect());
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    $("filter").focus();
  }
});

const SIGNS = { system: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };
function theme(name) {
  text($("theme"), SIGNS[name]);
  $("theme").setAttribute("aria-label", `Theme: ${name === "system" ? "as the system" : name}. Change it`);
}
theme(window.ramrackTheme.read());
$("theme").addEventListener("click", () => theme(window.ramrackTheme.next()));

status("connecting", "Connecting…");
stream.start();
