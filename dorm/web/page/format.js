// Times, quantities and foreign texts as people read them.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/g;

/** Shows characters that hide, move or reverse text as escapes: names and messages come from users, apps and nodes. */
export function clean(text) {
  return String(text ?? "").replace(HIDDEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function short(text, most = 60) {
  const found = clean(text);
  return found.length > most ? `${found.slice(0, most - 1)}…` : found;
}

/** Milliseconds since 1970 of an RFC 3339 time with up to nine digits; null for none. */
export function msOf(iso) {
  if (!iso) return null;
  const dot = iso.indexOf(".");
  if (dot < 0) return Date.parse(iso);
  return Date.parse(`${iso.slice(0, dot)}Z`) + Number(`0${iso.slice(dot, -1)}`) * 1000;
}

const two = (number) => String(number).padStart(2, "0");

/** `14:03:07`, in the reader's time zone. */
export function clock(ms, withMs = false) {
  if (ms == null || !Number.isFinite(ms)) return "–";
  const date = new Date(ms);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMs ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** `21 Nov 14:03:07`. */
export function moment(ms) {
  if (ms == null || !Number.isFinite(ms)) return "–";
  const date = new Date(ms);
  return `${date.getDate()} ${date.toLocaleString("en", { month: "short" })} ${clock(ms)}`;
}

export const utc = (ms) => (ms == null || !Number.isFinite(ms) ? "" : new Date(ms).toISOString());

/** `80 ms`, `4.2 s`, `5 min`, `3.1 h`, `2.4 d`. */
export function span(ms) {
  if (ms == null || !Number.isFinite(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 1000) return `${Math.round(ms)} ms`;
  if (size < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (size < 120_000) return `${Math.round(ms / 1000)} s`;
  if (size < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  if (size < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${(ms / 86_400_000).toFixed(1)} d`;
}

/** `4.85 min`: to three digits, so that lengths that differ little can be told apart. */
export function length(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const [size, unit] = Math.abs(seconds) < 120 ? [1, "s"] : Math.abs(seconds) < 7200 ? [60, "min"] : Math.abs(seconds) < 172_800 ? [3600, "h"] : [86_400, "d"];
  return `${Number((seconds / size).toPrecision(3))} ${unit}`;
}

export const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

export function number(value, digits = 0) {
  if (value == null || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

export const percent = (part, digits = 0) => (Number.isFinite(part) ? `${(part * 100).toFixed(digits)}%` : "–");

/** A resource in its usual unit: milli-cores as cores, bytes as GiB. */
export function amount(kind, value) {
  if (kind === "cpu") return number(value / 1000, value < 1000 ? 2 : value < 10_000 ? 1 : 0);
  if (kind === "memory") {
    for (const [unit, size] of [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= size) return `${number(value / size, value / size < 100 ? 1 : 0)} ${unit}`;
    }
    return `${value} B`;
  }
  return number(value);
}

export const amounts = (map) => Object.entries(map ?? {}).map(([kind, value]) => `${kind} ${amount(kind, value)}`).join(", ");

/** Positions compare by sequence, then by their index in a round, then by their place beside the log (`118~57`). */
export function comparePositions(a, b) {
  const [x, y] = [a, b].map((one) => String(one).split("~")), [p, q] = [x, y].map((one) => one[0].split(".").map(Number));
  return p[0] - q[0] || (p[1] ?? 1e9) - (q[1] ?? 1e9) || Number(x[1] ?? 0) - Number(y[1] ?? 0);
}
