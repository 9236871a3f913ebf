// Specs as people write them.  Only what a spec can hold: maps, lists, texts, numbers, truth.

const WORD = /^[A-Za-z_/][\w./@+=-]*$/, SPECIAL = new Set(["y", "n", "yes", "no", "on", "off", "true", "false", "null"]);
const WIDTH = 100;

/** A document as YAML; short lists and maps of plain values are written in one line. */
export function asYaml(value) {
  return Object.entries(value).map(([name, one]) => entry(name, one, 0)).join("");
}

function entry(name, value, depth) {
  const space = "  ".repeat(depth), head = `${space}${scalar(name)}:`;
  if (!value || typeof value !== "object") return `${head} ${scalar(value, depth + 1)}\n`;
  const line = flow(value);
  if (line && head.length + line.length < WIDTH) return `${head} ${line}\n`;
  if (Array.isArray(value)) return `${head}\n${value.map((one) => item(one, depth + 1)).join("")}`;
  return `${head}\n${Object.entries(value).map(([inner, one]) => entry(inner, one, depth + 1)).join("")}`;
}

function item(value, depth) {
  const space = "  ".repeat(depth);
  if (!value || typeof value !== "object") return `${space}- ${scalar(value, depth + 1)}\n`;
  if (Array.isArray(value)) return `${space}- ${flow(value) || JSON.stringify(value)}\n`;
  const text = Object.entries(value).map(([inner, one]) => entry(inner, one, depth + 1)).join("");
  return text ? `${space}- ${text.slice(space.length + 2)}` : `${space}- {}\n`;
}

/** A list or map in one line; "" for one that holds others. */
function flow(value) {
  const inner = Object.values(value);
  if (inner.some((one) => one && typeof one === "object") || inner.some((one) => typeof one === "string" && one.includes("\n"))) return "";
  if (Array.isArray(value)) return `[${value.map((one) => scalar(one)).join(", ")}]`;
  return `{${Object.entries(value).map(([name, one]) => `${scalar(name)}: ${scalar(one)}`).join(", ")}}`;
}

/** `depth` is where the lines of a text go that has several. */
function scalar(value, depth = 0) {
  if (typeof value !== "string") return String(value);
  if (WORD.test(value) && !SPECIAL.has(value.toLowerCase())) return value;
  const lines = value.split("\n");
  // A block keeps its text as it is; what such a block could not hold stays in quotes.
  if (depth && lines.length > 1 && !/^\s|[\u0000-\u0009\u000b-\u001f\u007f-\u009f\ufeff]|\n$/.test(value)) return `|-\n${lines.map((line) => (line ? "  ".repeat(depth) + line : "")).join("\n")}`;
  return JSON.stringify(value).replace(/[\u007f-\u009f\u2028\u2029\ufeff]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
