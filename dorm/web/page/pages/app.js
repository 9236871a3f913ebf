// One app: what it has and why, what it is, its notes, progress, speed, adjustments and their cost, containers, output, files, story.

import { html, useState } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { Chart } from "../chart.js";
import { amounts, clean, number, percent, plural, span } from "../format.js";
import { Lanes } from "../lanes.js";
import { Output } from "../output.js";
import { AppLink, Card, Chip, Failed, Link, Meter, NodeLink, Phase, useLoaded, When } from "../parts.js";
import { ENDED } from "../model.js";
import { go, shown, store } from "../store.js";
import { About, Files, Notes } from "./about.js";
import { Curves, pointsOf } from "./curves.js";
import { Log } from "./log.js";
import { Story } from "./story.js";
import { sweepKey } from "./sweeps.js";

const FRESH_MS = 5000;

export function App() {
  const model = shown(), id = store.route.id, at = store.route.at;
  const app = model.apps.get(id) ?? [...model.apps.values()].find((one) => one.name === id);
  const key = `${app?.id ?? id} ${at ?? ""}`, fresh = at ? 0 : FRESH_MS, [noted, reload] = useState(0);
  const more = useLoaded(() => store.source.app(app?.id ?? id, at), `${key} ${app?.generation} ${app?.phase} ${noted}`, fresh);
  const course = useLoaded(() => store.source.progress(app?.id ?? id, at), key, fresh);
  const known = app ?? shape(more.value);
  if (!known) return html`<p class="banner">${more.error ? clean(more.error) : more.key ? "There is no such app at this moment." : "Loading …"}</p>`;
  const live = !ENDED.has(known.phase);
  return html`
    <header class="pagehead"><h1><${AppLink} id=${known.id} name=${known.name} /></h1><${Phase} phase=${known.phase} />
      <span class="dim">of <bdi>${clean(known.user)}</bdi>, ${known.engine}, submitted <${When} at=${known.submitted_at} day /></span>
      <span class="buttons"><${Buttons} app=${known} more=${more.value} live=${live} /></span></header>
    <${Swept} sweep=${more.value?.sweep} />
    ${known.reason && html`<p class="banner ${known.containers ? "" : "warn"}"><b>${known.containers ? `${known.containers} of ${known.n_max}` : "It waits"}:</b> ${clean(known.reason.text)} <span class="dim">(${clean(known.reason.code)})</span></p>`}
    ${known.end_reason && html`<p class="banner ${known.phase === "failed" ? "bad" : ""}">${clean(known.end_reason)}</p>`}
    ${more.value?.doubt && html`<p class="banner warn"><b>Doubtful checkpoint:</b> ${clean(more.value.doubt.text)}${more.value.doubt.advice ? `; ${clean(more.value.doubt.advice)}` : ""}</p>`}
    <section class="tiles" aria-label="Figures">
      <div class="tile"><h3>Containers</h3><p class="big">${known.containers}</p><${Meter} value=${known.containers} max=${known.n_max} mark=${known.n_min} label="Containers of n_max" /><p class="small dim">n_min ${known.n_min}, n_max ${known.n_max}, ${known.running} running</p></div>
      <div class="tile"><h3>Share</h3><p class="big">${percent(known.share, 1)}</p><${Meter} value=${known.share} max=${Math.max(known.share, known.fair_share, 1e-9) * 1.2} mark=${known.fair_share} tone=${known.share + 1e-9 < known.fair_share ? "warn" : "good"} label="Dominant share against the fair share" /><p class="small dim">${known.dominant ? `fair ${percent(known.fair_share, 1)} of ${clean(known.dominant)}, ` : ""}weight ${number(known.weight, 2)}</p></div>
      <div class="tile"><h3>Adjustments</h3><p class="big">${known.adjustments}</p><p class="small dim">${more.value?.adjust_s == null ? (known.live ? "resized live" : store.source.embedded || !known.adjustments ? "" : "cost not measured") : `each costs about ${number(more.value.adjust_s, 1)} s`}</p><p class="small dim">${more.value?.lost_steps ? `${plural(more.value.lost_steps, "step")} repeated` : ""}</p></div>
      <${Work} details=${more.value} last=${pointsOf(course.value).at(-1)} failures=${known.failures} />
      <div class="tile"><h3>Container</h3><p>${clean(amounts(known.demand))}</p><p class="small dim">generation ${known.generation}, ${known.phase} since <${When} at=${known.since} /></p></div>
    </section>
    <${Notes} app=${known} list=${more.value?.notes ?? []} reload=${() => reload(noted + 1)} />
    <${Why} id=${known.id} at=${at} turn=${`${known.generation} ${known.phase} ${known.reason?.code}`} />
    <${Card} id="partition" title="Partition over time"><${Lanes} apps=${[known.id]} height=${120} compact /><//>
    <div class="columns even">
      <${Curves} app=${known} course=${course} at=${at} sweep=${more.value?.sweep} />
      <${Speed} id=${known.id} at=${at} now=${known.containers} />
    </div>
    <${About} app=${known} at=${at} turn=${`${known.generation} ${known.n_min} ${known.n_max} ${known.weight}`} />
    <${Containers} app=${known} more=${more.value} model=${model} />
    <${Output} app=${known} slots=${(more.value?.containers_now ?? []).map((one) => one.slot).sort((a, b) => a - b)} />
    <${Files} app=${known} turn=${known.phase} />
    <${Adjustments} list=${more.value?.adjustments_done ?? []} />
    <${Told} id=${known.id} at=${at} turn=${`${known.generation} ${known.phase} ${more.value?.notes?.length ?? 0}`} />
    <${Log} fixed=${{ app: known.id }} height=${360} />`;
}

/** How far it is, by its last report alone: the one at which its curves end. */
function Work({ details, last, failures }) {
  const step = last?.step ?? details?.step, steps = details?.steps;
  const loss = last ? last.loss_is || last.loss : details?.loss_is || details?.loss;
  return html`<div class="tile" id="work"><h3>Progress</h3><p class="big">${step != null ? number(step) : "–"}</p>${steps ? html`<${Meter} value=${step ?? 0} max=${steps} label="Steps done" />` : ""}
    <p class="small dim">${steps ? `of ${number(steps)} steps` : "steps"}${loss != null ? `, loss ${typeof loss === "number" ? number(loss, 4) : clean(loss)}` : ""}</p>
    <p class="small dim">${failures ? plural(failures, "failure") : "no failures"}</p></div>`;
}

/** What can be done with it now. */
function Buttons({ app, more, live }) {
  const runs = app.containers > 0 || app.phase === "retrying", over = app.phase === "failed" || app.phase === "cancelled";
  return html`
    ${app.containers > 0 && html`<${Link} to="cluster" q=${{ app: app.id }} class="button">On the grid<//>`}
    ${live && html`<${Action} what="update" app=${app}>Update<//>`}
    ${live && (more?.hold ? html`<${Action} what="hold" app=${app} on=${false}>Release<//>` : html`<${Action} what="hold" app=${app} on>Hold<//>`)}
    ${((live && runs) || over) && html`<${Action} what="restart" app=${app} checkpoint=${more?.checkpoint}>Restart<//>`}
    ${live && html`<${Action} what="cancel" app=${app} tone="danger">Cancel<//>`}`;
}

/** Which app of which sweep it is. */
function Swept({ sweep }) {
  if (!sweep) return null;
  const parameters = Object.entries(sweep.parameters).map(([name, value]) => `${name}=${value}`).join(", ");
  return html`<p class="banner">App ${sweep.index + 1} of ${sweep.count} of the sweep <${Link} to="sweep" id=${sweepKey(sweep)} class="applink"><bdi>${clean(sweep.name)}</bdi><//>${parameters ? `: ${clean(parameters)}` : ""}</p>`;
}

/** An app that is no longer in views, from what the API says of it. */
function shape(one) {
  if (!one || !one.id) return null;
  return { reason: null, failures: 0, end_reason: "", share: 0, fair_share: 0, dominant: "", running: 0, engine: one.spec?.engine ?? "", since: null, live: false, weight: 1, ...one,
    demand: {}, submitted_at: one.submitted_at, end_reason: one.ended_at ? one.note : "" };
}

/** Why it has what it has, in words, and when it will start. */
function Why({ id, at, turn }) {
  const { value } = useLoaded(() => store.source.explain(id, at), `${id} ${at} ${turn}`);
  if (!value?.text) return null;
  return html`<${Card} id="why" title="Why" extra=${value.position && html`<span class="small dim">as of position ${value.position}</span>`}><p class="prose">${clean(value.text)}</p>${value.start?.text && html`<p class="prose"><b>Forecast:</b> ${clean(value.start.text)}</p>`}<//>`;
}

function Speed({ id, at, now }) {
  const { value, error, key } = useLoaded(() => store.source.speed(id, at), `${id} ${at} ${now}`);
  const points = value?.points ?? [];
  return html`<${Card} id="speed" title="Speed by containers" extra=${value?.basis && html`<${Chip}>${clean(value.basis)}<//>`}>
    <${Failed} text=${error} />
    ${points.length > 0 && html`<${Chart} time=${false} unit="containers" height=${190} label="Speed-up by containers"
      lines=${[{ name: "speed-up", tone: "accent", dots: true, points: points.map((one) => [one.containers, one.speed_up, one.speed_up * Math.min(one.uncertainty ?? 0, 1)]) },
        { name: "linear", tone: "muted", dashed: true, points: points.map((one) => [one.containers, one.containers / points[0].containers]) }]} />
      <p class="small dim">${value.remaining_s != null ? `About ${span(value.remaining_s * 1000)} to go.` : ""} ${value.next_saves_s != null ? `One more container would save ${span(value.next_saves_s * 1000)}.` : ""}</p>`}
    ${key !== null && !error && points.length === 0 && html`<p class="note">Its speed is not known.</p>`}
  <//>`;
}

function Containers({ app, more, model }) {
  const slot = store.route.q.output, watch = (one) => go({ q: { output: slot === one ? null : one } }, { replace: true });
  const list = more?.containers_now ?? [];
  const places = list.length ? [] : model.placesOf(app.id);
  return html`<${Card} id="containers" title="Containers" extra=${html`<span class="small dim">${plural(list.length || app.containers, "container")}</span>`}>
    ${list.length > 0 && html`<div class="scrollbox short" tabindex="0" role="region" aria-label="Containers"><table class="plain"><thead><tr><th class="num">slot</th><th>node</th><th>state</th><th>since</th><th class="num">port</th><th></th></tr></thead><tbody>
      ${list.slice(0, 500).map((one) => html`<tr key=${one.slot}><td class="num">${one.slot}</td><td><${NodeLink} id=${one.node} /></td><td><${Chip} tone=${{ running: "good", desired: "start", exited: one.exit_code ? "bad" : "done" }[one.state]}>${one.state}${one.exit_code != null ? ` ${one.exit_code}` : ""}<//></td>
        <td>${one.started_at ? html`<${When} at=${one.started_at / 1e6} />` : ""}</td><td class="num">${one.port || ""}</td>
        <td>${store.source.actions && html`<button type="button" class="small" aria-pressed=${slot === String(one.slot)} onClick=${() => watch(String(one.slot))}>output</button>`}</td></tr>`)}
    </tbody></table></div>`}
    ${places.length > 0 && html`<table class="plain"><thead><tr><th>node</th><th class="num">containers</th></tr></thead><tbody>${places.map(([node, count]) => html`<tr key=${node}><td><${NodeLink} id=${node} /></td><td class="num">${count}</td></tr>`)}</tbody></table>`}
    ${list.length === 0 && places.length === 0 && html`<p class="note">It has none.</p>`}
    ${store.source.embedded && html`<p class="note">The output of containers is not part of a recording.</p>`}
  <//>`;
}

const PARTS = [["prepare_s", "prepare", "accent"], ["stop_s", "stop", "stop"], ["wait_s", "wait", "wait"], ["start_s", "start", "start"], ["work_s", "first step", "wait"]];

function Adjustments({ list }) {
  if (!list.length) return null;
  const longest = Math.max(...list.map((one) => one.total_s ?? 0), 1e-9);
  return html`<${Card} id="adjustments" title="Adjustments and what they cost" extra=${html`<span class="legend">${PARTS.map(([, name, tone]) => html`<span><i class="key ${tone}"></i>${name}</span>`)}</span>`}>
    <div class="scrollbox short" tabindex="0" role="region" aria-label="Adjustments"><table class="plain"><thead><tr><th>when</th><th class="num">generation</th><th class="num">containers</th><th>phases</th><th class="num">total</th><th class="num">lost steps</th></tr></thead><tbody>
    ${[...list].reverse().map((one) => html`<tr><td><${When} at=${one.decided_at} day /></td><td class="num">${one.from_generation} → ${one.to_generation}</td><td class="num">${one.containers.replace("->", "→")}</td>
      <td class="phases"><span class="bar" ref=${(bar) => { if (bar) bar.style.width = `${Math.max(1, ((one.total_s ?? 0) / longest) * 100)}%`; }}>${PARTS.map(([name, title, tone]) => one[name] > 0 && html`<i class="key ${tone}" title=${`${title} ${number(one[name], 2)} s`} ref=${(part) => { if (part) part.style.flexGrow = String(one[name]); }}></i>`)}</span></td>
      <td class="num">${one.live ? `pause ${number((one.pause_s ?? 0) * 1000, 0)} ms` : one.total_s == null ? "…" : `${number(one.total_s, 1)} s`}</td><td class="num">${one.lost_steps || ""}</td></tr>`)}
    </tbody></table></div><//>`;
}

function Told({ id, at, turn }) {
  const story = useLoaded(() => store.source.story(id, at), `${id} ${at} ${turn}`);
  return html`<${Card} id="story" title="Story"><${Failed} text=${story.error} /><${Story} story=${story.value} /><//>`;
}
