// What else a fork assumes besides settings: nodes that join or are gone, apps that end, change or come, and how long to simulate.

import { html } from "./vendor/preact.js";
import { clean } from "./format.js";
import { Group } from "./parts.js";

/** The fields of the form, as text. */
export const NONE = {
  join: "", like: "", capacity: "", without: "", drain: "", undrain: "", cancel: "", app: "", weight: "", n_min: "", n_max: "", submit: "", horizon: "",
};
const LISTS = ["without", "drain", "undrain", "cancel"], BOUNDS = ["weight", "n_min", "n_max"];
const UNITS = { s: 1, m: 60, h: 3600, d: 86_400 };
const OFFERED = 300;

const names = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

/** What the fields ask of `POST /v1/whatif`: `body`, whether that changes something (`some`), and what cannot be read (`wrong`). */
export function readSupposed(form) {
  const body = {};
  let wrong = "";
  for (const name of LISTS) if (names(form[name]).length) body[name] = names(form[name]);
  const join = Number(form.join || 0);
  if (!Number.isInteger(join) || join < 0 || join > 1000) wrong = "Nodes that join: enter a number of at most 1,000.";
  else if (join) {
    const capacity = {};
    for (const part of names(form.capacity)) {
      const [name, amount, more] = part.split("=").map((one) => one.trim());
      if (!name || !amount || more !== undefined) wrong = `“${part}” is not a resource: enter cpu=8, memory=64GiB.`;
      else capacity[name] = amount;
    }
    if (!form.like.trim() && !names(form.capacity).length) wrong = "Nodes that join: choose a node to copy, or enter their resources.";
    body.nodes = [{ count: join, ...(form.like.trim() ? { like: form.like.trim() } : {}), capacity }];
  }
  const update = Object.fromEntries(BOUNDS.filter((name) => form[name] !== "").map((name) => [name, Number(form[name])]));
  if (Object.keys(update).length && !form.app.trim()) wrong = "Name the app that gets a new weight or new bounds.";
  else if (form.app.trim() && !Object.keys(update).length) wrong = `Enter a new weight or new bounds for ${form.app.trim()}.`;
  else if (form.app.trim()) body.update = { app: form.app.trim(), ...update };
  if (form.submit.trim()) body.submit = form.submit;
  const some = Object.keys(body).length > 0;
  const horizon = /^(\d+(?:\.\d+)?)\s*([smhd]?)$/.exec(form.horizon.trim());
  if (horizon) body.horizon_s = Number(horizon[1]) * UNITS[horizon[2] || "s"];
  else if (form.horizon.trim()) wrong = `“${form.horizon.trim()}” is not a duration: enter 90m, 12h or 2d.`;
  return { body, some, wrong };
}

/** The fields that lead to a body, as an address holds it, which anybody may have written. */
export function formOf(body) {
  const form = { ...NONE }, [joined] = [body.nodes ?? []].flat(), update = body.update ?? {};
  for (const name of LISTS) form[name] = [body[name] ?? []].flat().join(", ");
  if (joined) {
    form.join = String(joined.count ?? 1);
    form.like = String(joined.like ?? "");
    form.capacity = Object.entries(joined.capacity ?? {}).map(([name, amount]) => `${name}=${amount}`).join(", ");
  }
  for (const name of ["app", ...BOUNDS]) form[name] = String(update[name] ?? "");
  form.submit = typeof body.submit === "string" ? body.submit : body.submit ? JSON.stringify(body.submit, null, 2) : "";
  form.horizon = body.horizon_s ? `${body.horizon_s}s` : "";
  return form;
}

/** The fields, in groups that are open where something is written. */
export function Supposed({ form, model, onchange }) {
  const write = (name) => (event) => onchange({ ...form, [name]: event.target.value });
  const text = (name, title, about = "", rest = {}) => html`<label class="field"><span>${title}</span>
    <input type="text" value=${form[name]} onInput=${write(name)} spellcheck="false" autocapitalize="off" ...${rest} />${about && html`<span class="about">${about}</span>`}</label>`;
  const count = (name, title, rest = {}) => text(name, title, "", { type: "number", min: 0, ...rest });
  const filled = (...fields) => fields.some((name) => form[name] !== "");
  const nodes = model?.sorted ?? [], apps = model?.live ?? [];
  return html`
    <datalist id="whatif-nodes">${nodes.slice(0, OFFERED).map((id) => html`<option key=${id} value=${id} />`)}</datalist>
    <datalist id="whatif-apps">${apps.slice(0, OFFERED).map((app) => html`<option key=${app.id} value=${app.id}>${clean(app.name)}</option>`)}</datalist>
    <${Group} title="Nodes" filled=${filled("join", "like", "capacity", "without", "drain", "undrain")}><div class="params">
      ${count("join", "Nodes that join", { max: 1000, step: 1 })}
      ${text("like", "Copies of", "A node, for its resources and labels", { list: "whatif-nodes" })}
      ${text("capacity", "Their resources", "If they differ, such as cpu=8, memory=64GiB")}
      ${text("without", "Nodes that are gone", "Names, separated by commas", { list: "whatif-nodes" })}
      ${text("drain", "Nodes that are drained", "Names, separated by commas", { list: "whatif-nodes" })}
      ${text("undrain", "Nodes whose drain ends", "Names, separated by commas", { list: "whatif-nodes" })}
    </div><//>
    <${Group} title="Apps" filled=${filled("cancel", "app", ...BOUNDS, "submit")}><div class="params">
      ${text("cancel", "Apps that are cancelled", "Names or ids, separated by commas", { list: "whatif-apps" })}
      ${text("app", "An app that changes", "Name or id", { list: "whatif-apps" })}
      ${count("weight", "Its weight", { step: "any" })}
      ${count("n_min", "Its fewest containers (n_min)", { step: 1 })}
      ${count("n_max", "Its most containers (n_max)", { step: 1 })}
    </div>
      <label class="field"><span>An app to submit (YAML or JSON)</span>
        <textarea rows="5" value=${form.submit} onInput=${write("submit")} spellcheck="false" autocapitalize="off" placeholder="name: another"></textarea></label><//>
    <div class="params">${text("horizon", "How long to simulate", "Such as 90m, 12h or 2d; default: twice the log's time after the moment, or a day")}</div>`;
}
