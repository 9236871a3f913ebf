// The output of an app on its page: of one container or all, of any generation, at the present or up to a past moment.  The present
// is followed through resizes, retries and restarts of the server: a reading that breaks off goes on where it was.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { clean, number } from "./format.js";
import { Card } from "./parts.js";
import { ENDED } from "./model.js";
import { MOST_LINES, Screen } from "./screen.js";
import { go, recall, remember, store } from "./store.js";

const TAIL = 2000, AGAIN_MS = 1500, LISTED = 50, COMPARED = 25;
/** Phases in which the containers of the latest generation are yet to come. */
const COMING = new Set(["submitted", "starting", "adjusting"]);
/** Refusals that end by themselves: it will start.  What a server cannot answer now is asked for again without being told to. */
const PASSING = new Set(["app.not_started", "generation.not_found", "slot.not_found"]);

/** Leaves out lines that a reading repeats after it was interrupted.  Times do not tell: a node may know them better later.  What was
 * read from a container's first line on is counted; of longer output, the place is found by the last lines that are known. */
export class Unrepeated {
  constructor(tail) { this.tail = tail; this.slots = new Map(); }

  restart() {
    for (const known of this.slots.values()) if (known.count && !known.again) known.again = { left: known.count < this.tail ? known.count : this.tail, counts: known.count < this.tail, held: [] };
  }

  /** The lines to show now that this one has come. */
  take(line) {
    let known = this.slots.get(line.slot);
    if (!known) this.slots.set(line.slot, known = { count: 0, last: [], again: null });
    if (line.partial) return known.again ? [] : [line];
    if (known.again) return this.#repeated(known, line);
    this.#note(known, line);
    return [line];
  }

  #note(known, line) {
    known.count += 1;
    known.last.push(line.text);
    if (known.last.length > COMPARED) known.last.shift();
  }

  #repeated(known, line) {
    const again = known.again;
    again.left -= 1;
    if (again.counts) { if (!again.left) known.again = null; return []; }
    again.held.push(line);
    const end = again.held.slice(-known.last.length);
    const found = end.length === known.last.length && end.every((one, index) => one.text === known.last[index]);
    if (!found && again.left) return [];
    known.again = null;
    if (found) return [];
    for (const one of again.held) this.#note(known, one);  // More was written meanwhile than is repeated.
    return again.held;
  }
}

/** Reads until it is stopped; returns what stops it.  `line` gets lines, `say` what people should know. */
function read(id, wanted, line, say) {
  const unrepeated = new Unrepeated(wanted.tail);
  let stop = () => {}, timer = 0, over = false;
  const begin = () => {
    stop = store.source.logs(id, wanted, (event, data) => {
      if (over) return;
      if (event === "line") { for (const one of unrepeated.take(data)) line(one); say(""); }
      else if (event === "missed") line({ mark: `… ${data.lines ? `${number(data.lines)} lines` : "some output"} not shown: it came faster than it was read …` });
      else if (event === "restart") unrepeated.restart();
      else if (event === "waits") say(`It is asked for again; the last answer was: ${data.detail ?? "not now"}`);
      else if (event === "end") say(wanted.follow ? "These containers have ended." : "");
      else if (event === "problem") {
        say(data.detail ?? "There is no output.");
        if (!wanted.follow || !PASSING.has(data.code)) return;
        unrepeated.restart();
        timer = setTimeout(begin, AGAIN_MS);
      }
    });
  };
  begin();
  return () => { over = true; clearTimeout(timer); stop(); };
}

export function Output({ app, slots }) {
  const open = store.route.q.output ?? "", at = store.route.at;
  if (!store.source.actions) return null;
  const show = (what) => go({ q: { output: what } }, { replace: true });
  if (!open) {
    return html`<${Card} id="output" title="Output" extra=${html`<button type="button" onClick=${() => show("all")}>Show the output</button>`}>
      <p class="note">${at ? "What its containers had written by this moment." : "What its containers write, as it comes."}</p><//>`;
  }
  return html`<${Shown} key=${`${app.id} ${at}`} app=${app} slots=${slots} slot=${open === "all" ? null : Number(open)} at=${at} show=${show} />`;
}

function Shown({ app, slots, slot, at, show }) {
  const box = useRef(null), screen = useRef(null);
  const [note, say] = useState("Waiting for output …"), [count, tell] = useState([0, 0]), [find, seek] = useState("");
  const [times, setTimes] = useState(recall("times", "no") === "yes");
  const chosen = Number(store.route.q.generation ?? 0), latest = app.generation, generation = chosen || latest;
  const ended = ENDED.has(app.phase), before = useRef(""), told = useRef(0);
  const pending = !chosen && !at && (!generation || (COMING.has(app.phase) && !app.running));

  useEffect(() => {
    screen.current = new Screen(box.current, (shown, all) => tell([shown, all]));
    return () => screen.current.close();
  }, []);
  useEffect(() => screen.current.retime(), [store.zone]);
  useEffect(() => {
    const what = `${slot} ${chosen}`;
    // A new generation of the same goes on below what came before; another choice begins anew.
    if (before.current !== what) { before.current = what; told.current = 0; screen.current.clear(); }
    if (!pending && told.current !== generation) { if (told.current) screen.current.put({ mark: `— generation ${generation} —` }); told.current = generation; }
    if (pending) { say(generation ? `Generation ${generation} has not started yet.` : "It has not started yet."); return undefined; }
    say("Waiting for output …");
    const wanted = { slot, every: slot === null ? "true" : null, generation, tail: TAIL, timestamps: "true", follow: at || (chosen && chosen !== latest) ? null : "true", until: at };
    return read(app.id, wanted, (line) => screen.current.put(line), say);
  }, [slot, chosen, generation, at, pending]);

  const numbers = Array.from({ length: Math.min(latest, LISTED) }, (_, index) => latest - index);
  const address = store.source.logsAddress(app.id, { slot, every: slot === null ? "true" : null, generation, until: at, timestamps: times ? "true" : null });
  return html`<${Card} id="output" title="Output" class="output" extra=${html`<button type="button" class="quiet" onClick=${() => show(null)} aria-label="Close the output">✕</button>`}>
    <div class="filters">
      <label class="small">Container <select value=${slot === null ? "all" : String(slot)} onChange=${(event) => show(event.target.value)}>
        <option value="all">all</option>${[...new Set([...slots, ...(slot === null ? [] : [slot])])].map((one) => html`<option value=${String(one)}>slot ${one}</option>`)}</select></label>
      <label class="small">Generation <select value=${String(chosen)} onChange=${(event) => go({ q: { generation: event.target.value === "0" ? null : event.target.value } }, { replace: true })}>
        <option value="0">latest (${latest})</option>${numbers.slice(1).map((one) => html`<option value=${String(one)}>${one}</option>`)}</select></label>
      <label class="small grow"><span class="sr">Only lines with</span><input type="search" placeholder="Only lines with …" value=${find} onInput=${(event) => { seek(event.target.value); screen.current.find(event.target.value); }} /></label>
      <label class="small"><input type="checkbox" checked=${times} onChange=${(event) => { setTimes(event.target.checked); remember("times", event.target.checked ? "yes" : "no"); }} /> times</label>
      <a class="button" href=${address} download=${`${app.name}-${generation}.log`}>Download</a>
    </div>
    <pre ref=${box} class=${times ? "" : "untimed"} tabindex="0" aria-label="Output"></pre>
    <p class="small dim" role="status">${find ? `${number(count[0])} of ${number(count[1])} lines` : `${number(count[1])} lines`}${count[1] >= MOST_LINES ? ", the last ones; a download has all" : ""}${note ? ` · ${clean(note)}` : ""}${ended && !at && !note ? " · the app has ended" : ""}</p>
  <//>`;
}
