// Time on a picture: from milliseconds to pixels and back, where long times without any event may be compressed.

import { clock, dayOf, offset } from "./format.js";

const COMPRESSED = 18;

export class Axis {
  /** `events`: ascending milliseconds at which something happened, or null to compress nothing. */
  constructor(from, to, x0, x1, events = null) {
    Object.assign(this, { from, to: Math.max(to, from + 1), x0, x1 });
    this.parts = [{ from, to: this.to, x0, x1, idle: false }];
    if (events) this.#compress(events);
  }

  #compress(events) {
    const length = this.to - this.from, least = Math.max(length / 25, 10_000);
    const marks = [this.from, ...events.filter((time) => time > this.from && time < this.to), this.to];
    const parts = [];
    for (let i = 1; i < marks.length; i++) {
      const idle = marks[i] - marks[i - 1] > least;
      const last = parts.at(-1);
      if (!idle && last && !last.idle) last.to = marks[i];
      else parts.push({ from: marks[i - 1], to: marks[i], idle });
    }
    const idle = parts.filter((part) => part.idle);
    const busy = parts.reduce((sum, part) => sum + (part.idle ? 0 : part.to - part.from), 0);
    if (!idle.length) return;
    const edge = Math.min(COMPRESSED, (this.x1 - this.x0) / (3 * idle.length));
    const room = this.x1 - this.x0 - edge * idle.length;
    if (busy <= 0) return;
    let x = this.x0;
    for (const part of parts) {
      part.x0 = x;
      x += part.idle ? edge : (room * (part.to - part.from)) / busy;
      part.x1 = x;
    }
    this.parts = parts;
  }

  x(time) {
    const bounded = Math.min(Math.max(time, this.from), this.to);
    const part = this.parts.find((one) => bounded <= one.to) ?? this.parts.at(-1);
    return part.x0 + ((bounded - part.from) / Math.max(part.to - part.from, 1e-9)) * (part.x1 - part.x0);
  }

  time(x) {
    const bounded = Math.min(Math.max(x, this.x0), this.x1);
    const part = this.parts.find((one) => bounded <= one.x1) ?? this.parts.at(-1);
    return part.from + ((bounded - part.x0) / Math.max(part.x1 - part.x0, 1e-9)) * (part.to - part.from);
  }

  get idle() {
    return this.parts.filter((part) => part.idle);
  }

  /** Round moments for labels: [milliseconds, text]. */
  ticks(most = 8) {
    const length = this.parts.reduce((sum, part) => sum + (part.idle ? 0 : part.to - part.from), 0) || this.to - this.from;
    const step = STEPS.find((one) => length / one <= most) ?? STEPS.at(-1);
    const found = [];
    const zone = -offset(this.from);
    for (const part of this.parts) {
      if (part.idle) continue;
      for (let time = Math.ceil((part.from - zone) / step) * step + zone; time <= part.to; time += step) {
        if (!found.length || this.x(time) - this.x(found.at(-1)[0]) > 54) found.push([time, label(time, step)]);
      }
    }
    return found;
  }
}

const STEPS = [100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000,
  3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000];

function label(time, step) {
  if (step >= 86_400_000) return dayOf(time);
  const text = clock(time, true);
  if (step >= 60_000) return text.startsWith("00:00") ? dayOf(time) : text.slice(0, 5);
  return step >= 1000 ? text.slice(0, 8) : text.slice(0, 10);
}
