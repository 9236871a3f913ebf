// The first page: what people look for first.  The cluster, its figures, who waits and why, the last decision, what happens.

import { html, useMemo } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { amount, clean, msOf, number, percent, plural, span } from "../format.js";
import { Chart } from "../chart.js";
import { NODE_TONE } from "../colors.js";
import { Grid } from "../grid.js";
import { Lanes } from "../lanes.js";
import { AppLink, Card, Chip, EventRow, Link, Meter, MomentLink, When } from "../parts.js";
import { go, kindsIn, shown, store } from "../store.js";
import { NeedsMe, Wellbeing } from "./attention.js";

const NOT_UP = ["lost", "suspect", "draining", "maintenance", "unmounted", "unfit"];

export function Cluster() {
  const model = shown();
  if (!model) return null;
  return html`
    <div class="threefold"><${Wellbeing} model=${model} /><${Waiting} model=${model} /><${NeedsMe} model=${model} /></div>
    <${Figures} model=${model} />
    <div class="columns">
      <${Card} id="nodes" title="Cluster" class="wide" extra=${html`<span class="small dim">${plural(model.nodes.size, "node")}</span>`}>
        <${Chosen} model=${model} />
        <${Grid} model=${model} focus=${store.route.q.focus ?? ""} height=${gridHeight()} />
        <${Use} model=${model} />
      <//>
      <div class="stack">
        <${Decision} model=${model} />
        ${!store.route.at && html`<${Card} id="tail" title="Log" extra=${html`<${Link} to="log" class="small">whole log<//>`}><${Tail} most=${10} /><//>`}
      </div>
    </div>
    <${Card} id="lanes" title="Partitions over time"><${Lanes} height=${360} /><//>
    <${LeftOut} />`;
}

/** The app that is looked for on the grid, by the address. */
function Chosen({ model }) {
  const id = store.route.q.app, app = model.apps.get(id);
  if (!id) return null;
  const places = model.placesOf(id);
  return html`<p class="chosen" role="status">${app ? html`<${AppLink} id=${id} name=${app.name} /> has ${plural(places.reduce((sum, [, count]) => sum + count, 0), "container")} on ${plural(places.length, "node")}` : html`<span>There is no app ${clean(id)} at this moment.</span>`}
    <button type="button" class="small" onClick=${() => go({ q: { app: null } })}>Show all apps</button></p>`;
}

const TONES = ["accent", "good", "warn", "stop", "muted"];

/** Use and containers over time, up to the moment that is shown. */
function Use({ model }) {
  const data = store.timeline, until = store.route.at ? model.at : data?.finish;
  const lines = useMemo(() => (data ? [...usesOf(data, until), ...containersOf(data, until)] : []), [data, until]);
  if (!lines.length) return null;
  const uses = lines.filter((line) => !line.counts), counts = lines.filter((line) => line.counts);
  return html`<div class="usecharts">
    <${Chart} lines=${uses} height=${150} most=${1} x0=${data.begin} x1=${until} title="Use" label="Use of the cluster over time" format=${(value) => percent(value)} />
    ${counts.length > 0 && html`<${Chart} lines=${counts} height=${150} x0=${data.begin} x1=${until} title="Containers" label="Containers and waiting apps over time" format=${(value) => number(value)} />`}</div>`;
}

function usesOf(data, until) {
  return Object.entries(data.figures).filter(([name]) => name.startsWith("decided.")).map(([name, points], index) => ({
    name: clean(name.slice("decided.".length)), tone: TONES[index % TONES.length], step: true, points: points.filter(([at]) => at <= until),
  })).filter((line) => line.points.length);
}

/** Containers, as far as all apps are in the picture, and apps that wait. */
function containersOf(data, until) {
  const waiting = { name: "apps that wait", tone: "warn", step: true, counts: true, points: (data.figures.waiting ?? []).filter(([at]) => at <= until) };
  if (data.next) return [waiting];
  const steps = new Map();
  for (const app of data.apps) for (const [begin, end, count, phase] of app.spans) {
    if (!count || begin > until || phase === "wait") continue;
    steps.set(begin, (steps.get(begin) ?? 0) + count);
    if (end < until) steps.set(end, (steps.get(end) ?? 0) - count);
  }
  let sum = 0;
  const points = [...steps].sort((a, b) => a[0] - b[0]).map(([at, change]) => [at, (sum += change)]);
  return [...(points.length ? [{ name: "containers", tone: "accent", step: true, counts: true, points }] : []), waiting];
}

/** What a recording leaves out. */
function LeftOut() {
  if (!store.source.embedded) return null;
  const notes = [...store.source.recording.notes, "The output of containers and their use of resources are not on the log, so this page does not have them.",
    "Forecasts, plans and what-if forks are computed on demand: dorm replay open serves an archive with them."];
  return html`<${Card} id="leftout" title="About this recording"><ul>${notes.map((text) => html`<li class="note">${clean(text)}</li>`)}</ul><//>`;
}

const gridHeight = () => (window.innerWidth < 700 ? 320 : Math.min(480, Math.max(320, window.innerHeight - 600)));

export function Figures({ model }) {
  const { cluster } = model;
  const budget = cluster.fairness_budget, over = budget !== null && cluster.fairness_loss > budget + 1e-9;
  const changes = cluster.overhead_budget;
  const states = count([...model.nodes.values()].map((node) => node.state));
  return html`<section class="tiles" aria-label="Figures">
    ${cluster.kinds.map((kind) => html`<div class="tile">
      <h3>${clean(kind)}</h3>
      <p class="big">${percent(cluster.used[kind] / cluster.capacity[kind])}</p>
      <${Meter} value=${cluster.used[kind]} max=${cluster.capacity[kind]} label=${`Utilization of ${kind}`} />
      <p class="small dim">${amount(kind, cluster.used[kind])} of ${amount(kind, cluster.capacity[kind])}</p>
    </div>`)}
    <div class="tile">
      <h3>Fairness loss</h3>
      <p class="big ${over ? "warn" : ""}">${number(cluster.fairness_loss, 3)}</p>
      <${Meter} value=${cluster.fairness_loss} max=${Math.max((budget ?? 0) * 1.5, cluster.fairness_loss, 1e-9)} mark=${budget} tone=${over ? "warn" : "good"} label="Fairness loss against its budget" />
      <p class="small dim">${budget === null ? "no budget" : `budget ${number(budget, 3)}`}</p>
    </div>
    <div class="tile">
      <h3>Overhead</h3>
      <p class="big">${cluster.overhead}</p>
      <${Meter} value=${cluster.overhead} max=${Math.max(changes ?? 0, cluster.overhead, 1)} tone="accent" label="Running apps that the last decision changed, of its budget" />
      <p class="small dim">${changes === null ? "running apps changed in the last decision" : `of at most ${changes} in the last decision`}</p>
    </div>
    <div class="tile">
      <h3>Apps</h3>
      <p class="big">${number(cluster.apps)}</p>
      <p class="small">${cluster.waiting > 0 ? html`<${Chip} tone="warn">${cluster.waiting} waiting<//>` : html`<span class="dim">none waiting</span>`}</p>
      <p class="small dim">${plural(cluster.decisions, "decision")}</p>
    </div>
    <div class="tile">
      <h3>Nodes</h3>
      <p class="big">${number(cluster.nodes)}</p>
      <p class="small">${NOT_UP.filter((state) => states[state]).map((state) => html`<${Chip} tone=${NODE_TONE[state]}>${states[state]} ${state}<//> `)}${NOT_UP.some((state) => states[state]) ? "" : html`<span class="dim">all up</span>`}</p>
      <p class="small dim">led by ${clean(cluster.leader) || "no master"}</p>
    </div>
  </section>
  ${cluster.paused && html`<p class="banner warn" role="status">Nothing new is decided: ${clean(cluster.paused)}. <code>dorm resume</code> goes on.</p>`}
  ${cluster.policy_failure && html`<p class="banner bad" role="alert">The policy gives no usable answer, so every app keeps what it has: ${clean(cluster.policy_failure)}</p>`}`;
}

function count(items) {
  const found = {};
  for (const one of items) found[one] = (found[one] ?? 0) + 1;
  return found;
}

/** How long an app has waited; one that pauses after a failure waits until a moment. */
function waits(app, now) {
  const since = msOf(app.since);
  if (!now || since === null) return "";
  return since > now ? `again in ${span(since - now)}` : span(now - since);
}

function Waiting({ model }) {
  const waiting = model.waiting;
  const below = model.live.filter((app) => app.reason && app.containers > 0);
  return html`<${Card} id="waiting" title="Who waits, and why" extra=${html`<${Chip} tone=${waiting.length ? "warn" : ""}>${waiting.length}<//>`}>
    ${waiting.length === 0 && html`<p class="note">No app waits for a partition.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Apps that wait"><ul class="reasons">
      ${waiting.slice(0, 100).map((app) => html`<li key=${app.id}><${AppLink} id=${app.id} name=${app.name} /> <span class="dim">${app.user} · ${waits(app, model.at)}</span>
        <p>${clean(app.reason?.text ?? (app.phase === "retrying" ? "pauses after a failure" : "not decided yet"))}</p></li>`)}
      ${waiting.length > 100 && html`<li class="dim">and ${waiting.length - 100} more (<${Link} to="apps" q=${{ phase: "waiting" }}>all of them<//>)</li>`}
      ${below.length > 0 && html`<li class="sub">Below their n_max</li>`}
      ${below.slice(0, 40).map((app) => html`<li key=${app.id}><${AppLink} id=${app.id} name=${app.name} /> <span class="dim">${app.containers} of ${app.n_max}</span><p>${clean(app.reason.text)}</p></li>`)}
      ${below.length > 40 && html`<li class="dim">and ${below.length - 40} more</li>`}
    </ul></div>
  <//>`;
}

export function Decision({ model }) {
  const one = model.decision;
  return html`<${Card} id="decision" title="Last decision" extra=${html`<${Action} what="plan">What next?<//>`}>
    ${!one && html`<p class="note">None so far.</p>`}
    ${one && html`
      <p class="small"><${MomentLink} position=${one.position} /> <span class="dim"><${When} at=${one.at} day /> by ${clean(one.policy)} ${one.policy_version} (${clean(one.status)}), on ${TRIGGERS[one.trigger] ?? clean(one.trigger)}</span></p>
      <p class="small dim">utilization ${number(one.utilization, 2)} of ${model.cluster.kinds.length}${one.bound > 0 ? ` (at most ${number(one.bound, 2)} is possible)` : ""}, fairness loss ${number(one.fairness_loss, 3)}${one.fairness_budget === null ? "" : ` of ${number(one.fairness_budget, 3)}`}, ${plural(one.overhead, "running app")} changed</p>
      <div class="scroll low" tabindex="0" role="region" aria-label="Changes of the last decision"><ul class="changes">
        ${one.changes.slice(0, 60).map((change) => html`<li key=${change.app}><${AppLink} id=${change.app} name=${change.name} /> <span class="num">${change.before ?? "?"} → <b>${change.after}</b></span> <${Chip} tone=${{ start: "start", live: "good", restart: "stop", stop: "bad" }[change.kind] ?? ""}>${change.kind}<//></li>`)}
        ${one.all_changes > 60 && html`<li class="dim">and ${one.all_changes - 60} more</li>`}
        ${one.all_changes === 0 && html`<li class="dim">No changes, only new reasons.</li>`}
      </ul></div>`}
  <//>`;
}

const TRIGGERS = { events: "events", idle: "an idle tick", deadline: "a deadline" };

export function Tail({ most = 12 }) {
  const items = store.tail.filter((one) => kindsIn("news").includes(one.kind)).slice(-most).reverse();
  return html`<ol class="events" aria-live="off">${items.map((one) => html`<${EventRow} key=${one.position} one=${one} />`)}</ol>
    ${items.length === 0 && html`<p class="note">${store.source.embedded ? "This recording has no such events." : "The log has no such events yet."}</p>`}`;
}
