// What happened to an app or a node, in chapters, each with its cause.

import { html } from "../vendor/preact.js";
import { clean, clock, msOf, span } from "../format.js";
import { MomentLink, When } from "../parts.js";

/** Times come as UTC nanoseconds, or as text. */
const ms = (at) => (typeof at === "number" ? at / 1e6 : msOf(at));

export function Story({ story }) {
  const chapters = story?.chapters ?? [];
  if (!chapters.length) return html`<p class="note">Nothing so far.</p>`;
  return html`<ol class="story">${chapters.map((one) => {
    const begin = ms(one.begin ?? one.at ?? one.start ?? one.time), end = ms(one.end ?? one.until ?? null);
    const lines = [one.text ?? one.what ?? "", ...(one.lines ?? [])].filter(Boolean);
    const cause = one.cause;
    return html`<li class=${clean(one.kind ?? "")}>
      <span class="t">${one.position ? html`<${When} at=${begin} position=${one.position} />` : html`<time>${clock(begin)}</time>`}</span>
      <div><b>${clean(one.title ?? one.kind ?? lines.shift() ?? "")}</b>${end && end > begin ? html` <span class="dim">${span(end - begin)}</span>` : ""}
        ${lines.map((line) => html`<p>${clean(line)}</p>`)}
        ${cause && html`<p class="dim">because ${clean(cause.text ?? cause.what ?? cause)} ${cause.position && html`(<${MomentLink} position=${cause.position} />)`}</p>`}
      </div></li>`;
  })}</ol>`;
}
