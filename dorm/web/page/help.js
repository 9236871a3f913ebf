// The keys of the page, as a dialog: `?`.

import { html, useEffect, useRef } from "./vendor/preact.js";
import { zoneName } from "./format.js";
import { set, store } from "./store.js";

const KEYS = [
  ["/  or  Ctrl-K", "find apps of any age, nodes, users and moments; open pages; begin actions"], ["[  ]", "previous, next decision"], ["{  }", "previous, next failure"],
  ["Space", "play, pause"], ["l", "back to now"], ["c  a  h  s  n  e  w", "cluster, apps, history, sweeps, nodes, log, what if"], ["?", "these keys"],
  ["arrows, Enter, Escape", "on the grid: choose a node, zoom in, zoom out"],
];

export function Help() {
  const place = useRef(null);
  useEffect(() => {
    if (!store.help) return undefined;
    const box = place.current, before = document.activeElement;
    box.showModal();
    return () => { box.close(); before?.focus?.(); };
  }, [store.help]);
  if (!store.help) return null;
  const close = () => set({ help: false });
  return html`<dialog ref=${place} aria-labelledby="help-title" onCancel=${(event) => { event.preventDefault(); close(); }} onPointerDown=${(event) => { if (event.target === place.current) close(); }}>
    <div class="dialog"><header><h2 id="help-title">Keys</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button></header>
      <table class="plain keys"><tbody>${KEYS.map(([keys, about]) => html`<tr><th scope="row"><kbd>${keys}</kbd></th><td>${about}</td></tr>`)}</tbody></table>
      <p class="note">Moments: a position (118 or 118.2), a time in ${zoneName()} (2026-11-21 09:00, 14:05, yesterday 14:00), or an age (-10m). Actions: submit, policy, cancel APP, hold APP, restart APP, drain NODE.</p>
    </div></dialog>`;
}
