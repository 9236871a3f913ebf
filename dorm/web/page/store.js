// What the page knows and where it is: one object, and one way to change it.  Views redraw at most once a frame.

import { useEffect, useState } from "./vendor/preact.js";
import { clock, comparePositions, msOf, short } from "./format.js";
import { lists } from "./model.js";
import { format, parse } from "./route.js";

const TAIL = 400, FILL_MS = 1000, RETRY_MS = 2000;

/** The page that another site shows in a frame, without this page's own frame (`?embed=cluster`); null if it is not embedded. */
export const EMBED = new URLSearchParams(location.search).get("embed");
/** The page of an address that names none. */
const HOME = EMBED || "cluster";

export const store = {
  source: null,
  route: parse(location.hash, HOME),
  live: null,
  /** The model at the moment of the address, null for now. */
  past: null,
  /** The model that `vs` names, to compare with. */
  other: null,
  status: "connecting",
  /** Since when the server does not answer (ms), null while it does. */
  lost: null,
  /** Who one is; null while that is unknown, and where there are no users. */
  me: null,
  signedOut: false,
  error: "",
  loading: false,
  tail: [],
  listeners: new Set(),
  changed: new Set(),
  /** The app that the pointer or the keyboard is at: grids show it, and dim all others. */
  lit: null,
  dialog: null,
  help: false,
  /** The whole log as the slider draws it. */
  timeline: null,
  notice: null,
  playing: false,
  speed: Number(recall("speed", "10")),
  range: null,
  zone: "",
  version: 0,
};

let frame = 0;

/** Changes the state, and redraws what follows it. */
export function set(part) {
  Object.assign(store, part);
  redraw();
}

export function redraw() {
  store.version += 1;
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    for (const listener of [...store.listeners]) listener(store.version);
  });
}

export function useStore() {
  const [, update] = useState(0);
  useEffect(() => {
    store.listeners.add(update);
    return () => store.listeners.delete(update);
  }, []);
  return store;
}

/** Makes one app stand out, null for none. */
export function light(id) {
  if (store.lit !== id) set({ lit: id });
}

/** Whose apps the reader's are; "" on an open cluster, where nothing says who reads. */
export const reader = () => (store.me?.role ? store.me.user : "");

/** What the page shows: the moment of the address, else now. */
export const shown = () => (store.route.at ? store.past : store.live);

// --- the address ----------------------------------------------------------------------------------------------------------

export function href(change) {
  const next = { page: store.route.page, id: "", at: store.route.at, vs: null, q: {}, ...change };
  return format(next);
}

export function go(change, { replace = false } = {}) {
  const next = format({ ...store.route, ...change, q: { ...store.route.q, ...(change.q ?? {}) } });
  if (next === location.hash) return;
  if (replace) history.replaceState(null, "", next); else history.pushState(null, "", next);
  arrived();
}

/** Another page, with the same moment. */
export function visit(page, id = "", q = {}) {
  const next = format({ page, id, at: store.route.at, vs: null, q });
  if (EMBED !== null) { window.open(location.pathname + next, "_blank", "noopener"); return; }
  if (next !== location.hash) history.pushState(null, "", next);
  arrived();
  document.getElementById("main")?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

export function arrived() {
  store.route = parse(location.hash, HOME);
  attend();
  store.lit = null;
  load();
  redraw();
}

// --- moments --------------------------------------------------------------------------------------------------------------

let asking = null;
let wanted;

/** Loads the moment of the address.  While one is loaded, only the latest that was asked for meanwhile is loaded next. */
export async function load() {
  wanted = [store.route.at, store.route.vs];
  if (asking) return asking;
  asking = (async () => {
    for (;;) {
      let [at, vs] = wanted;
      try {
        store.loading = Boolean(at) && store.past?.asked !== at;
        if (at && store.past?.asked !== at) {
          const model = await store.source.view(at);
          store.past = model;
          at = model.asked = /^\d+$/.test(at) ? at : named(at, model.position);
        }
        if (vs && store.other?.asked !== vs) {
          const model = await store.source.view(vs === "now" ? null : vs);
          model.asked = vs;
          store.other = model;
        }
        if (!at) store.past = null;
        if (!vs) store.other = null;
        store.error = "";
      } catch (error) {
        store.error = error.message;
        // A moment that the log does not have shows nothing, and never another one in its place.
        if (at && (!store.past || /^moment\./.test(error.code ?? ""))) store.past = null;
      }
      store.loading = false;
      redraw();
      if (wanted[0] === at && wanted[1] === vs) return;
    }
  })().finally(() => { asking = null; });
  return asking;
}

/** A moment that was given as a time becomes its position, so that the address names it permanently. */
function named(at, position) {
  if (store.route.at !== at) return at;
  const sequence = String(position).split(/[.~]/)[0];
  store.route = { ...store.route, at: sequence };
  if (wanted[0] === at) wanted = [sequence, wanted[1]];
  history.replaceState(null, "", format(store.route));
  return sequence;
}

/** Shows a moment: a position, a sequence or a time; null for now. */
export function moveTo(at, { replace = false } = {}) {
  go({ at }, { replace });
}

/** The position that is shown, for questions about the same moment. */
export const position = () => (store.route.at ? store.past?.position ?? store.route.at : store.live?.position ?? null);

export const DECISIONS = ["Resized"];

/** The kinds of events in a list, as the last view says them: failures, nodes, containers, or what the first page lists (news). */
export const kindsIn = (list) => lists[list] ?? [];

/** Jumps to the next (1) or previous (-1) event of these kinds. */
export async function jump(kinds, direction) {
  const here = position();
  if (!here) return;
  try {
    const from = direction > 0 || String(here).includes(".") ? here : `${here}.0`;
    const found = await store.source.neighbor(kinds, from, direction);
    if (!found) { say(direction > 0 ? "There is no later one." : "There is no earlier one."); return; }
    if (comparePositions(found.position, here) === 0) return;
    moveTo(String(found.position).split(/[.~]/)[0]);
    say(`${found.kind} at ${clock(msOf(found.at))}: ${short(found.text, 120)}`);
  } catch (error) {
    say(error.message, "bad");
  }
}

let quiet = 0;
export function say(text, tone = "") {
  clearTimeout(quiet);
  set({ notice: { text, tone } });
  quiet = setTimeout(() => set({ notice: null }), 7000);
}

// --- following ------------------------------------------------------------------------------------------------------------

let stop = null, retry = 0;
const watchers = new Set();

/** Calls back with every change of the live model. */
export function watch(each) {
  watchers.add(each);
  return () => watchers.delete(each);
}

let viewed = () => {};

/** Calls back with every view of the present. */
export const onView = (each) => { viewed = each; };

/** Loads the present view, and follows it. */
export async function connect() {
  leave();
  clearTimeout(retry);
  try {
    const live = await store.source.view(null);
    leave();  // Another one may have connected meanwhile.
    set({ live, error: "" });
    viewed(live);
    viewLost = null;
    judge(store.source.embedded ? "recording" : store.status);
    fillTail();
  } catch (error) {
    if (error.status === 401) return;  // Signing in connects again.
    viewLost ??= Date.now();
    judge();
    if (error.code !== "unreachable") set({ error: error.message });
    retry = setTimeout(connect, RETRY_MS);
    return;
  }
  attend();
}

/** Follows the present while it is shown, as the past does not change, or while this browser notifies. */
export function attend() {
  if (!store.live || (store.route.at && !store.source.feed?.hiddenToo())) { leave(); return; }
  stop ??= store.source.follow(store.live, {
    change: (change) => {
      store.live.apply(change);
      list(change.records ?? []);
      if (change.more_records) fillTail();  // It leaves out the earliest of many.
      for (const each of watchers) each(change);
      redraw();
    },
    reset: connect,
  });
}

function leave() {
  stop?.();
  stop = null;
}

let streamLost = null, viewLost = null;

/** Notes the state of the stream, since a time (ms). */
export function heard(status, since) {
  streamLost = status === "reconnecting" ? since : null;
  if (status === "live" && store.lost !== null) identify();  // Another role may be why the stream broke.
  judge(status);
}

/** The connection is lost as soon as the stream breaks or the view cannot be loaded, and back when both work. */
function judge(status = store.status) {
  const times = [streamLost, viewLost].filter((time) => time !== null);
  const lost = times.length ? Math.min(...times) : null;
  if (status !== store.status || lost !== store.lost) set({ status, lost });
}

/** Learns who one is, and goes on where a session had ended. */
export async function identify() {
  try {
    set({ me: await store.source.session(), signedOut: false });
  } catch (error) {
    if (error.status === 401) return null;  // Signing in asks again.
    setTimeout(identify, RETRY_MS);
  }
  return store.me;
}

let filling = null;
let again = false;

/** Takes the latest events from the log: those before the page was opened, and those that a change left out.  One request at a time. */
export function fillTail() {
  again = Boolean(filling);
  filling ??= (async () => {
    try {
      list((await store.source.events({ limit: 40, kind: kindsIn("news") })).items);
      redraw();
    } catch { /* The next change or connection brings them. */ }
    await new Promise((done) => { setTimeout(done, FILL_MS); });
  })().finally(() => {
    filling = null;
    if (again) fillTail();
  });
}

/** Adds events to those that the first page lists: notable ones, each once, in the log's order. */
function list(records) {
  const seen = new Set(store.tail.map((one) => one.position));
  const fresh = records.filter((one) => kindsIn("news").includes(one.kind) && !seen.has(one.position));
  if (fresh.length) store.tail = [...store.tail, ...fresh].sort((a, b) => comparePositions(a.position, b.position)).slice(-TAIL);
}

// --- preferences ----------------------------------------------------------------------------------------------------------

export function recall(name, otherwise) {
  try { return localStorage.getItem(`dorm.${name}`) ?? otherwise; } catch { return otherwise; }
}

export function remember(name, value) {
  try { localStorage.setItem(`dorm.${name}`, value); } catch { /* Private windows may refuse. */ }
}
