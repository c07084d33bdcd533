// A small line of the last minute. Its numbers stand beside it, so it is hidden from screen readers.

const SVG = "http://www.w3.org/2000/svg";
export const POINTS = 60;

/** Return {node, update(values)} for a line of up to POINTS values from zero. */
export function spark(width = 72, height = 20) {
  const node = document.createElementNS(SVG, "svg");
  node.setAttribute("viewBox", `0 0 ${width} ${height}`);
  node.setAttribute("preserveAspectRatio", "none");
  node.setAttribute("class", "spark");
  node.setAttribute("aria-hidden", "true");
  const area = document.createElementNS(SVG, "polygon");
  const line = document.createElementNS(SVG, "polyline");
  node.append(area, line);
  let last = "";
  return {
    node,
    update(values) {
      const top = Math.max(...values, 1e-9);
      const step = width / (POINTS - 1);
      const start = width - (values.length - 1) * step;
      const isIdle = !values.some(Boolean);
      const points = isIdle ? "" : values
        .map((v, i) => `${(start + i * step).toFixed(1)},${(height - 1.5 - (v / top) * (height - 3)).toFixed(1)}`)
        .join(" ");
      if (points === last) return;
      last = points;
      line.setAttribute("points", points);
      area.setAttribute("points", points && `${start.toFixed(1)},${height} ${points} ${width},${height}`);
    },
  };
}

/** The last minute of each rate, by key. */
export class Histories {
  constructor() {
    this.byKey = new Map();
  }

  /** Note the values of one look; a key that is not in it had nothing. */
  push(values) {
    for (const key of values.keys()) if (!this.byKey.has(key)) this.byKey.set(key, []);
    for (const [key, kept] of this.byKey) {
      kept.push(values.get(key) ?? 0);
      if (kept.length > POINTS) kept.shift();
      if (!kept.some(Boolean) && !values.has(key)) this.byKey.delete(key);
    }
  }

  of(key) {
    return this.byKey.get(key) ?? [];
  }
}
