// Notifications of the browser when apps of the reader end, for those who ask for them.

import { html } from "./vendor/preact.js";
import { short } from "./format.js";
import { ENDED } from "./model.js";
import { EMBED, attend, onView, reader, recall, remember, say, set, store, visit, watch } from "./store.js";

const phases = new Map();

export const offered = () => "Notification" in window && Boolean(store.source?.actions) && EMBED === null;

/** Whether this browser notifies: then it has to follow the cluster in hidden tabs too. */
export const notifies = () => recall("notify", "no") === "yes" && "Notification" in window && Notification.permission === "granted";

export async function turnNotifications() {
  if (notifies()) {
    remember("notify", "no");
    say("There will be no notifications.");
  } else if (await Notification.requestPermission() === "granted") {
    remember("notify", "yes");
    say(`You will be notified when ${reader() ? "your apps end" : "apps end"}, as long as this page is open.`);
  } else say("This browser does not allow notifications for this page.", "bad");
  attend();
  set({});
}

export function Notify() {
  if (!offered()) return null;
  return html`<button type="button" class="quiet small" aria-pressed=${notifies()} onClick=${turnNotifications} title="A notification of the browser when ${reader() ? "my apps end" : "apps end"}">Notify me</button>`;
}

/** Looks at every view and every change for apps that have ended since the first view. */
export function watchEnds() {
  onView((model) => {
    for (const id of phases.keys()) if (!model.apps.has(id)) phases.delete(id);
    look(model.apps.values());
  });
  watch((change) => {
    look(change.apps ?? []);
    for (const id of change.gone_apps ?? []) phases.delete(id);
  });
}

function look(apps) {
  for (const app of apps) {
    const before = phases.get(app.id) ?? "";
    phases.set(app.id, app.phase);
    if (before && !ENDED.has(before) && ENDED.has(app.phase) && notifies() && (!reader() || reader() === app.user)) notify(app);
  }
}

function notify(app) {
  try {
    const notification = new Notification(`${short(app.name, 60)} ${app.phase}`, { body: short(app.end_reason ?? "", 200), tag: app.id });
    notification.onclick = () => { window.focus(); visit("app", app.id); notification.close(); };
  } catch { /* Browsers of phones show none for a page. */ }
}
