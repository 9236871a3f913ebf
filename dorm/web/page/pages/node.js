// One node: what is reserved and what is used, its containers, its story, drain.

import { html } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { NODE_TONE } from "../colors.js";
import { amount, clean, percent, span } from "../format.js";
import { Grid } from "../grid.js";
import { AppLink, Card, Chip, Failed, Meter, useLoaded } from "../parts.js";
import { shown, store } from "../store.js";
import { Log } from "./log.js";
import { Story } from "./story.js";

const FRESH_MS = 5000, STALE_S = 30;

export function Node() {
  const model = shown(), id = store.route.id, node = model.nodes.get(id);
  const story = useLoaded(() => store.source.nodeStory(id, store.route.at), `${id} ${store.route.at ?? Math.floor((model.at ?? 0) / 10_000)}`);
  // Heartbeats are no part of the log, so only the present of a cluster has them.
  const live = store.source.actions && !store.route.at;
  const usage = useLoaded(async () => (live && node ? store.source.usage(id) : null), `${id} ${live} ${Boolean(node)}`, live ? FRESH_MS : 0);
  return html`
    <header class="pagehead"><h1><span class="dim">Node</span> <bdi>${clean(id)}</bdi></h1>
      ${node && html`<${Chip} tone=${NODE_TONE[node.state]}>${node.state}<//>`}
      <span class="buttons">${node && (node.state === "draining" || node.state === "maintenance" ? html`<${Action} what="drain" node=${id} on=${false}>End the drain<//>` : html`<${Action} what="drain" node=${id} on=${true} tone="danger">Drain<//>`)}</span>
    </header>
    ${!node && html`<p class="banner">This node is not in the cluster at this moment.</p>`}
    ${node && html`
      ${node.note && html`<p class="banner warn">${clean(node.note)}</p>`}
      <section class="tiles" aria-label="Usage">${Object.keys(node.capacity).map((kind) => html`<${Kind} key=${kind} kind=${kind} node=${node} used=${usage.value?.used?.[kind]} />`)}
        <div class="tile"><h3>Where</h3><p class="wrap">${clean(node.address)}</p><p class="small dim">${clean(node.runtime)}</p><p class="small dim wrap">${clean(Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", "))}</p></div>
      </section>
      <p class="small dim" role="status">${reported(usage, live)}</p>
      <div class="columns">
        <${Card} id="slots" title="Containers" class="wide"><${Held} node=${node} model=${model} usage=${usage.value} /><//>
        <div class="stack"><${Card} id="picture" title="Slots"><${Grid} model=${model} only=${id} height=${232} onfocus=${() => {}} label="This node" /><//></div>
      </div>`}
    <${Card} id="story" title="Story"><${Failed} text=${story.error} /><${Story} story=${story.value} /><//>
    <${Log} fixed=${{ node: id }} height=${360} />`;
}

/** One kind of resource: what is reserved for containers, and what they use of it. */
function Kind({ kind, node, used }) {
  const reserved = node.used[kind] ?? 0, capacity = node.capacity[kind];
  return html`<div class="tile"><h3>${clean(kind)}</h3>
    <p class="big">${percent(reserved / (capacity || 1))}</p><${Meter} value=${reserved} max=${capacity} label=${`${kind} reserved`} />
    <p class="small dim">${amount(kind, reserved)} of ${amount(kind, capacity)} reserved</p>
    ${used != null && html`<${Meter} value=${used} max=${capacity} tone=${used > reserved ? "warn" : "good"} label=${`${kind} used`} />
      <p class="small dim">${amount(kind, used)} used (${percent(used / (capacity || 1))})</p>`}</div>`;
}

function reported({ value, error }, live) {
  if (!live) return "Heartbeats report use and are not part of the log, so use is known only for a running cluster, and only for now.";
  if (error) return clean(error);
  if (!value) return "";
  if (value.at === null) return "The node has not reported the use of its containers.";
  const age = `Reported ${span(value.age_s * 1000)} ago`;
  if (!value.measured) return `${age}; the node's engine did not say in time what its containers use.`;
  return `${age}${value.age_s > STALE_S ? ", so this is no longer current" : ""}. Devices are reserved whole; agents do not report how busy they are.`;
}

function Held({ node, model, usage }) {
  const used = new Map();
  for (const one of usage?.measured ? usage.containers : []) {
    const sum = used.get(one.app) ?? { cpu: 0, memory: 0 };
    used.set(one.app, { cpu: one.cpu === null || sum.cpu === null ? null : sum.cpu + one.cpu, memory: sum.memory + one.memory });
  }
  const told = (id, kind) => (used.get(id)?.[kind] == null ? "–" : amount(kind, used.get(id)[kind]));
  return html`<div class="scrollbox" tabindex="0" role="region" aria-label="Containers on this node"><table class="plain"><thead><tr><th>App</th><th class="num">containers</th><th class="num">starting</th><th class="num">stopping</th>
      ${used.size > 0 && html`<th class="num">cores used</th><th class="num">memory used</th>`}<th>user</th></tr></thead><tbody>
    ${node.containers.map(([app, count, starting = 0, stopping = 0]) => html`<tr key=${app}><td><${AppLink} id=${app} /></td><td class="num">${count}</td><td class="num">${starting || ""}</td><td class="num">${stopping || ""}</td>
      ${used.size > 0 && html`<td class="num">${told(app, "cpu")}</td><td class="num">${told(app, "memory")}</td>`}<td><bdi>${clean(model.apps.get(app)?.user)}</bdi></td></tr>`)}
    </tbody></table></div>${node.containers.length === 0 && html`<p class="note">Nothing runs here.</p>`}`;
}
