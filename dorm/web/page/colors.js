// Colors: a style for each app, as views say it (so all browsers show the same), and the colors of phases and states.
//
// `style.css` has nine colors for apps in each theme, which people with any kind of color blindness tell apart; where more apps
// are drawn, the same colors come again with stripes, and then with dots.  A tenth color would only look like one of the nine.

const COLORS = 9;
const given = new Map();

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 0;
}

/** The app's style, as `color + COLORS * pattern`: as views say it, and by its id for one that no view has had. */
const styleOf = (id) => given.get(id) ?? hash(id) % COLORS;

export const appColor = (id, tones) => tones.apps[styleOf(id) % COLORS];

/** 0 for plain, 1 for stripes, 2 for dots. */
export const appPattern = (id) => Math.floor(styleOf(id) / COLORS);

/** Classes of a swatch in the app's style. */
export const appClass = (id) => `app${styleOf(id) % COLORS} pattern${appPattern(id)}`;

/** Whether dark text reads better on a color (`#rrggbb`) than white does. */
export function isLight(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2;
}

/** Takes the styles of apps from a view. */
export function giveStyles(apps) {
  for (const app of apps) given.set(app.id, app.color ?? 0);
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
    cache.set(key, { ...Object.fromEntries(names.map((name) => [name, css(name)])), apps: Array.from({ length: COLORS }, (_, index) => css(`app${index}`)) });
  }
  return cache.get(key);
}

export const PHASE_TONE = {
  running: "good", completed: "done", starting: "start", start: "start", adjusting: "stop", stop: "stop", stopping: "stop",
  wait: "wait", waiting: "warn", retrying: "bad", failed: "bad", cancelled: "done", ending: "done", submitted: "warn",
};
export const NODE_TONE = { up: "good", draining: "warn", maintenance: "warn", unmounted: "warn", unfit: "warn", suspect: "warn", lost: "bad", left: "done" };
