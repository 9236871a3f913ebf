// The policy, its parameters and the cluster's times as a form: which policies there are, with the type, range and meaning of each
// parameter, comes from the API.  The policy dialog and the what-if page use it.

import { html } from "./vendor/preact.js";
import { clean } from "./format.js";
import { Group } from "./parts.js";
import { store } from "./store.js";

export const NOTHING = { policy: "", values: {} };

/** The policies to choose from and what is in force at a moment, null for now. */
export async function loadSettings(at = null) {
  const [offered, now] = await Promise.all([store.source.policies(at), store.source.policy(at)]);
  const policies = [...offered.policies];
  if (!policies.some((one) => one.name === now.policy)) {
    const properties = Object.fromEntries(now.parameters.map((one) => [one.name, { default: one.default, description: one.meaning }]));
    policies.push({ name: now.policy, version: now.version, plugin: now.plugin, gist: now.gist, schema: { properties } });
  }
  return { policies, now, inForce: Object.fromEntries(now.parameters.map((one) => [one.name, one.value])) };
}

/** Settings besides the policy's parameters, with how each is read.  How long ended apps are kept, and how many a tenant may have, do not affect decisions. */
const times = (found) => found.now.times.filter((one) => !one.name.startsWith("retention_s") && one.name !== "tenant_apps").map((one) => [one, one.name === "weights"
  ? { type: "string", choices: ["apps", "tenants"], default: one.default } : { type: one.name.endsWith("_ms") || one.name === "suspect_after" ? "integer" : "number", default: one.default }]);

/** What a choice asks for: `request` changes the settings, `assumed` is the same for plans and forks, `wrong` says what cannot be read. */
export function readSettings(found, choice) {
  const name = choice.policy || found.now.policy, other = name !== found.now.policy;
  const properties = found.policies.find((one) => one.name === name)?.schema.properties ?? {};
  const set = {}, assumed = {};
  let wrong = "";
  for (const [key, schema] of Object.entries(properties)) {
    const text = choice.values[key];
    if (text === undefined) continue;
    const before = other ? schema.default : found.inForce[key];
    const read = valueOf(text, schema);
    if (read.error) wrong = `${key}: ${read.error}`;
    else if (JSON.stringify(read.value) !== JSON.stringify(before)) { set[key] = read.value; assumed[key] = read.value ?? schema.default; }
  }
  const moved = {};
  for (const [one, schema] of times(found)) {
    const text = choice.values[one.name];
    if (text === undefined) continue;
    const read = valueOf(text, schema);
    if (read.error) wrong = `${one.word}: ${read.error}`;
    else if ((read.value ?? one.default) !== one.value) moved[one.name] = read.value ?? one.default;
  }
  const policy = other ? { policy: name } : {}, some = Object.keys(set).length > 0, all = { ...policy, ...assumed, ...moved };
  return { name, other, wrong, some: Object.keys(all).length > 0, request: { ...policy, ...(some ? { set_params: set } : {}), ...moved }, assumed: all };
}

/** The choice that leads to `assumed`, as an address holds it. */
export function choiceOf(assumed) {
  const { policy = "", ...rest } = assumed ?? {};
  return { policy, values: Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, written(value)])) };
}

const written = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

function valueOf(text, schema) {
  const short = text.trim();
  if (short === "") return { value: null };
  if (schema.type === "string") return { value: short };
  try {
    const value = JSON.parse(short);
    const type = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
    const wanted = schema.type === "integer" ? "number" : schema.type;
    if (wanted && type !== "null" && type !== wanted) return { error: `this is ${type === "array" || type === "object" ? "an" : "a"} ${type}, and not a${/^[aeio]/.test(wanted) ? "n" : ""} ${wanted}` };
    return { value };
  } catch {
    return { error: schema.type === "number" || schema.type === "integer" ? "this is not a number" : "this is not JSON" };
  }
}

export function Settings({ found, choice, onchange }) {
  const name = choice.policy || found.now.policy, other = name !== found.now.policy;
  const chosen = found.policies.find((one) => one.name === name);
  const write = (key, text) => onchange({ ...choice, values: { ...choice.values, [key]: text } });
  const fields = Object.entries(chosen?.schema.properties ?? {});
  return html`
    <label class="field"><span>Policy</span>
      <select value=${name} onChange=${(event) => onchange({ policy: event.target.value === found.now.policy ? "" : event.target.value, values: timesOf(found, choice) })}>
        ${found.policies.map((one) => html`<option key=${one.name} value=${one.name}>${clean(one.name)}${one.name === found.now.policy ? " (in force)" : ""}${one.plugin ? `, of ${clean(one.plugin)}` : ""}</option>`)}
      </select>
      <span class="about">${clean(chosen?.gist ?? "")}</span></label>
    ${fields.length > 0 ? html`<div class="params">${fields.map(([key, schema]) => html`<${Parameter} key=${`${name} ${key}`} name=${key} schema=${schema}
        text=${choice.values[key] ?? written(other ? schema.default : found.inForce[key])} write=${(text) => write(key, text)} />`)}</div>` : html`<p class="note">This policy has no parameters.</p>`}
    <${Group} title="Times and weights" filled=${Object.keys(timesOf(found, choice)).length > 0}><div class="params">${times(found).map(([one, schema]) => html`<${Parameter} key=${one.name}
      name=${one.word} unit=${{ integer: "ms", number: "s" }[schema.type]} schema=${{ ...schema, description: one.meaning }} text=${choice.values[one.name] ?? written(one.value)} write=${(text) => write(one.name, text)} />`)}</div><//>`;
}

/** What a choice has of the times. */
function timesOf(found, choice) {
  const names = new Set(times(found).map(([one]) => one.name));
  return Object.fromEntries(Object.entries(choice.values).filter(([name]) => names.has(name)));
}

function Parameter({ name, unit = "", schema, text, write }) {
  const numeric = schema.type === "number" || schema.type === "integer";
  const bounded = schema.minimum !== undefined ? `${schema.minimum} to ${schema.maximum.toLocaleString("en")}; ` : "";
  const hint = `${bounded}default ${written(schema.default) || "none"}`, choices = schema.type === "boolean" ? ["true", "false"] : schema.choices;
  const input = choices
    ? html`<select value=${text} onChange=${(event) => write(event.target.value)}>${choices.map((one) => html`<option value=${one}>${one}</option>`)}</select>`
    : html`<input type=${numeric ? "number" : "text"} min=${schema.minimum} max=${schema.maximum} step=${numeric ? (schema.type === "integer" ? 1 : "any") : undefined}
        value=${text} onInput=${(event) => write(event.target.value)} spellcheck="false" placeholder=${written(schema.default)} />`;
  return html`<label class="field"><span>${clean(name)}${unit && ` (${unit})`}</span>${input}<span class="about">${schema.description ? `${clean(schema.description)} (${hint})` : hint}</span></label>`;
}
