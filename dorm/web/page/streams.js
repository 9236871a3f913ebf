// One connection to the server for all that the tabs of a browser follow: changes of the view, events, output.
//
// A browser opens six connections to a host and shares them among its tabs, so a stream of each tab's own would leave none for
// requests.  This runs in a worker that all tabs share (`worker.js`), or in the tab itself where there is none; tabs speak to it
// through ports (`feed.js`).  Its connection has parts (`POST /v1/streams`), which come and go while it is open.  Each part goes
// on after the last event that came of it, on a new connection as well.  All tabs share the changes of the view, of which the
// latest are kept for a tab whose view is a little older.

import { comparePositions } from "./format.js";

const VIEW = "/v1/view/changes";
const MOST_PARTS = 60, KEPT = 200, KEPT_CHARS = 4_000_000;
const GATHER_MS = 10, LINGER_MS = 1000, AGAIN_MS = 1000, FIRST_WAIT_MS = 300, LONGEST_WAIT_MS = 5000, STEADY_MS = 10_000;
/** Without a sign of life for this long, a connection is dead (the server beats every 15 s), and a tab gone (it does every 10 s). */
const DEAD_MS = 40_000, GONE_MS = 90_000, LOOK_MS = 5000;

const json = { "Content-Type": "application/json" };

export class Streams {
  #base = "";
  #tabs = new Set();
  #parts = new Map();
  #count = 0;
  #status = "connecting";
  #since = Date.now();
  #adding = new Set();
  #ending = new Set();
  #flushing = 0;
  #lingering = 0;
  #running = false;
  #signedOut = false;
  /** Of the open connection: the stream's name, what ends it, the part of the next events, and when it last brought something. */
  #name = "";
  #stop = null;
  #part = null;
  #heard = 0;
  #wake = () => {};

  constructor() {
    setInterval(() => this.#look(), LOOK_MS);
  }

  attach(port) {
    const tab = { port, heard: Date.now(), follows: new Map() };
    port.addEventListener("message", ({ data }) => this.#take(tab, data));
    port.start();
  }

  #take(tab, message) {
    tab.heard = Date.now();
    if (message.do === "ping" && !this.#tabs.has(tab)) tab.port.postMessage({ forgotten: true });
    if (message.do !== "leave") this.#tabs.add(tab);
    if (message.do === "hello") {
      this.#base ||= message.base;
      if (this.#signedOut) this.#renew();  // A page that opens is signed in.
      tab.port.postMessage({ status: this.#status, since: this.#since });
    } else if (message.do === "follow") this.#follow(tab, message);
    else if (message.do === "leave") this.#leave(tab, message.key);
    else if (message.do === "renew") this.#renew();
    else if (message.do === "ping") tab.port.postMessage({ pong: true });
  }

  // --- what tabs follow -----------------------------------------------------------------------------------------------------

  #follow(tab, { key, path, last }) {
    this.#leave(tab, key);
    const shared = path === VIEW;
    const name = shared ? "view" : `p${++this.#count}`;
    let part = this.#parts.get(name);
    if (!part) {
      if (this.#parts.size >= MOST_PARTS) {
        tab.port.postMessage({ key, event: "problem", data: JSON.stringify({ detail: "This browser follows too much at once; close some tabs." }) });
        return;
      }
      part = { name, path, last, begun: false, shared, kept: [], chars: 0, floor: last, takers: new Map() };
      this.#parts.set(name, part);
      this.#begin(part);
    } else if (comparePositions(last, part.floor) < 0) {
      tab.port.postMessage({ key, event: "reset", data: "{}" });
    } else {
      for (const event of part.kept) if (comparePositions(event.id, last) > 0) tab.port.postMessage({ key, ...event });
    }
    part.takers.set(tab, key);
    tab.follows.set(key, part);
  }

  #leave(tab, key) {
    const part = tab.follows.get(key);
    if (!part) return;
    tab.follows.delete(key);
    part.takers.delete(tab);
    if (!part.takers.size && this.#parts.get(part.name) === part) this.#drop(part);
  }

  #drop(part) {
    this.#parts.delete(part.name);
    this.#adding.delete(part.name);
    this.#ending.add(part.name);
    this.#gather();
    clearTimeout(this.#lingering);
    this.#lingering = setTimeout(() => { if (!this.#parts.size) this.#stop?.abort(); }, LINGER_MS);
  }

  #begin(part) {
    if (this.#parts.get(part.name) !== part) return;
    this.#adding.add(part.name);
    this.#gather();
    if (!this.#running && !this.#signedOut) this.#run();
  }

  /** Tells all who follow a part of an event. */
  #hand(part, message) {
    for (const [tab, key] of part.takers) tab.port.postMessage({ key, ...message });
  }

  /** Forgets tabs that give no sign of life, and ends a connection that does not. */
  #look() {
    const now = Date.now();
    for (const tab of this.#tabs) {
      if (now - tab.heard < GONE_MS) continue;
      for (const key of [...tab.follows.keys()]) this.#leave(tab, key);
      this.#tabs.delete(tab);
    }
    if (this.#stop && now - this.#heard > DEAD_MS) this.#stop.abort();
  }

  // --- the connection -------------------------------------------------------------------------------------------------------

  #say(status) {
    if (status === this.#status) return;
    this.#status = status;
    this.#since = Date.now();
    for (const tab of this.#tabs) tab.port.postMessage({ status, since: this.#since });
  }

  /** Somebody else uses the browser now, or the same one again. */
  #renew() {
    this.#signedOut = false;
    this.#say("connecting");
    this.#stop?.abort();
    this.#wake();
    if (!this.#running && this.#parts.size) this.#run();
  }

  async #run() {
    this.#running = true;
    for (let wait = FIRST_WAIT_MS; this.#parts.size && !this.#signedOut;) {
      const began = Date.now();
      try {
        await this.#connected();
      } catch { /* It is tried again. */ }
      this.#stop = null;
      this.#name = "";
      if (!this.#parts.size || this.#signedOut) break;
      this.#say("reconnecting");
      wait = Date.now() - began > STEADY_MS ? FIRST_WAIT_MS : Math.min(wait * 2, LONGEST_WAIT_MS);
      await new Promise((done) => { this.#wake = done; setTimeout(done, wait * (0.75 + Math.random() / 2)); });
    }
    this.#running = false;
    this.#say(this.#signedOut ? "signed-out" : "connecting");
  }

  /** Opens a connection with all parts, and reads it to its end. */
  async #connected() {
    const stop = this.#stop = new AbortController();
    this.#heard = Date.now();
    const follow = this.#requests(this.#parts.keys());
    const answer = await fetch(`${this.#base}/streams`, { method: "POST", headers: json, body: JSON.stringify({ follow }), signal: stop.signal, cache: "no-store" });
    if (answer.status === 401) this.#signedOut = true;
    if (!answer.ok) return;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "";;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.#heard = Date.now();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#event(block);
    }
  }

  /** What to ask for parts; nothing waits to be asked for any more. */
  #requests(names) {
    const follow = {};
    for (const name of names) {
      const part = this.#parts.get(name);
      if (part.begun && !part.last) this.#hand(part, { event: "restart", data: "{}" });
      follow[name] = { path: part.path, last: part.last };
    }
    this.#adding.clear();
    return follow;
  }

  #gather() {
    this.#flushing ||= setTimeout(() => { this.#flushing = 0; this.#flush(); }, GATHER_MS);
  }

  /** Changes the parts of the open connection.  One that cannot be changed is replaced by another one with all parts. */
  async #flush() {
    if (!this.#name) return;
    const stop = this.#stop, end = [...this.#ending].filter((name) => !this.#parts.has(name));
    const follow = this.#requests([...this.#adding]);
    this.#ending.clear();
    if (!end.length && !Object.keys(follow).length) return;
    try {
      const answer = await fetch(`${this.#base}/streams/${this.#name}`, { method: "POST", headers: json, body: JSON.stringify({ follow, end }), signal: AbortSignal.timeout(DEAD_MS) });
      if (!answer.ok) stop.abort();
    } catch {
      stop.abort();
    }
  }

  #event(block) {
    let id = "", event = "", data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("id: ")) id = line.slice(4);
      else if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
    }
    if (!event) return;
    if (event === "stream") {
      this.#name = JSON.parse(data).stream;
      this.#say("live");
      this.#gather();
    } else if (event === "part") this.#part = this.#parts.get(JSON.parse(data)) ?? null;
    else if (this.#part) this.#came(this.#part, { id, event, data });
  }

  /** Takes an event of a part: its id, kind and data. */
  #came(part, message) {
    const { id, event, data } = message;
    if (event === "over" || event === "problem") {
      const { status = 503 } = JSON.parse(data), final = event === "problem" && status < 500 && status !== 429;
      if (!final) {
        if (event === "problem") this.#hand(part, { event: "waits", data });
        setTimeout(() => this.#begin(part), AGAIN_MS);
        return;
      }
      this.#hand(part, message);
      this.#parts.delete(part.name);
      return;
    }
    part.begun = true;
    if (id) part.last = id;
    if (part.shared) this.#keep(part, message);
    this.#hand(part, message);
  }

  /** Keeps the latest changes of the view. */
  #keep(part, message) {
    if (message.event === "reset") {
      Object.assign(part, { kept: [], chars: 0, floor: message.id });
      return;
    }
    part.kept.push(message);
    part.chars += message.data.length;
    while (part.kept.length > KEPT || part.chars > KEPT_CHARS) {
      const gone = part.kept.shift();
      part.chars -= gone.data.length;
      part.floor = gone.id;
    }
  }
}
