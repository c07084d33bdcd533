// Numbers and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
export const NONE = "–";

/** Return bytes with three significant figures; a dash for what is not known. */
export function bytes(count) {
  if (count === null || count === undefined) return NONE;
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Return a rate; nothing at all is a dash. */
export function rate(perSecond) {
  if (!perSecond) return NONE;
  if (perSecond >= 10000) return `${(perSecond / 1000).toFixed(1)} k`;
  if (perSecond >= 100) return perSecond.toFixed(0);
  return perSecond.toFixed(perSecond >= 10 ? 1 : 2);
}

/** Return a duration of up to minutes. The last bucket of the counters ends at 5 s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds >= 5) return "> 5 s";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const ms = seconds * 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

/** Return how long ago a time was. */
export function ago(iso, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(iso)) / 1000);
  if (Number.isNaN(seconds)) return NONE;
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Return the local time of day, with the date where it is not today's. */
export function clock(iso) {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return String(iso);
  const day = time.toDateString() === new Date().toDateString()
    ? "" : `${time.toLocaleDateString(undefined, { month: "short", day: "numeric" })} `;
  return day + time.toLocaleTimeString(undefined, { hour12: false });
}

/** Return what a route does, in words. */
export function routeText(route) {
  if (!route) return "no route";
  const split = route.split.map((s) => `v${s.version} ${s.weight} %`).join(" · ");
  const shadow = route.shadow.length ? ` · shadow ${route.shadow.map((v) => `v${v}`).join(", ")}` : "";
  return `${route.latest ? "latest: " : ""}${split}${shadow}`;
}

/** Return a value of an event in few words. */
export function valueText(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.length ? value.map(valueText).join(", ") : "none";
  if (typeof value !== "object") return String(value).replace(/^(sha256:[0-9a-f]{12})[0-9a-f]{52}$/, "$1…");
  if (Array.isArray(value.split)) return routeText({ shadow: [], ...value });
  const items = Object.entries(value).filter(([, item]) => item !== null);
  if (!items.length) return "none";
  return items.map(([key, item]) => (typeof item === "object" ? `${key}: ${valueText(item)}` : `${key} ${valueText(item)}`)).join(", ");
}
