// Whether what the page shows is the present: a dot in the header, and a bar across the page while the server does not answer.

import { html, useEffect, useState } from "./vendor/preact.js";
import { clock, utc } from "./format.js";
import { store } from "./store.js";

/** A server that restarts is back sooner than this. */
const PATIENCE_MS = 1500;
const TEXTS = { live: "live", recording: "recording", connecting: "connecting", reconnecting: "reconnecting", past: "past" };

/** What the page is: live only while the view is there and its changes arrive. */
function state() {
  if (store.lost !== null) return "reconnecting";
  if (store.status === "recording") return "recording";
  if (!store.live) return "connecting";
  return store.route.at ? "past" : store.status;
}

export function Status({ archive }) {
  const now = state(), text = archive && (now === "live" || now === "past") ? "archive" : TEXTS[now] ?? now;
  return html`<span class="status ${now}" role="status" title=${store.live ? `position ${store.live.position}` : ""}><i aria-hidden="true"></i>${text}</span>`;
}

/** Whether the connection has been lost for long enough to say so. */
export function useLost() {
  const lost = store.lost, [shown, show] = useState(false);
  useEffect(() => {
    if (lost === null) { show(false); return undefined; }
    const timer = setTimeout(() => show(true), Math.max(0, lost + PATIENCE_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [lost]);
  return shown && lost !== null;
}

export function Lost() {
  return html`<p class="lost" role="alert"><b>Disconnected since <time dateTime=${utc(store.lost)}>${clock(store.lost)}</time>.</b> What is shown is of then. The page tries to connect again …</p>`;
}
