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

// --- time -----------------------------------------------------------------------------------------------------------------
//
// One time zone for all that the page shows, reads and copies: the reader's own, or UTC.

const two = (number) => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY_MS = 86_400_000;
const zone = { utc: false };

/** `utc`, or `local`: the browser's. */
export function useZone(name) {
  zone.utc = name === "utc";
}

/** Milliseconds that the zone is ahead of UTC at a moment. */
export const offset = (ms) => (zone.utc ? 0 : -new Date(ms).getTimezoneOffset() * 60_000);

/** `UTC`, `CET` or `UTC+05:30`: the zone's name at a moment. */
export function zoneName(ms = Date.now()) {
  if (zone.utc) return "UTC";
  const part = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(ms).find(({ type }) => type === "timeZoneName")?.value ?? "";
  return /^[A-Z]{3,5}$/.test(part) ? part : ahead(ms) === "Z" ? "UTC" : `UTC${ahead(ms)}`;
}

/** `+01:00`, or `Z` for none. */
function ahead(ms) {
  const minutes = offset(ms) / 60_000, size = Math.abs(minutes);
  return minutes ? `${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}` : "Z";
}

/** The fields of a moment in the zone, as those of a date in UTC. */
const shifted = (ms) => new Date(ms + offset(ms));

const known = (ms) => ms != null && Number.isFinite(ms);

/** `14:03:07`. */
export function clock(ms, withMs = false) {
  return known(ms) ? shifted(ms).toISOString().slice(11, withMs ? 23 : 19) : "–";
}

/** `21 Nov`, and `21 Nov 2025` in another year. */
export function dayOf(ms) {
  const date = shifted(ms), year = date.getUTCFullYear();
  return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}${year === shifted(Date.now()).getUTCFullYear() ? "" : ` ${year}`}`;
}

/** `21 Nov 14:03:07`. */
export const moment = (ms) => (known(ms) ? `${dayOf(ms)} ${clock(ms)}` : "–");

/** `2026-11-21T14:03:07.000+01:00`: to the millisecond, in the zone, as it can be typed again anywhere. */
export const exact = (ms) => (known(ms) ? `${shifted(ms).toISOString().slice(0, 23)}${ahead(ms)}` : "");

/** The same in UTC, for the API. */
export const utc = (ms) => (known(ms) ? new Date(ms).toISOString() : "");

/** The moment of a wall clock in the zone; in the hour that a change of clocks repeats, the later one. */
function wall(fields) {
  const ms = Date.UTC(...fields);
  return ms - offset(ms - offset(ms));
}

const TYPED = /^(\d{4})-(\d\d)-(\d\d)(?:[Tt ]+(\d\d?):(\d\d)(?::(\d\d)(\.\d{1,9})?)?)?\s*(Z|UTC|[+-]\d\d:\d\d)?$/i;
const NAMED = /^(?:(today|yesterday|\d\d? [a-z]{3}[a-z]*(?: \d{4})?)(?:\s+|$))?(?:(\d\d?):(\d\d)(?::(\d\d))?)?$/i;

/** A moment as people type it, as the API takes it: `118`, `118.2`, `-10m`, `2026-11-21 09:00`, `yesterday 14:00`, `14:05` (the
 * latest), `21 Nov 14:03:07`.  Times without a zone are in the page's.  Null for anything else, `""` for `now`. */
export function readMoment(typed, now = Date.now()) {
  const text = typed.trim();
  if (/^(now|live|end)$/i.test(text)) return "";
  if (/^\d{1,15}([.~]\d{1,15}){0,2}$/.test(text)) return text.split(/[.~]/)[0];
  if (/^-\d+(\.\d{1,6})?(ms|s|m|h|d|w)$/.test(text)) return text;
  const full = TYPED.exec(text);
  if (full) return fullMoment(full);
  // The zone has another name in the other half of the year.
  const own = [0, 2, 4, 6, 8, 10].map((months) => zoneName(now - months * 30 * DAY_MS)).find((one) => text.endsWith(` ${one}`));
  const [spelled, name] = own ? [text.slice(0, -own.length).trim(), ""] : text.endsWith(" UTC") ? [text.slice(0, -4).trim(), "utc"] : [text, ""];
  const named = spelled && NAMED.exec(spelled);
  if (!named) return null;
  const before = zone.utc;
  zone.utc ||= name === "utc";
  const time = namedMoment(named, now);
  zone.utc = before;
  return time;
}

/** A time to the second, or to a part of it, means the end of that: what is shown without its smaller parts is included. */
const toItsEnd = (ms, second, fraction = "") => `${utc(ms).slice(0, 19)}${second === undefined ? "" : (fraction || ".").padEnd(10, "9")}Z`;

function fullMoment([, year, month, day, hour = "0", minute = "0", second, fraction = "", ofZone = ""]) {
  const fields = [Number(year), month - 1, Number(day), Number(hour), Number(minute), Number(second ?? 0)];
  if (new Date(Date.UTC(...fields)).toISOString().slice(0, 16) !== `${year}-${month}-${day}T${two(hour)}:${two(minute)}`) return null;
  const [, sign, hours, minutes] = /^([+-])(\d\d):(\d\d)$/.exec(ofZone) ?? [];
  const away = ((Number(hours ?? 0) * 60) + Number(minutes ?? 0)) * 60_000 * (sign === "-" ? -1 : 1);
  const ms = ofZone ? Date.UTC(...fields) - away : wall(fields);
  return toItsEnd(ms, second, fraction);
}

function namedMoment([, day = "", hour, minute, second], now) {
  if (!day && hour === undefined) return null;
  const today = shifted(now);
  let [year, month, date] = [today.getUTCFullYear(), today.getUTCMonth(), today.getUTCDate()];
  if (/^yesterday$/i.test(day)) date -= 1;
  else if (day && !/^today$/i.test(day)) {
    const [numeral, name, ofYear] = day.split(" ");
    date = Number(numeral);
    year = Number(ofYear ?? year);
    month = MONTHS.findIndex((short_) => short_.toLowerCase() === name.slice(0, 3).toLowerCase());
    if (month < 0) return null;
  }
  if (Number(hour ?? 0) > 23 || Number(minute ?? 0) > 59 || Number(second ?? 0) > 59) return null;
  const at = (year_, date_) => wall([year_, month, date_, Number(hour ?? 0), Number(minute ?? 0), Number(second ?? 0)]);
  let ms = at(year, date);
  // A clock alone is its latest occurrence, and a day without a year the latest one.
  if (ms > now && !day) ms = at(year, date - 1);
  if (ms > now + DAY_MS && /^\d\d? [a-z]+$/i.test(day)) ms = at(year - 1, date);
  return toItsEnd(ms, second);
}

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
