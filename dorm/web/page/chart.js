// Curves over time or over containers: one canvas, axes, a pointer that reads values off.

import { html, useRef, useState } from "./vendor/preact.js";
import { Canvas } from "./canvas.js";
import { theme } from "./colors.js";
import { clock, dayOf, moment, number } from "./format.js";
import { Axis } from "./axis.js";
import { Tip } from "./grid.js";
import { Png } from "./picture.js";

const LEFT = 46, BOTTOM = 20, TOP = 8, RIGHT = 10;

/** `lines`: [{name, tone, points: [[x, y, error?]], step?, dots?}].  `time`: whether x is milliseconds since 1970. */
export function Chart({ lines, time = true, height = 150, label, title = "", zero = true, unit = "", most = null, x0 = null, x1 = null, format = (value) => number(value, 3) }) {
  const [size, resize] = useState({ width: 0, height: 0 });
  const [over, hover] = useState(null);
  const picture = useRef({ ask: () => {} });
  const all = lines.flatMap((line) => line.points).filter((point) => Number.isFinite(point[1]));
  const from = x0 ?? Math.min(...all.map((point) => point[0])), to = x1 ?? Math.max(...all.map((point) => point[0]));
  let low = zero ? 0 : Math.min(...all.map((point) => point[1])), high = most ?? Math.max(...all.map((point) => point[1] + (point[2] ?? 0)));
  if (!(high > low)) { high = low + 1; if (!zero) low -= 1; }
  const step = nice((high - low) / 3), ceiling = most ?? Math.ceil(high / step - 1e-9) * step, floor = zero ? 0 : Math.floor(low / step) * step;
  const axis = time ? new Axis(from, to, LEFT, Math.max(size.width - RIGHT, LEFT + 1)) : linear(from, to, LEFT, Math.max(size.width - RIGHT, LEFT + 1));
  const y = (value) => TOP + (1 - (value - floor) / (ceiling - floor || 1)) * (size.height - TOP - BOTTOM);

  function draw(context, width, high_) {
    const tones = theme();
    context.clearRect(0, 0, width, high_);
    if (!all.length) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let value = floor; value <= ceiling + step / 1e6; value += step) {
      context.fillStyle = tones.line;
      context.fillRect(LEFT, y(value), width - LEFT - RIGHT, 1);
      context.fillStyle = tones.muted;
      context.fillText(format(value), LEFT - 6, y(value));
    }
    context.textAlign = "center";
    context.fillStyle = tones.muted;
    for (const [at, text] of axis.ticks(Math.max(2, Math.floor(width / 90)))) context.fillText(text, Math.min(Math.max(axis.x(at), LEFT + 16), width - 28), high_ - 8);
    context.textAlign = "left";
    for (const line of lines) drawLine(context, line, axis, y, tones, to);
    if (over) { context.fillStyle = tones.muted; context.fillRect(over.x, TOP, 1, high_ - TOP - BOTTOM); }
  }
  const read = over && all.length ? lines.map((line) => ({ ...line, point: valueAt(line, axis.time(over.x)) })).filter((line) => line.point) : [];
  return html`<div class="chart pictured">${title && html`<h3>${title}</h3>`}<div class="chartbox" ref=${(box) => { if (box) box.style.height = `${height}px`; }}>
    <${Canvas} draw=${draw} sized=${(width, high_) => resize({ width, height: high_ })} label=${told(label, lines[0]?.points, format)} onmount=${(_, ask) => { picture.current.ask = ask; }}
      onPointerMove=${(event) => { const box = event.currentTarget.getBoundingClientRect(); hover({ x: event.clientX - box.left, y: event.clientY - box.top }); }} onPointerLeave=${() => hover(null)} />
    ${read.length > 0 && html`<${Tip} x=${over.x} y=${over.y - 10} width=${size.width}>
      <p class="dim">${time ? (dayOf(from) === dayOf(to) ? clock : moment)(axis.time(over.x)) : `${number(read[0].point[0], 2)} ${unit}`}</p>
      ${read.map((line) => html`<p class="tiprow"><i class=${line.swatch ?? `key ${line.tone}`}></i>${line.name} ${format(line.point[1])}</p>`)}
    <//>`}
    ${all.length > 0 && html`<${Png} name=${title || label} />`}</div>${lines.length > 1 && html`<p class="legend">${lines.map((line) => html`<span><i class=${line.swatch ?? `key ${line.tone}`}></i>${line.name}</span>`)}</p>`}
  </div>`;
}

function drawLine(context, line, axis, y, tones, to) {
  const color = tones[line.tone] ?? line.color ?? tones.accent;
  context.strokeStyle = color;
  context.fillStyle = color;
  context.lineWidth = 1.6;
  context.setLineDash(line.dashed ? [5, 4] : []);
  if (line.points.some((point) => point[2])) {
    context.globalAlpha = 0.15;
    context.beginPath();
    line.points.forEach(([at, value, error = 0], index) => context[index ? "lineTo" : "moveTo"](axis.x(at), y(value + error)));
    for (const [at, value, error = 0] of [...line.points].reverse()) context.lineTo(axis.x(at), y(value - error));
    context.fill();
    context.globalAlpha = 1;
  }
  context.beginPath();
  let last = null, broken = true;
  for (const [at, value] of line.points) {
    if (!Number.isFinite(value)) { broken = true; continue; }
    if (broken) context.moveTo(axis.x(at), y(value));
    else {
      if (line.step) context.lineTo(axis.x(at), y(last));
      context.lineTo(axis.x(at), y(value));
    }
    last = value;
    broken = false;
  }
  if (line.step && last !== null) context.lineTo(axis.x(to), y(last));
  context.stroke();
  context.setLineDash([]);
  if (line.dots) for (const [at, value] of line.points) { context.beginPath(); context.arc(axis.x(at), y(value), 2.6, 0, 7); context.fill(); }
}

function valueAt(line, at) {
  let found = null;
  if (line.step) { for (const point of line.points) if (point[0] <= at) found = point; return found; }
  for (const point of line.points) if (!found || Math.abs(point[0] - at) < Math.abs(found[0] - at)) found = point;
  return found;
}

function nice(step) {
  const size = 10 ** Math.floor(Math.log10(step || 1));
  for (const one of [1, 2, 5, 10]) if (step <= one * size) return one * size;
  return 10 * size;
}

function linear(from, to, x0, x1) {
  const length = to - from || 1, pad = Math.min(16, (x1 - x0) / 10);
  const x = (value) => x0 + pad + ((value - from) / length) * (x1 - x0 - 2 * pad);
  return {
    x, time: (at) => Math.min(Math.max(from + ((at - x0 - pad) / (x1 - x0 - 2 * pad)) * length, from), to),
    ticks: (most) => {
      const step = Math.max(1, nice(length / most)), found = [];
      for (let value = Math.ceil(from / step) * step; value <= to; value += step) found.push([value, String(value)]);
      return found;
    },
  };
}

/** What a picture shows, for those who cannot see it. */
const told = (label, points, format) => (points?.length ? `${label}, from ${format(points[0][1])} to ${format(points.at(-1)[1])}` : label);
