// All apps as a table: columns to choose, sorted and filtered, mine and failed ones first.  The address has all of it, so a
// link shows the same table to others.

import { html, useEffect, useMemo, useRef } from "../vendor/preact.js";
import { Action } from "../actions.js";
import { plural } from "../format.js";
import { ENDED } from "../model.js";
import { Notify } from "../notify.js";
import { Card, Link, Rows } from "../parts.js";
import { go, reader, recall, remember, shown, store } from "../store.js";
import { USUAL, chosen, offered, sorted } from "./columns.js";

const BAD = new Set(["failed", "retrying"]);
const MINE = "mine", FAILED = "failed";

export function Apps() {
  const model = shown(), { sort = "", phase = "", find = "", user = "", cols, first } = store.route.q;
  const me = reader();
  const ahead = (first ?? (sort ? "none" : `${MINE},${FAILED}`)).split(",");
  useEffect(() => {
    const usual = recall("columns", "");
    if (cols === undefined && usual) go({ q: { cols: usual } }, { replace: true });
  }, []);
  const items = useMemo(() => {
    const apps = sorted(model.appList.filter((app) => (!phase || app.phase === phase) && (!user || app.user === user) && matches(app, find.toLowerCase())), sort, model);
    const rank = (app) => (me && ahead.includes(MINE) && app.user !== me ? 2 : 0) + (ahead.includes(FAILED) && !BAD.has(app.phase) ? 1 : 0);
    return apps.map((app, index) => [rank(app), index, app]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , app]) => app);
  }, [model, model.version, sort, phase, find, user, me, ahead.join()]);
  const columns = chosen(cols, model);
  const turn = (name) => go({ q: { sort: sort === name ? `-${name}` : name } }, { replace: true });
  return html`<${Card} id="apps" title="Apps" extra=${html`<span class="small dim">${plural(items.length, "app")}</span><${Notify} /><${Action} what="submit" tone="primary">Submit<//>`}>
    <${Filters} model=${model} ahead=${ahead} cols=${cols} />
    <div class="apptable"><${Rows} items=${items} height=${31} most=${Math.max(300, window.innerHeight - 340)} label="Apps"
      head=${html`<tr>${columns.map(({ name, title, about, number: right }) => html`<th scope="col" class="${right ? "num" : ""} c-${name.replace(":", "-")}" title=${about}
        aria-sort=${sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none"}><button type="button" class="quiet" onClick=${() => turn(name)}>${title}</button></th>`)}</tr>`}
      row=${(app) => html`<tr key=${app.id}>${columns.map((column) => html`<td class=${column.number ? "num" : ""}>${column.cell(app, model)}</td>`)}</tr>`} /></div>
    <${LeftOut} model=${model} find=${find} user=${user} />
  <//>`;
}

function matches(app, text) {
  if (!text) return true;
  const labels = Object.entries(app.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return [app.name, app.user, app.id, app.sweep ?? "", app.reason?.text ?? "", app.end_reason ?? "", app.trouble ?? "", ...labels].some((part) => part.toLowerCase().includes(text));
}

function Filters({ model, ahead, cols }) {
  const { phase = "", find = "", user = "" } = store.route.q;
  const values = (of) => [...new Set(model.appList.map(of))].sort();
  const choose = (name, title, options, value) => html`<label class="small">${title} <select value=${value} onChange=${(event) => go({ q: { [name]: event.target.value } })}>
    <option value="">all</option>${options.map((option) => html`<option value=${option}>${option}</option>`)}</select></label>`;
  const turn = (name) => (event) => {
    const left = ahead.filter((other) => other !== name && other !== "none");
    go({ q: { first: [...left, ...(event.target.checked ? [name] : [])].join(",") || "none" } }, { replace: true });
  };
  return html`<div class="filters">
    <label class="small">Find <input type="search" value=${find} onInput=${(event) => go({ q: { find: event.target.value } }, { replace: true })} placeholder="name, user, label or reason" /></label>
    ${choose("phase", "Phase", values((app) => app.phase), phase)}
    ${choose("user", "User", values((app) => app.user).slice(0, 200), user)}
    ${reader() && html`<label class="small"><input type="checkbox" checked=${ahead.includes(MINE)} onChange=${turn(MINE)} /> mine first</label>`}
    <label class="small"><input type="checkbox" checked=${ahead.includes(FAILED)} onChange=${turn(FAILED)} /> failed first</label>
    <${Chooser} model=${model} cols=${cols} />
  </div>`;
}

/** Which columns are shown: remembered, and part of the address. */
function Chooser({ model, cols }) {
  const names = cols === undefined ? USUAL : cols.split(",");
  const turn = (name) => (event) => {
    const next = offered(model).map((column) => column.name).filter((other) => (other === name ? event.target.checked : names.includes(other))).join(",");
    remember("columns", next === USUAL.join(",") ? "" : next);
    go({ q: { cols: next || "none" } }, { replace: true });
  };
  const place = useRef(null);
  useEffect(() => {
    const outside = (event) => { if (!place.current?.contains(event.target)) place.current?.removeAttribute("open"); };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, []);
  const escape = (event) => { if (event.key === "Escape") { place.current.removeAttribute("open"); place.current.firstElementChild.focus(); } };
  return html`<details class="chooser" ref=${place} onKeyDown=${escape}><summary class="small">Columns</summary><div>${offered(model).filter((column) => !column.fixed).map(({ name, title }) => html`
    <label class="small"><input type="checkbox" checked=${names.includes(name)} onChange=${turn(name)} /> ${title}</label>`)}</div></details>`;
}

/** What this table leaves out, and where it is: apps that ended some time ago. */
function LeftOut({ model, find, user }) {
  const ended = (model.cluster.ended ?? 0) - model.appList.filter((app) => ENDED.has(app.phase)).length;
  return html`<p class="note leftout">${ended > 0 ? `${plural(ended, "app")} that ended earlier ${ended === 1 ? "is" : "are"} not in this table: ` : "Apps that ended earlier: "}<${Link} to="history" q=${{ find, user }} class="textlink">${find || user ? "search the history" : "History"}<//></p>`;
}
