// Two moments side by side: the cluster then and now, and what differs.

import { html } from "../vendor/preact.js";
import { clean, moment, number, percent } from "../format.js";
import { Grid } from "../grid.js";
import { differences } from "../model.js";
import { AppLink, Card, NodeLink } from "../parts.js";
import { go, shown, store } from "../store.js";

export function Compare() {
  const right = shown(), left = store.other;
  if (!left) return html`<${Card} title="Two moments"><p class="note">${store.route.vs ? "Loading the other moment …" : "Choose a moment below, then compare it."}</p>
    ${!store.route.vs && html`<p><button type="button" onClick=${() => go({ vs: String(Math.max(1, Number(String(right.position).split(/[.~]/)[0]) - 50)) })}>Compare with 50 records ago</button></p>`}<//>`;
  const rows = differences(left, right);
  const figures = [["Apps", (one) => one.cluster.apps], ["Waiting", (one) => one.cluster.waiting], ["Nodes", (one) => one.cluster.nodes],
    ...right.cluster.kinds.map((kind) => [kind, (one) => percent(one.cluster.used[kind] / one.cluster.capacity[kind])]),
    ["Fairness loss", (one) => number(one.cluster.fairness_loss, 3)], ["Decisions", (one) => one.cluster.decisions]];
  return html`
    <div class="pair">
      ${[[left, "left", store.route.vs], [right, "right", store.route.at ?? "now"]].map(([model, side]) => html`
        <${Card} id=${side} title=${`${side === "right" && !store.route.at && store.source.actions ? "Now" : moment(model.at)}`} extra=${html`<span class="small dim">position ${model.position}</span>`}>
          <${Grid} model=${model} height=${280} onfocus=${(name) => go({ q: { focus: name || null } })} focus=${store.route.q.focus ?? ""} label=${`Nodes at ${model.position}`} />
        <//>`)}
    </div>
    <p class="center"><button type="button" onClick=${() => go({ at: store.route.vs === "now" ? null : store.route.vs, vs: store.route.at ?? "now" })}>⇄ Swap</button>
      <button type="button" onClick=${() => go({ page: "cluster", vs: null })}>End the comparison</button></p>
    <${Card} id="figures" title="Figures"><table class="plain figures"><thead><tr><td></td><th class="num">${moment(left.at)}</th><th class="num">${store.route.at ? moment(right.at) : "now"}</th></tr></thead>
      <tbody>${figures.map(([name, read]) => html`<tr><th scope="row">${clean(name)}</th><td class="num">${read(left)}</td><td class="num">${read(right)}</td></tr>`)}</tbody></table><//>
    <${Card} id="differs" title="What differs" extra=${html`<span class="small dim">${rows.length}</span>`}>
      <div class="scrollbox"><table class="plain differs"><thead><tr><th>What</th><th>then</th><th>${store.route.at ? "later" : "now"}</th><th>why</th></tr></thead><tbody>
      ${rows.slice(0, 400).map((row) => html`<tr key=${row.what + row.id}><td>${row.what === "app" ? html`<${AppLink} id=${row.id} name=${row.name} />` : html`<${NodeLink} id=${row.id} />`}</td><td>${row.was}</td><td>${row.is}</td><td class="why">${clean(row.text)}</td></tr>`)}
      </tbody></table>${rows.length === 0 && html`<p class="note">Nothing differs.</p>`}</div>
    <//>`;
}
