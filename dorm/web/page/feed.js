// What this tab follows, through the connection that all tabs of the browser share (`streams.js`).
//
// A tab that is hidden for some seconds follows nothing; shown again, it goes on after the last event that it has.  Should the
// shared worker not start, or no longer answer, the tab gets a connection of its own.

import { Streams } from "./streams.js";

const HIDDEN_MS = 10_000, PING_MS = 10_000;
/** Pings without an answer after which the worker is taken for dead.  Time does not tell: browsers slow the timers of hidden tabs. */
const MOST_UNANSWERED = 3;

export class Feed {
  #base;
  #version;
  #say;
  #port = null;
  #alone = typeof SharedWorker !== "function";
  #tries = 0;
  #follows = new Map();
  #count = 0;
  #resting = false;
  #hiding = 0;
  #unanswered = 0;
  /** Whether to follow in a hidden tab too, for notifications. */
  hiddenToo = () => false;

  /** `status` is called with `live`, `connecting`, `reconnecting` or `signed-out`, and since when that is so. */
  constructor(base, version, status) {
    this.#base = base;
    this.#version = version;
    this.#say = status;
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#rest());
    addEventListener("pageshow", () => this.#seen());
    setInterval(() => this.#ping(), PING_MS);
    this.#seen();
  }

  /** Calls `each(event, data)` with what comes on a stream after `last`, with `restart` before a stream without positions begins
      anew, and with `waits` and why while the server cannot serve it.  Returns a function that ends it. */
  follow(path, last, each) {
    const key = ++this.#count, follow = { path, last, each, begun: false };
    this.#follows.set(key, follow);
    if (!this.#resting) this.#ask(key, follow);
    return () => { this.#follows.delete(key); this.#send({ do: "leave", key }); };
  }

  /** After signing in or out. */
  renew() {
    this.#send({ do: "renew" });
  }

  #send(message) {
    if (!this.#port) this.#connect();
    this.#port.postMessage(message);
  }

  #ask(key, { path, last }) {
    this.#send({ do: "follow", key, path, last });
  }

  #connect() {
    this.#port?.close();
    this.#port = this.#alone ? own() : this.#shared();
    this.#port.addEventListener("message", ({ data }) => this.#take(data));
    this.#port.start();
    this.#unanswered = 0;
    this.#port.postMessage({ do: "hello", base: new URL(this.#base, document.baseURI).href });
  }

  #shared() {
    const worker = new SharedWorker(new URL("assets/worker.js", document.baseURI), { type: "module", name: `dorm ${this.#version}` });
    worker.addEventListener("error", () => { this.#alone = true; this.#again(); });
    return worker.port;
  }

  /** Follows everything anew, after the last events. */
  #again() {
    this.#connect();
    if (!this.#resting) this.#resume();
  }

  #resume() {
    for (const [key, follow] of this.#follows) {
      if (follow.begun && !follow.last) follow.each("restart", "{}");
      this.#ask(key, follow);
    }
  }

  #take(message) {
    this.#unanswered = 0;
    this.#tries = 0;
    if (message.status) this.#say(message.status, message.since);
    if (message.forgotten && !this.#resting) this.#resume();
    const follow = this.#follows.get(message.key);
    if (!follow) return;
    follow.begun ||= message.event !== "restart" && message.event !== "waits";
    if (message.id) follow.last = message.id;
    follow.each(message.event, message.data);
  }

  #ping() {
    if (this.#resting || !this.#follows.size) return;
    if (this.#unanswered >= MOST_UNANSWERED) {
      this.#alone ||= ++this.#tries > 1;
      this.#again();
    }
    this.#unanswered += 1;
    this.#send({ do: "ping" });
  }

  // --- hidden and shown -----------------------------------------------------------------------------------------------------

  #seen() {
    clearTimeout(this.#hiding);
    if (document.hidden) this.#hiding = setTimeout(() => { if (!this.hiddenToo()) this.#rest(); }, HIDDEN_MS);
    else if (this.#resting) {
      this.#resting = false;
      this.#unanswered = 0;
      this.#resume();
    }
  }

  #rest() {
    this.#resting = true;
    if (this.#port) for (const key of this.#follows.keys()) this.#send({ do: "leave", key });
  }
}

/** A port to a connection of this tab's own. */
function own() {
  const channel = new MessageChannel();
  new Streams().attach(channel.port2);
  return channel.port1;
}
