// The command bar: it finds apps of any age, nodes, users and moments, opens pages, and begins actions.  `/` or Ctrl-K.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { mayAct, open } from "./actions.js";
import { exact, moment, readMoment, short, utc, zoneName } from "./format.js";
import { offered, turnNotifications } from "./notify.js";
import { addressOf } from "./pages/history.js";
import { moveTo, reader, set, shown, store, visit } from "./store.js";

const MOST = { apps: 8, users: 4, nodes: 6, past: 6 }, TYPING_MS = 250, DAY_MS = 86_400_000;
const PAGES = {
  cluster: "Cluster", apps: "Apps", history: "History: apps that have ended", sweeps: "Sweeps", nodes: "Nodes", log: "Log", whatif: "What if",
};
/** What can be done with an app or a node that is named after it. */
const VERBS = {
  cancel: { on: "app", about: "cancel this app", dialog: (app) => ({ what: "cancel", app }) },
  hold: { on: "app", about: "hold this app", dialog: (app) => ({ what: "hold", app, on: true }) },
  release: { on: "app", about: "release this app", dialog: (app) => ({ what: "hold", app, on: false }) },
  restart: { on: "app", about: "restart this app", dialog: (app) => ({ what: "restart", app }) },
  update: { on: "app", about: "change this app's weight or bounds", dialog: (app) => ({ what: "update", app }) },
  drain: { on: "node", about: "drain this node", dialog: (node) => ({ what: "drain", node, on: true }) },
  undrain: { on: "node", about: "end the drain of this node", dialog: (node) => ({ what: "drain", node, on: false }) },
};
const ALONE = { submit: "Submit an app", policy: "Change the policy", plan: "What the next decision would be" };

const has = (text, part) => text.toLowerCase().includes(part);

/** Entries for a text: {title, about, run}.  What comes first is what Enter does. */
export function entries(text, model) {
  const part = text.trim().toLowerCase();
  if (!part || !model) return [];
  return [...moments(text), ...verbs(part, model), ...apps(part, model), ...users(part, model), ...nodes(part, model), ...pages(part)];
}

function moments(text) {
  const at = readMoment(text), typed = text.trim();
  if (at === null) return [];
  if (at === "") return [{ title: "now", about: "show the present", run: () => moveTo(null) }];
  const title = /^\d+$/.test(at) ? `position ${at}` : at.startsWith("-") ? `${at.slice(1)} before the end` : `${moment(Date.parse(at))} ${zoneName(Date.parse(at))}`;
  return [{ title, about: `show the cluster at ${/[T:]/.test(at) ? exact(Date.parse(at)) : short(typed, 40)}`, run: () => moveTo(at) }];
}

function verbs(part, model) {
  if (!mayAct()) return [];
  const [verb, ...rest] = part.split(/\s+/), name = rest.join(" ");
  const alone = Object.entries(ALONE).filter(([what, title]) => (part.length > 1 && what.startsWith(part)) || (part.length > 2 && has(title, part)))
    .map(([what, title]) => ({ title, about: "action", run: () => open({ what }) }));
  const { on, about, dialog } = Object.hasOwn(VERBS, verb) ? VERBS[verb] : {};
  if (!on) return alone;
  const candidates = on === "app" ? model.live.filter((app) => !name || has(app.name, name) || app.id.includes(name)).map((app) => [app.name, app])
    : model.sorted.filter((id) => !name || has(id, name)).map((id) => [id, id]);
  return [...alone, ...candidates.slice(0, MOST.apps).map(([title, object]) => ({ title: `${verb} ${title}`, about, run: () => open(dialog(object)) }))];
}

function apps(part, model) {
  const matching = [];
  for (const app of model.apps.values()) {
    if (matching.length >= MOST.apps) break;
    const label = Object.entries(app.labels ?? {}).find(([key, value]) => has(`${key}=${value}`, part));
    if (has(app.name, part) || app.id.includes(part) || label) {
      matching.push({ key: app.id, title: app.name, about: `app of ${app.user}, ${app.phase}${label ? `, ${label.join("=")}` : ""}`, run: () => visit("app", app.id) });
    }
  }
  return matching;
}

function users(part, model) {
  const names = new Set([...model.apps.values()].map((app) => app.user).filter((user) => has(user, part)));
  return [...names].slice(0, MOST.users).map((user) => ({ title: user, about: "user: all apps", run: () => visit("apps", "", { user }) }));
}

function nodes(part, model) {
  return model.sorted.filter((id) => has(id, part)).slice(0, MOST.nodes).map((id) => ({ title: id, about: `node, ${model.nodes.get(id).state}`, run: () => visit("node", id) }));
}

function pages(part) {
  const wanted = part.replace(/^(go to|go|open|show) /, "");
  const matching = Object.entries(PAGES).filter(([page, title]) => page.startsWith(wanted) || (wanted.length > 2 && has(title, wanted)))
    .map(([page, title]) => ({ title, about: "page", run: () => visit(page) }));
  if (wanted.length > 2 && "keyboard help".includes(wanted)) matching.push({ title: "Keyboard help", about: "?", run: () => set({ help: true }) });
  if (wanted.length > 2 && "notify me".includes(wanted) && offered()) matching.push({ title: "Notify me", about: `when ${reader() ? "my apps" : "apps"} end; again to stop`, run: turnNotifications });
  return matching;
}

/** Apps that ended longer ago than the view shows, as far back as a quick answer reaches. */
function usePast(text, model, known) {
  const [state, take] = useState({ text: "", items: [] });
  const part = text.trim(), at = store.route.at;
  useEffect(() => {
    if (part.length < 2 || readMoment(part) !== null) { take({ text: "", items: [] }); return undefined; }
    let over = false;
    const timer = setTimeout(async () => {
      try {
        const page = await store.source.history({ q: part, since: at ? utc((model?.at ?? 0) - DAY_MS) : "-1d", until: at, sort: "-ended", limit: MOST.past });
        if (!over) take({ text: part, items: page.items });
      } catch { /* The other entries stay. */ }
    }, TYPING_MS);
    return () => { over = true; clearTimeout(timer); };
  }, [part, at]);
  if (part.length < 2) return [];
  const past = state.items.filter((app) => !known.has(app.id)).map((app) => ({
    title: app.name, about: `app of ${app.user}, ${app.state} ${moment(app.ended_at / 1e6)}${has(app.name, part.toLowerCase()) ? "" : `: ${app.why}`}`, run: () => { location.hash = addressOf(app, model); },
  }));
  return [...past, { title: `History of “${short(part, 30)}”`, about: "apps that ended at any time", run: () => visit("history", "", { find: part, since: "all" }) }];
}

export function Command() {
  const [text, write] = useState(""), [index, move] = useState(0);
  const place = useRef(null);
  const model = shown(), direct = entries(text, model), known = new Set(direct.map((entry) => entry.key));
  const past = usePast(text, model, known), list = [...direct, ...past];
  const chosen = Math.max(0, Math.min(index, list.length - 1));
  const start = (entry) => { if (!entry) return; write(""); place.current.blur(); entry.run(); };
  const keys = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); move(Math.max(0, Math.min(chosen + (event.key === "ArrowDown" ? 1 : -1), list.length - 1))); }
    if (event.key === "Enter") { event.preventDefault(); start(list[chosen]); }
    if (event.key === "Escape") { write(""); event.target.blur(); }
  };
  return html`<div class="search">
    <input id="search" ref=${place} type="search" value=${text} placeholder="Find, go to, or do …  /" aria-label="Command bar: apps, nodes, users, moments, pages and actions" role="combobox" aria-expanded=${list.length > 0}
      aria-controls="found" aria-autocomplete="list" aria-activedescendant=${list.length ? `found-${chosen}` : undefined} autocomplete="off" spellcheck="false" onInput=${(event) => { write(event.target.value); move(0); }} onKeyDown=${keys} />
    <ul id="found" role="listbox" aria-label="Found" hidden=${list.length === 0}>${list.map((entry, at) => html`<li id=${`found-${at}`} role="option" aria-selected=${at === chosen} onPointerDown=${(event) => { event.preventDefault(); start(entry); }}><b><bdi>${short(entry.title, 50)}</bdi></b> <span class="dim">${short(entry.about, 90)}</span></li>`)}</ul>
  </div>`;
}
