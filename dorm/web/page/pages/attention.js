// What the first page answers at once besides who waits: is the cluster well, and what of mine needs me.

import { html } from "../vendor/preact.js";
import { clean, short, utc } from "../format.js";
import { AppLink, Card, Chip, Failed, Link, NodeLink, When, useLoaded } from "../parts.js";
import { reader, store } from "../store.js";
import { EndedLink } from "./history.js";

const FRESH_MS = 20_000, MOST = 8, DAY_MS = 86_400_000;
const TONES = { wrong: "bad", unknown: "warn", note: "" };

/** The findings of the cluster's doctor. */
export function Wellbeing({ model }) {
  const at = store.route.at;
  const states = model.nodeList.filter((node) => node.state !== "up").map((node) => `${node.id} ${node.state}`).join();
  const { value, error } = useLoaded(() => store.source.findings(at), `${at} ${states} ${model.cluster.leader} ${model.cluster.paused} ${model.cluster.policy_failure}`, at ? 0 : FRESH_MS);
  const items = value?.items ?? [], wrong = items.filter(({ level }) => level === "wrong").length;
  const tone = { wrong: "bad", unknown: "warn", note: "", ok: "good" }[value?.level] ?? "";
  return html`<${Card} id="well" title="Is it well?" extra=${value && html`<${Chip} tone=${tone}>${wrong ? `${wrong} wrong` : value.level === "ok" ? "all well" : "nothing wrong"}<//>`}>
    <${Failed} text=${error} />
    ${value && items.length === 0 && html`<p class="note">${store.source.embedded ? "Nodes" : "Nodes, starts of containers"} and settings are as they should be${store.source.actions && !at ? ", and so are the leader, the log and its servers" : ""}.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Findings"><ul class="reasons">${items.slice(0, 40).map((item) => html`<li key=${item.check + item.about + item.text}>
      <${Chip} tone=${TONES[item.level]}>${item.level}<//> ${model.nodes.has(item.about) ? html`<${NodeLink} id=${item.about} />` : html`<b><bdi>${clean(item.about)}</bdi></b>`} <bdi>${clean(item.text)}</bdi>
      ${item.todo && html`<p>${clean(item.todo)}</p>`}</li>`)}
      ${(value?.all_items ?? 0) > 40 && html`<li class="dim">and ${value.all_items - 40} more</li>`}</ul></div>
  <//>`;
}

/** Apps that need a person: of the reader, where it is known who that is. */
export function NeedsMe({ model }) {
  const me = reader(), at = store.route.at;
  const failed = useFailed(model, me, at);
  const mine = model.live.filter((app) => !me || app.user === me);
  const doubtful = mine.filter((app) => model.work.get(app.id)?.doubt), troubled = mine.filter((app) => app.trouble), paused = mine.filter((app) => app.phase === "retrying");
  const count = failed.items.length + doubtful.length + troubled.length + paused.length;
  const group = (title, apps, text) => apps.length > 0 && html`<li class="sub">${title}</li>${apps.slice(0, MOST).map((app) => html`<li key=${app.id}><${AppLink} id=${app.id} name=${app.name} />${me ? "" : html` <span class="dim"><bdi>${clean(app.user)}</bdi></span>`}<p>${clean(short(text(app), 300))}</p></li>`)}
    ${apps.length > MOST && html`<li class="dim">and ${apps.length - MOST} more</li>`}`;
  return html`<${Card} id="needs" title=${me ? "What of mine needs me" : "What needs someone"} extra=${html`<${Chip} tone=${count ? "warn" : ""}>${count}${failed.more ? "+" : ""}<//>`}>
    <${Failed} text=${failed.error} />
    ${count === 0 && !failed.error && html`<p class="note">Nothing failed in the last 24 hours, and no app is stuck.</p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Apps that need someone"><ul class="reasons">
      ${group("Nodes try again and again", troubled, (app) => app.trouble)}
      ${group("Its last checkpoint may be incomplete", doubtful, () => "Its page says why, and how it goes on from the one before.")}
      ${group("Pauses after a failure", paused, (app) => app.reason?.text ?? "")}
      ${failed.items.length > 0 && html`<li class="sub">Failed in the last 24 hours</li>`}
      ${failed.items.slice(0, MOST).map((app) => html`<li key=${app.id}><${EndedLink} app=${app} model=${model} /> <span class="dim"><bdi>${clean(app.user)}</bdi> · <${When} at=${app.ended_at / 1e6} day /></span><p>${clean(short(app.why, 300))}</p></li>`)}
      ${(failed.items.length > MOST || failed.more) && html`<li class="dim"><${Link} to="history" q=${{ state: "failed", user: me }} class="textlink">all that failed<//></li>`}
    </ul></div>
  <//>`;
}

/** The failures of the last day, with those that the view already has before the history does. */
function useFailed(model, me, at) {
  const here = model.appList.filter((app) => app.phase === "failed");
  const since = at ? utc((model.at ?? 0) - DAY_MS) : "-1d";
  const { value, error } = useLoaded(() => store.source.history({ user: me || null, state: "failed", since, until: at, sort: "-ended", limit: 20 }), `${at} ${me} ${here.map((app) => app.id).join()}`);
  const alive = new Set(model.live.map((app) => app.id));
  // One that was restarted since lives again.
  return { items: (value?.items ?? []).filter((app) => !alive.has(app.id)), more: Boolean(value?.next), error };
}
