// One node: usage, containers, its story, drain.

import { html } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { NODE_TONE } from "../colors.js";
import { amount, clean, percent } from "../format.js";
import { Grid } from "../grid.js";
import { AppLink, Card, Chip, Failed, Meter, useLoaded } from "../parts.js";
import { shown, store } from "../store.js";
import { Log } from "./log.js";
import { Story } from "./story.js";

export function Node() {
  const model = shown(), id = store.route.id, node = model.nodes.get(id);
  const story = useLoaded(() => store.source.nodeStory(id, store.route.at), `${id} ${store.route.at ?? Math.floor((model.at ?? 0) / 10_000)}`);
  return html`
    <header class="pagehead"><h1><span class="dim">Node</span> <bdi>${clean(id)}</bdi></h1>
      ${node && html`<${Chip} tone=${NODE_TONE[node.state]}>${node.state}<//>`}
      <span class="buttons">${node && (node.state === "draining" ? html`<${Action} what="drain" node=${id} on=${false}>End the drain<//>` : html`<${Action} what="drain" node=${id} on=${true} tone="danger">Drain<//>`)}</span>
    </header>
    ${!node && html`<p class="banner">This node is not in the cluster at this moment.</p>`}
    ${node && html`
      ${node.note && html`<p class="banner warn">${clean(node.note)}</p>`}
      <section class="tiles" aria-label="Usage">${Object.keys(node.capacity).map((kind) => html`<div class="tile"><h3>${clean(kind)}</h3>
        <p class="big">${percent((node.used[kind] ?? 0) / (node.capacity[kind] || 1))}</p><${Meter} value=${node.used[kind] ?? 0} max=${node.capacity[kind]} label=${`${kind} in use`} />
        <p class="small dim">${amount(kind, node.used[kind] ?? 0)} of ${amount(kind, node.capacity[kind])}</p></div>`)}
        <div class="tile"><h3>Where</h3><p>${clean(node.address)}</p><p class="small dim">${clean(node.runtime)}</p><p class="small dim">${clean(Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", "))}</p></div>
      </section>
      <div class="columns">
        <${Card} id="slots" title="Containers" class="wide">
          <table class="plain"><thead><tr><th>App</th><th class="num">containers</th><th class="num">starting</th><th class="num">stopping</th><th>user</th></tr></thead><tbody>
          ${node.containers.map(([app, count, starting = 0, stopping = 0]) => html`<tr key=${app}><td><${AppLink} id=${app} /></td><td class="num">${count}</td><td class="num">${starting || ""}</td><td class="num">${stopping || ""}</td><td><bdi>${clean(model.apps.get(app)?.user)}</bdi></td></tr>`)}
          </tbody></table>${node.containers.length === 0 && html`<p class="note">Nothing runs here.</p>`}
        <//>
        <div class="stack"><${Card} id="picture" title="Slots"><${Grid} model=${model} focus=${`node:${id}`} height=${220} fixed onfocus=${() => {}} label="This node" /><//></div>
      </div>`}
    ${!store.source.embedded && html`<${Card} id="story" title="Story"><${Failed} text=${story.error} /><${Story} story=${story.value} /><//>`}
    <${Log} fixed=${{ node: id }} height=${360} />`;
}
