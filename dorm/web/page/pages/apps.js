// All apps: as a table that can be sorted and filtered.

import { html, useMemo, useState } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { clean, moment, msOf, percent, plural } from "../format.js";
import { AppLink, Card, Phase, Rows } from "../parts.js";
import { go, shown, store } from "../store.js";

const COLUMNS = [
  ["name", "App", (app) => app.name], ["user", "User", (app) => app.user], ["phase", "Phase", (app) => app.phase],
  ["containers", "Containers", (app) => app.containers, "num"], ["share", "Share", (app) => app.share, "num"],
  ["submitted", "Submitted", (app) => app.submitted_at], ["why", "Why not more", (app) => app.reason?.text ?? app.end_reason],
];

export function Apps() {
  const model = shown();
  const { sort = "", phase = "", find = "" } = store.route.q;
  const [down, turn] = useState(false);
  const items = useMemo(() => {
    const wanted = find.toLowerCase();
    const found = model.appList.filter((app) => (!phase || app.phase === phase) && (!wanted || [app.name, app.user, app.id].some((text) => text.toLowerCase().includes(wanted))));
    const column = COLUMNS.find(([name]) => name === sort);
    if (column) found.sort((a, b) => (column[2](a) > column[2](b) ? 1 : column[2](a) < column[2](b) ? -1 : 0) * (down ? -1 : 1));
    return found;
  }, [model, model.version, sort, down, phase, find]);
  const phases = [...new Set(model.appList.map((app) => app.phase))].sort();
  return html`<${Card} id="apps" title="Apps" extra=${html`<span class="small dim">${plural(items.length, "app")}</span><${Action} what="submit" tone="primary">Submit<//>`}>
    <div class="filters">
      <label class="small">Find <input type="search" value=${find} onInput=${(event) => go({ q: { find: event.target.value } }, { replace: true })} placeholder="name, user or id" /></label>
      <label class="small">Phase <select value=${phase} onChange=${(event) => go({ q: { phase: event.target.value } })}><option value="">all</option>${phases.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    </div>
    <${Rows} items=${items} height=${31} most=${Math.max(300, window.innerHeight - 320)} label="Apps"
      head=${html`<tr>${COLUMNS.map(([name, title, , tone]) => html`<th scope="col" class="${tone ?? ""} c-${name}" aria-sort=${sort === name ? (down ? "descending" : "ascending") : "none"}><button type="button" class="quiet" onClick=${() => { turn(sort === name ? !down : false); go({ q: { sort: name } }, { replace: true }); }}>${title}</button></th>`)}</tr>`}
      row=${(app) => html`<tr key=${app.id}>
        <td><${AppLink} id=${app.id} name=${app.name} /></td><td><bdi>${clean(app.user)}</bdi></td><td><${Phase} phase=${app.phase} /></td>
        <td class="num"><b>${app.containers}</b> <span class="dim">${app.n_min}–${app.n_max}</span></td>
        <td class="num">${percent(app.share, 1)} <span class="dim">of ${percent(app.fair_share, 1)}</span></td>
        <td class="dim">${moment(msOf(app.submitted_at))}</td><td class="why" title=${clean(app.reason?.text ?? app.end_reason)}>${clean(app.reason?.text ?? app.end_reason)}</td>
      </tr>`} />
  <//>`;
}
