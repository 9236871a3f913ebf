// Where data come from: `dorm serve` over HTTP, or what stands in the page itself.  Nothing else in the page knows which.
//
//   view(at)            one moment; null for now
//   session()           who one is; null where there are no users
//   follow(model, …)    what changes from there on; returns a function that stops it
//   timeline(…)         a span of time for pictures
//   events(…)           the log, by pages;  neighbor(…): the next or previous event of some kinds
//   app, story, …       more about one app or node;  sweeps, sweep: apps that were submitted together
//   whatif(at, …)       the log continued from a moment with a change, next to what happened
//   usage(node)         what a node's containers use now; null where that is not known
//   history(…)          apps that have ended, by pages;  findings(at): whether the cluster is well
//   plan, submit, …     what would happen, and doing it (`actions` says whether there is anything to do it with)

import { Feed } from "./feed.js";
import { ENDED, Model } from "./model.js";
import { comparePositions, msOf } from "./format.js";

const TIMEOUT_MS = 20_000, WHATIF_MS = 100_000, SWEEP_MS = 120_000, RESET_MS = 2000;

export class SourceError extends Error {
  constructor(text, code = "", status = 0) {
    super(text);
    this.code = code;
    this.status = status;
  }
}

const query = (map) => {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(map)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") found.append(name, one);
  }
  const text = found.toString();
  return text ? `?${text}` : "";
};

export class HttpSource {
  /** `watch.status` is called with the state of the connection and since when it holds, `watch.signedOut` if a session has ended. */
  constructor(base = "v1", actions = true, version = "", watch = {}) {
    this.base = base;
    this.actions = actions;
    this.embedded = false;
    this.watch = watch;
    this.feed = new Feed(base, version, (status, since) => {
      if (status === "signed-out") watch.signedOut?.(); else watch.status?.(status, since);
    });
  }

  async #ask(path, { method = "GET", body, type, headers = {}, signal, timeout = TIMEOUT_MS } = {}) {
    const limit = AbortSignal.timeout(timeout);
    let answer;
    try {
      answer = await fetch(`${this.base}${path}`, {
        method, body, signal: signal ? AbortSignal.any([signal, limit]) : limit,
        headers: { Accept: "application/json", ...(type ? { "Content-Type": type } : {}), ...headers },
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new SourceError(error.name === "TimeoutError" ? "The server did not answer in time." : "The server cannot be reached.", "unreachable");
    }
    const text = await answer.text();
    const found = text && /json/.test(answer.headers.get("Content-Type") ?? "") ? JSON.parse(text) : text;
    if (answer.status === 401) {
      this.watch.signedOut?.();
      throw new SourceError("Your session has ended; sign in again.", "signed-out", 401);
    }
    if (!answer.ok) throw new SourceError(found?.detail || found?.title || `The server answered ${answer.status}.`, found?.code, answer.status);
    return found;
  }

  async view(at, signal) {
    return new Model(await this.#ask(`/view${query({ at })}`, { signal }));
  }

  session = (signal) => this.#ask("/session", { signal });

  /** Calls `change` for each change after a view, and `reset` when a view is needed again. */
  follow(model, { change, reset }) {
    let again = 0;
    const stop = this.feed.follow("/v1/view/changes", model.position, (event, data) => {
      if (event === "reset") reset();
      else if (event === "problem") again = setTimeout(reset, RESET_MS);
      else if (event === "change") {
        const next = JSON.parse(data);
        if (comparePositions(next.position, model.position) > 0) change(next);
      }
    });
    return () => { clearTimeout(again); stop(); };
  }

  timeline({ from, to, width, page, apps } = {}, signal) {
    return this.#ask(`/timeline${query({ from, to, width, page, apps })}`, { signal });
  }

  events(filter = {}, signal) {
    return this.#ask(`/events${query(filter)}`, { signal });
  }

  async neighbor(kinds, position, direction) {
    const side = direction > 0 ? { after: position } : { before: position };
    const found = await this.events({ ...side, kind: kinds, limit: 1 });
    return found.items[0] ?? null;
  }

  /** Follows the log after a position: calls `each` with an event. */
  tail({ after = "", ...filter }, each) {
    return this.feed.follow(`/v1/events/stream${query(filter)}`, after, (event, data) => {
      if (event === "event") each(JSON.parse(data));
    });
  }

  app = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}${query({ at })}`);
  story = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}/story${query({ at })}`);
  explain = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}/explain${query({ at })}`);
  progress = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}/progress${query({ at })}`);
  speed = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}/speed${query({ at })}`);
  nodeStory = (id, at) => this.#ask(`/nodes/${encodeURIComponent(id)}/story${query({ at })}`);
  usage = (id) => this.#ask(`/nodes/${encodeURIComponent(id)}/usage`);
  history = ({ until, ...filter }) => this.#ask(`/history${query({ ...filter, until })}`, { timeout: WHATIF_MS });
  findings = (at) => this.#ask(`/findings${query({ at })}`);
  sweeps = (ended, at) => this.#ask(`/sweeps${query({ ended, at, limit: 1000 })}`);
  sweep = (name, by, at) => this.#ask(`/sweeps/${encodeURIComponent(name)}${query({ by, at })}`);
  policy = (at) => this.#ask(`/policy${query({ at })}`);
  policies = (at) => this.#ask(`/policies${query({ at })}`);
  schema = () => this.#ask("/schema/app");
  /** `what.submit` may be a spec as text in YAML. */
  plan = (what, signal) => this.#ask("/plan", { method: "POST", body: JSON.stringify(what), type: "application/json", signal });

  /** Closing the request (`signal`) ends the simulation. */
  whatif = (at, what, signal) => this.#ask(`/whatif${query({ at })}`, { method: "POST", body: JSON.stringify(what), type: "application/json", signal, timeout: WHATIF_MS });

  /** Reads output of containers, and follows it if `wanted` says so: calls `take` with `line`, `missed`, `end` or `problem` and what
   * it is, with `waits` and why before another try, and with `restart` before a broken reading begins again. */
  logs(id, wanted, take) {
    const stop = this.feed.follow(`/v1/apps/${encodeURIComponent(id)}/logs${query(wanted)}`, "", (event, data) => {
      if (event === "end" || event === "problem") stop();
      take(event, parsed(data));
    });
    return stop;
  }

  logsAddress = (id, wanted) => `${this.base}/apps/${encodeURIComponent(id)}/logs${query(wanted)}`;
  files = (id, area) => this.#ask(`/apps/${encodeURIComponent(id)}/files${query({ area })}`);
  fileAddress = (id, area, path) => `${this.base}/apps/${encodeURIComponent(id)}/file${query({ area, path })}`;
  checkpoints = (id) => this.#ask(`/apps/${encodeURIComponent(id)}/checkpoints`);
  spec = (id, at) => this.#ask(`/apps/${encodeURIComponent(id)}/spec${query({ at })}`);
  note = (id, text) => this.#ask(`/apps/${encodeURIComponent(id)}/notes`, { method: "POST", body: JSON.stringify({ text }), type: "application/json" });

  submit = (text, type, key) => this.#ask("/apps", { method: "POST", body: text, type, headers: { "Idempotency-Key": key } });
  submitSweep = (text, type, key) => this.#ask("/sweeps", { method: "POST", body: text, type, timeout: SWEEP_MS, headers: { "Idempotency-Key": key } });
  update = (id, change, key) => this.#ask(`/apps/${encodeURIComponent(id)}`, { method: "PATCH", body: JSON.stringify(change), type: "application/json", headers: { "Idempotency-Key": key } });
  cancel = (id, reason, key) => this.#ask(`/apps/${encodeURIComponent(id)}/cancel`, { method: "POST", body: JSON.stringify(reason ? { reason } : {}), type: "application/json", headers: { "Idempotency-Key": key } });
  drain = (id, on, key) => this.#ask(`/nodes/${encodeURIComponent(id)}/${on ? "drain" : "undrain"}`, { method: "POST", body: "{}", type: "application/json", headers: { "Idempotency-Key": key } });
  restart = (id, fresh, reason) => this.#ask(`/apps/${encodeURIComponent(id)}/restart`, { method: "POST", body: JSON.stringify({ fresh, reason }), type: "application/json" });
  hold = (id, on, reason) => this.#ask(`/apps/${encodeURIComponent(id)}/${on ? "hold" : "release"}`, { method: "POST", body: JSON.stringify({ reason }), type: "application/json" });
  cancelSweep = (name, reason) => this.#ask(`/sweeps/${encodeURIComponent(name)}/cancel`, { method: "POST", body: JSON.stringify({ reason }), type: "application/json" });
  setPolicy = (change, key) => this.#ask("/policy", { method: "PUT", body: JSON.stringify(change), type: "application/json", headers: { "Idempotency-Key": key } });
}

function parsed(text) {
  try {
    const document = JSON.parse(text);
    return typeof document === "object" && document !== null ? document : {};
  } catch {
    return {};
  }
}

// --- a recording ----------------------------------------------------------------------------------------------------------

const KEYFRAMES = 64;

/** The recording that stands in the page: gzip in base64, or null. */
export async function embedded() {
  const place = document.getElementById("recording");
  if (!place) return null;
  const bytes = Uint8Array.from(atob(place.textContent.trim()), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new EmbeddedSource(await new Response(stream).json());
}

export class EmbeddedSource {
  constructor(recording) {
    this.actions = false;
    this.embedded = true;
    this.recording = recording;
    this.changes = recording.changes;
    this.times = this.changes.map((change) => msOf(change.at));
    this.frames = new Map([[0, new Model(recording.first)]]);
    this.records = this.changes.flatMap((change) => change.records ?? []);
  }

  /** How many changes lie at or before a moment: a position, a sequence or a time. */
  #count(at) {
    if (at === null || at === undefined) return this.changes.length;
    const last = Number(this.changes.at(-1)?.position ?? this.recording.first.position);
    if (Math.floor(Number(at)) > last) throw new SourceError(`The recording ends at ${last}, before ${at}.`, "moment.after_end");
    if (/^\d+(\.\d+)?$/.test(at)) return upper(this.changes, (change) => Number(change.position) <= Math.floor(Number(at)));
    const time = at.startsWith("-") ? this.times.at(-1) - spanOf(at.slice(1)) : msOf(at.endsWith("Z") ? at : `${at}Z`);
    if (!Number.isFinite(time)) throw new SourceError(`${at} is not a moment: enter a sequence (120), a time or -10m.`, "moment.malformed");
    return upper(this.times, (one) => one <= time);
  }

  async view(at) {
    const wanted = this.#count(at);
    let base = Math.floor(wanted / KEYFRAMES) * KEYFRAMES;
    while (!this.frames.has(base)) base -= KEYFRAMES;
    const model = this.frames.get(base).copy();
    for (let index = base; index < wanted; index++) {
      model.apply(this.changes[index]);
      if ((index + 1) % KEYFRAMES === 0 && !this.frames.has(index + 1)) this.frames.set(index + 1, model.copy());
    }
    return model.copy();
  }

  async session() { return null; }

  follow() { return () => {}; }

  async timeline({ from, to, apps } = {}) {
    const whole = this.recording.timeline;
    const origin = msOf(whole.from);
    const begin = Math.max(0, from ? msOf(from) - origin : 0);
    const end = Math.min(msOf(whole.to) - origin, to ? msOf(to) - origin : Infinity);
    const inside = (one) => one[1] >= begin && one[1] <= end;
    const move = (one) => [one[0], one[1] - begin, ...one.slice(2)];
    const curve = (points) => {
      const first = Math.max(0, upper(points, (point) => point[0] <= begin) - 1);
      return points.slice(first).filter((point) => point[0] <= end).map(([time, value]) => [Math.max(0, time - begin), value]);
    };
    const lanes = whole.apps.filter((app) => !apps?.length || apps.includes(app.id)).map((app) => ({
      ...app,
      spans: app.spans.filter((span) => span[1] >= begin && span[0] <= end)
        .map(([t0, t1, count, phase]) => [Math.max(t0, begin) - begin, Math.min(t1, end) - begin, count, phase]),
    })).filter((app) => app.spans.length);
    return {
      ...whole, from: new Date(origin + begin).toISOString(), to: new Date(origin + end).toISOString(), apps: lanes, next: null,
      decisions: whole.decisions.filter(inside).map(move), failures: whole.failures.filter(inside).map(move),
      marks: whole.marks.filter(inside).map(move),
      figures: Object.fromEntries(Object.entries(whole.figures).map(([name, points]) => [name, curve(points)])),
    };
  }

  #matches(record, { app, node, user, kind }) {
    const kinds = [kind ?? []].flat();
    return (!app || record.app === app || record.text.includes(app)) && (!node || record.node === node || record.text.includes(node))
      && (!user || record.by === user) && (!kinds.length || kinds.includes(record.kind));
  }

  async events({ after, before, limit = 100, ...filter } = {}) {
    const most = Number(limit);
    if (after) {
      const start = upper(this.records, (one) => comparePositions(one.position, after) <= 0);
      const items = this.records.slice(start).filter((one) => this.#matches(one, filter)).slice(0, most);
      return { items, next: items.at(-1)?.position ?? null, previous: items[0]?.position ?? null };
    }
    const end = before ? upper(this.records, (one) => comparePositions(one.position, before) < 0) : this.records.length;
    const items = [];
    for (let index = end - 1; index >= 0 && items.length < most; index--) {
      if (this.#matches(this.records[index], filter)) items.unshift(this.records[index]);
    }
    return { items, next: items.at(-1)?.position ?? null, previous: items[0]?.position ?? null };
  }

  async neighbor(kinds, position, direction) {
    const side = direction > 0 ? { after: position } : { before: position };
    const { items } = await this.events({ ...side, kind: kinds, limit: 1 });
    return items[0] ?? null;
  }

  tail() { return () => {}; }

  #none(what) {
    throw new SourceError(`${what} is not part of a recording.`, "recording");
  }

  /** What is known besides the view: the last report of progress. */
  async app(id, at) {
    const points = this.recording.progress?.[id]?.points ?? [], time = this.times[this.#count(at) - 1] ?? 0;
    const last = points[upper(points, (point) => point[0] <= time) - 1];
    return last ? { step: last[1], loss: last[2] } : null;
  }

  /** The sequence of a moment. */
  #seq(at) {
    const count = this.#count(at);
    return at === null || at === undefined ? Infinity : Number(count ? this.changes[count - 1].position : this.recording.first.position);
  }

  /** A story up to a moment.  How long the phases of its last chapter took was not known yet. */
  #told(story, at, what) {
    if (!story) this.#none(what);
    const seq = this.#seq(at), chapters = story.chapters.filter((one) => Number(one.position.split(/[.~]/)[0]) <= seq);
    if (chapters.length < story.chapters.length && chapters.length) chapters.push({ ...chapters.pop(), phases: null });
    return { ...story, chapters };
  }

  /** An app's situation at a moment: why it has what it has, and its speed. */
  #turn(id, at) {
    const turns = this.recording.stories.turns[id] ?? [], seq = this.#seq(at);
    return turns[upper(turns, (one) => Number(one.position) <= seq) - 1] ?? null;
  }

  async story(id, at) { return this.#told(this.recording.stories.apps[id], at, "The story of this app"); }
  async explain(id, at) { return this.#turn(id, at); }
  async progress(id, at) {
    const points = this.recording.progress?.[id]?.points ?? [], count = this.#count(at);
    const time = at === null || at === undefined ? Infinity : this.times[count - 1] ?? 0;
    return { points: points.slice(0, upper(points, (point) => point[0] <= time)) };
  }
  async speed(id, at) { return this.#turn(id, at)?.speed ?? null; }
  /** Apps that ended up to a moment, as the last entry of each says. */
  async history({ q, user, state, since, until, sort = "-ended", after, limit = 100 }) {
    const count = this.#count(until), last = new Map(this.recording.first.apps.map((app) => [app.id, app]));
    for (const change of this.changes.slice(0, count)) for (const app of change.apps ?? []) last.set(app.id, app);
    const work = (await this.view(until)).work, begin = since ? (since.startsWith("-") ? (this.times[count - 1] ?? 0) - spanOf(since.slice(1)) : msOf(since)) : 0;
    const rows = [...last.values()].filter((app) => ENDED.has(app.phase)).map((app) => rowOf(app, work.get(app.id)))
      .filter((row) => (!user || row.user === user) && (!state || row.state === state) && row.ended_at / 1e6 > begin && (!q || textOf(row).includes(q.toLowerCase())));
    const field = { ended: "ended_at", submitted: "submitted_at" }[sort.replace(/^-/, "")] ?? sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1;
    rows.sort((a, b) => (a[field] == null) - (b[field] == null) || (a[field] > b[field] ? sign : a[field] < b[field] ? -sign : 0));
    const place = after ? rows.findIndex((row) => row.id === after) + 1 : 0, items = rows.slice(place, place + limit);
    return { items, next: place + limit < rows.length ? items.at(-1).id : null };
  }

  /** What the nodes and the settings of a moment say; a recording knows no servers. */
  async findings(at) {
    const { nodeList, cluster } = await this.view(at);
    const nodes = nodeList.filter((node) => !["up", "left"].includes(node.state)).map((node) => ({
      level: ["draining", "maintenance"].includes(node.state) ? "note" : "wrong", check: "nodes", about: node.id, text: node.note || node.state, todo: "",
    }));
    const settings = [["wrong", "the policy gives no usable answer", cluster.policy_failure], ["note", "paused", cluster.paused]].filter(([, , text]) => text)
      .map(([level, about, text]) => ({ level, check: "settings", about, text, todo: "" }));
    const items = [...settings, ...nodes].sort((a, b) => (a.level === "note") - (b.level === "note"));
    return { items, all_items: items.length, level: items[0]?.level ?? "ok" };
  }

  async nodeStory(id, at) { return this.#told(this.recording.stories.nodes[id], at, "The story of this node"); }
  async usage() { return null; }
  async sweeps() { return this.#none("The list of sweeps"); }
  async sweep() { return this.#none("A sweep"); }
  async policy() { return this.#none("The policy"); }
  async policies() { return this.#none("The policies"); }
  async whatif() { return this.#none("A what-if fork"); }
  async schema() { return this.#none("The schema"); }
  async plan() { return this.#none("A plan"); }
  logs(id, wanted, take) { take("problem", { detail: "The output of containers is not part of a recording." }); return () => {}; }
  async files() { return this.#none("The files of this app"); }
  async checkpoints() { return this.#none("The checkpoints of this app"); }
  async spec() { return this.#none("The spec of this app"); }
}

/** An app that has ended as a row of the history. */
function rowOf(app, work) {
  const submitted = msOf(app.submitted_at), ended = msOf(app.since);
  return {
    id: app.id, name: app.name, user: app.user, sweep: app.sweep ?? "", labels: app.labels ?? {}, state: app.phase, why: app.end_reason ?? "", failures: app.failures, adjustments: app.adjustments,
    submitted_at: submitted * 1e6, ended_at: ended * 1e6, life_s: (ended - submitted) / 1000, step: work?.step ?? 0, loss: work?.loss ?? null, loss_is: work?.lossIs ?? "", core_hours: null,
  };
}

const textOf = (row) => [row.name, row.id, row.user, row.sweep, row.why, ...Object.entries(row.labels).map(([key, value]) => `${key}=${value}`)].join("\n").toLowerCase();

/** How many items at the start of an ordered list fulfil a condition. */
function upper(items, holds) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(items[middle])) low = middle + 1; else high = middle;
  }
  return low;
}

function spanOf(text) {
  const found = /^([\d.]+)(ms|s|m|h|d|w)?$/.exec(text);
  return found ? Number(found[1]) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 }[found[2] ?? "s"] : NaN;
}
