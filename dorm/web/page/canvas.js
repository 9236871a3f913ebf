// A canvas that is as sharp as the screen, follows its size, and draws only when something has changed.

import { html, useEffect, useLayoutEffect, useRef } from "./vendor/preact.js";

/** `draw(context, width, height)` in CSS pixels.  `sized(width, height)` is called when the size has changed. */
export function Canvas({ draw, sized, class: name = "", label, role = "img", onmount, ...rest }) {
  const place = useRef(null);
  const state = useRef({ width: 0, height: 0, frame: 0 });
  state.current.draw = draw;
  state.current.sized = sized;

  const paint = () => {
    const now = state.current;
    now.frame = 0;
    const canvas = place.current;
    if (!canvas || !now.width || !now.height) return;
    const context = canvas.getContext("2d");
    const scale = canvas.width / now.width;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const begin = performance.now();
    now.draw(context, now.width, now.height);
    (window.__frames ??= []).push(performance.now() - begin);
    if (window.__frames.length > 2000) window.__frames.splice(0, 1000);
  };
  const ask = () => { state.current.frame ||= requestAnimationFrame(paint); };

  useLayoutEffect(() => {
    const canvas = place.current;
    const observer = new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      const scale = Math.min(window.devicePixelRatio || 1, 2);
      canvas.width = Math.max(1, Math.round(width * scale));
      canvas.height = Math.max(1, Math.round(height * scale));
      Object.assign(state.current, { width, height });
      state.current.sized?.(width, height);
      paint();
    });
    observer.observe(canvas);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", ask);
    onmount?.(canvas, ask);
    return () => { observer.disconnect(); theme.removeEventListener("change", ask); cancelAnimationFrame(state.current.frame); };
  }, []);
  useEffect(ask);
  return html`<canvas ref=${place} class=${name} role=${role} aria-label=${label} ...${rest}></canvas>`;
}

/** Rectangles by color: filling one path for each color is many times faster than one call for each rectangle. */
export class Boxes {
  constructor() { this.by = new Map(); }
  add(color, x, y, width, height) {
    let list = this.by.get(color);
    if (!list) this.by.set(color, list = []);
    list.push(x, y, width, height);
  }
  fill(context, alpha = 1) {
    context.globalAlpha = alpha;
    for (const [color, list] of this.by) {
      context.fillStyle = color;
      if (list.length < 400) {
        for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
        continue;
      }
      context.beginPath();
      for (let i = 0; i < list.length; i += 4) context.rect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      context.fill();
    }
    context.globalAlpha = 1;
  }
}

const hatches = new Map();

/** A pattern of slanted lines in a color. */
export function hatch(context, color) {
  if (!hatches.has(color)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.strokeStyle = color;
    pen.lineWidth = 1.6;
    pen.beginPath();
    pen.moveTo(-1, 7); pen.lineTo(7, -1);
    pen.moveTo(-1, 1); pen.lineTo(1, -1);
    pen.moveTo(5, 7); pen.lineTo(7, 5);
    pen.stroke();
    hatches.set(color, tile);
  }
  return context.createPattern(hatches.get(color), "repeat");
}

/** The pattern of an app's style, drawn over its color: 1 for stripes, 2 for dots. */
export function patterned(context, pattern, color) {
  const key = `${pattern} ${color}`;
  if (!hatches.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.globalAlpha = 0.6;
    pen.fillStyle = color;
    if (pattern === 1) pen.fillRect(0, 0, 2, 6);
    else { pen.beginPath(); pen.arc(3, 3, 1.5, 0, 7); pen.fill(); }
    hatches.set(key, tile);
  }
  return context.createPattern(hatches.get(key), "repeat");
}

/** Text that fits, shortened with dots; with `tail` its end is kept, which tells numbered names apart. */
export function fitText(context, text, width, tail = false) {
  if (context.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(shortened(text, middle, tail)).width <= width) low = middle; else high = middle - 1;
  }
  return low ? shortened(text, low, tail) : "";
}

const shortened = (text, length, tail) => (tail ? `…${text.slice(text.length - length)}` : `${text.slice(0, length)}…`);
