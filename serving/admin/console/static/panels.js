// Operations, workers and events.

import { attr, fill, h, keyed, shown, text, theirs } from "./dom.js";
import { bytes, clock, valueText } from "./format.js";

const SHOWN_OPERATIONS = 8;

/** Return {update(operations)}; said: called with a sentence when one ends. */
export function operationsPanel(root, said) {
  const list = h("ul", { class: "operations" });
  const empty = h("p", { class: "empty" }, "Nothing is under way.");
  fill(root, list, empty);
  const running = new Set();
  return {
    update(operations) {
      for (const op of operations) {
        if (op.state === "running") running.add(op.id);
        else if (running.delete(op.id)) said(`${nameOf(op)} ${op.state}${op.reason ? `: ${op.reason}` : ""}`, op.state === "failed");
      }
      shown(empty, operations.length === 0);
      keyed(list, operations.slice(0, SHOWN_OPERATIONS), (op) => op.id, operation);
    },
  };
}

const nameOf = (op) => (op.model ? `${op.kind} ${op.model}/${op.version}` : `${op.kind} of the workers`);

function operation() {
  const name = h("b", {});
  const stage = h("span", { class: "muted" });
  const bar = h("progress", { max: 1 });
  const reason = h("p", { class: "reason" });
  const node = h("li", {}, h("div", { class: "line" }, name, stage), bar, reason);
  return {
    node,
    update(op) {
      node.dataset.state = op.state;
      text(name, nameOf(op));
      text(stage, op.state === "running" ? `${op.stage} ${Math.round(op.progress * 100)} %` : `${op.state} ${clock(op.ended)}`);
      shown(bar, op.state === "running");
      if (bar.value !== op.progress) bar.value = op.progress;
      attr(bar, "aria-label", `${nameOf(op)}: progress`);
      text(reason, op.reason);
      shown(reason, Boolean(op.reason));
    },
  };
}

/** Return {update(workers)}. */
export function workersPanel(root) {
  const body = h("tbody", {});
  fill(root, h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ["Slot", "State", "pid", "Cores", "Memory", "Restarts"].map((name, i) => h("th", { scope: "col", class: i > 1 ? "num" : "" }, name)))),
    body));
  return {
    update(workers) {
      keyed(body, workers, (worker) => worker.slot, () => {
        const cells = [h("th", { scope: "row", class: "num left" }), h("td"), ...[0, 0, 0, 0].map(() => h("td", { class: "num" }))];
        return {
          node: h("tr", {}, cells),
          update(worker) {
            const values = [worker.slot, worker.state, worker.pid ?? "–", ranges(worker.cpus), bytes(worker.memory_bytes), worker.restarts];
            values.forEach((value, i) => text(cells[i], value));
            attr(cells[1], "title", worker.reason || null);
            cells[1].className = worker.state === "serving" ? "" : "warn";
            attr(cells[5], "title", worker.reason || null);
          },
        };
      });
    },
  };
}

/** Return core numbers in short: 0-3, 8. */
export function ranges(cores) {
  const parts = [];
  for (const core of [...cores].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === core - 1) last[1] = core;
    else parts.push([core, core]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ");
}

/** Return {update(events)}. */
export function eventsPanel(root) {
  const list = h("ol", { class: "events", tabindex: 0, "aria-label": "The newest changes" });
  const note = h("p", { class: "empty" });
  fill(root, list, note);
  return {
    update(events) {
      text(note, events.error ?? "No change is recorded yet.");
      shown(note, Boolean(events.error) || events.latest.length === 0);
      keyed(list, events.latest, (event) => event.seq, (event) => ({ node: entry(event), update() {} }));
    },
  };
}

function entry(event) {
  const what = event.model ? `${event.model}${event.version ? `/${event.version}` : ""}` : "";
  const before = valueText(event.before);
  const after = valueText(event.after);
  const change = before && after ? `${before} → ${after}` : after || before;
  return h("li", {},
    h("div", { class: "line" },
      h("time", { class: "num muted", datetime: event.time, title: event.time }, clock(event.time)),
      h("span", { class: "kind" }, event.kind.replaceAll("_", " ")),
      what ? h("b", {}, theirs(what)) : null,
      h("span", { class: "muted" }, "by ", theirs(event.who || "?"))),
    event.reason ? h("q", { class: "reason" }, theirs(event.reason)) : null,
    change ? h("div", { class: "change muted" }, theirs(change)) : null);
}
