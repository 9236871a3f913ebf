// Lines of output as a terminal shows them: a bounded number, colors, a progress bar that is replaced, times and slots in front, and
// only the lines that contain a text, if there is one.  It writes to the page itself: thousands of lines come in bursts.

import { PLAIN, readLine } from "./ansi.js";
import { exact, msOf } from "./format.js";

export const MOST_LINES = 5000;
const NEAR = 30;

export class Screen {
  /** `changed(shown, all)` is called when lines have been drawn. */
  constructor(box, changed) {
    this.box = box;
    this.changed = changed;
    this.wanted = "";
    this.shownLines = 0;
    this.waiting = [];
    this.frame = 0;
    this.styles = new Map();
    /** The line of each slot that a progress bar has begun. */
    this.open = new Map();
  }

  /** `line`: `{text, time?, slot?, partial?, mark?}`; a `mark` is the page's own word, not output. */
  put(line) {
    const last = this.waiting.at(-1);
    if (last?.partial && last.slot === line.slot) this.waiting[this.waiting.length - 1] = line; else this.waiting.push(line);
    if (this.waiting.length > MOST_LINES) this.waiting.splice(0, this.waiting.length - MOST_LINES);
    this.frame ||= requestAnimationFrame(() => this.#draw());
  }

  clear() {
    this.waiting = [];
    this.styles.clear();
    this.open.clear();
    this.shownLines = 0;
    this.box.textContent = "";
    this.changed(0, 0);
  }

  close() { cancelAnimationFrame(this.frame); }

  /** Shows only the lines that contain a text. */
  find(text) {
    this.wanted = text.toLowerCase();
    this.shownLines = 0;
    for (const row of this.box.children) this.#match(row);
    this.changed(this.shownLines, this.box.children.length);
  }

  /** Shows the times in the page's zone, which has changed. */
  retime() {
    for (const row of this.box.children) if (row.at !== undefined) row.firstElementChild.textContent = timeOf(row);
  }

  /** What is shown, as text. */
  get text() {
    return [...this.box.children].filter((row) => !row.hidden).map((row) => row.textContent).join("\n");
  }

  #draw() {
    this.frame = 0;
    const box = this.box, down = box.scrollTop + box.clientHeight > box.scrollHeight - NEAR;
    const rows = document.createDocumentFragment();
    for (const line of this.waiting) {
      const before = this.open.get(line.slot), row = this.#row(line);
      if (before) this.#drop(before, row); else rows.append(row);
      if (line.partial) this.open.set(line.slot, row); else this.open.delete(line.slot);
    }
    this.waiting = [];
    box.append(rows);
    while (box.children.length > MOST_LINES) this.#forget(box.firstElementChild);
    if (down) box.scrollTop = box.scrollHeight;
    this.changed(this.shownLines, box.children.length);
  }

  #drop(before, row) {
    if (!before.hidden) this.shownLines -= 1;
    before.replaceWith(row);
  }

  #forget(row) {
    if (!row.hidden) this.shownLines -= 1;
    for (const [slot, open] of this.open) if (open === row) this.open.delete(slot);
    row.remove();
  }

  #row(line) {
    const row = document.createElement("div");
    if (line.mark) { row.className = "mark"; row.textContent = line.mark; }
    else {
      const { parts, style } = readLine(line.text, this.styles.get(line.slot) ?? PLAIN);
      if (!line.partial) this.styles.set(line.slot, style);
      row.at = msOf(line.time);
      row.append(part("time", timeOf(row)));
      if (line.slot !== undefined) row.append(part(`rank rank${line.slot % 6}`, `${line.slot} `));
      for (const one of parts) row.append(part(one.classes, one.text));
    }
    this.#match(row);
    return row;
  }

  #match(row) {
    row.hidden = this.wanted !== "" && !row.textContent.toLowerCase().includes(this.wanted);
    if (!row.hidden) this.shownLines += 1;
  }
}

/** When a line was written, as wide as any other one. */
const timeOf = ({ at }) => `${(exact(at) || "-").padEnd(exact(Date.now()).length)} `;

function part(classes, text) {
  if (!classes) return document.createTextNode(text);
  const made = document.createElement("span");
  made.className = classes;
  made.textContent = text;
  return made;
}
