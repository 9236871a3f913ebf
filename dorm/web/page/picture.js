// A picture of a canvas as a file: with a background, a title, and the names that lie over it.

import { html } from "./vendor/preact.js";
import { theme } from "./colors.js";
import { exact, short } from "./format.js";
import { say, shown } from "./store.js";

const HEAD = 26;

/** Saves the canvas of the `.pictured` element around it. */
export const Png = ({ name }) => html`<button type="button" class="quiet png" aria-label=${`Save as PNG: ${name}`} title="Save this picture as PNG"
  onClick=${(event) => save(event.currentTarget.closest(".pictured"), name)}>PNG</button>`;

async function save(box, name) {
  const canvas = box?.querySelector("canvas");
  if (!canvas?.width || !canvas.height) return;
  const blob = await new Promise((done) => { composed(box, canvas, name).toBlob(done, "image/png"); });
  if (!blob) { say("This picture is too large for a file.", "bad"); return; }
  const link = document.createElement("a"), address = URL.createObjectURL(blob);
  link.href = address;
  link.download = `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "picture"}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function composed(box, canvas, name) {
  const place = canvas.getBoundingClientRect(), scale = canvas.width / Math.max(place.width, 1), tones = theme();
  const whole = document.createElement("canvas");
  whole.width = canvas.width;
  whole.height = canvas.height + HEAD * scale;
  const context = whole.getContext("2d");
  context.fillStyle = tones.card;
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(canvas, 0, HEAD * scale);
  context.scale(scale, scale);
  context.textBaseline = "middle";
  context.fillStyle = tones.ink;
  context.font = "600 12px system-ui, sans-serif";
  context.fillText(name, 8, HEAD / 2);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillStyle = tones.muted;
  context.fillText(exact(shown()?.at), place.width - 8, HEAD / 2);
  context.textAlign = "left";
  context.fillStyle = tones.ink;
  for (const item of box.querySelectorAll(".lanenames li:not([hidden])")) {
    const at = item.getBoundingClientRect();
    context.fillText(short(item.textContent, 22), at.left - place.left + 4, HEAD + at.top - place.top + at.height / 2, 150);
  }
  return whole;
}
