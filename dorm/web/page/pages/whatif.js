// What if: the log continued from the moment of the page in the simulator, with other settings, nodes or apps, next to what
// happened.  The change is part of the address, so a link shows the same fork: settings as `change`, all else as `also`.

import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { clean, length, moment, msOf, number, percent, plural, span } from "../format.js";
import { Lanes } from "../lanes.js";
import { AppLink, Card, Chip, Failed, Link, useLoaded } from "../parts.js";
import { Settings, choiceOf, loadSettings, readSettings } from "../settings.js";
import { go, shown, store } from "../store.js";
import { Supposed, formOf, readSupposed } from "../supposed.js";

const SETTLE_MS = 700, HEIGHT = 300;

export function WhatIf() {
  if (store.source.embedded) return html`<${Unplayed} />`;
  return html`<${Fork} />`;
}

/** A file has what happened, but no simulator to continue from there. */
function Unplayed() {
  const at = String(shown()?.position ?? "").split(".")[0];
  return html`<${Card} id="whatif" title="What if">
    <p class="prose">This page is a recording: it shows what happened, but has no simulator to continue from a moment.</p>
    <p class="prose">With the log or its archive, <code>dorm replay open FILE</code> serves this page with one, and <code>dorm whatif --file FILE --from ${at} --set theta2=0.3</code> does the same in a terminal.</p><//>`;
}

function Fork() {
  const at = store.route.at, { change = "", also = "" } = store.route.q, model = shown();
  const { value: found, error } = useLoaded(() => loadSettings(at), `settings ${at}`);
  const [choice, choose] = useState(() => choiceOf(parsed(change)));
  const [form, fill] = useState(() => formOf(parsed(also)));
  const read = found && readSettings(found, choice), more = readSupposed(form);
  const [state, take] = useState({ fork: null, error: "", busy: false });

  useEffect(() => {
    if (!change && !also) { take({ fork: null, error: "", busy: false }); return undefined; }
    const stop = new AbortController();
    take((before) => ({ ...before, error: "", busy: true }));
    const timer = setTimeout(async () => {
      try {
        const fork = await store.source.whatif(at, { ...parsed(also), policy: parsed(change), width: 1200 }, stop.signal);
        take({ fork, error: "", busy: false });
      } catch (problem) {
        if (problem.name !== "AbortError") take({ fork: null, error: problem.message, busy: false });
      }
    }, SETTLE_MS);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [change, also, at]);

  const wrong = read?.wrong || more.wrong, ready = Boolean(read && (read.some || more.some) && !wrong);
  const play = (event) => {
    event.preventDefault();
    if (!ready) return;
    const q = { change: read.some ? JSON.stringify(read.assumed) : "", also: Object.keys(more.body).length ? JSON.stringify(more.body) : "" };
    go({ at: at ?? String(model.position).split(".")[0], q });
  };
  return html`
    <${Card} id="whatif" title="What if" extra=${html`<span class="small dim">from ${at ? html`<b>${moment(model.at)}</b>` : html`<b>now</b>`}, position ${model.position}; the slider chooses another moment</span>`}>
      <form onSubmit=${play}>
        <p class="small dim">The simulator continues the log from this moment twice: unchanged, and with your changes. How apps behave comes from the log.</p>
        <${Failed} text=${error} />
        ${found && html`<div class="whatifform"><${Settings} found=${found} choice=${choice} onchange=${choose} />
          <${Supposed} form=${form} model=${model} onchange=${fill} /></div>`}
        ${wrong && html`<p class="note bad" role="alert">${clean(wrong)}</p>`}
        <div class="actions">
          ${state.busy && html`<span class="note" role="status">Simulating …</span><button type="button" onClick=${() => go({ q: { change: "", also: "" } })}>Stop</button>`}
          <button type="submit" class="primary" disabled=${!ready || state.busy} title=${ready ? undefined : "Change something first"}>Play it on</button>
        </div>
      </form>
      ${state.error && html`<p class="note bad" role="alert">${clean(state.error)}</p>`}
    <//>
    ${state.fork && html`<${Forked} fork=${state.fork} busy=${state.busy} />`}`;
}

function parsed(text) {
  try {
    const found = JSON.parse(text || "{}");
    return typeof found === "object" && found !== null && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

function Forked({ fork, busy }) {
  const [beside, choose] = useState("really");
  const between = [msOf(fork.at), msOf(fork.to)], happened = fork.really && beside === "really";
  const peaks = useMemo(() => highest([fork.unchanged_picture, fork.changed_picture]), [fork]);
  const words = clean(fork.assumed.join("; ")), shownWith = fork.really ? beside : "unchanged";
  return html`<div class="stack" aria-busy=${busy}>
    <p class="banner ${fork.trust.far_off ? "warn" : ""}" role="status"><b>${clean(fork.verdict)}</b>
      ${fork.trust.far_off && html` The simulation of what happened is far off, so do not rely on this.`}<br />
      <span class="small">Backtest, the error of the unchanged simulation: ${clean(fork.trust.text)}.</span></p>
    <${Card} id="happened" title=${happened ? "What happened" : "Without the change (simulated)"} extra=${fork.really && html`<label class="small">Compare with <select value=${shownWith} onChange=${(event) => choose(event.target.value)}>
        <option value="really">what happened</option><option value="unchanged">the simulation without the change</option></select></label>`}>
      <${Lanes} key=${`${shownWith} ${fork.position}`} between=${between} given=${happened ? null : fork.unchanged_picture} peaks=${peaks} height=${HEIGHT} label=${happened ? "Partitions as they were" : "Partitions without the change"} /><//>
    ${fork.changed_picture && html`<${Card} id="changed" title=${`If ${words} (simulated)`}>
      <${Lanes} between=${between} given=${fork.changed_picture} peaks=${peaks} height=${HEIGHT} label="Partitions with the change" />
      ${fork.changed_picture.all_apps > fork.changed_picture.apps.length && html`<p class="note">The first ${fork.changed_picture.apps.length} of ${fork.changed_picture.all_apps} apps are drawn.</p>`}<//>`}
    <div class="columns even"><${FigureTable} fork=${fork} /><${Basis} fork=${fork} /></div>
    <${Outcomes} fork=${fork} />
  </div>`;
}

/** The most containers that each app has in any of these pictures. */
function highest(pictures) {
  const found = new Map();
  for (const lane of pictures.flatMap((picture) => picture?.apps ?? [])) found.set(lane.id, Math.max(found.get(lane.id) ?? 0, lane.peak));
  return found;
}

function FigureTable({ fork }) {
  const runs = [["happened", fork.really], ["unchanged", fork.unchanged], ["changed", fork.changed]].filter(([, one]) => one);
  const rows = [
    ["Apps completed", (one) => number(one.completed)], ["Mean completion", (one) => length(one.mean_completion_s)], ["Mean wait", (one) => length(one.mean_wait_s)],
    [`Utilization of ${fork.utilization_max}`, (one) => number(one.utilization, 3)], ["Fairness loss", (one) => number(one.fairness_loss, 4)],
    ["Adjustments", (one) => number(one.adjustments)], ["Time lost by them", (one) => (one.adjustment_time_share == null ? "–" : percent(one.adjustment_time_share, 2))],
  ];
  return html`<${Card} id="forkfigures" title="Figures" extra=${html`<span class="small dim">of the ${span(fork.window_s * 1000)} after the fork</span>`}>
    <table class="plain figures"><thead><tr><td></td>${runs.map(([name]) => html`<th class="num" scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([name, read]) => html`<tr><th scope="row">${name}</th>${runs.map(([, one]) => html`<td class="num">${read(one)}</td>`)}</tr>`)}</tbody></table><//>`;
}

const Basis = ({ fork }) => html`<${Card} id="basis" title="Assumptions">
  <ul class="reasons">${[`Forked at position ${fork.position}, ${moment(msOf(fork.at))}`, `If ${fork.assumed.join("; ")}`, ...fork.assumptions].map((text) => html`<li>${clean(text[0].toUpperCase() + text.slice(1))}.</li>`)}</ul>
  <p class="small"><${Link} to="cluster">The cluster at the fork<//></p><//>`;

function Outcomes({ fork }) {
  const end = (one) => (one == null ? "–" : one.how ? `${one.how}${one.completion_s == null ? "" : ` after ${length(one.completion_s)}`}` : "still runs");
  const difference = ({ changed, unchanged }) => {
    if (!changed || !unchanged || changed.how !== unchanged.how || changed.completion_s == null || unchanged.completion_s == null) return "";
    const seconds = changed.completion_s - unchanged.completion_s;
    return Math.abs(seconds) < 0.05 ? "none" : html`<${Chip} tone=${seconds < 0 ? "good" : "warn"}>${seconds < 0 ? "−" : "+"}${length(Math.abs(seconds))}<//>`;
  };
  return html`<${Card} id="outcomes" title="Apps" extra=${html`<span class="small dim">${plural(fork.all_apps, "app")}${fork.all_apps > fork.apps.length ? `, the ${fork.apps.length} that differ most` : ""}</span>`}>
    <div class="scrollbox tall" tabindex="0" role="region" aria-label="Effect on the apps"><table class="plain"><thead><tr><th>App</th>${fork.really && html`<th>happened</th>`}<th>unchanged</th><th>changed</th><th class="num">difference</th><th>its work is</th></tr></thead><tbody>
      ${fork.apps.map((app) => html`<tr key=${app.app}><td><${AppLink} id=${app.app} name=${app.name} /></td>${fork.really && html`<td>${end(app.really)}</td>`}<td>${end(app.unchanged)}</td><td>${end(app.changed)}</td>
        <td class="num">${difference(app)}</td><td class="dim">${clean(app.work_from)}</td></tr>`)}
    </tbody></table></div><//>`;
}
