// The cluster as a grid of nodes: from the whole cluster to a label's group, to a node, to its slots.  Only what is visible is
// drawn.  A mouse, a finger or the keyboard moves: arrows choose a node, Enter goes deeper, Escape goes back.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Boxes, Canvas, fitText, hatch, patterned } from "./canvas.js";
import { appColor, appPattern, isLight, theme } from "./colors.js";
import { amounts, clean, percent, plural, short } from "./format.js";
import { groupsOf, layOut } from "./gridlayout.js";
import { Swatch } from "./parts.js";
import { Png } from "./picture.js";
import { go, recall, remember, store, visit } from "./store.js";

/** Pixels of a cell from which on a second line says what the node has. */
const DETAILS = 200;
/** Pixels of a cell from which on the patterns of apps can be seen. */
const PATTERNED = 12;
/** How much of other apps is left while one is looked for. */
const FAINT = 0.14;

/** How much of a node each of its apps takes: its largest part of any kind. */
export function fills(node, apps) {
  let sum = 0;
  const found = [];
  for (const [id, count, starting = 0, stopping = 0] of node.containers) {
    const demand = apps.get(id)?.demand ?? {};
    let part = 0;
    for (const kind in demand) if (node.capacity[kind] > 0) part = Math.max(part, (demand[kind] * count) / node.capacity[kind]);
    part ||= 0.05;
    sum += part;
    found.push({ id, count, starting, stopping, part });
  }
  if (sum > 1) for (const one of found) one.part /= sum;
  return found;
}

/** `only` is the one node to draw, in place of all. */
export function Grid({ model, focus = "", mark = "", height, only = "", onfocus, label = "Nodes of the cluster" }) {
  const keys = only ? [] : model.labelKeys;
  const [chosen, choose] = useState(recall("group", null));
  const key = chosen !== null && (chosen === "" || keys.includes(chosen)) ? chosen : keys[0] ?? "";
  const [width, widen] = useState(0);
  const [over, hover] = useState(null);
  const camera = useRef({ x: 0, y: 0, zoom: 1, target: null, frame: 0 });
  const picture = useRef({ ask: () => {}, canvas: null, ids: "" });
  const selected = useRef("");
  const [spoken, speak] = useState("");

  const layout = useMemo(() => layOut(only ? [{ name: "", nodes: [only] }] : groupsOf(model, key), Math.max(width - 2, 10), Math.max(height - 2, 10)),
    [model.sorted, key, width, height, keys.join(), only]);
  // A small cluster takes less room than it may.
  const size = { width, height: only ? height : Math.max(Math.min(height, Math.ceil(layout.height) + 4), 150) };
  const view = useRef({});
  view.current = { layout, model, size };

  useEffect(() => { moveCamera(target(focus), !picture.current.moved); picture.current.moved = true; }, [focus, layout]);

  /** The camera for a focus: the whole, a group (`group:NAME`) or a node (`node:NAME`). */
  function target(name) {
    const box = name.startsWith("group:") ? layout.blocks.find((one) => one.name === name.slice(6))
      : name.startsWith("node:") ? (() => { const cell = layout.cells.get(name.slice(5)); return cell && { x: cell.x, y: cell.y, width: layout.cell, height: layout.cell }; })()
        : null;
    if (!box) return { x: 0, y: 0, zoom: 1 };
    const zoom = Math.min(Math.max(Math.min(size.width / (box.width + 8), size.height / (box.height + 8)), 1), 600);
    return { zoom, x: box.x + box.width / 2 - size.width / zoom / 2, y: box.y + box.height / 2 - size.height / zoom / 2 };
  }

  function moveCamera(to, at_once = false) {
    const now = camera.current;
    cancelAnimationFrame(now.frame);
    if (at_once || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      Object.assign(now, to);
      picture.current.ask();
      return;
    }
    const from = { x: now.x, y: now.y, zoom: now.zoom }, begin = performance.now();
    const step = (time) => {
      const part = Math.min(Math.max((time - begin) / 220, 0), 1), eased = 1 - (1 - part) ** 3;
      now.zoom = from.zoom * (to.zoom / from.zoom) ** eased;
      now.x = from.x + (to.x - from.x) * eased;
      now.y = from.y + (to.y - from.y) * eased;
      picture.current.ask();
      if (part < 1) now.frame = requestAnimationFrame(step); else Object.assign(now, to);
    };
    now.frame = requestAnimationFrame(step);
  }

  const focusOn = (name) => (onfocus ? onfocus(name) : go({ q: { focus: name || null } }));

  function draw(context, wide, high) {
    const { layout: now, model: shown } = view.current, tones = theme(), { x, y, zoom } = camera.current;
    context.canvas.dataset.position = shown.position;
    context.clearRect(0, 0, wide, high);
    const cell = now.cell * zoom;
    const left = x - now.cell, top = y - now.cell, right = x + wide / zoom, bottom = y + high / zoom;
    if (now.named) drawHeads(context, now, tones, { x, y, zoom, width: wide, height: high });
    const inside = [];
    for (const block of now.blocks) {
      if (block.x > right || block.x + block.width < left || block.y > bottom || block.y + block.height < top) continue;
      const firstRow = Math.max(0, Math.floor((top - block.top) / now.cell)), lastRow = Math.ceil((bottom - block.top) / now.cell);
      const firstColumn = Math.max(0, Math.floor((left - block.x) / now.cell)), lastColumn = Math.min(block.columns - 1, Math.ceil((right - block.x) / now.cell));
      for (let row = firstRow; row <= lastRow; row++) {
        for (let column = firstColumn; column <= lastColumn; column++) {
          const id = block.nodes[row * block.columns + column];
          if (id === undefined) break;
          inside.push(id, (block.x + column * now.cell - x) * zoom, (block.top + row * now.cell - y) * zoom);
        }
      }
    }
    const gap = cell > 8 ? Math.min(4, cell * 0.08) : cell > 4 ? 1 : 0.5;
    const lit = store.lit ?? (store.route.page === "cluster" ? store.route.q.app ?? null : null);
    context.canvas.dataset.lit = lit ?? "";
    if (cell < 46) drawSmall(context, inside, cell - gap, shown, tones, lit); else drawLarge(context, inside, cell - gap, shown, tones, lit);
    const one = mark || selected.current;
    const chosenCell = one && now.cells.get(one);
    if (chosenCell) outline(context, (chosenCell.x - x) * zoom, (chosenCell.y - y) * zoom, cell - gap, tones.ink);
  }

  function place(event) {
    const box = event.currentTarget.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function find(px, py) {
    const { x, y, zoom } = camera.current, wx = px / zoom + x, wy = py / zoom + y;
    for (const block of layout.blocks) {
      if (wx < block.x || wx > block.x + block.width || wy < block.y || wy > block.y + block.height) continue;
      if (wy < block.top) return { block };
      const column = Math.floor((wx - block.x) / layout.cell), row = Math.floor((wy - block.top) / layout.cell);
      const id = column < block.columns ? block.nodes[row * block.columns + column] : undefined;
      return id === undefined ? { block } : { block, node: id };
    }
    return {};
  }

  const pointers = useRef(new Map()), dragged = useRef(0);
  function down(event) {
    event.currentTarget.setPointerCapture(event.pointerId);
    pointers.current.set(event.pointerId, place(event));
    dragged.current = 0;
  }
  function move(event) {
    const at = place(event), before = pointers.current.get(event.pointerId), now = camera.current;
    if (!before) {
      const found = find(...at);
      hover(found.node ? { node: found.node, x: at[0], y: at[1] } : null);
      return;
    }
    dragged.current += Math.abs(at[0] - before[0]) + Math.abs(at[1] - before[1]);
    if (pointers.current.size === 2) {
      const other = [...pointers.current].find(([id]) => id !== event.pointerId)[1];
      zoomAt((at[0] + other[0]) / 2, (at[1] + other[1]) / 2, Math.hypot(at[0] - other[0], at[1] - other[1]) / Math.max(Math.hypot(before[0] - other[0], before[1] - other[1]), 1));
    } else if (now.zoom > 1) {
      now.x -= (at[0] - before[0]) / now.zoom;
      now.y -= (at[1] - before[1]) / now.zoom;
      bound();
    }
    pointers.current.set(event.pointerId, at);
    hover(null);
    picture.current.ask();
  }
  function up(event) {
    pointers.current.delete(event.pointerId);
    if (dragged.current > 6) return;
    const found = find(...place(event));
    if (found.node) enter(found.node, place(event)); else if (found.block && found.block.name) focusOn(`group:${found.block.name}`);
  }

  /** One level deeper: from the cluster to the node, from the node to the app in the slot that was hit. */
  function enter(node, at = null) {
    selected.current = node;
    if (only || focus === `node:${node}`) {
      const app = at && slotAt(node, at);
      if (app) visit("app", app); else visit("node", node);
    } else if (layout.cell * camera.current.zoom > 110) visit("node", node);
    else focusOn(`node:${node}`);
  }

  function slotAt(node, [px, py]) {
    const cell = layout.cells.get(node), { x, y, zoom } = camera.current;
    const found = slots(model.nodes.get(node), model.apps, layout.cell * zoom, (cell.x - x) * zoom, (cell.y - y) * zoom);
    return found.find((slot) => px >= slot.x && px <= slot.x + slot.w && py >= slot.y && py <= slot.y + slot.h)?.id;
  }

  function zoomAt(px, py, factor) {
    const now = camera.current, before = now.zoom;
    cancelAnimationFrame(now.frame);
    now.zoom = Math.min(Math.max(before * factor, 1), 600);
    now.x += px / before - px / now.zoom;
    now.y += py / before - py / now.zoom;
    bound();
    picture.current.ask();
  }
  function bound() {
    const now = camera.current, wide = size.width / now.zoom, high = size.height / now.zoom;
    now.x = Math.min(Math.max(now.x, -wide * 0.2), Math.max(layout.width, size.width) - wide * 0.8);
    now.y = Math.min(Math.max(now.y, -high * 0.2), Math.max(layout.height, size.height) - high * 0.8);
    if (now.zoom === 1) Object.assign(now, { x: 0, y: 0 });
  }
  function wheel(event) {
    if (!event.ctrlKey && !event.metaKey && camera.current.zoom === 1 && event.deltaY > 0) return;
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== event.currentTarget) return;
    event.preventDefault();
    zoomAt(...place(event), Math.exp(-event.deltaY * 0.0022));
  }

  function keyboard(event) {
    const order = layout.order, index = Math.max(0, order.findIndex((one) => one.id === selected.current));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: order[index]?.block.columns ?? 1, ArrowUp: -(order[index]?.block.columns ?? 1), Home: -order.length, End: order.length }[event.key];
    if (step) {
      const next = order[Math.min(Math.max(index + (selected.current ? step : 0), 0), order.length - 1)];
      if (next) { selected.current = next.id; speak(describe(model.nodes.get(next.id), model)); picture.current.ask(); hover(null); }
    } else if (event.key === "Enter" && selected.current) enter(selected.current);
    else if (event.key === "Escape" && focus) focusOn("");
    else if (event.key === "+" || event.key === "=") zoomAt(size.width / 2, size.height / 2, 1.5);
    else if (event.key === "-") zoomAt(size.width / 2, size.height / 2, 1 / 1.5);
    else if (event.key === "0") focusOn("");
    else return;
    event.preventDefault();
  }

  picture.current.wheel = wheel;
  const tip = over && model.nodes.get(over.node);
  return html`<div class="grid pictured">
    ${!only && html`<div class="gridbar">
      <nav aria-label="Zoom" class="crumbs">
        <button type="button" onClick=${() => { focusOn(""); moveCamera({ x: 0, y: 0, zoom: 1 }); }} aria-current=${focus ? undefined : "true"}>Cluster</button>
        ${focus.startsWith("group:") && html`<span aria-hidden="true">›</span><b><bdi>${clean(key)} ${clean(focus.slice(6))}</bdi></b>`}
        ${focus.startsWith("node:") && html`<span aria-hidden="true">›</span><button type="button" onClick=${() => visit("node", focus.slice(5))} title="Open this node"><bdi>${clean(focus.slice(5))}</bdi></button>`}
      </nav>
      ${keys.length > 0 && html`<label class="small">Group by <select value=${key} onChange=${(event) => { remember("group", event.target.value); choose(event.target.value); }}>
        <option value="">nothing</option>${keys.map((one) => html`<option value=${one}>${clean(one)}</option>`)}</select></label>`}
      <span class="buttons">
        <button type="button" onClick=${() => zoomAt(size.width / 2, size.height / 2, 1.6)} aria-label="Zoom in">+</button>
        <button type="button" onClick=${() => zoomAt(size.width / 2, size.height / 2, 1 / 1.6)} aria-label="Zoom out">−</button>
        <${Png} name=${label} />
      </span>
    </div>`}
    <div class="gridbox" ref=${(box) => { if (box) box.style.height = `${size.height}px`; }}>
      <${Canvas} draw=${draw} sized=${(wide) => widen(wide)} class="gridcanvas" role="application"
        label=${`${label}: ${plural(model.nodes.size, "node")}. Arrows choose a node, Enter zooms in or opens it, Escape zooms out. The page Nodes lists the same as a table.`}
        tabindex="0" onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerCancel=${(event) => pointers.current.delete(event.pointerId)}
        onPointerLeave=${() => hover(null)} onKeyDown=${keyboard}
        onmount=${(canvas, ask) => { picture.current.ask = ask; picture.current.canvas = canvas; canvas.addEventListener("wheel", (event) => picture.current.wheel(event), { passive: false }); }} />
      ${tip && html`<${Tip} x=${over.x} y=${over.y} width=${size.width}>
        <b><bdi>${clean(tip.id)}</bdi></b><span class="dim"> ${tip.state}</span>
        <p>${Object.keys(tip.capacity).map((kind) => `${kind} ${percent((tip.used[kind] ?? 0) / (tip.capacity[kind] || 1))}`).join(" · ")}</p>
        ${tip.containers.slice(0, 8).map(([id, count]) => html`<p class="tiprow"><${Swatch} id=${id} /><bdi>${short(model.apps.get(id)?.name ?? id, 32)}</bdi> ×${count}</p>`)}
        ${tip.containers.length > 8 && html`<p class="dim">and ${tip.containers.length - 8} more</p>`}
        ${tip.note && html`<p class="warn">${short(tip.note, 120)}</p>`}
      <//>`}
    </div>
    <p class="sr" role="status">${spoken}</p>
  </div>`;
}

export function Tip({ x, y, width, children }) {
  const put = (box) => {
    if (!box) return;
    box.style.left = `${Math.min(x + 14, Math.max(0, width - box.offsetWidth - 4))}px`;
    box.style.top = `${y + 16}px`;
  };
  return html`<div class="tip" ref=${put} aria-hidden="true">${children}</div>`;
}

export function describe(node, model) {
  const held = node.containers.map(([id, count]) => `${count} of ${model.apps.get(id)?.name ?? id}`);
  return clean(`${node.id}, ${node.state}, ${held.length ? held.slice(0, 10).join(", ") : "no containers"}`);
}

function drawHeads(context, layout, tones, { x, y, zoom, width, height }) {
  context.font = "600 11.5px system-ui, sans-serif";
  context.textBaseline = "alphabetic";
  for (const block of layout.blocks) {
    const left = (block.x - x) * zoom, top = (block.top - y) * zoom - 5, wide = block.width * zoom;
    if (left > width || left + wide < 0 || top < -20 || top > height + 20 || wide < 26) continue;
    context.fillStyle = tones.muted;
    const name = clean(block.name || "no label");
    const roomy = wide > 90;
    context.fillText(fitText(context, name, Math.max(roomy ? wide - 30 : wide, 20), true), Math.max(left, 2), Math.max(top, 11));
    if (roomy) {
      const count = String(block.nodes.length);
      context.fillText(count, Math.min(left + wide, width) - context.measureText(count).width - 2, Math.max(top, 11));
    }
  }
}

/** Cells of a few pixels: the apps' parts as columns; trouble as a frame. */
function drawSmall(context, inside, size, model, tones, lit) {
  const back = new Boxes(), front = new Boxes(), faint = new Boxes(), others = new Boxes(), trouble = new Boxes(), patterns = [], marked = [];
  for (let i = 0; i < inside.length; i += 3) {
    const node = model.nodes.get(inside[i]), x = inside[i + 1], y = inside[i + 2];
    if (!node) continue;
    back.add(node.state === "lost" ? tones.bad : node.state === "left" ? tones.line : tones.cell, x, y, size, size);
    let from = 0;
    if (lit && node.containers.some((held) => held[0] === lit)) marked.push([x, y]);
    for (const one of node.fill ?? (node.fill = fills(node, model.apps))) {
      const wide = one.part * size;
      const busy = lit && one.id !== lit ? others : one.count - one.starting > 0 ? front : faint;
      busy.add(appColor(one.id, tones), x + from, y, Math.max(wide, 0.6), size);
      if (size > PATTERNED && appPattern(one.id) && busy !== others) patterns.push([appPattern(one.id), x + from, y, wide, size]);
      from += wide;
    }
    if (node.state !== "up" && size > 3) {
      const color = node.state === "lost" ? tones.bad : node.state === "left" ? tones.muted : tones.warn, thick = Math.max(1, size * 0.14);
      trouble.add(color, x, y, size, thick);
      trouble.add(color, x, y + size - thick, size, thick);
    }
  }
  back.fill(context);
  front.fill(context);
  faint.fill(context, 0.5);
  others.fill(context, FAINT);
  for (const [pattern, ...box] of patterns) { context.fillStyle = patterned(context, pattern, tones.cell); context.fillRect(...box); }
  trouble.fill(context);
  for (const [x, y] of marked) outline(context, x, y, size, tones.ink, Math.min(2, Math.max(1, size * 0.08)));
}

/** Where the slots of a large cell are. */
function slots(node, apps, cell, x, y) {
  const pad = Math.min(8, cell * 0.06), head = cell > DETAILS ? 42 : cell > 46 ? Math.min(24, Math.max(15, cell * 0.14)) : 0;
  const wide = cell - 2 * pad, high = cell - head - 2 * pad;
  const found = [];
  for (const one of fills(node, apps)) for (let slot = 0; slot < one.count; slot++) {
    const state = slot < one.count - one.starting - one.stopping ? "running" : slot < one.count - one.stopping ? "starting" : "stopping";
    found.push({ id: one.id, state, part: one.part / one.count });
  }
  const total = found.reduce((sum, one) => sum + one.part, 0);
  const columns = Math.max(1, Math.round(Math.sqrt(found.length * (wide / Math.max(high, 1)) * 0.8)));
  const rows = Math.ceil(found.length / columns) || 1;
  const usedHigh = high * Math.min(1, Math.max(total, 0.18));
  found.forEach((slot, index) => {
    const row = Math.floor(index / columns), inRow = Math.min(columns, found.length - row * columns);
    const w = wide / inRow, h = usedHigh / rows;
    const gap = Math.min(3, w * 0.05, h * 0.1);
    Object.assign(slot, { x: x + pad + (index - row * columns) * w, y: y + head + pad + row * h, w: w - gap, h: h - gap });
  });
  return found;
}

function drawLarge(context, inside, size, model, tones, lit) {
  for (let i = 0; i < inside.length; i += 3) {
    const node = model.nodes.get(inside[i]), x = inside[i + 1], y = inside[i + 2];
    if (!node) continue;
    context.fillStyle = tones.cell;
    round(context, x, y, size, size, Math.min(8, size * 0.06));
    context.fill();
    for (const slot of slots(node, model.apps, size, x, y)) drawSlot(context, slot, model, tones, lit !== null && slot.id !== lit);
    if (node.state !== "up") {
      context.strokeStyle = node.state === "lost" ? tones.bad : node.state === "left" ? tones.muted : tones.warn;
      context.lineWidth = Math.min(4, size * 0.03);
      round(context, x + 1, y + 1, size - 2, size - 2, Math.min(8, size * 0.06));
      context.stroke();
    }
    const font = Math.min(15, Math.max(9.5, size * 0.11));
    context.font = `600 ${font}px system-ui, sans-serif`;
    context.textBaseline = "alphabetic";
    context.fillStyle = tones.ink;
    const pad = Math.min(8, size * 0.06);
    context.fillText(fitText(context, clean(node.id), size - 2 * pad), x + pad, y + pad + font * 0.9);
    if (size > DETAILS) {
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = tones.muted;
      const use = `${node.state === "up" ? "" : `${node.state} · `}${Object.keys(node.capacity).map((kind) => `${kind} ${percent((node.used[kind] ?? 0) / (node.capacity[kind] || 1))}`).join(" · ")}`;
      const whole = `${use} of ${amounts(node.capacity)}`, wide = size - 2 * pad;
      context.fillText(context.measureText(whole).width <= wide ? whole : fitText(context, use, wide), x + pad, y + pad + font * 0.9 + 16);
    }
  }
}

function drawSlot(context, slot, model, tones, dimmed) {
  const color = appColor(slot.id, tones), pattern = appPattern(slot.id);
  context.globalAlpha = dimmed ? FAINT : slot.state === "running" ? 1 : 0.45;
  context.fillStyle = color;
  round(context, slot.x, slot.y, slot.w, slot.h, Math.min(4, slot.h * 0.15));
  context.fill();
  if (pattern) { context.fillStyle = patterned(context, pattern, tones.cell); context.fill(); }
  context.globalAlpha = 1;
  if (dimmed) return;
  if (slot.state !== "running") {
    context.fillStyle = hatch(context, slot.state === "starting" ? tones.start : tones.stop);
    context.fill();
  }
  if (slot.w > 40 && slot.h > 14) {
    const light = isLight(color);
    context.fillStyle = light ? "#14161a" : "#fff";
    const font = Math.min(15, Math.max(10, slot.h * 0.3));
    context.font = `600 ${font}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    const name = clean(model.apps.get(slot.id)?.name ?? slot.id);
    context.shadowColor = light ? "rgba(255,255,255,.6)" : "rgba(0,0,0,.6)";
    context.shadowBlur = 3;
    const text = fitText(context, slot.state === "running" ? name : `${name} · ${slot.state}`, slot.w - 10), middle = slot.y + Math.min(slot.h / 2, 40);
    if (pattern && text) {
      context.shadowBlur = 0;
      context.fillStyle = color;
      context.fillRect(slot.x + 2, middle - font * 0.65, Math.min(context.measureText(text).width + 6, slot.w - 4), font * 1.3);
      context.fillStyle = light ? "#14161a" : "#fff";
    }
    context.fillText(text, slot.x + 5, middle);
    context.shadowBlur = 0;
  }
}

function outline(context, x, y, size, color, width = 2) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
}

function round(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, Math.max(width, 0), Math.max(height, 0), radius);
}
