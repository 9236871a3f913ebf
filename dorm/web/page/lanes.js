// Partitions over time: one lane for each app, as high as its containers, with the phases of every adjustment; decisions and
// failures above them.  A drag zooms in, a click takes the page to that moment, idle time can be compressed.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Axis } from "./axis.js";
import { Boxes, Canvas, hatch, patterned } from "./canvas.js";
import { appColor, appPattern, theme } from "./colors.js";
import { clean, clock, moment, msOf, plural, short, span } from "./format.js";
import { Tip } from "./grid.js";
import { Failed, Link, Swatch } from "./parts.js";
import { Png } from "./picture.js";
import { light, moveTo, recall, remember, shown, store, watch } from "./store.js";

const HEAD = 34, MOST_PAGES = 20, REFRESH_MS = 3000;
const PARTS = { stop: "stop", wait: "wait", start: "start", starting: "start", stopping: "stop", adjusting: "stop" };
const IDLE = new Set(["waiting", "retrying", "submitted"]);

/** A span of time with its apps, kept up to date while it includes now.  `window`: [from, to] in ms, or null for everything. */
export function useTimeline(window_, width, apps = null) {
  const [state, take] = useState({ data: null, error: "" });
  const now = useRef({});
  now.current = { window_, width };
  const key = `${window_?.join() ?? ""} ${apps?.join() ?? ""} ${Math.round(width / 200)}`;
  useEffect(() => {
    if (!width) return undefined;
    let over = false, busy = false, again = false, timer = 0;
    const load = async () => {
      if (busy) { again = true; return; }
      busy = true;
      try {
        const from = window_ ? new Date(window_[0]).toISOString() : null, to = window_ ? new Date(Math.ceil(window_[1])).toISOString() : null;
        const data = await store.source.timeline({ from, to, width: Math.round(width), apps });
        data.pages = 1;
        if (!over) take({ data: absolute(data), error: "" });
      } catch (error) {
        if (!over) take((before) => ({ ...before, error: error.message }));
      }
      busy = false;
      if (again && !over) { again = false; timer = setTimeout(load, REFRESH_MS / 2); }
    };
    load();
    let due = 0;
    const unwatch = watch((change) => {
      if (window_ && now.current.window_ && store.range && window_[1] < store.range.end - 5000) return;
      const part = apps ? { ...change, apps: change.apps?.filter((app) => apps.includes(app.id)) } : change;
      take((before) => (before.data ? { ...before, data: extended(before.data, part) } : before));
      if (!due && (change.apps?.length || change.decision)) due = setTimeout(() => { due = 0; load(); }, REFRESH_MS);
    });
    return () => { over = true; clearTimeout(timer); clearTimeout(due); unwatch(); };
  }, [key, Boolean(width)]);
  const more = async () => {
    const data = state.data;
    if (!data?.next || data.loading || data.pages >= MOST_PAGES) return;
    data.loading = true;
    try {
      const found = absolute(await store.source.timeline({ from: data.from, to: data.to, width: Math.round(width), page: data.next }));
      take({ data: { ...data, apps: [...data.apps, ...found.apps], next: found.next, pages: data.pages + 1, loading: false }, error: "" });
    } catch (error) {
      take({ data: { ...data, loading: false }, error: error.message });
    }
  };
  return { ...state, more };
}

/** With times since 1970 in place of times since its start. */
function absolute(data) {
  const origin = msOf(data.from);
  const move = (list, ...places) => list.map((one) => one.map((value, index) => (places.includes(index) ? value + origin : value)));
  return {
    ...data, begin: origin, finish: msOf(data.to), first: msOf(data.start), last: msOf(data.end),
    decisions: move(data.decisions, 1), failures: move(data.failures, 1), marks: move(data.marks, 1),
    apps: data.apps.map((app) => ({ ...app, spans: move(app.spans, 0, 1) })),
    figures: Object.fromEntries(Object.entries(data.figures).map(([name, points]) => [name, move(points, 0)])),
  };
}

/** With what has changed since: the pictures move at once, and what the log knows better follows with the next load. */
function extended(data, change) {
  const at = msOf(change.at);
  const lanes = new Map(data.apps.map((app) => [app.id, app]));
  for (const app of change.apps ?? []) {
    const lane = lanes.get(app.id) ?? { id: app.id, name: app.name, user: app.user, n_min: app.n_min, n_max: app.n_max, peak: 0, ended: "", spans: [] };
    const last = lane.spans.at(-1);
    const held = store.live?.placesOf ? app.containers : 0;
    if (last && last[1] < at) last[1] = at;
    if (!last || last[2] !== held || last[3] !== app.phase) lane.spans = [...lane.spans, [at, at, held, app.phase]];
    lanes.set(app.id, { ...lane, peak: Math.max(lane.peak, held), ended: ["completed", "failed", "cancelled"].includes(app.phase) ? app.phase : "" });
  }
  const apps = [...lanes.values()];
  for (const lane of apps) if (!lane.ended && lane.spans.length) lane.spans[lane.spans.length - 1][1] = Math.max(lane.spans.at(-1)[1], at);
  const decision = change.decision;
  const position = decision?.position;
  return {
    ...data, apps, finish: Math.max(data.finish, at), last: at,
    decisions: decision && data.decisions.at(-1)?.[0] !== position ? [...data.decisions, [position, msOf(decision.at), decision.all_changes]] : data.decisions,
  };
}

/** `between` is the span of time that is shown, by default all of it.  `given` is a picture that is not of the log, such as a
 * simulation's: it stays as it is, and leads to no moment.  `peaks` makes lanes of two pictures equally high. */
export function Lanes({ apps = null, find = "", height = 420, compact = false, between = null, given = null, peaks = null, label = "Partitions over time" }) {
  const [size, resize] = useState({ width: 0, height: 0 });
  const [window_, zoom] = useState(null);
  const [compressed, compress] = useState(recall("compress", "no") === "yes");
  const [scroll, move] = useState(0);
  const [over, hover] = useState(null);
  const view = window_ ?? between;
  const loaded = useTimeline(view, given ? 0 : size.width, apps);
  const fixed = useMemo(() => (given ? { ...absolute(given), pages: MOST_PAGES } : null), [given]);
  const data = fixed ?? loaded.data, { error, more } = loaded;
  const drag = useRef(null);
  const picture = useRef({ ask: () => {} });
  const gutter = size.width < 520 ? 84 : 150;

  const lanes = useMemo(() => {
    if (!data) return [];
    const wanted = find.toLowerCase();
    return data.apps.filter((app) => !wanted || app.name.toLowerCase().includes(wanted) || app.user.toLowerCase().includes(wanted) || app.id.includes(wanted));
  }, [data, find]);
  const end = data && (view ? view[1] : data.finish), begin = data && (view ? view[0] : data.begin);
  const axis = useMemo(() => {
    if (!data || !size.width) return null;
    const events = compressed ? [...new Set([...data.decisions.map((one) => one[1]), ...data.failures.map((one) => one[1]), ...lanes.flatMap((lane) => lane.spans.map((one) => one[0]))])].sort((a, b) => a - b) : null;
    return new Axis(begin, end, gutter, size.width - 12, events);
  }, [data, size.width, compressed, begin, end, lanes]);
  const row = Math.min(44, Math.max(compact ? 34 : 20, (height - HEAD) / Math.max(lanes.length, 1)));
  const inner = Math.max(lanes.length * row + HEAD + 4, 80);
  const at = store.route.at && !given ? shown()?.at : null;

  function draw(context, width, high) {
    const tones = theme();
    context.clearRect(0, 0, width, high);
    if (!data || !axis) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    drawIdle(context, axis, high, tones);
    const first = Math.max(0, Math.floor((scroll - HEAD) / row)), last = Math.min(lanes.length, Math.ceil((scroll + high) / row));
    const life = new Boxes(), solid = new Boxes(), phases = new Boxes(), wait = new Boxes(), patterns = [];
    for (let index = first; index < last; index++) {
      const lane = lanes[index], top = HEAD + index * row - scroll, body = row * 0.72, base = top + row * 0.86;
      const color = appColor(lane.id, tones), pattern = appPattern(lane.id), unit = body / Math.max(lane.peak, peaks?.get(lane.id) ?? 0, 1);
      for (const [t0, t1, count, phase] of lane.spans) {
        if (t1 < axis.from || t0 > axis.to) continue;
        const x0 = axis.x(t0), x1 = Math.max(axis.x(t1), x0 + 0.7), tall = Math.max(count * unit, count ? 2 : 0);
        if (IDLE.has(phase)) wait.add(phase === "retrying" ? tones.bad : tones.warn, x0, base - 2.5, x1 - x0, 2.5);
        else {
          solid.add(color, x0, base - tall, x1 - x0, tall);
          if (pattern) patterns.push([pattern, x0, base - tall, x1 - x0, tall]);
          if (PARTS[phase]) phases.add(tones[PARTS[phase]], x0, base - tall, x1 - x0, tall);
        }
      }
      if (index > first) life.add(tones.line, gutter, top, width - gutter, 0.6);
    }
    life.fill(context);
    wait.fill(context);
    solid.fill(context, 0.92);
    for (const [pattern, ...box] of patterns) { context.fillStyle = patterned(context, pattern, tones.card); context.fillRect(...box); }
    for (const [color, list] of phases.by) {
      context.fillStyle = hatch(context, color);
      for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      context.fillStyle = color;
      for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1] + list[i + 3] - 2, list[i + 2], 2);
    }
    context.clearRect(0, 0, width, HEAD - 1);
    drawHead(context, axis, data, tones, width);
    for (const [x, tone] of [[at !== null ? axis.x(at) : null, tones.accent], [over && !drag.current ? over.x : null, tones.muted]]) {
      if (x === null || x < gutter) continue;
      context.fillStyle = tone;
      context.fillRect(x - 0.5, 0, tone === tones.accent ? 2 : 1, high);
    }
    if (drag.current && over) {
      context.fillStyle = tones.accent;
      context.globalAlpha = 0.15;
      context.fillRect(Math.min(drag.current, over.x), HEAD, Math.abs(over.x - drag.current), high);
      context.globalAlpha = 1;
    }
  }

  const place = (event) => { const box = event.currentTarget.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  function look(event) {
    const [x, y] = place(event);
    hover({ x, y });
    light(lanes[Math.floor((y + scroll - HEAD) / row)]?.id ?? null);
    picture.current.ask();
  }
  function release(event) {
    const [x] = place(event), from = drag.current;
    drag.current = null;
    if (from === null || !axis) return;
    if (Math.abs(x - from) > 6) zoom([Math.min(axis.time(from), axis.time(x)), Math.max(axis.time(from), axis.time(x))]);
    else if (!given) moveTo(nearest(data, axis, x));
  }
  const lane = over && lanes[Math.floor((over.y + scroll - HEAD) / row)];
  const held = lane && axis && lane.spans.find((one) => axis.time(over.x) >= one[0] && axis.time(over.x) <= one[1]);
  const near = over && data && over.y < HEAD && axis ? closest([...data.failures, ...data.decisions], (one) => Math.abs(axis.x(one[1]) - over.x), 6) : null;

  return html`<div class="lanes pictured">
    <div class="lanebar">
      <span class="small dim">${data ? `${plural(lanes.length, "app")}, ${span(end - begin)}` : ""}</span>
      <span class="legend" aria-hidden="true">${[["good", "running"], ["start", "starting"], ["stop", "stopping"], ["wait", "waits for room"], ["warn", "waits"], ["bad", "failed"]].map(([tone, name]) => html`<span><i class="key ${tone}"></i>${name}</span>`)}</span>
      <label class="small"><input type="checkbox" checked=${compressed} onChange=${(event) => { compress(event.target.checked); remember("compress", event.target.checked ? "yes" : "no"); }} /> compress idle time</label>
      <span class="buttons">
        ${!between && [["10 min", 600_000], ["1 h", 3_600_000]].map(([name, length]) => html`<button type="button" onClick=${() => data && zoom([Math.max(data.first, data.last - length), data.last])}>${name}</button>`)}
        <button type="button" aria-pressed=${!window_} onClick=${() => zoom(null)}>All</button>
        <${Png} name=${label} />
      </span>
    </div>
    <${Failed} text=${error} />
    <div class="lanebox" ref=${(box) => { if (box) box.style.height = `${Math.min(height, inner)}px`; }}>
      <div class="lanescroll" tabindex="0" role="region" aria-label=${label} onScroll=${(event) => { move(event.target.scrollTop); if (event.target.scrollTop + event.target.clientHeight > event.target.scrollHeight - 300) more(); picture.current.ask(); }}>
        <div class="lanesticky">
          <${Canvas} draw=${draw} sized=${(width, high) => resize({ width, height: high })} class="lanecanvas" role="img"
            label=${`Partitions of ${plural(lanes.length, "app")} over time`}
            onPointerMove=${look} onPointerLeave=${() => { hover(null); light(null); }} onPointerDown=${(event) => { if (place(event)[0] > gutter) { drag.current = place(event)[0]; event.currentTarget.setPointerCapture(event.pointerId); } }} onPointerUp=${release}
            onDblClick=${() => zoom(null)} onmount=${(_, ask) => { picture.current.ask = ask; }} />
          <${Names} lanes=${lanes} scroll=${scroll} row=${row} height=${size.height} width=${gutter} />
          ${lane && over.x > gutter && over.y > HEAD && html`<${Tip} x=${over.x} y=${over.y} width=${size.width}>
            <p class="tiprow"><${Swatch} id=${lane.id} /><b><bdi>${short(lane.name, 40)}</bdi></b></p>
            ${held && html`<p>${plural(held[2], "container")}, ${WORDS[held[3]] ?? held[3]}</p><p class="dim">${clock(held[0])} – ${clock(held[1])} (${span(held[1] - held[0])})</p>`}
            <p class="dim">${moment(axis.time(over.x))}${given ? "" : "; click to go there"}</p>
          <//>`}
          ${near && html`<${Tip} x=${over.x} y=${over.y} width=${size.width}><p>${typeof near[2] === "number" ? `decision ${near[0]}: ${plural(near[2], "change")}` : short(near[2], 160)}</p><p class="dim">${moment(near[1])}</p><//>`}
        </div>
        <div class="lanespace" ref=${(box) => { if (box) box.style.height = `${Math.max(0, inner - Math.min(height, inner))}px`; }}></div>
      </div>
    </div>
  </div>`;
}

const WORDS = { stop: "stopping for a resize", wait: "waiting for room", start: "starting" };

function Names({ lanes, scroll, row, height, width }) {
  const first = Math.max(0, Math.floor((scroll - HEAD) / row)), last = Math.min(lanes.length, Math.ceil((scroll + height) / row));
  return html`<ul class="lanenames" ref=${(list) => { if (list) list.style.width = `${width - 6}px`; }} aria-label="Apps">
    ${lanes.slice(first, last).map((lane, index) => html`<li key=${lane.id} ref=${(item) => {
      if (!item) return;
      const top = HEAD + (first + index) * row - scroll;
      item.style.top = `${top}px`;
      item.style.height = `${row}px`;
      item.hidden = top < HEAD - row * 0.6;
    }}><${Link} to="app" id=${lane.id} title=${clean(`${lane.name} of ${lane.user}`)} onPointerEnter=${() => light(lane.id)} onPointerLeave=${() => light(null)}><${Swatch} id=${lane.id} /><bdi>${clean(lane.name)}</bdi><//></li>`)}
  </ul>`;
}

function drawIdle(context, axis, high, tones) {
  for (const part of axis.idle) {
    context.fillStyle = hatch(context, tones.line);
    context.fillRect(part.x0, HEAD, part.x1 - part.x0, high - HEAD);
  }
}

function drawHead(context, axis, data, tones, width) {
  context.fillStyle = tones.muted;
  context.textAlign = "center";
  for (const [time, text] of axis.ticks(Math.max(2, Math.floor(width / 110)))) {
    context.fillText(text, Math.min(axis.x(time), width - 26), 8);
    context.fillStyle = tones.line;
    context.fillRect(axis.x(time), 15, 1, 5);
    context.fillStyle = tones.muted;
  }
  context.textAlign = "left";
  context.fillStyle = tones.accent;
  for (const [, time, changes] of data.decisions) if (time >= axis.from && time <= axis.to) {
    const tall = Math.min(12, 4 + changes * 2);
    context.fillRect(axis.x(time) - 0.5, HEAD - 3 - tall, 1.4, tall);
  }
  context.fillStyle = tones.bad;
  for (const [, time] of data.failures) {
    if (time < axis.from || time > axis.to) continue;
    const x = axis.x(time);
    context.beginPath();
    context.moveTo(x - 4, HEAD - 12);
    context.lineTo(x + 4, HEAD - 12);
    context.lineTo(x, HEAD - 4);
    context.fill();
  }
  context.fillStyle = tones.line;
  context.fillRect(axis.x0, HEAD - 2, axis.x1 - axis.x0, 1);
}

function closest(items, distance, most) {
  let found = null, best = most;
  for (const one of items) if (distance(one) < best) { best = distance(one); found = one; }
  return found;
}

/** The moment that a click means: the decision or failure at the pointer, else the time. */
function nearest(data, axis, x) {
  const near = closest([...data.failures, ...data.decisions], (one) => Math.abs(axis.x(one[1]) - x), 4);
  return near ? String(near[0]).split(/[.~]/)[0] : new Date(axis.time(x)).toISOString();
}
