// Draws the timeline that stands beside it as JSON.  Strangers' words reach the page by textContent, or escaped as Plotly
// wants it.  Only what can be seen is drawn: changes closer together than a part of a pixel become one until one zooms in.
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const FULL = [D.t0, D.t0 + D.length];
const LEFT = 176, RIGHT = 24;
const PALETTE = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#e3b91f", "#9d755d", "#ff9da6", "#6b8bd6",
  "#8cb369", "#c98bdb", "#3d9fc4"];
const RESOURCES = ["#2a7f9e", "#8a5fbf", "#7f9138", "#b5654d", "#5f6b7a"];
const CONDITIONS = { draining: "warn", lost: "bad", left: "wait" }, SHADE = 0.55;
const color = (app) => (app < 0 ? css("others") : PALETTE[app % PALETTE.length]);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const word = (index) => D.words[index];
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const view = { range: [...FULL], find: "", shown: [], laneHeight: 0, kept: false, busy: false };

// --- step functions -------------------------------------------------------------------------------------------------------

/** Index of what holds at a time, -1 before the first. */
function at(times, time) {
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** Calls `each(begin, end, index)` for what can be seen; of changes within one grain only the last. */
function spans(times, from, to, grain, end, each) {
  for (let i = Math.max(0, at(times, from)); i < times.length && times[i] <= to; i++) {
    const finish = i + 1 < times.length ? times[i + 1] : end;
    if (finish - times[i] < grain && i + 1 < times.length && i > 0 && finish <= to) continue;
    each(Math.max(times[i], from), Math.min(finish, to), i);
  }
}

/** Points of a curve: fine where one looks, coarse elsewhere, for the slider shows all of it. */
function curve(times, values) {
  const x = [], y = [];
  const [a, b] = relative();
  const put = (begin, end, i) => { x.push(D.t0 + begin); y.push(values[i]); };
  const coarse = D.length / 900, fine = (b - a) / 1800;
  if (a > 0) spans(times, 0, a, coarse, D.length, put);
  spans(times, a, b, fine, D.length, put);
  if (b < D.length) spans(times, b, D.length, coarse, D.length, put);
  if (y.length) { x.push(FULL[1]); y.push(values[at(times, D.length)]); }
  return { x, y };
}

const relative = () => [view.range[0] - D.t0, view.range[1] - D.t0];

/** Rectangles as one path. */
class Boxes {
  constructor() { this.x = []; this.y = []; }
  add(x0, x1, y0, y1) {
    const a = D.t0 + x0, b = D.t0 + x1;
    this.x.push(a, a, b, b, a, null);
    this.y.push(y0, y1, y1, y0, y0, null);
  }
  trace(fill, extra) {
    return { x: this.x, y: this.y, type: "scatter", mode: "none", fill: "toself", fillcolor: fill, hoverinfo: "skip",
      line: { simplify: false }, showlegend: false, ...extra };
  }
}

/** Boxes by color, so that a picture of many apps is a picture of few paths. */
class Painted {
  constructor() { this.by = new Map(); }
  of(fill) {
    if (!this.by.has(fill)) this.by.set(fill, new Boxes());
    return this.by.get(fill);
  }
  traces(alpha, extra) {
    return [...this.by].map(([fill, boxes]) => boxes.trace(faded(fill, alpha), extra));
  }
  hatched(extra) {
    return [...this.by].map(([fill, boxes]) => boxes.trace(faded(fill, 0.18), {
      fillpattern: { shape: "/", size: 5, solidity: 0.4, fgcolor: fill, bgcolor: faded(fill, 0.18), fillmode: "overlay" },
      ...extra }));
  }
}

function faded(fill, alpha) {
  const hex = fill.startsWith("#") ? fill.slice(1) : "888888";
  const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

// --- lanes ----------------------------------------------------------------------------------------------------------------

const STRIP = 0.13, BODY = 0.76;
const bottom = (lane) => -lane - 0.94;

function appTraces() {
  const running = new Painted(), starting = new Painted(), stopping = new Painted(), strips = new Painted();
  const life = new Boxes(), decided = { x: [], y: [] };
  const [a, b] = relative(), pixel = (b - a) / 1400, ends = { x: [], y: [], symbol: [], color: [] };
  const strip = { stop: css("stop"), wait: css("wait"), start: css("start"), waiting: css("warn"), retrying: css("bad") };
  view.shown.forEach((index, lane) => {
    const app = D.apps[index], base = bottom(lane) + STRIP, unit = BODY / Math.max(1, app.peak), fill = color(index);
    if (app.from <= b && app.to >= a) life.add(Math.max(app.from, a), Math.min(app.to, b), bottom(lane), base + BODY);
    const s = app.sizes;
    spans(s.t, a, b, pixel / 2, app.to, (x0, x1, i) => {
      let top = base;
      for (const [count, boxes] of [[s.running[i], running], [s.starting[i], starting], [s.stopping[i], stopping]]) {
        if (count) boxes.of(fill).add(x0, x1, top, top + count * unit);
        top += count * unit;
      }
      const level = s.decided[i] ? base + s.decided[i] * unit : null;
      decided.x.push(D.t0 + x0, D.t0 + x1);
      decided.y.push(level, level);
    });
    decided.x.push(null);
    decided.y.push(null);
    const mark = (kind, x0, x1) => {
      if (x1 < a || x0 > b) return;
      strips.of(strip[kind]).add(Math.max(x0, a), Math.min(Math.max(x1, x0 + 1.5 * pixel), b), bottom(lane), base - 0.03);
    };
    app.phases.t.forEach((t, i) => {
      const phase = app.phases.phase[i];
      const kind = { waiting: "waiting", submitted: "waiting", retrying: "retrying" }[phase];
      if (kind) mark(kind, t, i + 1 < app.phases.t.length ? app.phases.t[i + 1] : app.to);
    });
    for (const part of app.parts) for (const [kind, x0, x1] of part.phases) mark(kind, x0, x1);
    if (app.ended && app.to >= a && app.to <= b) {
      ends.x.push(D.t0 + app.to); ends.y.push(base + BODY / 2);
      ends.symbol.push({ completed: "circle", failed: "x", cancelled: "square" }[app.ended]);
      ends.color.push(css({ completed: "good", failed: "bad", cancelled: "muted" }[app.ended]));
    }
  });
  return [
    life.trace(css("band")), ...running.traces(0.92), ...starting.traces(0.45), ...stopping.hatched(), ...strips.traces(1),
    { ...decided, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { width: 1, color: css("ink") } },
    failureTrace(), { x: ends.x, y: ends.y, type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false,
      marker: { symbol: ends.symbol, color: ends.color, size: 8, line: { width: 1.5, color: css("paper") } } },
  ];
}

function failureTrace() {
  const lanes = new Map(view.shown.map((index, lane) => [index, lane])), x = [], y = [], taken = new Set();
  const [a, b] = relative(), grain = (b - a) / 350;
  for (const mark of seen(D.marks)) {
    const place = `${mark.app} ${Math.floor(mark.t / grain)}`;
    if (mark.kind !== "failed" || !lanes.has(mark.app) || taken.has(place)) continue;
    taken.add(place);
    x.push(D.t0 + mark.t); y.push(bottom(lanes.get(mark.app)) + STRIP + BODY / 2);
  }
  return { x, y, type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false,
    marker: { symbol: "x", size: 7, color: css("bad"), line: { width: 1, color: css("paper") } } };
}

function nodeTraces() {
  const painted = new Painted(), conditions = new Painted(), up = new Boxes();
  const [a, b] = relative(), pixel = (b - a) / 1400, axes = { xaxis: "x", yaxis: "y2" };
  const shown = new Set(view.shown);
  D.nodes.forEach((node, lane) => {
    const base = bottom(lane), unit = (BODY + STRIP) / Math.max(1, node.peak);
    spans(node.conditions.t, a, b, 0, D.length, (x0, x1, i) => {
      const how = node.conditions.v[i];
      if (how === "up") up.add(x0, x1, base, base + BODY + STRIP);
      else conditions.of(css(CONDITIONS[how]))
        .add(x0, Math.max(x1, x0 + 1.5 * pixel), base, base + BODY + STRIP);
    });
    for (const [app, x0, x1, low, high] of stack(node, a, b, pixel / 2)) {
      const fill = app < 0 || (view.find && !shown.has(app)) ? css("others") : color(app);
      painted.of(fill).add(x0, x1, base + low * unit, base + high * unit);
    }
  });
  return [up.trace(css("band"), axes), ...conditions.traces(SHADE, axes), ...painted.traces(0.9, axes)];
}

/** [app, begin, end, low, high] of what stands on a node, apps above each other in one order. */
function stack(node, a, b, grain) {
  const changes = [];
  node.held.forEach((held, place) => spans(held.t, a, b, grain, D.length, (x0, x1, i) => changes.push([x0, place, held.v[i]])));
  changes.sort((one, two) => one[0] - two[0]);
  const counts = node.held.map(() => 0), open = node.held.map(() => null), found = [];
  const close = (place, time) => {
    const one = open[place];
    if (one && time > one[0]) found.push([node.held[place].app, one[0], time, one[1], one[2]]);
    open[place] = null;
  };
  for (let i = 0; i < changes.length;) {
    const time = changes[i][0];
    for (; i < changes.length && changes[i][0] - time <= grain; i++) counts[changes[i][1]] = changes[i][2];
    let low = 0;
    counts.forEach((count, place) => {
      const one = open[place], high = low + count;
      if (!one || one[1] !== low || one[2] !== high) {
        close(place, time);
        if (count) open[place] = [time, low, high];
      }
      low = high;
    });
  }
  node.held.forEach((_, place) => close(place, b));
  return found;
}

/** Those within the time that is looked at. */
function seen(things) {
  const [a, b] = relative();
  const times = things.times ?? (things.times = things.map((one) => one.t));
  const from = at(times, a - 1e-9) + 1;
  return things.slice(from, at(times, b) + 1);
}

// --- the two drawings -----------------------------------------------------------------------------------------------------

function axisX(extra) {
  return { type: "date", range: view.range.map((ms) => new Date(ms).toISOString()), gridcolor: css("line"), zeroline: false,
    linecolor: css("line"), tickfont: { color: css("muted") }, hoverformat: "%H:%M:%S.%L", ...extra };
}

function axisY(domain, extra) {
  return { domain, fixedrange: true, gridcolor: css("line"), zeroline: false, tickfont: { color: css("muted"), size: 11 },
    title: { font: { size: 12, color: css("ink") } }, ...extra };
}

const layoutOf = (height, extra) => ({ height, margin: { l: LEFT, r: RIGHT, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", size: 12, color: css("ink") },
  dragmode: "zoom", hovermode: false, showlegend: false, uirevision: "same",
  modebar: { bgcolor: "rgba(0,0,0,0)", color: css("muted"), activecolor: css("ink") }, ...extra });

function clusterTraces() {
  const traces = [], line = (curveOf, style, extra) => traces.push({ ...curve(curveOf.t, curveOf.v), type: "scatter", mode: "lines",
    line: { shape: "hv", width: 1.4, ...style }, hoverinfo: "skip", ...extra });
  D.resources.forEach((one, i) => {
    const fill = RESOURCES[i % RESOURCES.length];
    line(one.decided, { color: fill }, { name: one.name });
    line(one.held, { color: fill, width: 0 }, { fill: "tozeroy", fillcolor: faded(fill, 0.16) });
  });
  line(D.loss, { color: css("ink") }, { xaxis: "x2", yaxis: "y2" });
  line(D.budget, { color: css("bad"), dash: "dot", width: 1.2 }, { xaxis: "x2", yaxis: "y2" });
  line(D.waiting, { color: css("warn") }, { xaxis: "x3", yaxis: "y3", fill: "tozeroy", fillcolor: faded(css("warn"), 0.22) });
  traces.push(markTrace(D.decisions, 1, (one) => one.n > 0 ? css("start") : css("wait"), "diamond", "decisions"));
  const others = D.marks.filter((mark) => mark.kind !== "ended");
  const colors = { failed: css("bad"), node: css("stop"), cluster: css("muted"), live: css("muted"), asked: css("muted") };
  for (const [kind, symbol] of [["cluster", "square"], ["node", "triangle-up"], ["failed", "x"], ["live", "diamond"], ["asked", "triangle-down"]]) {
    traces.push(markTrace(others.filter((mark) => mark.kind === kind), 0, () => colors[kind], symbol, kind));
  }
  return traces;
}

/** One mark in three pixels; what is behind it is told by the pointer. */
function markTrace(things, y, fill, symbol, name) {
  const [a, b] = relative(), grain = (b - a) / 450, kept = new Map();
  for (const one of seen(things)) {
    const bin = Math.floor(one.t / grain), before = kept.get(bin);
    if (!before || (one.n ?? 0) > (before.n ?? 0)) kept.set(bin, one);
  }
  const shown = [...kept.values()], size = shown.length > 150 ? 6 : 8;
  return { x: shown.map((one) => D.t0 + one.t), y: shown.map(() => y), type: "scatter", mode: "markers", name, xaxis: "x4",
    yaxis: "y4", hoverinfo: "skip", marker: { symbol, size: shown.map((one) => size + Math.min(4, one.n ?? 0)),
      color: shown.map(fill), line: { width: 1, color: css("paper") } } };
}

function clusterLayout() {
  const hidden = { matches: "x", showticklabels: false, rangeslider: { visible: false } };
  const percent = { tickformat: ".0%", rangemode: "tozero" };
  return layoutOf(316, {
    margin: { l: LEFT, r: RIGHT, t: 6, b: 6 },
    xaxis: axisX({ anchor: "y", rangeslider: { visible: true, thickness: 0.09, range: FULL.map((ms) => new Date(ms).toISOString()),
      bgcolor: css("band"), bordercolor: css("line"), borderwidth: 1 } }),
    xaxis2: axisX({ ...hidden, anchor: "y2" }), xaxis3: axisX({ ...hidden, anchor: "y3" }), xaxis4: axisX({ ...hidden, anchor: "y4" }),
    yaxis: axisY([0, 0.36], percent), yaxis2: axisY([0.42, 0.62], { rangemode: "tozero", nticks: 4 }),
    yaxis3: axisY([0.67, 0.82], { rangemode: "tozero", tick0: 0, dtick: Math.ceil(Math.max(1, ...D.waiting.v) / 2) }),
    yaxis4: axisY([0.86, 1], { range: [-0.7, 1.7], tickvals: [0, 1], ticktext: ["failures, nodes", "decisions"], showgrid: false,
      tickfont: { color: css("ink"), size: 12 } }),
    annotations: [["utilization", 0.18], ["fairness loss", 0.52], ["apps waiting", 0.745]].map(([text, y]) => ({
      text, x: 0, xref: "paper", y, yref: "paper", xanchor: "right", yanchor: "middle", xshift: -46, showarrow: false })),
  });
}

function lanesLayout() {
  const apps = view.shown.length, nodes = D.nodes.length, all = apps + nodes;
  view.laneHeight = Math.max(24, Math.min(58, Math.floor(900 / Math.max(1, all))));
  const heading = 30, height = all * view.laneHeight + 2 * heading + 44, inner = height - 44 - heading;
  const split = (nodes * view.laneHeight) / inner;
  const ticks = (names) => ({ tickvals: names.map((_, i) => bottom(i) + 0.47), ticktext: names, showgrid: false,
    range: [-Math.max(1, names.length), 0.02], ticks: "", tickfont: { color: css("ink"), size: 12 } });
  const label = (name, peak) => `${escape(short(name, 22))} <span style="color:${css("muted")}">${peak}</span>`;
  const title = (text, y) => ({ text: `<b>${text}</b>`, x: 0, xref: "paper", y, yref: "paper", xanchor: "right", yanchor: "bottom",
    xshift: -6, yshift: 3, showarrow: false });
  return layoutOf(height, {
    margin: { l: LEFT, r: RIGHT, t: heading, b: 44 },
    xaxis: axisX({ anchor: "y2" }),
    yaxis: axisY([split + heading / inner, 1], ticks(view.shown.map((i) => label(D.apps[i].name, D.apps[i].peak)))),
    yaxis2: axisY([0, split], ticks(D.nodes.map((node) => label(node.name, node.peak)))),
    annotations: [title("apps", 1), ...(nodes ? [title("nodes", split)] : [])],
  });
}

const CONFIG = { displaylogo: false, responsive: true, doubleClick: false, modeBarButtons: [["toImage"]], displayModeBar: "hover" };

async function draw() {
  view.busy = true;
  await Plotly.react("cluster", clusterTraces(), clusterLayout(), CONFIG);
  await Plotly.react("lanes", [...appTraces(), ...nodeTraces()], lanesLayout(), CONFIG);
  view.busy = false;
}

async function look(from, to) {
  const least = Math.max(1, D.length / 1e6);
  const a = Math.max(FULL[0], Math.min(from, FULL[1] - least)), b = Math.min(FULL[1], Math.max(to, a + least));
  view.range = [a, b];
  hide();
  await draw();
}

function follow(plot) {
  plot.on("plotly_relayout", (change) => {
    if (view.busy) return;
    const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0], to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
    const other = Object.entries(change).find(([key]) => /^xaxis\d\.range\[0\]$/.test(key));
    if (from !== undefined) look(ms(from), ms(to));
    else if (other) look(ms(other[1]), ms(change[other[0].replace("[0]", "[1]")]));
  });
  plot.on("plotly_doubleclick", () => look(...FULL));
  plot.addEventListener("mousemove", (event) => { if (!view.kept) point(plot, event); });
  plot.addEventListener("mouseleave", () => { if (!view.kept) hide(); });
  // Plotly keeps clicks to itself, for each may be the start of a drag.
  let pressed = null;
  plot.addEventListener("mousedown", (event) => { pressed = event; }, { capture: true });
  document.addEventListener("mouseup", (event) => {
    const moved = pressed && Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY);
    if (pressed && moved < 4) { view.kept = !view.kept; point(plot, event); }
    pressed = null;
  }, { capture: true });
}

/** Plotly gives back times without a zone, which are UTC. */
const ms = (value) => (typeof value === "number" ? value : Date.parse(value.replace(" ", "T").replace(/(\.\d{3})\d*/, "$1") +
  (/[zZ]$/.test(value) ? "" : value.includes(":") ? "Z" : "")));

// --- what is beside the pointer -------------------------------------------------------------------------------------------

function point(plot, event) {
  const box = plot.getBoundingClientRect(), layout = plot._fullLayout, x = event.clientX - box.left, y = event.clientY - box.top;
  const axis = layout.xaxis, time = axis.p2c(x - axis._offset) - D.t0, each = axis.p2c(1) - axis.p2c(0);
  if (x < LEFT - 170 || x > box.width - RIGHT + 2 || (x < LEFT && plot.id !== "lanes")) { hide(); return; }
  const inside = (axis2) => y >= axis2._offset && y <= axis2._offset + axis2._length;
  let found = null;
  if (plot.id === "cluster") found = inside(layout.yaxis4) ? markAt(time, each) : figuresAt(time);
  else if (inside(layout.yaxis)) found = appAt(Math.floor(-layout.yaxis.p2c(y - layout.yaxis._offset)), time, each);
  else if (layout.yaxis2 && inside(layout.yaxis2)) found = nodeAt(Math.floor(-layout.yaxis2.p2c(y - layout.yaxis2._offset)), time);
  if (!found) { hide(); return; }
  show(found, event, box.left + axis._offset + axis.c2p(D.t0 + (found.at ?? time)));
}

function clock(time) {
  const digits = new Date(D.t0 + time).toISOString();
  return `${digits.slice(0, 10)} ${digits.slice(11, 23)} UTC`;
}

/** The decision or mark nearest to the pointer, within nine pixels. */
function markAt(time, each) {
  let best = null, distance = 9 * each;
  for (const things of [D.decisions, D.marks]) {
    for (const one of seen(things)) {
      const away = Math.abs(one.t - time) - (one.n ? Math.min(one.n, 3) * each * 0.2 : 0);
      if (away < distance) { distance = away; best = one; }
    }
  }
  if (!best) return figuresAt(time);
  if (best.lines) return { title: word(best.title), at: best.t, lines: best.lines.map(word), apps: best.apps };
  const close = seen(D.marks).filter((one) => Math.abs(one.t - best.t) < 5 * each).slice(0, 12);
  return { title: "", at: best.t, lines: close.map((one) => `${word(one.line)}  [${one.position}]`),
    apps: close.map((one) => one.app).filter((app) => app >= 0) };
}

function figuresAt(time) {
  const value = (steps) => steps.v[at(steps.t, time)];
  const percent = (part) => (part === undefined ? "–" : `${(100 * part).toFixed(1)}%`);
  const lines = D.resources.map((one) => `${one.name}: ${percent(value(one.decided))} allocated, ${percent(value(one.held))} in use`);
  const loss = value(D.loss), budget = value(D.budget);
  if (loss !== undefined) lines.push(`fairness loss ${+loss.toPrecision(3)}` + (budget >= 0 ? ` of ${+budget.toPrecision(3)}` : ""));
  lines.push(`${plural(value(D.waiting) ?? 0, "app")} waiting`);
  return { title: "cluster", lines };
}

function appAt(lane, time, each) {
  const app = D.apps[view.shown[lane]];
  if (!app) return null;
  const lines = [], p = at(app.phases.t, time), s = at(app.sizes.t, time);
  if (p < 0) lines.push("not submitted yet");
  else {
    const phase = app.phases.phase[p], text = word(app.phases.text[p]), cause = word(app.phases.cause[p]);
    lines.push(phase + (app.phases.generation[p] ? `, generation ${app.phases.generation[p]}` : "") + (cause ? `, since ${cause}` : ""));
    if (text) lines.push(text);
  }
  if (s >= 0 && !(app.ended && time >= app.to)) {
    const z = app.sizes, parts = [["running", z.running[s]], ["starting", z.starting[s]], ["stopping", z.stopping[s]]];
    const now = parts.filter(([, count]) => count).map(([what, count]) => `${count} ${what}`).join(", ");
    lines.push(`${plural(z.decided[s], "container")} decided` + (now ? `; ${now}` : ""));
  }
  const part = app.parts.filter((one) => one.from <= time && time < one.to).at(-1);
  if (part) lines.push(...part.lines.map(word));
  for (const mark of D.marks) if (D.apps[mark.app] === app && Math.abs(mark.t - time) < 6 * each) lines.push(`✕ ${word(mark.line)}`);
  return { title: app.name, dim: `${app.user ? app.user + " · " : ""}${app.n_min} to ${app.n_max} containers`, lines };
}

function nodeAt(lane, time) {
  const node = D.nodes[lane];
  if (!node) return null;
  const how = node.conditions.v[at(node.conditions.t, time)], held = [];
  for (const one of node.held) {
    const count = one.v[at(one.t, time)];
    if (count) held.push([one.app < 0 ? "others" : D.apps[one.app].name, count]);
  }
  held.sort((one, two) => two[1] - one[1]);
  const lines = [how ?? "not joined yet", ...held.slice(0, 14).map(([name, count]) => `${name}: ${plural(count, "container")}`)];
  if (held.length > 14) lines.push(`and ${held.length - 14} more apps`);
  if (how && !held.length) lines.push("no containers");
  return { title: node.name, dim: node.capacity, lines };
}

function show(found, event, x) {
  const tip = $("tip"), put = (tag, text, kind) => {
    const one = document.createElement(tag);
    one.textContent = text;
    if (kind) one.className = kind;
    tip.append(one);
  };
  tip.replaceChildren();
  if (found.title) put("b", found.title);
  put("i", clock(found.at ?? timeAt(x)) + (found.dim ? ` · ${found.dim}` : ""));
  found.lines.forEach((text) => put("p", text, text.startsWith("–") ? "dim" : ""));
  tip.hidden = false;
  tip.className = view.kept ? "kept" : "";
  const wide = tip.offsetWidth, high = tip.offsetHeight;
  tip.style.left = `${event.clientX + 18 + wide > innerWidth ? Math.max(4, event.clientX - wide - 18) : event.clientX + 18}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - high - 8))}px`;
  $("cross").hidden = x < $("lanes").getBoundingClientRect().left + LEFT;
  Object.assign($("cross").style, { left: `${x}px`, top: `${Math.max(0, $("cluster").getBoundingClientRect().top)}px` });
  glow(found.apps ?? []);
}

function timeAt(x) {
  const plot = $("lanes"), axis = plot._fullLayout.xaxis;
  return axis.p2c(x - plot.getBoundingClientRect().left - axis._offset) - D.t0;
}

/** A frame around the lanes of the apps that a decision changed. */
function glow(apps) {
  const plot = $("lanes"), box = plot.getBoundingClientRect(), axis = plot._fullLayout.yaxis;
  const least = $("top").getBoundingClientRect();
  const cover = getComputedStyle($("top")).position === "sticky" ? least.bottom : 0;
  $("glows").replaceChildren(...view.shown.flatMap((index, lane) => {
    const top = box.top + axis._offset + axis.c2p(-lane - 0.04);
    if (!apps.includes(index) || top < cover || top > innerHeight) return [];
    const frame = document.createElement("div");
    Object.assign(frame.style, { left: `${box.left + 4}px`, width: `${box.width - RIGHT}px`, top: `${top}px`,
      height: `${view.laneHeight * 0.92}px` });
    return [frame];
  }));
}

function hide() {
  view.kept = false;
  $("tip").hidden = $("cross").hidden = true;
  $("glows").replaceChildren();
}

// --- the page -------------------------------------------------------------------------------------------------------------

function legend() {
  const box = (style) => `<svg viewBox="0 0 20 12"><rect x="0" y="1" width="20" height="10" rx="1.5" style="${style}"/></svg>`;
  const hatch = `<svg viewBox="0 0 20 12"><path d="M1 11L7 1M7 11L13 1M13 11L19 1" stroke="#4c78a8" stroke-width="2"/></svg>`;
  const line = `<svg viewBox="0 0 20 12"><path d="M0 6H20" stroke="currentColor" stroke-width="1.5"/></svg>`;
  const dot = (text, name) => `<svg viewBox="0 0 20 12"><text x="10" y="11" text-anchor="middle" font-size="13" fill="var(--${name})">${text}</text></svg>`;
  const known = [
    [box("fill:#4c78a8"), "runs"], [box("fill:#4c78a8;opacity:.45"), "starts"], [hatch, "stops"], [line, "decided"],
    [box("fill:var(--warn)"), "waits for a place"], [box("fill:var(--bad)"), "pauses after a failure"],
    [box("fill:var(--stop)"), "adjusted: stop"], [box("fill:var(--wait)"), "wait"], [box("fill:var(--start)"), "start"],
    [dot("✕", "bad"), "failed"], [dot("●", "good"), "completed"], [dot("■", "muted"), "cancelled"], [dot("◆", "start"), "decision"],
    [dot("▲", "stop"), "node"],
    ...Object.entries(CONDITIONS).map(([how, name]) => [box(`fill:var(--${name});opacity:${SHADE}`), `node ${how}`]),
  ];
  $("legend").innerHTML = known.map(([sign, text]) => `<span>${sign}${text}</span>`).join("") +
    `<span>A number is how many containers fill a lane.</span>`;
  const kinds = D.resources.map((one, i) => `<span>${box(`fill:${RESOURCES[i % RESOURCES.length]}`)}${escape(one.name)}</span>`);
  $("legend").innerHTML += kinds.join("");
}

function find() {
  view.find = $("find").value.trim().toLowerCase();
  const all = D.apps.map((_, index) => index);
  view.shown = view.find ? all.filter((i) => `${D.apps[i].name} ${D.apps[i].user} ${D.apps[i].id}`.toLowerCase().includes(view.find)) : all;
}

async function begin() {
  $("when").textContent = D.when;
  $("notes").replaceChildren(...D.notes.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  $("names").replaceChildren(...D.apps.map((app) => Object.assign(document.createElement("option"), { value: app.name })));
  legend();
  find();
  await draw();
  follow($("cluster"));
  follow($("lanes"));
  let due = 0;
  $("find").addEventListener("input", () => { clearTimeout(due); due = setTimeout(() => { find(); hide(); draw(); }, 150); });
  $("all").addEventListener("click", () => look(...FULL));
  addEventListener("scroll", () => { if (!view.kept) hide(); }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); draw(); });
  document.documentElement.dataset.ready = "yes";
}

begin();
