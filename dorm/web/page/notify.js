// Notifications of the browser when apps of the reader end, for those who ask for them.

import { html } from "./vendor/preact.js";
import { short } from "./format.js";
import { ENDED } from "./model.js";
import { recall, remember, say, set, store, visit, watch } from "./store.js";

const phases = new Map();

const offered = () => "Notification" in window && Boolean(store.source?.actions);

/** Whether this browser notifies: then it has to follow the cluster in hidden tabs too. */
export const notifies = () => recall("notify", "no") === "yes" && "Notification" in window && Notification.permission === "granted";

export async function turnNotifications() {
  if (notifies()) {
    remember("notify", "no");
    say("There will be no notifications.");
  } else if (await Notification.requestPermission() === "granted") {
    remember("notify", "yes");
    say(`You will be notified when ${store.me?.user ? "your apps end" : "apps end"}, as long as this page is open.`);
  } else say("This browser does not allow notifications for this page.", "bad");
  set({});
}

export function Notify() {
  if (!offered()) return null;
  return html`<button type="button" class="quiet small" aria-pressed=${notifies()} onClick=${turnNotifications} title="A notification of the browser when ${store.me?.user ? "my apps end" : "apps end"}">Notify me</button>`;
}

/** Looks at every change for apps that have ended. */
export function watchEnds() {
  watch((change) => {
    for (const app of change.apps ?? []) {
      const before = phases.get(app.id) ?? "";
      phases.set(app.id, app.phase);
      if (before && !ENDED.has(before) && ENDED.has(app.phase) && notifies() && (!store.me?.user || store.me.user === app.user)) notify(app);
    }
    for (const id of change.gone_apps ?? []) phases.delete(id);
  });
}

/** What the page knows when it starts: only later ends are news. */
export function noteStart(model) {
  for (const app of model?.apps.values() ?? []) phases.set(app.id, app.phase);
}

function notify(app) {
  const notification = new Notification(`${short(app.name, 60)} ${app.phase}`, { body: short(app.end_reason ?? "", 200), tag: app.id });
  notification.onclick = () => { window.focus(); visit("app", app.id); notification.close(); };
}
