// Output as a terminal shows it: colors and weights as classes, progress bars that overwrite their line, erasing, and moves within
// a line.  What would move the cursor elsewhere, set a title or ask the terminal something is left out.  Memory is that of the line.

import { clean } from "./format.js";

const LONGEST = 20_000, TAB = 8;
const ESCAPE = /\u001b(?:\[([0-?]*)([ -/]*)([@-~]?)|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[ -/]*[0-~]?)/y;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** How text is drawn before anything says otherwise. */
export const PLAIN = Object.freeze({ ink: "", ground: "", bold: false, dim: false, italic: false, underline: false, inverse: false, struck: false });

/** The parts of a line, `[{text, classes}]`, and the style in which the next line begins. */
export function readLine(text, style = PLAIN) {
  if (!/[\u0000-\u0008\u000b-\u001f]/.test(text)) return { parts: text ? [{ text: clean(tabs(text)), classes: classesOf(style) }] : [], style };
  const cells = [];
  let at = 0, now = style, index = 0;
  const put = (sign) => { while (cells.length < at) cells.push([" ", PLAIN]); cells[at++] = [sign, now]; };
  while (index < text.length && at < LONGEST) {
    const sign = String.fromCodePoint(text.codePointAt(index));
    if (sign === "\u001b") {
      ESCAPE.lastIndex = index;
      const [whole, numbers = "", , command] = ESCAPE.exec(text) ?? [sign];
      index += whole.length;
      if (command === "m") now = styled(now, numbers);
      else if (command) at = moved(cells, at, command, numbers);
      continue;
    }
    index += sign.length;
    if (sign === "\r") at = 0;
    else if (sign === "\b") at = Math.max(0, at - 1);
    else if (sign === "\t") do put(" "); while (at % TAB);
    else if (sign !== "\u0007" && sign !== "\u0000") put(sign);
  }
  return { parts: joined(cells), style: now };
}

const tabs = (text) => (text.includes("\t") ? text.replace(/([^\t]*)\t/g, (_, before) => before + " ".repeat(TAB - (before.length % TAB))) : text);

/** Erases or moves within the line; returns the cursor's new place. */
function moved(cells, at, command, numbers) {
  const first = Number.parseInt(numbers, 10), count = Math.min(Number.isNaN(first) ? 1 : Math.max(first, 1), LONGEST);
  if (command === "K") {
    if (Number.isNaN(first) || first === 0) cells.length = Math.min(cells.length, at);
    else cells.fill([" ", PLAIN], 0, first === 2 ? cells.length : Math.min(at + 1, cells.length));
  }
  if (command === "C") return Math.min(at + count, LONGEST);
  if (command === "D") return Math.max(at - count, 0);
  if (command === "G") return count - 1;
  return at;
}

function joined(cells) {
  const parts = [];
  let style = null;
  for (const [sign, of] of cells) {
    if (of !== style) { parts.push({ text: "", classes: classesOf(of) }); style = of; }
    parts.at(-1).text += sign;
  }
  for (const part of parts) part.text = clean(part.text);
  return parts;
}

/** A style after `ESC [ numbers m`. */
function styled(style, numbers) {
  const codes = numbers.split(/[;:]/).map((one) => Number.parseInt(one || "0", 10));
  let next = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 7) next.inverse = true;
    else if (code === 9) next.struck = true;
    else if (code === 22) Object.assign(next, { bold: false, dim: false });
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code === 27) next.inverse = false;
    else if (code === 29) next.struck = false;
    else if (code === 38 || code === 48) {
      const [color, used] = extended(codes, i + 1);
      next[code === 38 ? "ink" : "ground"] = color;
      i += used;
    } else if (code === 39) next.ink = "";
    else if (code === 49) next.ground = "";
    else if (code >= 30 && code <= 37) next.ink = NAMES[code - 30];
    else if (code >= 40 && code <= 47) next.ground = NAMES[code - 40];
    else if (code >= 90 && code <= 97) next.ink = `bright-${NAMES[code - 90]}`;
    else if (code >= 100 && code <= 107) next.ground = `bright-${NAMES[code - 100]}`;
  }
  return next;
}

/** A color of 256 or of 16 million as the nearest of the sixteen, which fit both themes; and how many codes say it. */
function extended(codes, from) {
  if (codes[from] === 5) return [named(codes[from + 1]), 2];
  if (codes[from] === 2) return [nearest(codes.slice(from + 1, from + 4)), 4];
  return ["", 1];
}

function named(number) {
  if (!(number >= 0 && number <= 255)) return "";
  if (number < 8) return NAMES[number];
  if (number < 16) return `bright-${NAMES[number - 8]}`;
  if (number > 231) return nearest(Array(3).fill(8 + (number - 232) * 10));
  const cube = number - 16;
  return nearest([Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => (level ? 55 + level * 40 : 0)));
}

/** The color with the same strong channels: gray from black to white where none stands out. */
function nearest([red = 0, green = 0, blue = 0]) {
  const high = Math.max(red, green, blue), low = Math.min(red, green, blue);
  if (high - low < 40) return high < 64 ? "black" : high < 140 ? "bright-black" : high < 220 ? "white" : "bright-white";
  const half = (high + low) / 2, index = (red > half ? 1 : 0) + (green > half ? 2 : 0) + (blue > half ? 4 : 0);
  return `${high > 200 ? "bright-" : ""}${NAMES[index]}`;
}

function classesOf(style) {
  const found = [];
  const [ink, ground] = style.inverse ? [style.ground, style.ink] : [style.ink, style.ground];
  if (ink) found.push(`ink-${ink}`);
  if (ground) found.push(`ground-${ground}`);
  if (style.inverse && !ink && !ground) found.push("inverse");
  for (const name of ["bold", "dim", "italic", "underline", "struck"]) if (style[name]) found.push(name === "dim" ? "faint" : name);
  return found.join(" ");
}
