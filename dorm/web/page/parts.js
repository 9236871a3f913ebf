// Small parts that all pages use.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { PHASE_TONE, appClass } from "./colors.js";
import { clean, clock, dayOf, exact, moment, msOf, utc } from "./format.js";
import { EMBED, href, light, shown, store, visit } from "./store.js";

/** Where another site shows one page in a frame, links open the whole dashboard beside it. */
export const outward = (address) => (EMBED === null ? { href: address } : { href: location.pathname + address, target: "_blank", rel: "noopener" });

/** A link within the page that keeps the moment. */
export function Link({ to, id = "", q = {}, class: name, children, ...rest }) {
  const address = href({ page: to, id, q });
  if (EMBED !== null) return html`<a ...${outward(address)} class=${name} ...${rest}>${children}</a>`;
  const click = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    visit(to, id, q);
  };
  return html`<a href=${address} class=${name} onClick=${click} ...${rest}>${children}</a>`;
}

export const Swatch = ({ id }) => html`<span class="swatch ${appClass(id)}" aria-hidden="true"></span>`;

export function AppLink({ id, name, swatch = true }) {
  const known = shown()?.apps.get(id);
  const leave = () => light(null), enter = () => light(id);
  return html`<${Link} to="app" id=${id} class="applink" title=${clean(id)} onPointerEnter=${enter} onPointerLeave=${leave} onFocus=${enter} onBlur=${leave}>
    ${swatch && html`<${Swatch} id=${id} />`}<bdi>${clean(name ?? known?.name ?? id)}</bdi><//>`;
}

export const NodeLink = ({ id }) => html`<${Link} to="node" id=${id} class="nodelink"><bdi>${clean(id)}</bdi><//>`;

export const Chip = ({ tone = "", children, title }) => html`<span class="chip ${tone}" title=${title}>${children}</span>`;

export const Phase = ({ phase }) => html`<${Chip} tone=${PHASE_TONE[phase] ?? ""}>${phase}<//>`;

/** A moment as text, with the exact one on hover; a click takes the page there. */
export function When({ at, position, day = false }) {
  const ms = typeof at === "number" ? at : msOf(at);
  if (ms === null) return html`<span class="dim">–</span>`;
  const text = day || dayOf(ms) !== dayOf(Date.now()) ? moment(ms) : clock(ms);
  if (!position) return html`<time dateTime=${utc(ms)} title=${exact(ms)}>${text}</time>`;
  return html`<${MomentLink} position=${position} title=${`${exact(ms)}, position ${position}`}><time dateTime=${utc(ms)}>${text}</time><//>`;
}

/** Takes the page to a position of the log. */
export function MomentLink({ position, title, children }) {
  const at = String(position).split(/[.~]/)[0];
  const address = href({ id: store.route.id, q: store.route.q, at });
  return html`<a ...${outward(address)} title=${title ?? `Show the cluster at ${position}`} class="moment">${children ?? position}</a>`;
}

export const Card = ({ title, extra, class: name = "", children, id }) => html`
  <section class="card ${name}" aria-labelledby=${id && `${id}-title`}>
    ${title && html`<header class="cardhead"><h2 id=${id && `${id}-title`}>${title}</h2>${extra}</header>`}
    ${children}
  </section>`;

/** Fields that most people leave alone.  It starts open where one of them is filled, and then obeys its reader. */
export function Group({ title, filled, children }) {
  const [open] = useState(Boolean(filled));
  return html`<details class="group" open=${open}><summary>${title}</summary>${children}</details>`;
}

/** A part of a whole as a bar with an optional mark, such as a budget. */
export function Meter({ value, max = 1, mark = null, tone = "accent", label }) {
  const place = useRef(null);
  const part = Math.min(Math.max(max > 0 ? value / max : 0, 0), 1), at = mark === null ? null : Math.min(Math.max(mark / max, 0), 1);
  useEffect(() => {
    place.current.style.setProperty("--part", String(part));
    if (at !== null) place.current.style.setProperty("--mark", String(at));
  });
  return html`<div class="meter ${tone}" ref=${place} role="meter" aria-label=${label} aria-valuenow=${Math.round(part * 100)}
    aria-valuemin="0" aria-valuemax="100"><i></i>${at !== null && html`<b></b>`}</div>`;
}

/** Loads something that depends on `key`; what is shown stays until the new one is there.  Errors are shown in place. */
export function useLoaded(load, key, every = 0) {
  const [found, take] = useState({ value: null, error: "", key: null });
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    let over = false, timer = 0;
    const ask = async () => {
      try {
        const value = await load();
        if (!over) take({ value, error: "", key });
      } catch (error) {
        if (!over && error.name !== "AbortError") take((before) => ({ value: before.key === key ? before.value : null, error: error.message, key }));
      }
      if (every && !over) timer = setTimeout(ask, every);
    };
    ask();
    return () => { over = true; clearTimeout(timer); };
  }, [key]);
  return found;
}

export const Failed = ({ text }) => (text ? html`<p class="note">${clean(text)}</p>` : null);

/** A table of many rows that draws only those in sight. */
export function Rows({ items, height = 30, most = 560, row, head, label }) {
  const place = useRef(null);
  const [top, move] = useState(0);
  const shownHeight = Math.min(items.length * height, most);
  const first = Math.max(0, Math.floor(top / height) - 6), count = Math.ceil(most / height) + 12;
  const visible = items.length * height <= most ? items : items.slice(first, first + count);
  const offset = items.length * height <= most ? 0 : first * height;
  useEffect(() => {
    const box = place.current;
    box.style.maxHeight = `${most}px`;
  }, [most]);
  const space = useRef(null), rest = useRef(null);
  useEffect(() => {
    if (space.current) space.current.style.height = `${offset}px`;
    if (rest.current) rest.current.style.height = `${Math.max(0, (items.length * height) - offset - visible.length * height)}px`;
  });
  return html`<div class="rows" ref=${place} onScroll=${(event) => move(event.target.scrollTop)} tabindex="0" role="region" aria-label=${label}>
    <table aria-rowcount=${items.length}>
      <caption class="sr">${label}</caption>
      <thead>${head}</thead>
      <tbody>
        ${offset > 0 && html`<tr class="gap" aria-hidden="true"><td ref=${space}></td></tr>`}
        ${visible.map(row)}
        <tr class="gap" aria-hidden="true"><td ref=${rest}></td></tr>
      </tbody>
    </table>
    ${shownHeight === 0 && html`<p class="note">None.</p>`}
  </div>`;
}

export const KIND_TONE = {
  AppFailed: "bad", AppRejected: "bad", GenerationFailed: "bad", NodeLost: "bad", NodeLeaseEnded: "bad", NodeSuspected: "bad", MembersLost: "bad",
  LiveResizeFailed: "bad", PolicyFailed: "bad", Unreadable: "bad", Unknown: "warn", AppCompleted: "good", NodeTrusted: "good", Resized: "accent",
};

export function EventRow({ one }) {
  return html`<li class="event">
    <span class="t"><${When} at=${one.at} position=${one.position} /></span>
    <span class="k ${KIND_TONE[one.kind] ?? ""}">${clean(one.kind)}</span>
    <span class="x"><bdi>${clean(one.text)}</bdi></span>
  </li>`;
}

const ICONS = {
  first: "M3 3v10M13 3.5 6 8l7 4.5z", back: "M11.5 3.5 4.5 8l7 4.5z", play: "M4.5 3 13 8l-8.5 5z", pause: "M4 3h3v10H4zM9.5 3h3v10h-3z",
  next: "M4.5 3.5 11.5 8l-7 4.5z", last: "M13 3v10M3 3.5 10 8l-7 4.5z",
};

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d=${ICONS[name]} fill="currentColor" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" /></svg>`;
