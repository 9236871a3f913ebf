// How far an app is: its latest report, and its curves, next to those of other apps if one chooses some.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Chart } from "../chart.js";
import { appClass, appColor, theme } from "../colors.js";
import { clean, msOf, short } from "../format.js";
import { AppLink, Card, Failed } from "../parts.js";
import { go, recall, remember, shown, store } from "../store.js";
import { sweepKey } from "./sweeps.js";

const MOST = 8, MOST_CHOICES = 200;
const MEASURES = [["step", "Steps", "accent", true, 130], ["loss", "Loss", "warn", false, 120], ["samples_per_s", "Samples per second", "good", true, 110]];
const ALONG = { time: "time", age: "time since its start", step: "steps" };

/** Points of the API or of a recording as one form. */
export function pointsOf(course) {
  return (course?.points ?? []).map((one) => (Array.isArray(one) ? { ms: one[0], step: one[1], loss: one[2], samples_per_s: one[3] } : { ...one, ms: msOf(one.at) }));
}

/** The curves of several apps by id, loaded once and then again when `turn` changes. */
function useCourses(ids, at, turn) {
  const [courses, take] = useState(new Map());
  const key = `${ids.join()} ${at} ${turn}`;
  useEffect(() => {
    let over = false;
    Promise.all(ids.map(async (id) => {
      try { return [id, pointsOf(await store.source.progress(id, at))]; } catch { return [id, []]; }
    })).then((loaded) => { if (!over) take(new Map(loaded)); });
    return () => { over = true; };
  }, [key]);
  return courses;
}

export function Curves({ app, course, at, sweep }) {
  const points = pointsOf(course.value), others = (store.route.q.with ?? "").split(",").filter(Boolean).slice(0, MOST);
  const [along, turn] = useState(recall("along", "time"));
  const courses = useCourses(others, at, others.length ? points.length : 0), model = shown(), tones = theme();
  const names = new Map([...model.apps.values()].map((one) => [one.id, one.name]));
  const all = [[app.id, points], ...others.map((id) => [id, courses.get(id) ?? []])];
  const x = (point, first) => (along === "step" ? point.step : along === "age" ? (point.ms - first) / 60_000 : point.ms);
  const lines = (name, title, tone) => all.map(([id, list]) => ({
    name: others.length ? short(names.get(id) ?? id, 30) : title, tone: others.length ? "" : tone, color: appColor(id, tones), swatch: others.length ? `swatch ${appClass(id)}` : null,
    points: list.filter((one) => one[name] != null).map((one) => [x(one, list[0].ms), one[name]]),
  })).filter((one) => one.points.length);
  const measures = MEASURES.filter(([name]) => !(along === "step" && name === "step") && points.concat(...others.map((id) => courses.get(id) ?? [])).some((one) => one[name] != null));
  const choose = (ids) => go({ q: { with: ids.join(",") || null } }, { replace: true });
  return html`<${Card} id="progress" title="Progress" extra=${points.length > 0 && html`<label class="small">over <select value=${along} onChange=${(event) => { remember("along", event.target.value); turn(event.target.value); }}>
      ${Object.entries(ALONG).map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>`}>
    <${Failed} text=${course.error} />
    ${course.value && points.length === 0 && html`<p class="note">The app has reported no progress.</p>`}
    ${measures.map(([name, title, tone, zero, height]) => html`<${Chart} key=${name + along} lines=${lines(name, title, tone)} time=${along === "time"} unit=${along === "step" ? "steps" : "min"}
      label=${`${title} over ${ALONG[along]}`} title=${title} zero=${zero} height=${height} />`)}
    ${points.length > 0 && html`<${Compared} app=${app} others=${others} names=${names} sweep=${sweep} choose=${choose} />`}
  <//>`;
}

/** Which apps are drawn too: of the same sweep, or of the same user. */
function Compared({ app, others, names, sweep, choose }) {
  const [swept, take] = useState([]);
  useEffect(() => {
    if (sweep) store.source.sweep(sweepKey(sweep), "", store.route.at).then((found) => take(found.apps ?? found.items ?? []), () => {});
  }, [sweep && sweepKey(sweep)]);
  const taken = new Set([app.id, ...others]);
  const ofSweep = swept.filter((one) => !taken.has(one.id)).slice(0, MOST_CHOICES);
  const known = new Set(ofSweep.map((one) => one.id));
  const rest = shown().appList.filter((one) => !taken.has(one.id) && !known.has(one.id)).sort((a, b) => (b.user === app.user) - (a.user === app.user)).slice(0, MOST_CHOICES);
  const option = (one) => html`<option value=${one.id}>${short(one.name, 48)}</option>`;
  return html`<p class="compared small">
    ${others.map((id) => html`<span class="pill"><${AppLink} id=${id} name=${names.get(id) ?? id} /><button type="button" class="quiet" aria-label=${`Without ${clean(names.get(id) ?? id)}`} onClick=${() => choose(others.filter((one) => one !== id))}>✕</button></span>`)}
    ${others.length < MOST && (ofSweep.length > 0 || rest.length > 0) && html`<label>Compare with <select value="" onChange=${(event) => choose([...others, event.target.value])}><option value="">…</option>
      ${ofSweep.length > 0 && html`<optgroup label=${`Sweep ${clean(sweep.name)}`}>${ofSweep.map(option)}</optgroup>`}
      ${rest.length > 0 && html`<optgroup label="Apps">${rest.map(option)}</optgroup>`}</select></label>`}</p>`;
}
