// Colors: one for each app, stable while it lives, and those of phases and states.

const LIGHT = ["#4c78a8", "#e0812b", "#4d9a47", "#b0649f", "#2f9c95", "#c9a015", "#9d6b4c", "#d9636f", "#6b7fd6", "#7a9f3c",
  "#a86bc9", "#3d8fc4", "#c4713b", "#3f8f6f", "#8a78c9", "#bf5f8f", "#6f8a99", "#a3923c"];
const given = new Map();
const used = new Map();

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 0;
}

/** The app's color.  An id chooses its color; where another app of this cluster already has it, the least used one near it. */
export function appColor(id) {
  let place = given.get(id);
  if (place === undefined) {
    place = hash(id) % LIGHT.length;
    for (let step = 0; step < LIGHT.length; step++) {
      const other = (place + step * 7) % LIGHT.length;
      if ((used.get(other) ?? 0) < (used.get(place) ?? 0)) place = other;
      if (!used.get(place)) break;
    }
    used.set(place, (used.get(place) ?? 0) + 1);
    given.set(id, place);
  }
  return LIGHT[place];
}

/** Gives colors to apps in their order of arrival, so that a few apps never share one. */
export function giveColors(ids) {
  for (const id of ids) appColor(id);
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const cache = new Map();

/** Colors of the theme, for canvases; read again when the theme changes. */
export function theme() {
  const key = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (!cache.has(key)) {
    const names = ["paper", "card", "ink", "muted", "line", "cell", "good", "bad", "warn", "accent", "stop", "wait", "start"];
    cache.set(key, Object.fromEntries(names.map((name) => [name, css(name)])));
  }
  return cache.get(key);
}

export const PHASE_TONE = {
  running: "good", completed: "done", starting: "start", start: "start", adjusting: "stop", stop: "stop", stopping: "stop",
  wait: "wait", waiting: "warn", retrying: "bad", failed: "bad", cancelled: "done", ending: "done", submitted: "warn",
};
export const NODE_TONE = { up: "good", draining: "warn", unmounted: "warn", lost: "bad", left: "done" };
