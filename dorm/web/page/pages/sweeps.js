// Sweeps: many apps from one spec.  The list of them, and the apps of one side by side with parameters and metrics.

import { html } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { clean, number, plural, span } from "../format.js";
import { AppLink, Card, Failed, Link, Meter, Phase, Rows, useLoaded, When } from "../parts.js";
import { go, shown, store } from "../store.js";

const FRESH_MS = 5000;
const METRICS = { "": "number", loss: "loss, the least first", step: "steps", samples_per_s: "samples per second", container_s: "container time, the least first" };

/** The name of a sweep for its address: with the tenant, since several may have one name. */
export const sweepKey = (sweep) => (sweep.tenant ? `${sweep.tenant}//${sweep.name}` : sweep.name);

const ended = (phases) => ["completed", "failed", "cancelled"].reduce((sum, phase) => sum + (phases[phase] ?? 0), 0);

function Phases({ phases }) {
  return html`${Object.entries(phases).map(([phase, count]) => html`<span class="counted">${count} <${Phase} phase=${phase} /></span> `)}`;
}

export function Sweeps() {
  const at = store.route.at, { all = "" } = store.route.q;
  const { value, error } = useLoaded(() => store.source.sweeps(Boolean(all), at), `${at} ${all}`, at ? 0 : FRESH_MS);
  const items = value?.items ?? [];
  return html`<${Card} id="sweeps" title="Sweeps" extra=${html`<span class="small dim">${value ? plural(items.length, "sweep") : ""}</span>
      <label class="small"><input type="checkbox" checked=${Boolean(all)} onChange=${(event) => go({ q: { all: event.target.checked ? "yes" : "" } }, { replace: true })} /> also those that have ended</label>`}>
    <${Failed} text=${error} />
    <${Rows} items=${items} height=${31} most=${Math.max(300, window.innerHeight - 280)} label="Sweeps"
      head=${html`<tr><th scope="col">Sweep</th><th scope="col" class="c-user">User</th><th scope="col" class="num">Ended</th><th scope="col" class="c-why">Phases</th><th scope="col" class="num">At once</th><th scope="col" class="num">Containers</th><th scope="col">Submitted</th></tr>`}
      row=${(one) => html`<tr key=${one.position}>
        <td><${Link} to="sweep" id=${sweepKey(one)} class="applink"><bdi>${clean(one.name)}</bdi><//></td><td><bdi>${clean(one.user)}</bdi></td>
        <td class="num">${ended(one.phases)} <span class="dim">of ${one.count}</span></td><td><${Phases} phases=${one.phases} /></td>
        <td class="num">${one.parallel || ""}</td><td class="num">${one.containers}</td><td class="dim"><${When} at=${one.submitted_at} day /></td>
      </tr>`} />
    ${value?.next && html`<p class="note">There are more; \`dorm sweep list\` has all.</p>`}
  <//>`;
}

export function Sweep() {
  const name = store.route.id, at = store.route.at, { by = "" } = store.route.q;
  const { value: found, error, key } = useLoaded(() => store.source.sweep(name, by, at), `${name} ${at} ${by}`, at ? 0 : FRESH_MS);
  if (!found) return html`<p class="banner">${error ? clean(error) : key ? "There is no such sweep at this moment." : "Loading …"}</p>`;
  const parts = found.parameters, best = by && found.apps[0]?.[by] != null ? found.apps[0] : null;
  return html`
    <header class="pagehead"><h1>${clean(found.name)}</h1>
      <span class="dim">sweep of <bdi>${clean(found.user)}</bdi>, ${plural(found.count, "app")}${found.parallel ? `, at most ${found.parallel} at once` : ""}, submitted <${When} at=${found.submitted_at} day /></span>
      <span class="buttons">${!found.ended && html`<${Action} what="cancelSweep" sweep=${found} tone="danger">Cancel the sweep<//>`}</span></header>
    <section class="tiles" aria-label="Figures">
      <div class="tile"><h3>Ended</h3><p class="big">${ended(found.phases)} <span class="small dim">of ${found.count}</span></p><${Meter} value=${ended(found.phases)} max=${found.count} label="Apps that have ended" />
        <p class="small dim">${found.submitted < found.count ? `${found.count - found.submitted} not submitted` : ""}</p></div>
      <div class="tile"><h3>Phases</h3><p><${Phases} phases=${found.phases} /></p></div>
      <div class="tile"><h3>Containers</h3><p class="big">${found.containers}</p></div>
      ${best && html`<div class="tile"><h3>Best</h3><p><${AppLink} id=${best.id} name=${best.name} /></p><p class="small dim">${clean(parts.map((part) => `${part}=${best.parameters[part]}`).join(", "))}</p></div>`}
    </section>
    <${Card} id="swept" title="Apps" extra=${html`<label class="small">Order <select value=${by} onChange=${(event) => go({ q: { by: event.target.value } }, { replace: true })}>${Object.entries(METRICS).map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>`}>
      <${Rows} items=${found.apps} height=${31} most=${Math.max(300, window.innerHeight - 330)} label="Apps of the sweep"
        head=${html`<tr><th scope="col">App</th><th scope="col" class="c-phase">Phase</th>${parts.map((part) => html`<th scope="col" class="num">${clean(part)}</th>`)}<th scope="col" class="num">Step</th><th scope="col" class="num">Loss</th><th scope="col" class="num">Samples/s</th><th scope="col" class="num">Container time</th><th scope="col" class="c-why">Note</th></tr>`}
        row=${(one) => html`<tr key=${one.id}>
          <td><${AppLink} id=${one.id} name=${one.name} swatch=${shown().apps.has(one.id)} /></td><td><${Phase} phase=${one.phase} /></td>
          ${parts.map((part) => html`<td class="num">${clean(one.parameters[part] ?? "")}</td>`)}
          <td class="num">${one.step ? number(one.step) : ""}</td><td class="num">${clean(one.loss_is) || (one.loss == null ? "" : number(one.loss, 4))}</td>
          <td class="num">${one.samples_per_s == null ? "" : number(one.samples_per_s, 1)}</td><td class="num">${one.container_s ? span(one.container_s * 1000) : ""}</td>
          <td class="why" title=${clean(one.note)}>${clean(one.note)}</td>
        </tr>`} />
      ${found.next && html`<p class="note">There are more; \`dorm sweep show ${clean(found.name)}\` has all.</p>`}
    <//>`;
}
