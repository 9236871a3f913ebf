// The log: pages of the past, and live from its end, with filters.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { comparePositions } from "../format.js";
import { Card, EventRow, Failed } from "../parts.js";
import { go, kindsIn, shown, store } from "../store.js";

const PAGE = 100, MOST = 2000;
const GROUPS = {
  "": "every kind", decisions: "decisions", failures: "failures", apps: "submissions and ends", nodes: "nodes", containers: "containers",
};
/** Kinds that stand in no list, because no event on the log has them. */
const ALSO = { failures: ["Unreadable"] };

export function Log({ fixed = {}, height = 0 }) {
  const { app = "", node = "", user = "", kinds = "" } = { ...store.route.q, ...fixed };
  const at = store.route.at, filter = { app, node, user, kind: [...kindsIn(kinds), ...(ALSO[kinds] ?? [])] };
  const [state, take] = useState({ items: [], previous: null, error: "", busy: true });
  const [live, follow] = useState(true);
  const key = JSON.stringify([filter, at]);
  const now = useRef(key);
  now.current = key;

  useEffect(() => {
    let over = false, stop = () => {};
    (async () => {
      try {
        const before = at ? { before: String(Number(String(shown()?.position ?? at).split(".")[0]) + 1) } : {};
        const found = await store.source.events({ ...filter, ...before, limit: PAGE });
        if (over) return;
        take({ items: found.items, previous: found.items.length >= PAGE ? found.previous : null, error: "", busy: false });
        if (!at && live) stop = store.source.tail({ ...filter, after: found.position ?? found.items.at(-1)?.position }, (one) => {
          take((before_) => (before_.items.length && comparePositions(one.position, before_.items.at(-1).position) <= 0 ? before_
            : { ...before_, items: [...before_.items.slice(-MOST), one] }));
        });
        if (over) stop();
      } catch (error) {
        if (!over) take({ items: [], previous: null, error: error.message, busy: false });
      }
    })();
    return () => { over = true; stop(); };
  }, [key, live]);

  async function older() {
    try {
      const found = await store.source.events({ ...filter, before: state.previous, limit: PAGE });
      take((before) => ({ ...before, items: [...found.items, ...before.items], previous: found.items.length >= PAGE ? found.previous : null }));
    } catch (error) {
      take((before) => ({ ...before, error: error.message }));
    }
  }
  const set = (name) => (event) => go({ q: { [name]: event.target.value } }, { replace: true });
  const input = (name, title) => (name in fixed ? null : html`<label class="small">${title} <input type="search" size="12" value=${{ app, node, user }[name]} onChange=${set(name)} /></label>`);
  const items = [...state.items].reverse();
  return html`<${Card} id="log" title=${fixed.app || fixed.node ? "Events" : "Log"} extra=${!at && store.source.actions && html`<label class="small"><input type="checkbox" checked=${live} onChange=${(event) => follow(event.target.checked)} /> follow</label>`}>
    <div class="filters">
      <label class="small">Kind <select value=${kinds} onChange=${set("kinds")}>${Object.entries(GROUPS).map(([name, title]) => html`<option value=${name}>${title}</option>`)}</select></label>
      ${input("app", "App")}${input("user", "User")}${input("node", "Node")}
    </div>
    <${Failed} text=${state.error} />
    <div class="scrollbox" tabindex="0" role="region" aria-label="Events, latest first" ref=${(box) => { if (box) box.style.maxHeight = `${height || Math.max(300, window.innerHeight - 330)}px`; }}>
      <ol class="events">${items.map((one) => html`<${EventRow} key=${one.position} one=${one} />`)}</ol>
      ${state.previous && html`<p class="center"><button type="button" onClick=${older}>Earlier events</button></p>`}
      ${!state.busy && items.length === 0 && !state.error && html`<p class="note">No events match.</p>`}
    </div>
  <//>`;
}
