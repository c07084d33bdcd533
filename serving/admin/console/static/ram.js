// The memory bar: how much of the budget is taken, and by which version in which way.

import { fill, h, keyed, text, theirs } from "./dom.js";
import { bytes } from "./format.js";

export const HUES = 8;

/** Return what each version takes of the committed bytes, and what several share, counted once. */
export function parts(models, memory) {
  const versions = [];
  models.forEach((model, index) => {
    for (const version of model.versions) {
      if (!version.object_bytes) continue;
      versions.push({
        key: `${model.name}/${version.version}`,
        hue: index % HUES,
        own: version.object_bytes - version.shared_bytes,
        shared: version.shared_bytes,
        privately: version.private_bytes,
      });
    }
  });
  const alone = versions.reduce((sum, v) => sum + v.own + v.privately, 0);
  return { versions, shared: Math.max(0, memory.committed_bytes - alone) };
}

function segment() {
  const label = h("span", {});
  const node = h("span", {}, label);
  return {
    node,
    update({ kind, hue, size, of, name, title }) {
      node.className = `seg ${kind}${hue === undefined ? "" : ` hue${hue}`}`;
      node.style.setProperty("flex-grow", String(size));
      text(label, of && size / of > 0.035 ? name : "");
      if (node.title !== title) node.title = title;
    },
  };
}

/** Return {update(models, memory)} for the memory panel. */
export function ramPanel(root) {
  const meter = h("div", { class: "bar meter", role: "img" });
  const detail = h("div", { class: "bar detail", role: "img" });
  const figures = h("dl", { class: "figures" });
  const legend = h("ul", { class: "legend" },
    h("li", {}, h("i", { class: "seg own hue0" }), "own weights and graph"),
    h("li", {}, h("i", { class: "seg private hue0" }), "private memory of all workers"),
    h("li", {}, h("i", { class: "seg shared" }), "shared by several versions, once"),
    h("li", {}, h("i", { class: "seg free" }), "free"));
  const caption = h("p", { class: "caption muted" });
  fill(root, figures, meter, caption, detail, legend);

  return {
    update(models, memory) {
      const { versions, shared } = parts(models, memory);
      const { budget_bytes: budget, committed_bytes: committed, free_bytes: free } = memory;
      const share = budget ? committed / budget : 0;
      keyed(meter, [
        { kind: share > 0.9 ? "used full" : "used", size: committed, title: `committed ${bytes(committed)}` },
        { kind: "free", size: free, title: `free ${bytes(free)}` },
      ], (s) => s.kind.split(" ")[0], segment);
      meter.setAttribute("aria-label", `${bytes(committed)} of ${bytes(budget)} committed, ${bytes(free)} free`);
      const segments = versions.flatMap((v) => [
        { key: `${v.key} own`, kind: "own", hue: v.hue, size: v.own, of: committed, name: v.key, title: `${v.key}: own ${bytes(v.own)}` },
        { key: `${v.key} private`, kind: "private", hue: v.hue, size: v.privately, of: committed, name: "", title: `${v.key}: private ${bytes(v.privately)} in ${memory.workers} workers` },
      ]).filter((s) => s.size > 0);
      if (shared > 0) segments.push({ key: "shared", kind: "shared", size: shared, of: committed, name: "shared", title: `shared by several versions: ${bytes(shared)}` });
      keyed(detail, segments, (s) => s.key, segment);
      detail.setAttribute("aria-label", versions.length
        ? `What is committed, by version. The table of models has the figures of each.`
        : "Nothing is committed.");
      text(caption, versions.length
        ? `What the ${bytes(committed)} are, by version` : "No version is in memory.");
      figure(figures, memory, share);
    },
  };
}

function figure(node, memory, share) {
  const last = memory.last_unload;
  const items = [
    ["Committed", bytes(memory.committed_bytes), `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`],
    ["Free", bytes(memory.free_bytes), ""],
    ["Budget", bytes(memory.budget_bytes), ""],
    ["In RAM now", bytes(memory.resident_bytes), memory.locked_bytes >= memory.resident_bytes ? "all locked" : `${bytes(memory.locked_bytes)} locked`],
    ["Left by unloads", bytes(memory.unreleased_bytes), last?.reason ?? ""],
  ];
  keyed(node, items, (item) => item[0], ([name]) => {
    const value = h("b", { class: "num" });
    const note = h("small", { class: "muted" });
    const box = h("div", {}, h("dt", {}, name), h("dd", {}, value, note));
    return { node: box, update: ([, shown, extra]) => { text(value, shown); fill(note, extra ? theirs(extra) : ""); } };
  });
}
