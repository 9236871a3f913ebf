// Colors: a style for each app, stable while the page knows it, and the colors of phases and states.
//
// `style.css` has nine colors for apps in each theme, which people with any kind of color blindness tell apart; where more apps
// are drawn, the same colors come again with stripes, and then with dots.  A tenth color would only look like one of the nine.

const COLORS = 9, PATTERNS = 3;
const given = new Map();
let used = new Map();

function hash(text) {
  let value = 2166136261;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 0;
}

/** The app's style, as `color + COLORS * pattern`.  An id chooses where to look; the first of the least used ones is taken. */
function styleOf(id) {
  let style = given.get(id);
  if (style === undefined) {
    const first = hash(id) % COLORS;
    let least = Infinity;
    for (let pattern = 0; pattern < PATTERNS; pattern++) {
      for (let step = 0; step < COLORS; step++) {
        const other = ((first + step * 4) % COLORS) + COLORS * pattern, uses = used.get(other) ?? 0;
        if (uses < least) { least = uses; style = other; }
      }
    }
    used.set(style, least + 1);
    given.set(id, style);
  }
  return style;
}

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

/** Gives styles to new apps among those that are drawn together, in their order of arrival.  What other apps have is free. */
export function giveStyles(fresh, together) {
  used = new Map();
  for (const id of together) if (given.has(id)) used.set(given.get(id), (used.get(given.get(id)) ?? 0) + 1);
  for (const id of fresh) styleOf(id);
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
