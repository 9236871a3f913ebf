// One moment of the cluster, as the page holds it: a view, kept up to date by changes.

import { giveStyles } from "./colors.js";
import { msOf } from "./format.js";

/** The kinds of events by list, of the last view. */
export const lists = {};

export class Model {
  constructor(view) {
    Object.assign(lists, view.lists);
    this.position = view.position;
    this.at = msOf(view.at);
    this.cluster = view.cluster;
    this.decision = view.decision;
    this.apps = new Map(view.apps.map((app) => [app.id, app]));
    /** What each app has done, by its id. */
    this.work = new Map((view.work ?? []).map((entry) => [entry[0], workOf(entry)]));
    this.nodes = new Map(view.nodes.map((node) => [node.id, {
      ...node, containers: node.containers.map((held) => [view.apps[held[0]]?.id ?? "", ...held.slice(1)]),
    }]));
    this.version = 1;
    this.sorted = [...this.nodes.keys()].sort();
    giveStyles(view.apps);
  }

  /** Applies what has changed; returns this. */
  apply(change) {
    this.position = change.position;
    this.at = msOf(change.at);
    if (change.cluster) this.cluster = change.cluster;
    if (change.decision) this.decision = change.decision;
    let order = false;
    for (const app of change.apps ?? []) this.apps.set(app.id, app);
    for (const entry of change.work ?? []) this.work.set(entry[0], workOf(entry));
    for (const id of change.gone_apps ?? []) { this.apps.delete(id); this.work.delete(id); }
    for (const node of change.nodes ?? []) {
      order ||= !this.nodes.has(node.id);
      this.nodes.set(node.id, node);
    }
    for (const id of change.gone_nodes ?? []) order = this.nodes.delete(id) || order;
    if (order) this.sorted = [...this.nodes.keys()].sort();
    giveStyles(change.apps ?? []);
    this.version += 1;
    return this;
  }

  /** The same moment, on its own. */
  copy() {
    const other = Object.create(Model.prototype);
    return Object.assign(other, this, { apps: new Map(this.apps), work: new Map(this.work), nodes: new Map(this.nodes), sorted: [...this.sorted] });
  }

  get nodeList() {
    return this.sorted.map((id) => this.nodes.get(id));
  }

  get appList() {
    return [...this.apps.values()];
  }

  /** Apps that have not ended. */
  get live() {
    return this.appList.filter((app) => !ENDED.has(app.phase));
  }

  get waiting() {
    return this.live.filter((app) => app.phase === "waiting" || app.phase === "retrying" || app.phase === "submitted");
  }

  /** The node names, by which label they can be grouped, most useful first. */
  get labelKeys() {
    const values = new Map();
    for (const node of this.nodes.values()) {
      for (const [key, value] of Object.entries(node.labels ?? {})) {
        if (!values.has(key)) values.set(key, new Set());
        values.get(key).add(value);
      }
    }
    const many = this.nodes.size;
    const useful = [...values].filter(([, found]) => found.size > 1 && found.size < Math.max(3, many * 0.7));
    const known = ["rack", "zone", "room", "row", "type"];
    const rank = ([key]) => (known.indexOf(key) + 1 || known.length + 1);
    return useful.sort((a, b) => rank(a) - rank(b) || a[0].localeCompare(b[0])).map(([key]) => key);
  }

  /** Where an app's containers are: [node, count, starting, stopping]. */
  placesOf(id) {
    const found = [];
    for (const name of this.sorted) {
      for (const held of this.nodes.get(name).containers) {
        if (held[0] === id) found.push([name, held[1], held[2] ?? 0, held[3] ?? 0]);
      }
    }
    return found;
  }
}

/** Step, loss, pace and costs of an app by name; `at` in milliseconds since 1970, null if it has not reported. */
const workOf = ([, step, loss, lossIs, rate, at, left, cost, lost, doubt]) => ({ step, loss, lossIs, rate, at: at || null, left, cost, lost, doubt });

export const ENDED = new Set(["completed", "failed", "cancelled"]);

/** What differs between two moments: rows for a table. */
export function differences(before, after) {
  const rows = [];
  for (const id of new Set([...before.apps.keys(), ...after.apps.keys()])) {
    const a = before.apps.get(id), b = after.apps.get(id);
    const one = b ?? a;
    const was = a ? `${a.phase}, ${a.containers}` : "–", is = b ? `${b.phase}, ${b.containers}` : "–";
    if (was !== is || a?.generation !== b?.generation) {
      const restarted = a && b && a.generation && a.generation !== b.generation ? `generation ${a.generation} → ${b.generation}` : "";
      rows.push({ what: "app", id, name: one.name, was, is, text: b?.reason?.text || b?.end_reason || restarted });
    }
  }
  for (const id of new Set([...before.nodes.keys(), ...after.nodes.keys()])) {
    const a = before.nodes.get(id), b = after.nodes.get(id);
    const held = (node) => node.containers.reduce((sum, one) => sum + one[1], 0);
    if (a?.state !== b?.state || !a || !b) {
      rows.push({ what: "node", id, name: id, was: a ? `${a.state}, ${held(a)}` : "–", is: b ? `${b.state}, ${held(b)}` : "–", text: b?.note ?? "" });
    }
  }
  return rows;
}
