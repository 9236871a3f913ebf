// What people can do: submit, cancel, restart, hold, update, drain, change the policy.  Each first shows what the next decision would be.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { clean, number, plural } from "./format.js";
import { refusal } from "./identity.js";
import { Chip, Failed, useLoaded } from "./parts.js";
import { NOTHING, Settings, loadSettings, readSettings } from "./settings.js";
import { EMBED, say, set, store, visit } from "./store.js";

const WAIT_MS = 350, REFUSALS = new Set([400, 404, 409, 413, 415, 422]);
const newKey = () => (crypto.randomUUID ? crypto.randomUUID() : Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join(""));

/** Opens a dialog, or says why one may not do that. */
export function open(dialog) {
  const reason = refusal(dialog.what, dialog);
  if (reason) say(reason, "bad"); else set({ dialog: { key: newKey(), ...dialog } });
}
export const close = () => set({ dialog: null });

/** Whether something can be done from here: not in a recording or in the frame of another site, and only on the present. */
export const mayAct = () => Boolean(store.source?.actions) && !store.route.at && EMBED === null;

export function Action({ what, tone = "", children, ...dialog }) {
  if (!store.source?.actions || EMBED !== null || refusal(what, dialog)) return null;
  const past = Boolean(store.route.at);
  return html`<button type="button" class=${tone} disabled=${past} title=${past ? "This is the past; go to Live to do something" : undefined} onClick=${() => open({ what, ...dialog })}>${children}</button>`;
}

export function Dialogs() {
  const dialog = store.dialog;
  if (!dialog) return null;
  const Content = { submit: Submit, cancel: Cancel, restart: Restart, hold: Hold, cancelSweep: CancelSweep, update: Update, drain: Drain, policy: Policy, plan: Plan }[dialog.what];
  return html`<${Modal} key=${dialog.key} title=${TITLES[dialog.what](dialog)}><${Content} ...${dialog} idempotency=${dialog.key} /><//>`;
}

const TITLES = {
  submit: () => "Submit an app",
  cancel: ({ app }) => `Cancel ${clean(app.name)}`,
  restart: ({ app }) => `Restart ${clean(app.name)}`,
  hold: ({ app, on }) => `${on ? "Hold" : "Release"} ${clean(app.name)}`,
  cancelSweep: ({ sweep }) => `Cancel the sweep ${clean(sweep.name)}`,
  update: ({ app }) => `Update ${clean(app.name)}`,
  drain: ({ node, on }) => (on ? `Drain ${clean(node)}` : `End the drain of ${clean(node)}`),
  policy: () => "Change the policy",
  plan: () => "The next decision",
};

function Modal({ title, children }) {
  const place = useRef(null);
  useEffect(() => {
    const box = place.current, before = document.activeElement;
    box.showModal();
    return () => { box.close(); before?.focus?.(); };
  }, []);
  return html`<dialog ref=${place} aria-labelledby="dialog-title" onCancel=${(event) => { event.preventDefault(); close(); }} onPointerDown=${(event) => { if (event.target === place.current) close(); }}>
    <div class="dialog">
      <header><h2 id="dialog-title">${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button></header>
      ${children}
    </div>
  </dialog>`;
}

/** What the next decision would be if `what` happened first; asked again when that changes.  `refused` is told whether the
    cluster would refuse it: an answer that is late, or a server that is busy, refuses nothing. */
function Preview({ what, quiet = "", refused = () => {} }) {
  const [state, take] = useState({ plan: null, error: "", busy: false });
  const text = JSON.stringify(what);
  useEffect(() => {
    refused(false);
    if (what === null) { take({ plan: null, error: "", busy: false }); return undefined; }
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      take((before) => ({ ...before, busy: true }));
      try {
        const plan = await store.source.plan(what, stop.signal);
        take({ plan, error: "", busy: false });
      } catch (error) {
        if (error.name === "AbortError") return;
        take({ plan: null, error: error.message, busy: false });
        refused(REFUSALS.has(error.status));
      }
    }, WAIT_MS);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [text]);
  return html`<section class="preview" aria-live="polite" aria-busy=${state.busy}>
    <h3>What the next decision would be ${state.busy && html`<span class="dim">…</span>`}</h3>
    ${quiet && !state.plan && !state.error && html`<p class="note">${quiet}</p>`}
    ${state.error && html`<p class="note bad" role="alert">${clean(state.error)}</p>`}
    ${state.plan && html`<${Planned} plan=${state.plan} />`}
  </section>`;
}

function Planned({ plan }) {
  const rows = plan.changes, waiting = plan.waiting;
  return html`
    ${plan.assumed.length > 0 && html`<p class="small dim">If ${clean(plan.assumed.join("; "))}:</p>`}
    ${rows.length === 0 && html`<p class="note">No app's containers would change.</p>`}
    ${rows.length > 0 && html`<table class="plain"><thead><tr><th>App</th><th class="num">now</th><th class="num">then</th><th>how</th><th class="num">costs</th></tr></thead><tbody>
      ${rows.slice(0, 40).map((app) => html`<tr><td><bdi>${clean(app.name)}</bdi></td><td class="num">${app.before}</td><td class="num"><b>${app.after}</b></td>
        <td><${Chip} tone=${{ start: "start", live: "good", restart: "stop", stop: "bad" }[app.kind] ?? ""}>${app.end || app.kind}<//></td>
        <td class="num">${app.adjust_s == null ? "" : `${app.measured ? "" : "~"}${number(app.adjust_s, 1)} s`}</td></tr>`)}
    </tbody></table>`}
    ${rows.length > 40 && html`<p class="note">and ${rows.length - 40} more apps</p>`}
    ${waiting.length > 0 && html`<ul class="reasons">${waiting.slice(0, 6).map((app) => html`<li><b><bdi>${clean(app.name)}</bdi></b> waits: ${clean(app.text)}</li>`)}</ul>`}
    ${plan.after && html`<p class="small dim">utilization ${number(plan.before?.utilization, 2)} → ${number(plan.after.utilization, 2)} of ${plan.after.utilization_max};
      fairness loss ${number(plan.before?.fairness_loss, 3)} → ${number(plan.after.fairness_loss, 3)}${plan.after.fairness_budget >= 0 ? ` of ${number(plan.after.fairness_budget, 3)}` : ""}; ${plural(plan.after.waiting, "app")} waiting</p>`}`;
}

/** A form that does something.  `stale` is called if somebody else has changed the same thing since it was read: the form
    stays as it is, and the next try is made with what is there now. */
function Form({ children, action, tone = "primary", ready = true, run, stale = () => {} }) {
  const [state, take] = useState({ busy: false, error: "", stale: false });
  const submit = async (event) => {
    event.preventDefault();
    if (state.busy || !ready) return;
    take({ busy: true, error: "", stale: false });
    try {
      await run();
    } catch (error) {
      take({ busy: false, error: error.message, stale: error.code === "edit.stale" });
      if (error.code === "edit.stale") stale();
    }
  };
  return html`<form onSubmit=${submit}>${children}
    ${state.stale ? html`<p class="note warn" role="status">Somebody else has changed it meanwhile: ${clean(state.error)}</p>` : html`<${Failed} text=${state.error} />`}
    <div class="actions"><button type="button" onClick=${close}>Keep things as they are</button><button type="submit" class=${tone} disabled=${state.busy || !ready}>${state.busy ? "…" : action}</button></div>
  </form>`;
}

function done(text) {
  close();
  say(text);
}

function Cancel({ app, idempotency }) {
  const [reason, write] = useState(""), [no, refuse] = useState(false);
  return html`<${Form} action="Cancel the app" tone="danger" ready=${!no} run=${async () => { await store.source.cancel(app.id, reason, idempotency); done(`${clean(app.name)} is being cancelled.`); }}>
    <p>Its containers stop${app.containers ? ` (it has ${app.containers})` : ""}, and it does not start again.</p>
    <${Reason} reason=${reason} write=${write} />
    <${Preview} what=${{ cancel: app.id }} refused=${refuse} />
  <//>`;
}

const Reason = ({ reason, write }) => html`<label class="field"><span>Reason (optional)</span><input value=${reason} onInput=${(event) => write(event.target.value)} maxlength="300" /></label>`;

function Restart({ app, checkpoint }) {
  const [reason, write] = useState(""), [fresh, choose] = useState(false), [no, refuse] = useState(false);
  const ended = app.phase === "failed" || app.phase === "cancelled";
  return html`<${Form} action="Restart the app" ready=${!no} run=${async () => { await store.source.restart(app.id, fresh, reason); done(`${clean(app.name)} starts again.`); }}>
    <p>${ended ? "It continues under its name" : app.containers ? "It saves a checkpoint, stops, and starts again" : "It is tried now"}${checkpoint != null && !fresh ? `, from step ${number(checkpoint)} or later` : ""}. Its retries are reset.</p>
    <label class="small"><input type="checkbox" checked=${fresh} onChange=${(event) => choose(event.target.checked)} /> fresh: without a checkpoint, from the start</label>
    <${Reason} reason=${reason} write=${write} />
    <${Preview} what=${{ restart: app.id }} refused=${refuse} />
  <//>`;
}

function Hold({ app, on }) {
  const [reason, write] = useState(""), [no, refuse] = useState(false);
  return html`<${Form} action=${on ? "Hold the app" : "Release the app"} ready=${!no} run=${async () => { await store.source.hold(app.id, on, reason); done(on ? `${clean(app.name)} is held until it is released.` : `${clean(app.name)} may run again.`); }}>
    <p>${on ? `${app.containers ? "It saves a checkpoint and gives its containers back" : "It gets no containers"}, until it is released.` : "It waits for its place like any other app."}</p>
    <${Reason} reason=${reason} write=${write} />
    <${Preview} what=${on ? { hold: app.id } : { release: app.id }} refused=${refuse} />
  <//>`;
}

function CancelSweep({ sweep }) {
  const [reason, write] = useState(""), [no, refuse] = useState(false), name = sweep.tenant ? `${sweep.tenant}//${sweep.name}` : sweep.name;
  return html`<${Form} action="Cancel all its apps" tone="danger" ready=${!no} run=${async () => { const asked = await store.source.cancelSweep(name, reason); done(`${plural(asked.apps, "app")} of ${clean(sweep.name)} are being cancelled.`); }}>
    <p>All of its apps that have not ended stop, and do not start again.</p>
    <${Reason} reason=${reason} write=${write} />
    <${Preview} what=${{ cancel_sweep: name }} refused=${refuse} />
  <//>`;
}

function Update({ app, idempotency }) {
  const [values, write] = useState({ n_min: app.n_min, n_max: app.n_max, weight: app.weight });
  const change = Object.fromEntries(Object.entries(values).filter(([name, value]) => Number.isFinite(value) && value !== app[name]));
  const some = Object.keys(change).length > 0, [no, refuse] = useState(false);
  const input = (name, text, least, step) => html`<label class="field"><span>${text}</span>
    <input type="number" min=${least} step=${step} value=${values[name]} onInput=${(event) => write({ ...values, [name]: event.target.valueAsNumber })} /></label>`;
  return html`<${Form} action="Update the app" ready=${some && !no} run=${async () => { await store.source.update(app.id, change, idempotency); done(`${clean(app.name)} is updated.`); }}>
    <div class="fields">${input("n_min", "Fewest containers (n_min)", 1, 1)}${input("n_max", "Most containers (n_max)", 1, 1)}${input("weight", "Weight", 0, "any")}</div>
    <${Preview} what=${some ? { update: { app: app.id, ...change } } : null} refused=${refuse} quiet="Change a value to preview the effect." />
  <//>`;
}

function Drain({ node, on, idempotency }) {
  const [no, refuse] = useState(false);
  return html`<${Form} action=${on ? "Drain the node" : "End the drain"} ready=${!no} tone=${on ? "danger" : "primary"} run=${async () => { await store.source.drain(node, on, idempotency); done(on ? `${clean(node)} is being emptied by adjustments.` : `${clean(node)} gets containers again.`); }}>
    <p>${on ? "It gets no new containers, and the next decisions move those that it has." : "The node may get containers again."}</p>
    <${Preview} what=${on ? { drain: node } : { undrain: node }} refused=${refuse} />
  <//>`;
}

function Plan() {
  return html`<p>Without any change.</p><${Preview} what=${{}} /><div class="actions"><button type="button" onClick=${close}>Close</button></div>`;
}

function Policy({ idempotency }) {
  const { value: found, error } = useLoaded(() => loadSettings(), "policy");
  const [choice, choose] = useState(NOTHING), [no, refuse] = useState(false);
  const asked = found && readSettings(found, choice), ready = Boolean(asked?.some && !asked.wrong);
  return html`<${Form} action="Change the policy" ready=${ready && !no} run=${async () => {
      await store.source.setPolicy(asked.request, idempotency);
      done("The policy was changed.");
    }}>
    <${Failed} text=${error} />
    ${found && html`<${Settings} found=${found} choice=${choice} onchange=${choose} />`}
    ${asked?.wrong && html`<p class="note bad" role="alert">${clean(asked.wrong)}</p>`}
    <${Preview} what=${ready ? { policy: asked.assumed } : null} refused=${refuse} quiet="Change something to preview the effect." />
  <//>`;
}

function json(text) {
  try { return { value: JSON.parse(text || "{}"), error: "" }; } catch (error) { return { value: null, error: `This is not JSON: ${error.message}` }; }
}

// --- submitting -----------------------------------------------------------------------------------------------------------

const SAMPLE = `name: my-app
command: [python3, -m, compose.apps.mlp, --steps, "350", --hidden, "128", --pace, "0.015"]
resume: [python3, -m, compose.apps.mlp, --steps, "350", --hidden, "128", --pace, "0.015", --resume]
demand: {cpu: 500m, memory: 256MiB}
n_min: 1
n_max: 4
`;

/** An editor with hints: the fields that fit where the cursor is, with what they mean, from the JSON Schema of specs. */
function Submit({ idempotency, spec }) {
  const [text, write] = useState(spec ?? SAMPLE);
  const [schema, take] = useState(null);
  const [cursor, move] = useState(0), [no, refuse] = useState(false);
  const editor = useRef(null);
  useEffect(() => { store.source.schema().then(take, () => {}); }, []);
  const where = context(text, cursor);
  const hints = schema ? fields(schema, where.path).filter((one) => one.name.startsWith(where.word)) : [];
  const about = schema && where.key ? fields(schema, where.path).find((one) => one.name === where.key) : null;
  const isJson = text.trimStart().startsWith("{");
  const track = (event) => { write(event.target.value); move(event.target.selectionStart); };
  const insert = (name) => {
    const area = editor.current, at = area.selectionStart, begin = at - where.word.length;
    const added = isJson ? `"${name}": ` : `${name}: `;
    const next = text.slice(0, begin) + added + text.slice(at);
    write(next);
    requestAnimationFrame(() => { area.focus(); area.setSelectionRange(begin + added.length, begin + added.length); move(begin + added.length); });
  };
  const type = isJson ? "application/json" : "application/yaml", many = isSweep(text, isJson);
  return html`<${Form} action=${many ? "Submit the sweep" : "Submit the app"} ready=${text.trim() !== "" && !no} run=${async () => {
      if (many) {
        const sweep = await store.source.submitSweep(text, type, idempotency);
        done(`${plural(sweep.count, "app")} of ${clean(sweep.name)} were submitted.`);
        visit("sweep", sweep.name);
        return;
      }
      const answer = await store.source.submit(text, type, idempotency);
      done(answer.answered ? `${answer.name} was submitted.` : `${answer.name} was submitted; a master will answer once one leads.`);
      visit("app", answer.id);
    }}>
    <div class="editor">
      <label class="field"><span>Spec (YAML or JSON)</span>
        <textarea ref=${editor} rows="14" value=${text} onInput=${track} onKeyUp=${(event) => move(event.target.selectionStart)} onClick=${(event) => move(event.target.selectionStart)} spellcheck="false" autocapitalize="off" aria-describedby="hints"></textarea></label>
      <div id="hints" class="hints" role="region" aria-label="Fields">
        ${about && html`<p><b>${about.name}</b> <span class="dim">${about.type}</span><br />${clean(about.text)}</p>`}
        <ul>${hints.slice(0, 30).map((one) => html`<li><button type="button" class="quiet" title=${clean(one.text)} onClick=${() => insert(one.name)}>${one.name}</button> <span class="dim">${one.type}</span></li>`)}</ul>
        ${!schema && html`<p class="note">The fields of a spec appear here once the server has sent them.</p>`}
      </div>
    </div>
    <${Preview} what=${text.trim() ? { submit: isJson && json(text).value ? json(text).value : text } : null} refused=${refuse} />
  <//>`;
}

/** Whether a document describes many apps. */
function isSweep(text, isJson) {
  if (!isJson) return /^(sweep|array)\s*:/m.test(text);
  const document = json(text).value ?? {};
  return "sweep" in document || "array" in document;
}

/** Where the cursor is in a spec: the keys that lead there by indentation, the word before it, and the key of its line. */
function context(text, cursor) {
  const lines = text.slice(0, cursor).split("\n"), line = lines.at(-1) ?? "";
  const indent = line.length - line.trimStart().length;
  const path = [];
  let least = indent;
  for (const one of [...lines.slice(0, -1)].reverse()) {
    const depth = one.length - one.trimStart().length;
    const found = /^\s*"?([A-Za-z_]\w*)"?\s*:\s*\{?\s*$/.exec(one);
    if (found && depth < least) { path.unshift(found[1]); least = depth; }
  }
  const whole = text.slice(0, cursor).split("\n").length - 1;
  const key = /^\s*"?([A-Za-z_]\w*)"?\s*:/.exec(text.split("\n")[whole] ?? "");
  const word = /^[\s"]*([A-Za-z_]\w*)$/.exec(line);
  return { path, word: word ? word[1] : "", key: key ? key[1] : "" };
}

function resolve(schema, node) {
  let found = node;
  for (let step = 0; step < 8 && found; step++) {
    if (found.$ref) found = found.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part], schema);
    else if (found.anyOf || found.allOf) found = (found.anyOf ?? found.allOf).map((one) => resolve(schema, one)).find((one) => one?.properties) ?? found;
    else break;
    if (found?.properties) break;
  }
  return found;
}

function fields(schema, path) {
  let node = resolve(schema, schema);
  for (const part of path) node = resolve(schema, node?.properties?.[part]);
  return Object.entries(node?.properties ?? {}).map(([name, one]) => {
    const whole = resolve(schema, one) ?? {};
    return { name, type: typeOf(one, schema), text: one.description ?? whole.description ?? "" };
  });
}

function typeOf(one, schema) {
  if (one.enum) return one.enum.join(" | ");
  if (one.type) return [one.type].flat().join(" or ");
  if (one.anyOf) return [...new Set(one.anyOf.map((part) => typeOf(part, schema)))].filter((type) => type !== "null").join(" or ");
  if (one.$ref) return typeOf(resolve(schema, one) ?? {}, schema);
  return "";
}
