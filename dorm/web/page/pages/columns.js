// The columns of the table of apps: what each shows, and by what it sorts.  Its reader chooses which; labels are columns too.

import { html } from "../vendor/preact.js";
import { clean, exact, moment, msOf, number, percent, span } from "../format.js";
import { ENDED } from "../model.js";
import { AppLink, Chip, Phase } from "../parts.js";

const NO_WORK = { step: 0, loss: null, lossIs: "", rate: null, at: null, left: null, cost: 0, lost: 0, doubt: false };
const MOST_LABELS = 20;
const LABEL = "label:";

const workOf = (app, model) => model.work.get(app.id) ?? NO_WORK;
const why = (app) => app.trouble || app.reason?.text || app.end_reason || "";

/** Milliseconds since its submission, until its end if it has ended. */
const ageOf = (app, model) => (ENDED.has(app.phase) ? msOf(app.since) : model.at) - msOf(app.submitted_at);

/** Milliseconds until it has done its steps, from the moment that is shown. */
function leftOf(app, model) {
  const { left, at } = workOf(app, model);
  return left === null || left === undefined || ENDED.has(app.phase) ? null : Math.max(0, left * 1000 - Math.max(0, model.at - (at ?? model.at)));
}

/** `value` is what it sorts by; `cell` what it shows, the value itself by default. */
export const COLUMNS = [
  { name: "name", title: "App", fixed: true, value: (app) => app.name, cell: (app) => html`<${AppLink} id=${app.id} name=${app.name} />` },
  { name: "user", title: "User", fixed: true, value: (app) => app.user, cell: (app) => html`<bdi>${clean(app.user)}</bdi>` },
  { name: "phase", title: "Phase", fixed: true, value: (app) => app.phase, cell: (app) => html`<${Phase} phase=${app.phase} />` },
  { name: "containers", title: "Containers", fixed: true, number: true, value: (app) => app.containers, cell: (app) => html`<b>${app.containers}</b> <span class="dim">${app.n_min}–${app.n_max}</span>` },
  {
    name: "steps", title: "Step", number: true, value: (app, model) => workOf(app, model).step || null,
    cell: (app, model) => { const { step } = workOf(app, model); return step || app.steps ? html`${number(step)}${app.steps ? html` <span class="dim">of ${number(app.steps)}</span>` : ""}` : "–"; },
  },
  {
    name: "loss", title: "Loss", number: true, value: (app, model) => workOf(app, model).loss,
    cell: (app, model) => { const { loss, lossIs } = workOf(app, model); return lossIs ? html`<${Chip} tone="bad">${clean(lossIs)}<//>` : loss == null ? "–" : String(Number(loss.toPrecision(4))); },
  },
  { name: "rate", title: "Samples/s", number: true, value: (app, model) => (ENDED.has(app.phase) ? null : workOf(app, model).rate), cell: (app, model) => { const { rate } = workOf(app, model); return rate == null || ENDED.has(app.phase) ? "–" : number(rate, rate < 100 ? 1 : 0); } },
  {
    name: "left", title: "Time to go", number: true, value: leftOf,
    cell: (app, model) => { const left = leftOf(app, model); return left === null ? "–" : html`<span title=${`about ${exact(model.at + left)}, at its present pace`}>${span(left)}</span>`; },
  },
  { name: "age", title: "Age", number: true, value: ageOf, cell: (app, model) => span(ageOf(app, model)) },
  {
    name: "restarts", title: "Adjusted", about: "how often it was resized, moved or restarted, and what that cost of its work", number: true, value: (app, model) => workOf(app, model).cost || app.adjustments / 1e6,
    cell: (app, model) => {
      const { cost, lost } = workOf(app, model);
      return html`<span title=${lost ? `${number(lost)} steps repeated` : undefined}>${app.adjustments}×${cost > 0 ? html` <span class="dim">${span(cost * 1000)}</span>` : ""}</span>`;
    },
  },
  { name: "failures", title: "Failures", number: true, value: (app) => app.failures, cell: (app) => (app.failures ? html`<${Chip} tone="bad">${app.failures}<//>` : "0") },
  { name: "share", title: "Share", number: true, value: (app) => app.share, cell: (app) => html`${percent(app.share, 1)} <span class="dim">of ${percent(app.fair_share, 1)}</span>` },
  { name: "weight", title: "Weight", number: true, value: (app) => app.weight, cell: (app) => number(app.weight, 2) },
  { name: "reported", title: "Last report", number: true, value: (app, model) => workOf(app, model).at, cell: (app, model) => { const { at } = workOf(app, model); return at && !ENDED.has(app.phase) ? html`<span title=${exact(at)}>${span(Math.max(0, model.at - at))} ago</span>` : "–"; } },
  { name: "sweep", title: "Sweep", value: (app) => app.sweep, cell: (app) => html`<bdi>${clean(app.sweep)}</bdi>` },
  { name: "submitted", title: "Submitted", value: (app) => app.submitted_at, cell: (app) => html`<span class="dim">${moment(msOf(app.submitted_at))}</span>` },
  { name: "why", title: "Why", value: why, cell: (app) => html`<span class="why" title=${clean(why(app))}>${clean(why(app))}</span>` },
];

export const USUAL = ["steps", "loss", "rate", "left", "age", "restarts", "why"];

/** All columns that can be chosen, those of labels among them. */
export function offered(model) {
  const keys = new Set();
  for (const app of model.apps.values()) for (const key of Object.keys(app.labels ?? {})) if (keys.size < MOST_LABELS) keys.add(key);
  return [...COLUMNS, ...[...keys].sort().map(labelColumn)];
}

const labelColumn = (key) => ({ name: `${LABEL}${key}`, title: clean(key), value: (app) => app.labels?.[key] ?? "", cell: (app) => html`<bdi>${clean(app.labels?.[key] ?? "")}</bdi>` });

/** The columns that `cols` of the address names, in the table's order. */
export function chosen(cols, model) {
  const names = cols === undefined ? USUAL : cols.split(",");
  const labels = names.filter((name) => name.startsWith(LABEL) && name.length > LABEL.length).slice(0, MOST_LABELS).map((name) => labelColumn(name.slice(LABEL.length)));
  return [...COLUMNS.filter((column) => column.fixed || names.includes(column.name)), ...labels].sort((a, b) => (a.name === "why") - (b.name === "why"));
}

/** Sorts by `NAME`, or by `-NAME` for the greatest first; apps without the value come last. */
export function sorted(apps, sort, model) {
  const column = offered(model).find(({ name }) => name === sort.replace(/^-/, "")), sign = sort.startsWith("-") ? -1 : 1;
  if (!column) return apps;
  const keyed = apps.map((app) => [column.value(app, model), app]);
  const missing = (value) => value === null || value === undefined || value === "";
  keyed.sort(([a], [b]) => (missing(a) || missing(b) ? missing(a) - missing(b) : a > b ? sign : a < b ? -sign : 0));
  return keyed.map(([, app]) => app);
}
