// One app: what it has and why, its story, progress, speed, adjustments and their cost, containers, live output.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { Chart } from "../chart.js";
import { amounts, clean, msOf, number, percent, plural, span } from "../format.js";
import { Lanes } from "../lanes.js";
import { AppLink, Card, Chip, Failed, Link, Meter, NodeLink, Phase, useLoaded, When } from "../parts.js";
import { ENDED } from "../model.js";
import { shown, store } from "../store.js";
import { Log } from "./log.js";
import { Story } from "./story.js";
import { sweepKey } from "./sweeps.js";

const LINES = 2000, FRESH_MS = 5000;

export function App() {
  const model = shown(), id = store.route.id, at = store.route.at;
  const app = model.apps.get(id) ?? [...model.apps.values()].find((one) => one.name === id);
  const key = `${app?.id ?? id} ${at ?? ""}`, fresh = at ? 0 : FRESH_MS;
  const more = useLoaded(() => store.source.app(app?.id ?? id, at), `${key} ${app?.generation} ${app?.phase}`, fresh);
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
      <div class="tile"><h3>Progress</h3><p class="big">${more.value?.step != null ? number(more.value.step) : "–"}</p>${more.value?.steps ? html`<${Meter} value=${more.value.step} max=${more.value.steps} label="Steps done" />` : ""}<p class="small dim">${more.value?.steps ? `of ${number(more.value.steps)} steps` : "steps"}${more.value?.loss != null ? `, loss ${number(more.value.loss, 4)}` : ""}</p><p class="small dim">${known.failures ? plural(known.failures, "failure") : "no failures"}</p></div>
      <div class="tile"><h3>Container</h3><p>${clean(amounts(known.demand))}</p><p class="small dim">generation ${known.generation}, ${known.phase} since <${When} at=${known.since} /></p></div>
    </section>
    <${Why} id=${known.id} at=${at} turn=${`${known.generation} ${known.phase} ${known.reason?.code}`} />
    <${Card} id="partition" title="Partition over time"><${Lanes} apps=${[known.id]} height=${120} compact /><//>
    <div class="columns even">
      <${Progress} id=${known.id} at=${at} fresh=${fresh} />
      <${Speed} id=${known.id} at=${at} now=${known.containers} />
    </div>
    <${Containers} app=${known} more=${more.value} model=${model} />
    <${Adjustments} list=${more.value?.adjustments_done ?? []} />
    <${Told} id=${known.id} at=${at} turn=${`${known.generation} ${known.phase}`} />
    <${Log} fixed=${{ app: known.id }} height=${360} />`;
}

/** What can be done with it now. */
function Buttons({ app, more, live }) {
  const runs = app.containers > 0 || app.phase === "retrying", over = app.phase === "failed" || app.phase === "cancelled";
  return html`
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

function Progress({ id, at, fresh }) {
  const { value, error } = useLoaded(() => store.source.progress(id, at), `${id} ${at}`, fresh);
  const points = (value?.points ?? value?.items ?? []).map((one) => (Array.isArray(one) ? { at: one[0], step: one[1], loss: one[2], samples_per_s: one[3] } : one))
    .map((one) => ({ ...one, ms: typeof one.at === "number" ? (one.at > 1e15 ? one.at / 1e6 : one.at) : msOf(one.at) }));
  const has = (name) => points.some((one) => one[name] != null);
  const line = (name, title, tone) => ({ name: title, tone, points: points.filter((one) => one[name] != null).map((one) => [one.ms, one[name]]) });
  return html`<${Card} id="progress" title="Progress">
    <${Failed} text=${error} />
    ${value && points.length === 0 && html`<p class="note">The app has reported no progress.</p>`}
    ${has("step") && html`<${Chart} lines=${[line("step", "step", "accent")]} label="Steps over time" title="Steps" height=${130} />`}
    ${has("loss") && html`<${Chart} lines=${[line("loss", "loss", "warn")]} label="Loss over time" title="Loss" zero=${false} height=${120} />`}
    ${has("samples_per_s") && html`<${Chart} lines=${[line("samples_per_s", "samples/s", "good")]} label="Samples per second over time" title="Samples per second" height=${110} />`}
  <//>`;
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
  const [slot, watchSlot] = useState(null);
  const list = more?.containers_now ?? [];
  const places = list.length ? [] : model.placesOf(app.id);
  return html`<${Card} id="containers" title="Containers" extra=${html`<span class="small dim">${plural(list.length || app.containers, "container")}</span>`}>
    ${list.length > 0 && html`<div class="scrollbox short"><table class="plain"><thead><tr><th class="num">slot</th><th>node</th><th>state</th><th>since</th><th class="num">port</th><th></th></tr></thead><tbody>
      ${list.slice(0, 500).map((one) => html`<tr key=${one.slot}><td class="num">${one.slot}</td><td><${NodeLink} id=${one.node} /></td><td><${Chip} tone=${{ running: "good", desired: "start", exited: one.exit_code ? "bad" : "done" }[one.state]}>${one.state}${one.exit_code != null ? ` ${one.exit_code}` : ""}<//></td>
        <td>${one.started_at ? html`<${When} at=${one.started_at / 1e6} />` : ""}</td><td class="num">${one.port || ""}</td>
        <td>${store.source.actions && html`<button type="button" class="small" aria-pressed=${slot === one.slot} onClick=${() => watchSlot(slot === one.slot ? null : one.slot)}>output</button>`}</td></tr>`)}
    </tbody></table></div>`}
    ${places.length > 0 && html`<table class="plain"><thead><tr><th>node</th><th class="num">containers</th></tr></thead><tbody>${places.map(([node, count]) => html`<tr key=${node}><td><${NodeLink} id=${node} /></td><td class="num">${count}</td></tr>`)}</tbody></table>`}
    ${list.length === 0 && places.length === 0 && html`<p class="note">It has none.</p>`}
    ${store.source.embedded && html`<p class="note">The output of containers is not part of a recording.</p>`}
    ${slot !== null && html`<${Output} key=${`${app.id} ${slot}`} id=${app.id} slot=${slot} />`}
  <//>`;
}

/** A container's output as it comes.  It belongs to the app's owner; here it is plain text. */
function Output({ id, slot }) {
  const place = useRef(null);
  const [note, say] = useState("Waiting for output …");
  const [times, setTimes] = useState(false);
  useEffect(() => {
    const lines = [];
    let frame = 0;
    const show = () => {
      frame = 0;
      const box = place.current;
      if (!box) return;
      const down = box.scrollTop + box.clientHeight > box.scrollHeight - 30;
      box.textContent = lines.join("\n");
      if (down) box.scrollTop = box.scrollHeight;
    };
    let came = 0, known = 0;  // A reading that begins again repeats what is known.
    const stop = store.source.logs(id, { slot, follow: "true", timestamps: times ? "true" : undefined }, (event, data) => {
      if (event === "restart") { known = Math.max(known, came); came = 0; }
      if (event === "end" || event === "problem") say(event === "end" ? "The output has ended." : data.detail ?? "There is no output.");
      if (event !== "line" || ++came <= known) return;
      const text = String(data.text ?? "");
      lines.push(times ? `${data.time ?? "-".padEnd(24)} ${text}` : text);
      if (lines.length > LINES) lines.splice(0, lines.length - LINES);
      frame ||= requestAnimationFrame(show);
      say("");
    });
    return () => { stop(); cancelAnimationFrame(frame); };
  }, [id, slot, times]);
  return html`<div class="output"><p class="small dim">Output of slot ${slot} ${note && `· ${note}`} <label><input type="checkbox" checked=${times} onChange=${(event) => setTimes(event.currentTarget.checked)} /> times (UTC)</label></p><pre ref=${place} tabindex="0" aria-label=${`Output of slot ${slot}`}></pre></div>`;
}

const PARTS = [["prepare_s", "prepare", "accent"], ["stop_s", "stop", "stop"], ["wait_s", "wait", "wait"], ["start_s", "start", "start"], ["work_s", "first step", "wait"]];

function Adjustments({ list }) {
  if (!list.length) return null;
  const longest = Math.max(...list.map((one) => one.total_s ?? 0), 1e-9);
  return html`<${Card} id="adjustments" title="Adjustments and what they cost" extra=${html`<span class="legend">${PARTS.map(([, name, tone]) => html`<span><i class="key ${tone}"></i>${name}</span>`)}</span>`}>
    <div class="scrollbox short"><table class="plain"><thead><tr><th>when</th><th class="num">generation</th><th class="num">containers</th><th>phases</th><th class="num">total</th><th class="num">lost steps</th></tr></thead><tbody>
    ${[...list].reverse().map((one) => html`<tr><td><${When} at=${one.decided_at} day /></td><td class="num">${one.from_generation} → ${one.to_generation}</td><td class="num">${one.containers.replace("->", "→")}</td>
      <td class="phases"><span class="bar" ref=${(bar) => { if (bar) bar.style.width = `${Math.max(1, ((one.total_s ?? 0) / longest) * 100)}%`; }}>${PARTS.map(([name, title, tone]) => one[name] > 0 && html`<i class="key ${tone}" title=${`${title} ${number(one[name], 2)} s`} ref=${(part) => { if (part) part.style.flexGrow = String(one[name]); }}></i>`)}</span></td>
      <td class="num">${one.live ? `pause ${number((one.pause_s ?? 0) * 1000, 0)} ms` : one.total_s == null ? "…" : `${number(one.total_s, 1)} s`}</td><td class="num">${one.lost_steps || ""}</td></tr>`)}
    </tbody></table></div><//>`;
}

function Told({ id, at, turn }) {
  const story = useLoaded(() => store.source.story(id, at), `${id} ${at} ${turn}`);
  return html`<${Card} id="story" title="Story"><${Failed} text=${story.error} /><${Story} story=${story.value} /><//>`;
}
