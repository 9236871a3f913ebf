// All nodes as a table: the same as the grid, for reading and for a screen reader.

import { html, useMemo } from "../vendor/preact.js";
import { NODE_TONE } from "../colors.js";
import { clean, percent, plural } from "../format.js";
import { Card, Chip, NodeLink, Rows } from "../parts.js";
import { go, shown, store } from "../store.js";

export function Nodes() {
  const model = shown();
  const { state = "", find = "" } = store.route.q;
  const items = useMemo(() => {
    const wanted = find.toLowerCase();
    return model.nodeList.filter((node) => (!state || node.state === state) && (!wanted || node.id.toLowerCase().includes(wanted)
      || Object.entries(node.labels ?? {}).some(([key, value]) => `${key}=${value}`.toLowerCase().includes(wanted))));
  }, [model, model.version, state, find]);
  const states = [...new Set(model.nodeList.map((node) => node.state))].sort();
  const kinds = model.cluster.kinds;
  return html`<${Card} id="nodes" title="Nodes" extra=${html`<span class="small dim">${plural(items.length, "node")}</span>`}>
    <div class="filters">
      <label class="small">Find <input type="search" value=${find} onInput=${(event) => go({ q: { find: event.target.value } }, { replace: true })} placeholder="name or label=value" /></label>
      <label class="small">State <select value=${state} onChange=${(event) => go({ q: { state: event.target.value } })}><option value="">all</option>${states.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    </div>
    <${Rows} items=${items} height=${31} most=${Math.max(300, window.innerHeight - 320)} label="Nodes"
      head=${html`<tr><th scope="col">Node</th><th scope="col">State</th>${kinds.map((kind) => html`<th scope="col" class="num">${clean(kind)}</th>`)}<th scope="col" class="num">Containers</th><th scope="col">Apps</th><th scope="col">Labels</th></tr>`}
      row=${(node) => html`<tr key=${node.id}>
        <td><${NodeLink} id=${node.id} /></td><td><${Chip} tone=${NODE_TONE[node.state]} title=${clean(node.note)}>${node.state}<//></td>
        ${kinds.map((kind) => html`<td class="num">${node.capacity[kind] ? percent((node.used[kind] ?? 0) / node.capacity[kind]) : "–"}</td>`)}
        <td class="num">${node.containers.reduce((sum, held) => sum + held[1], 0)}</td>
        <td class="why"><bdi>${clean(node.containers.slice(0, 6).map(([id, count]) => `${model.apps.get(id)?.name ?? id} ×${count}`).join(", "))}</bdi></td>
        <td class="why dim"><bdi>${clean(Object.entries(node.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(" "))}</bdi></td>
      </tr>`} />
  <//>`;
}
