// Apps that have ended, of any age: from the cluster's state, from its log, or from an archive.  Pages go on where the one
// before ended, however many there are.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { clean, exact, moment, number, plural, span, utc } from "../format.js";
import { Card, Chip, Failed, Phase, Rows, Swatch, outward } from "../parts.js";
import { go, href, shown, store, watch } from "../store.js";
import { ENDED } from "../model.js";

const PAGE = 200, TYPING_MS = 250, DAY_MS = 86_400_000;
const SPANS = { "1d": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days", all: "the whole log" };
const STATES = ["failed", "completed", "cancelled"];

const COLUMNS = [
  ["name", "App"], ["user", "User"], ["state", "End"], ["ended", "Ended"], ["life_s", "Lived", "num"], ["step", "Steps", "num"], ["loss", "Loss", "num"],
  ["failures", "Failures", "num"], ["core_hours", "Core hours", "num"], [null, "Why"],
];

/** The filter of the address as the source takes it, up to the moment that is shown. */
export function filterOf({ find = "", user = "", state = "", since = "1d", sort = "-ended" }, at, model) {
  const days = Number.parseInt(since, 10);
  // How long ago counts from the moment that is shown.
  const begin = since === "all" || !days ? null : at ? utc((model?.at ?? 0) - days * DAY_MS) : `-${days}d`;
  return { q: find.trim() || null, user: user || null, state: state || null, since: begin, until: at, sort, limit: PAGE };
}

export function History() {
  const model = shown(), at = store.route.at, query = store.route.q;
  const { find = "", user = "", state = "", since = "1d", sort = "-ended" } = query;
  const { items, next, error, busy, more, later, again } = useHistory(filterOf(query, at, model));
  const set = (name) => (event) => go({ q: { [name]: event.target.value } }, { replace: true });
  const turn = (name) => go({ q: { sort: sort === `-${name}` ? name : `-${name}` } }, { replace: true });
  return html`<${Card} id="history" title="History" extra=${html`<span class="small dim" role="status">${busy ? "Reading …" : `${plural(items.length, "app")}${next ? " so far" : ""}`}</span>`}>
    <div class="filters">
      <label class="small">Find <input type="search" value=${find} onInput=${set("find")} placeholder="name, label or reason" /></label>
      <label class="small">User <input type="search" size="10" value=${user} onInput=${set("user")} /></label>
      <label class="small">End <select value=${state} onChange=${set("state")}><option value="">any</option>${STATES.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label class="small">Ended in <select value=${since} onChange=${set("since")}>${Object.entries(SPANS).map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      ${later > 0 && html`<button type="button" class="small" onClick=${again}>${plural(later, "app")} ${later === 1 ? "has" : "have"} ended since: read again</button>`}
    </div>
    <${Failed} text=${error} />
    <div class="historytable"><${Rows} items=${items} height=${31} most=${Math.max(300, window.innerHeight - 330)} label="Apps that have ended"
      head=${html`<tr>${COLUMNS.map(([name, title, tone]) => html`<th scope="col" class="${tone ?? ""} h-${name ?? "why"}" aria-sort=${name ? (sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none") : undefined}>${name ? html`<button type="button" class="quiet" onClick=${() => turn(name)}>${title}</button>` : title}</th>`)}</tr>`}
      row=${(app) => html`<${Row} key=${app.id} app=${app} model=${model} />`} /></div>
    ${!busy && !error && items.length === 0 && since !== "all" && html`<p class="center"><button type="button" onClick=${() => go({ q: { since: "all" } })}>Look in the whole log</button></p>`}
    ${next && html`<p class="center"><button type="button" disabled=${busy} onClick=${more}>More</button></p>`}
  <//>`;
}

function Row({ app, model }) {
  const ended = app.ended_at / 1e6, labels = Object.entries(app.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(" ");
  return html`<tr>
    <td><${EndedLink} app=${app} model=${model} title=${labels || app.id} /></td>
    <td><bdi>${clean(app.user)}</bdi></td><td><${Phase} phase=${app.state} /></td><td title=${exact(ended)}>${moment(ended)}</td><td class="num">${span(app.life_s * 1000)}</td>
    <td class="num">${number(app.step)}</td><td class="num">${app.loss_is ? clean(app.loss_is) : app.loss == null ? "–" : String(Number(app.loss.toPrecision(4)))}</td>
    <td class="num">${app.failures ? html`<${Chip} tone="bad">${app.failures}<//>` : "0"}</td><td class="num">${number(app.core_hours, 2)}</td><td class="why" title=${clean(app.why)}>${clean(app.why)}</td>
  </tr>`;
}

/** A link to an app that has ended. */
export const EndedLink = ({ app, model, title = app.id }) => html`<a class="applink" ...${outward(addressOf(app, model))} title=${clean(title)}><${Swatch} id=${app.id} /><bdi>${clean(app.name)}</bdi></a>`;

/** Its page: now while the cluster keeps the app, else at the moment of its end. */
export function addressOf(app, model) {
  const ended = app.ended_at / 1e6, kept = (model.cluster.kept_s ?? 600) * 1000;
  return href({ page: "app", id: app.id, at: store.route.at ?? ((model.at ?? 0) - ended < kept ? null : utc(Math.ceil(ended))) });
}

/** The pages of a filter that were read so far. */
export function useHistory(filter) {
  const nothing = { items: [], next: null, error: "", busy: true };
  const [state, take] = useState(nothing), [turn, read] = useState(0), [later, count] = useState(0);
  const key = JSON.stringify([filter, turn]), latest = useRef(key);
  latest.current = key;
  const load = async (after, before) => {
    try {
      const page = await store.source.history({ ...filter, after });
      if (latest.current === key) take({ items: [...before, ...page.items], next: page.next, error: "", busy: false });
    } catch (error) {
      if (latest.current === key) take((now) => ({ ...now, error: error.message, busy: false }));
    }
  };
  useEffect(() => {
    take((now) => ({ ...now, busy: true, error: "" }));
    count(0);
    const timer = setTimeout(() => load(null, []), state.items.length || state.error ? TYPING_MS : 0);
    return () => clearTimeout(timer);
  }, [key]);
  useEffect(() => watch((change) => {
    const ended = (change.apps ?? []).filter((app) => ENDED.has(app.phase)).length;
    if (ended && !filter.until) count((before) => before + ended);
  }), [key]);
  const more = () => { take((now) => ({ ...now, busy: true })); load(state.next, state.items); };
  return { ...state, later, more, again: () => read(turn + 1) };
}
