// The page: its frame, its address, its keys.  Data come from `source.js`, state lives in `store.js`, pages are in `pages/`.

import { html, render, useEffect, useState } from "./vendor/preact.js";
import { Action, Dialogs, close } from "./actions.js";
import { Command } from "./command.js";
import { Lost, Status, useLost } from "./connection.js";
import { clean, moment, short, useZone, zoneName } from "./format.js";
import { Help } from "./help.js";
import { SignInAgain, Who, ended } from "./identity.js";
import { notifies, watchEnds } from "./notify.js";
import { Link, outward } from "./parts.js";
import { App } from "./pages/app.js";
import { Apps } from "./pages/apps.js";
import { Cluster } from "./pages/cluster.js";
import { Compare } from "./pages/compare.js";
import { History } from "./pages/history.js";
import { Log } from "./pages/log.js";
import { Node } from "./pages/node.js";
import { Nodes } from "./pages/nodes.js";
import { Sweep, Sweeps } from "./pages/sweeps.js";
import { WhatIf } from "./pages/whatif.js";
import { Slider } from "./slider.js";
import { HttpSource, embedded } from "./source.js";
import { DECISIONS, EMBED, arrived, connect, go, heard, identify, jump, kindsIn, load, moveTo, recall, remember, set, shown, store, useStore, visit } from "./store.js";

const PAGES = { cluster: Cluster, apps: Apps, app: App, history: History, sweeps: Sweeps, sweep: Sweep, nodes: Nodes, node: Node, log: Log, compare: Compare, whatif: WhatIf };
const TABS = [["cluster", "Cluster"], ["apps", "Apps"], ["history", "History"], ["sweeps", "Sweeps"], ["nodes", "Nodes"], ["log", "Log"], ["whatif", "What if"]];
/** Pages with a heading of their own. */
const TITLED = new Set(["app", "node", "sweep"]);

/** The heading of a page that shows none. */
const Heading = () => !TITLED.has(store.route.page) && html`<h1 class="sr">${(TABS.find(([to]) => to === store.route.page) ?? ["", "Compare"])[1]}</h1>`;

function Frame() {
  useStore();
  const model = shown(), lost = useLost(), page = Object.hasOwn(PAGES, store.route.page) ? PAGES[store.route.page] : Cluster;
  useEffect(() => { document.title = `${store.route.id ? `${clean(model?.apps.get(store.route.id)?.name ?? store.route.id)} · ` : ""}${name()}`; });
  if (EMBED !== null) return html`${lost && html`<${Lost} />`}<main id="main" tabindex="-1" class="embedded ${lost ? "stale" : ""}">${store.signedOut && html`<p class="banner warn" role="alert">Your session has ended. <a ...${outward(location.hash)}>Open the dashboard</a> to sign in again.</p>`}${store.error && !store.signedOut && html`<p class="banner bad" role="alert">${clean(store.error)}</p>`}
    ${model && html`<${Heading} />`}${model ? html`<${page} key=${store.route.page + store.route.id} />` : html`<p class="boot">Loading the cluster …</p>`}</main>`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <${Link} to="cluster" class="brand"><span class="logo" aria-hidden="true"><i></i><i></i><i></i><i></i></span><b>${name()}</b><//>
      <nav aria-label="Pages">${TABS.filter(([to]) => to !== "sweeps" || !store.source?.embedded).map(([to, title]) => html`<${Link} to=${to} aria-current=${store.route.page === to ? "page" : undefined}>${title}<//>`)}</nav>
      <${Command} />
      <${Status} archive=${archive} />
      <${Action} what="policy">Policy<//>
      <${Action} what="submit" tone="primary">Submit<//>
      <${Who} />
      <${Theme} />
    </header>
    ${lost && html`<${Lost} />`}
    ${store.route.at && html`<div class="pastbar" role="status"><span>${model ? html`This is <b>${model.at ? `${moment(model.at)} ${zoneName(model.at)}` : "before the first record"}</b>, position ${model.position}.` : html`${store.loading ? "Loading" : "There is no moment"} <b>${short(store.route.at, 40)}</b>`}</span>
      <button type="button" onClick=${() => go({ page: "compare", vs: store.route.at, at: null, id: "" })}>${store.source.actions ? "Compare with now" : "Compare with the end"}</button>
      ${store.route.page !== "whatif" && html`<button type="button" onClick=${() => visit("whatif")}>What if?</button>`}
      <button type="button" onClick=${() => moveTo(null)}>${store.source.actions ? "Back to now" : "To the end"}</button></div>`}
    ${store.error && html`<p class="banner bad" role="alert">${clean(store.error)}</p>`}
    <main id="main" class=${lost ? "stale" : ""} tabindex="-1" aria-busy=${store.loading}>${model && html`<${Heading} />`}${model ? html`<${page} key=${store.route.page + store.route.id} />` : store.route.at && !store.loading && store.error ? html`<p class="note">The log has no such moment.</p>` : html`<p class="boot">Loading the cluster …</p>`}</main>
    <${Slider} />
    <${Dialogs} />
    <${Help} />
    <${SignInAgain} />
    <div class="notice" role="status" aria-live="polite">${store.notice && html`<p class=${store.notice.tone}>${clean(store.notice.text)}</p>`}</div>`;
}

const meta = (name) => document.querySelector(`meta[name=${name}]`)?.content ?? "";
const archive = meta("dorm-archive");

const name = () => clean(store.source?.recording?.title ?? (archive || "Dorm"));

function Theme() {
  const [theme, choose] = useState(recall("theme", "auto"));
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
    remember("theme", theme);
    window.dispatchEvent(new Event("resize"));
    set({});
  }, [theme]);
  const next = { auto: "dark", dark: "light", light: "auto" }[theme];
  return html`<button type="button" class="quiet" onClick=${() => choose(next)} aria-label=${`Theme: ${theme}; change to ${next}`} title=${`Theme: ${theme}`}>${{ auto: "◐", dark: "●", light: "○" }[theme]}</button>`;
}

function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "k" && !store.dialog && EMBED === null) { event.preventDefault(); document.getElementById("search").focus(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || store.dialog || store.help || EMBED !== null) return;
  if (event.target.closest("input, textarea, select, dialog") && event.target.type !== "range") return;
  const act = {
    "?": () => set({ help: true }),
    "/": () => document.getElementById("search").focus(),
    "[": () => jump(DECISIONS, -1), "]": () => jump(DECISIONS, 1),
    "{": () => jump(kindsIn("failures"), -1), "}": () => jump(kindsIn("failures"), 1),
    l: () => moveTo(null),
    c: () => visit("cluster"), a: () => visit("apps"), h: () => visit("history"), s: () => visit("sweeps"), n: () => visit("nodes"), e: () => visit("log"), w: () => visit("whatif"),
  }[event.key];
  if (event.key === " " && !event.target.closest("button, a, summary, canvas, [tabindex='0']")) { event.preventDefault(); set({ playing: !store.playing }); return; }
  if (act) { event.preventDefault(); act(); }
}

async function start() {
  const theme = recall("theme", "auto");
  if (theme !== "auto") document.documentElement.dataset.theme = theme;
  useZone(recall("zone", "local"));
  store.source = (await embedded()) ?? new HttpSource("v1", !archive, meta("dorm-version"), { status: heard, signedOut: ended });
  if (store.source.feed) store.source.feed.hiddenToo = notifies;
  window.addEventListener("popstate", () => { close(); arrived(); });
  window.addEventListener("hashchange", arrived);
  window.addEventListener("keydown", keys);
  window.addEventListener("resize", () => set({}));
  const place = document.getElementById("app");
  place.textContent = "";
  render(html`<${Frame} />`, place);
  identify();
  watchEnds();
  await connect();
  await load();
}

start();
