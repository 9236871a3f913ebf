// The time slider: the whole log as a track.  It takes the page to any moment, plays it at any speed, and jumps between
// decisions and failures.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { Axis } from "./axis.js";
import { Canvas } from "./canvas.js";
import { theme } from "./colors.js";
import { exact, moment, readMoment, useZone, zoneName } from "./format.js";
import { useTimeline } from "./lanes.js";
import { Icon } from "./parts.js";
import { DECISIONS, jump, kindsIn, moveTo, recall, remember, say, set, shown, store, useStore } from "./store.js";

const STEPS = 10_000, SPEEDS = [1, 2, 5, 10, 30, 60, 300, 1800, 3600], PLAY_MS = 250;

export function Slider() {
  useStore();
  const [size, resize] = useState({ width: 0 });
  const { data } = useTimeline(null, Math.max(size.width, 0));
  const [dragged, drag] = useState(null);
  const throttle = useRef({ timer: 0, next: null });
  const begin = data?.begin ?? 0, end = Math.max(data?.last ?? 1, store.live?.at ?? 0, begin + 1);
  useEffect(() => { if (data) store.range = { begin, end }; }, [begin, end]);
  useEffect(() => { if (data) set({ timeline: data }); }, [data]);
  const axis = useMemo(() => new Axis(begin, end, 8, Math.max(size.width - 8, 9)), [begin, end, size.width]);
  const model = shown();
  // Before the first record there is no time, and of a moment that the log does not have none is known: never now's.
  const time = dragged ?? (store.route.at ? model?.at ?? null : end);
  const here = time ?? begin;

  useEffect(() => {
    if (!store.playing) return undefined;
    let time = store.route.at && store.past?.at ? store.past.at : begin;
    const timer = setInterval(() => {
      if (store.loading) return;
      time += PLAY_MS * store.speed;
      if (time >= end) { set({ playing: false }); moveTo(null, { replace: true }); return; }
      moveTo(new Date(time).toISOString(), { replace: true });
    }, PLAY_MS);
    return () => clearInterval(timer);
  }, [store.playing, store.speed]);

  function draw(context, width, height) {
    const tones = theme();
    context.clearRect(0, 0, width, height);
    if (!data) return;
    const base = height - 9, top = 4;
    context.fillStyle = tones.line;
    context.fillRect(8, base, width - 16, 2);
    const points = scarcest(data.figures, end);
    if (points.length) {
      context.beginPath();
      context.moveTo(axis.x(points[0][0]), base);
      let y = base;
      for (const [time, value] of points) {
        context.lineTo(axis.x(time), y);
        y = base - Math.min(value, 1) * (base - top);
        context.lineTo(axis.x(time), y);
      }
      context.lineTo(axis.x(end), y);
      context.lineTo(axis.x(end), base);
      context.fillStyle = tones.accent;
      context.globalAlpha = 0.16;
      context.fill();
      context.globalAlpha = 1;
    }
    context.fillStyle = tones.accent;
    for (const [, time] of data.decisions) context.fillRect(axis.x(time) - 0.5, base - 5, 1, 5);
    context.fillStyle = tones.bad;
    for (const [, time] of data.failures) { context.beginPath(); context.arc(axis.x(time), top + 3, 2.6, 0, 7); context.fill(); }
    context.fillStyle = tones.warn;
    for (const [, time, kind] of data.marks) if (kind === "note") context.fillRect(axis.x(time) - 1.5, base - 11, 3, 6);
    context.fillStyle = tones.accent;
    context.fillRect(8, base, axis.x(here) - 8, 2);
    context.beginPath();
    context.arc(axis.x(here), base + 1, 6, 0, 7);
    context.fill();
    context.fillStyle = tones.card;
    context.beginPath();
    context.arc(axis.x(here), base + 1, 2.4, 0, 7);
    context.fill();
    if (store.route.at) { context.fillStyle = tones.accent; context.fillRect(axis.x(here) - 0.5, top, 1, base - top); }
  }

  function slide(value, final) {
    const time = begin + (Number(value) / STEPS) * (end - begin);
    drag(final ? null : time);
    const state = throttle.current;
    state.next = Number(value) >= STEPS ? null : new Date(time).toISOString();
    const apply = () => { state.timer = 0; moveTo(state.next, { replace: true }); };
    if (final) { clearTimeout(state.timer); apply(); } else state.timer ||= setTimeout(apply, 120);
  }
  const value = Math.round(((here - begin) / (end - begin)) * STEPS);
  const past = Boolean(store.route.at);

  return html`<footer class="slider" aria-label="Time">
    <div class="transport" role="group" aria-label="Moments">
      <button type="button" title="Previous failure (Shift+[)" aria-label="Previous failure" class="bad" onClick=${() => jump(kindsIn("failures"), -1)}><${Icon} name="first" /></button>
      <button type="button" title="Previous decision ([)" aria-label="Previous decision" onClick=${() => jump(DECISIONS, -1)}><${Icon} name="back" /></button>
      <button type="button" title="Play (Space)" aria-label=${store.playing ? "Pause" : "Play"} aria-pressed=${store.playing} onClick=${() => set({ playing: !store.playing })}><${Icon} name=${store.playing ? "pause" : "play"} /></button>
      <button type="button" title="Next decision (])" aria-label="Next decision" onClick=${() => jump(DECISIONS, 1)}><${Icon} name="next" /></button>
      <button type="button" title="Next failure (Shift+])" aria-label="Next failure" class="bad" onClick=${() => jump(kindsIn("failures"), 1)}><${Icon} name="last" /></button>
      <label class="speed"><span class="sr">Speed</span><select value=${store.speed} onChange=${(event) => { remember("speed", event.target.value); set({ speed: Number(event.target.value) }); }}>
        ${SPEEDS.map((one) => html`<option value=${one}>${one}×</option>`)}</select></label>
    </div>
    <div class="track">
      <${Canvas} draw=${draw} sized=${(width) => resize({ width })} label="" role="presentation" aria-hidden="true" />
      <input type="range" min="0" max=${STEPS} value=${value} aria-label="Moment of the log" aria-valuetext=${past ? clockOf(time) : store.source?.actions === false ? "the end" : "now"}
        onInput=${(event) => slide(event.target.value, false)} onChange=${(event) => slide(event.target.value, true)} />
    </div>
    <div class="now">
      <button type="button" class=${past ? "live past" : "live"} aria-pressed=${!past} onClick=${() => { set({ playing: false }); moveTo(null); }}>${store.source?.actions === false ? "End" : "Live"}</button>
      <span class="clock" title=${exact(time)}>${clockOf(time)}</span>
      <${Zone} at=${here} />
      <${Exact} />
    </div>
  </footer>`;
}

/** The use over time of the resource that is used most: the one that apps wait for. */
function scarcest(figures, end) {
  const curves = Object.entries(figures).filter(([name]) => name.startsWith("decided.")).map(([, points]) => points);
  const mean = (points) => points.reduce((sum, [at, value], index) => sum + value * ((points[index + 1]?.[0] ?? end) - at), 0) / Math.max(end - (points[0]?.[0] ?? end), 1);
  return curves.map((points) => [mean(points), points]).sort((a, b) => b[0] - a[0])[0]?.[1] ?? [];
}

const clockOf = (time) => (time !== null ? moment(time) : store.loading ? "…" : String(store.past?.position) === "0" ? "before the first record" : "no such moment");

/** The time zone of everything on the page; a click changes it. */
function Zone({ at }) {
  const chosen = recall("zone", "local");
  const turn = () => {
    const next = chosen === "utc" ? "local" : "utc";
    remember("zone", next);
    useZone(next);
    set({ zone: next });
  };
  return html`<button type="button" class="quiet zone" onClick=${turn} aria-label=${`Time zone ${zoneName(at)}; change to ${chosen === "utc" ? "that of this browser" : "UTC"}`}
    title=${`All times on this page, shown and typed, are in ${zoneName(at)}. Click for ${chosen === "utc" ? "the time zone of this browser" : "UTC"}.`}>${zoneName(at)}</button>`;
}

/** The moment as text: shows the position, and takes a sequence, a time or `-10m`. */
function Exact() {
  const model = shown();
  const [text, write] = useState(null);
  const enter = (event) => {
    event.preventDefault();
    const typed = (text ?? "").trim();
    write(null);
    if (!typed) return;
    const at = readMoment(typed);
    if (at === null) { say(`Enter a sequence (118), a time in ${zoneName()} (2026-11-21 09:00, yesterday 14:00) or an age (-10m).`, "bad"); return; }
    moveTo(at || null);
  };
  return html`<form class="exact" onSubmit=${enter}><label><span class="sr">Position on the log</span>
    <input value=${text ?? model?.position ?? store.route.at ?? ""} onInput=${(event) => write(event.target.value)} onFocus=${(event) => event.target.select()} onBlur=${() => write(null)}
      spellcheck="false" autocomplete="off" title=${`Position on the log; enter a sequence, a time in ${zoneName()}, or -10m`} size="7" /></label></form>`;
}
