// What an app is: its commands, its image or Python, variables, labels, and the whole spec to copy, to edit and to run again; what
// people noted about it; and the files that it left.

import { html, useState } from "../vendor/preact.js";
import { Action, mayAct } from "../actions.js";
import { amount, clean, msOf, number, plural } from "../format.js";
import { refusal } from "../identity.js";
import { Card, Chip, Failed, useLoaded, When } from "../parts.js";
import { say, shown, store } from "../store.js";
import { asYaml } from "../yaml.js";

const LISTED = 200, LONGEST_NAME = 48;
/** What another run does not repeat: whose it was, and of which sweep. */
const NOT_AGAIN = new Set(["user", "group"]);

const quoted = (word) => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
const line = (words) => words.map(quoted).join(" ");

export function About({ app, at, turn }) {
  const { value, error } = useLoaded(() => (store.source.embedded ? null : store.source.spec(app.id, at)), `${app.id} ${at} ${turn}`);
  if (store.source.embedded) return null;
  const spec = value?.spec ?? {};
  const rows = [
    ["Command", spec.command && html`<code>${cleanLines(line(spec.command))}</code>`],
    ["Resumes with", spec.resume && html`<code>${cleanLines(line(spec.resume))}</code>`],
    ["Image", spec.image && clean(spec.image)],
    ["Python", spec.python && clean(spec.python)],
    ["Packages", spec.requirements && clean(spec.requirements.join(", "))],
    ["Folder", spec.workdir && clean(typeof spec.workdir === "string" ? spec.workdir : spec.workdir.hash ?? "")],
    ["Variables", spec.env && html`<ul class="pairs">${Object.entries(spec.env).map(([name, one]) => html`<li><code>${clean(name)}=${clean(one)}</code></li>`)}</ul>`],
    ["Secrets", spec.secrets && html`<ul class="pairs">${Object.entries(spec.secrets).map(([name, one]) => html`<li><code>${clean(name)}</code> <span class="dim">from the secret ${clean(one)}</span></li>`)}</ul>`],
    ["Labels", spec.labels && html`${Object.entries(spec.labels).map(([name, one]) => html`<${Chip}>${clean(name)}: ${clean(one)}<//> `)}`],
  ].filter(([, shown]) => shown);
  const text = asYaml(spec), again = asYaml(Object.fromEntries(Object.entries(spec).filter(([name]) => !NOT_AGAIN.has(name)).map(([name, one]) => [name, name === "name" ? free(one) : one])));
  return html`<${Card} id="about" title="The app" extra=${html`<span class="buttons">
      ${value && html`<button type="button" onClick=${() => copy(text)}>Copy the spec</button>`}
      ${value && !["completed", "failed", "cancelled"].includes(app.phase) && html`<${Action} what="update" app=${app}>Edit<//>`}
      ${value && html`<${Action} what="submit" spec=${again}>Run again<//>`}</span>`}>
    <${Failed} text=${error} />
    ${rows.length > 0 && html`<dl class="about">${rows.map(([name, shown]) => html`<dt>${name}</dt><dd>${shown}</dd>`)}</dl>`}
    ${value && html`<details class="group"><summary>Spec${value.revision > 1 ? `, revision ${value.revision}` : ""}</summary><pre class="spec" tabindex="0" aria-label="Spec as YAML">${cleanLines(text)}</pre></details>`}
  <//>`;
}

/** A name for another run: its own, or the next number while an app has it. */
function free(name) {
  const taken = new Set(shown().live.map((one) => one.name)), stem = name.replace(/-\d+$/, "").slice(0, LONGEST_NAME - 4);
  let found = name;
  for (let number_ = 2; taken.has(found); number_++) found = `${stem}-${number_}`;
  return found;
}

/** Cleans a text of several lines. */
const cleanLines = (text) => text.split("\n").map(clean).join("\n");

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("The spec is copied.");
  } catch {
    say("The browser does not let the page copy; open the spec below and copy it there.", "bad");
  }
}

// --- notes ----------------------------------------------------------------------------------------------------------------

const LONGEST_NOTE = 500;

export function Notes({ app, list, reload }) {
  const [text, write] = useState(""), [state, take] = useState({ busy: false, error: "" });
  const may = mayAct() && !refusal("note", { app });
  if (!may && !list.length) return null;
  const note = async (event) => {
    event.preventDefault();
    if (state.busy || !text.trim()) return;
    take({ busy: true, error: "" });
    try {
      await store.source.note(app.id, text);
      write("");
      take({ busy: false, error: "" });
      reload();
    } catch (error) {
      take({ busy: false, error: error.message });
    }
  };
  return html`<${Card} id="notes" title="Notes">
    ${list.length > 0 && html`<ul class="notes">${[...list].reverse().map((one) => html`<li key=${one.position}><p>${clean(one.text)}</p><p class="small dim"><bdi>${clean(one.by)}</bdi>, <${When} at=${one.at} position=${one.position} day /></p></li>`)}</ul>`}
    ${may && html`<form class="noting" onSubmit=${note}><input value=${text} maxlength=${LONGEST_NOTE} placeholder="Note something for others; it stays on the log" aria-label="A note" onInput=${(event) => write(event.target.value)} />
      <button type="submit" disabled=${state.busy || !text.trim()}>Note</button></form>`}
    <${Failed} text=${state.error} />
  <//>`;
}

// --- files ----------------------------------------------------------------------------------------------------------------

/** What it left, listed when someone wants to see it: an agent is asked. */
export function Files({ app, turn }) {
  const [area, choose] = useState("");
  const load = async () => {
    if (!area) return null;
    const [files, saved] = await Promise.all([store.source.files(app.id, area), area === "checkpoints" ? store.source.checkpoints(app.id) : null]);
    return { ...files, saved: new Map((saved?.checkpoints ?? []).map((one) => [one.path, one])) };
  };
  const { value, error, key } = useLoaded(load, `${app.id} ${area} ${turn}`);
  if (!store.source.actions || store.route.at) return null;
  const button = (name, title) => html`<button type="button" aria-pressed=${area === name} onClick=${() => choose(area === name ? "" : name)}>${title}</button>`;
  const files = (value?.items ?? []).filter((one) => one.kind !== "folder");
  return html`<${Card} id="files" title="Files" extra=${html`<span class="buttons">${button("outputs", "Outputs")}${button("checkpoints", "Checkpoints")}</span>`}>
    <${Failed} text=${error} />
    ${area && !error && value?.area !== area && html`<p class="note">Asking a node …</p>`}
    ${!area && html`<p class="note">What it wrote for its users, and what it saved to resume from.</p>`}
    ${area && value?.area === area && html`${files.length === 0 && key && html`<p class="note">There are none.</p>`}
      ${files.length > 0 && html`<div class="scrollbox short" tabindex="0" role="region" aria-label="Files of the app"><table class="plain"><thead><tr><th>file</th>${area === "checkpoints" && html`<th class="num">step</th>`}<th class="num">size</th><th>modified</th><th></th></tr></thead><tbody>
        ${files.slice(0, LISTED).map((one) => {
          const saved = value.saved.get(one.path.split("/")[0]);
          return html`<tr key=${one.path}><td class="wrap"><bdi>${clean(one.path)}</bdi> ${saved?.used && html`<${Chip} tone="good">resumes here<//>`}${saved?.doubtful && html`<${Chip} tone="warn">doubtful<//>`}</td>
            ${area === "checkpoints" && html`<td class="num">${saved?.step != null ? number(saved.step) : ""}</td>`}
            <td class="num">${amount("memory", one.size)}</td><td><${When} at=${msOf(one.modified)} day /></td>
            <td>${one.kind === "file" ? html`<a class="button" href=${store.source.fileAddress(app.id, area, one.path)} download=${one.path.split("/").at(-1)} aria-label=${`Download ${clean(one.path)}`}>Download</a>` : html`<span class="dim">${clean(one.note)}</span>`}</td></tr>`;
        })}
      </tbody></table></div>
      <p class="small dim">${plural(files.length, "file")}, ${amount("memory", value.size)}${files.length > LISTED || value.left_out ? `; the first ${number(Math.min(files.length, LISTED))} are listed, \`dorm cp\` copies all` : ""}</p>`}`}
  <//>`;
}
