// Who one is, and what that allows: the server decides, the page offers only what it would do.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { clean, moment, msOf, short } from "./format.js";
import { isSignedIn, signIn, signOut } from "./session.js";
import { connect, identify, load, say, set, store } from "./store.js";

const LOOK_MS = 5000;
const OPERATORS = new Set(["operator", "admin"]);
/** Dialogs that change nothing, and those about the whole cluster; all others are about an app. */
const HARMLESS = new Set(["plan"]), WHOLE = new Set(["policy", "drain"]);

/** Why one may not do something, with an app or a sweep if it is about one; "" if one may.  Without users, everybody may do everything. */
export function refusal(what, { app, sweep } = {}) {
  if (!store.me) return "It is not known yet who you are.";
  const { role, user, users } = store.me;
  if (role === null || OPERATORS.has(role) || HARMLESS.has(what)) return "";
  if (role === "reader") return `${user} is a reader, and changes nothing.`;
  if (WHOLE.has(what)) return "Only an operator may do that.";
  const whose = app ?? sweep;
  return !whose || users.includes(whose.user) ? "" : `This ${app ? "app" : "sweep"} is another tenant's.`;
}

/** Name, role and cluster in the header; a click shows more, and signs out. */
export function Who() {
  const me = store.me, place = useRef(null);
  useEffect(() => {
    const shut = (event) => { if (place.current && !place.current.contains(event.target)) place.current.open = false; };
    addEventListener("pointerdown", shut);
    return () => removeEventListener("pointerdown", shut);
  }, []);
  if (!me?.user) return null;
  const shut = (event) => { if (event.key === "Escape") { place.current.open = false; place.current.querySelector("summary").focus(); } };
  const row = (name, value) => value && html`<dt>${name}</dt><dd><bdi>${short(value, 80)}</bdi></dd>`;
  return html`<details class="who" ref=${place} onKeyDown=${shut}>
    <summary title=${clean(`${me.user} on ${me.cluster}`)}><b><bdi>${short(me.user, 24)}</bdi></b> <span class="role">${me.role ?? ""} on <bdi>${short(me.cluster, 24)}</bdi></span></summary>
    <div class="whobox"><dl>${row("User", me.user)}${row("Role", me.role)}${row("Tenant", me.tenant)}${row("Cluster", me.cluster)}${row("Until", me.expires_at && moment(msOf(me.expires_at)))}</dl>
      ${!me.role && me.user && html`<p class="small dim">This cluster is open: it knows no users, and everybody who reaches it may do everything.</p>`}
      ${me.role && html`<button type="button" onClick=${leave}>Sign out</button>`}</div>
  </details>`;
}

async function leave() {
  try {
    await signOut();
  } catch {
    say("You are not signed out: the server cannot be reached.", "bad");
    return;
  }
  store.source.feed.renew();
  location.assign(`sign-in${location.search}${location.hash}`);
}

/** Asks to sign in again where a session has ended, over the page as it is: what a dialog holds stays. */
export function SignInAgain() {
  return store.signedOut ? html`<${Again} />` : null;
}

function Again() {
  const place = useRef(null), [token, write] = useState(""), [problem, tell] = useState("");
  useEffect(() => {
    const box = place.current, before = document.activeElement;
    const look = async () => { if (!document.hidden && await isSignedIn()) back(); };
    const timer = setInterval(look, LOOK_MS);
    addEventListener("focus", look);
    box.showModal();
    return () => { clearInterval(timer); removeEventListener("focus", look); box.close(); before?.focus?.(); };
  }, []);
  const enter = async (event) => {
    event.preventDefault();
    const refused = await signIn({ token: token.trim() });
    if (refused) tell(refused); else back();
  };
  return html`<dialog ref=${place} class="again" aria-labelledby="again-title" onCancel=${(event) => event.preventDefault()}><div class="dialog">
    <header><h2 id="again-title">Your session has ended</h2></header>
    <p>Run <code>dorm dashboard</code> in a terminal and come back to this page, or paste a token. Everything here stays as it is.</p>
    <form onSubmit=${enter}>
      <label class="field"><span>Token</span><input type="password" autocomplete="off" spellcheck="false" required value=${token} onInput=${(event) => write(event.target.value)} /></label>
      ${problem && html`<p class="note bad" role="alert">${clean(problem)}</p>`}
      <div class="actions"><button type="submit" class="primary">Sign in</button></div>
    </form>
  </div></dialog>`;
}

/** Goes on where the page was; another user begins anew. */
async function back() {
  const before = store.me?.user, me = await identify();
  if (!me) return;
  if (before && me.user !== before) { location.reload(); return; }
  store.source.feed.renew();
  await connect();
  load();
}

/** A session has ended under the page. */
export const ended = () => { if (!store.signedOut) set({ signedOut: true }); };
