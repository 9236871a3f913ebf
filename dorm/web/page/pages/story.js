// What happened to an app or a node, in chapters, each with its cause.

import { html } from "../vendor/preact.js";
import { clean, span } from "../format.js";
import { Chip, MomentLink, When } from "../parts.js";

export function Story({ story }) {
  const chapters = story?.chapters ?? [];
  if (!story) return null;
  if (!chapters.length) return html`<p class="note">Nothing so far.</p>`;
  return html`${story.earlier > 0 && html`<p class="note">The last ${chapters.length} chapters; ${story.earlier} came before.</p>`}
  <div class="scrollbox tall" tabindex="0" role="region" aria-label="Story"><ol class="story">${[...chapters].reverse().map((one) => html`<li key=${one.position + one.what}>
      <span class="t"><${When} at=${one.time / 1e6} position=${one.position} /></span>
      <div><p><${Chip} tone=${TONES[one.what] ?? ""}>${clean(one.what.replaceAll("_", " "))}<//> <bdi>${clean(one.text)}</bdi></p>
        ${(one.causes ?? []).map((cause) => html`<p class="small dim">because of <${MomentLink} position=${cause.position} />: ${clean(cause.text)}</p>`)}
        ${one.phases && html`<p class="small dim">${phases(one.phases)}</p>`}
      </div></li>`)}</ol></div>`;
}

const TONES = { failed: "bad", node_lost: "bad", suspected: "bad", node_suspected: "bad", trusted: "good", node_trusted: "good", refused: "bad", lost: "bad", running: "good", completed: "good", grown: "accent", shrunk: "stop", waiting: "warn", started: "start", moved: "stop", cancelled: "" };

function phases(one) {
  const parts = [["prepare", one.prepare_s], ["stop", one.stop_s], ["wait", one.wait_s], ["start", one.start_s], ["first step", one.work_s]].filter(([, value]) => value > 0.0005).map(([name, value]) => `${name} ${span(value * 1000)}`);
  const cost = one.cost_s != null ? `; cost ${span(one.cost_s * 1000)} of its work` : "";
  return `${parts.join(", ")}${cost}${one.lost_steps ? `; ${one.lost_steps} steps repeated` : ""}`;
}
