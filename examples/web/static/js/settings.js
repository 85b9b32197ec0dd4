// What the explorer shows, as plain data, and its text in the page's address.

export const DEFAULTS = {
  source: "smollm2-12",
  text: "the cat sat on the mat and the dog sat on the log while the cats and dogs of the town sang to the moon",
  position: 0.35,
  batch: 0,
  head: 0,
  temperature: 1,
  scale: "rsqrt",
  softcap: null, // off
  sink: null, // off
  causal: null, // as the source is
  window: null, // all keys
  keep: 0,
};

const SOURCES = ["smollm2-12", "smollm2-0", "minilm-0", "text"];
const SCALES = ["rsqrt", "mup", "one", "zero"];

/** `#explore?temperature=0.5&...` for settings: only what is not as usual. */
export function toFragment(tab, settings) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    const unused = settings.source !== "text" && (name === "text" || name === "position");
    if (!unused && value !== DEFAULTS[name] && value !== null) words.set(name, String(value));
  }
  const text = words.toString();
  return `#${tab}${text ? `?${text}` : ""}`;
}

/** The part of the page and the settings in a fragment. Whatever is not a setting, or not one that is allowed, is left out. */
export function fromFragment(fragment) {
  const [tab, text = ""] = fragment.replace(/^#/, "").split(/\?(.*)/s);
  const settings = { ...DEFAULTS };
  const number = (value, low, high) => {
    const x = Number(value);
    return value.trim() !== "" && x >= low && x <= high ? x : undefined;
  };
  const whole = (value, low, high) => {
    const x = number(value, low, high);
    return Number.isInteger(x) ? x : undefined;
  };
  const rules = {
    source: (v) => (SOURCES.includes(v) ? v : undefined),
    text: (v) => v.slice(0, 1000),
    position: (v) => number(v, 0, 1),
    batch: (v) => whole(v, 0, 63),
    head: (v) => whole(v, 0, 63),
    temperature: (v) => number(v, 1 / 64, 64),
    scale: (v) => (SCALES.includes(v) ? v : undefined),
    softcap: (v) => number(v, 0.01, 1000),
    sink: (v) => number(v, -100, 100),
    causal: (v) => ({ true: true, false: false })[v],
    window: (v) => whole(v, 1, 4096),
    keep: (v) => whole(v, 0, 64),
  };
  for (const [name, value] of new URLSearchParams(text)) {
    const read = rules[name]?.(value);
    if (read !== undefined) settings[name] = read;
  }
  return { tab: ["explore", "bench", "check"].includes(tab) ? tab : "explore", settings };
}

/** Options of the package for settings. */
export function toOptions(settings, input) {
  const { qHeads } = input.shape;
  const options = { temperature: settings.temperature };
  if (settings.scale === "mup") options.scale = { perHeadDim: 8 };
  if (settings.scale === "one") options.scale = 1;
  if (settings.scale === "zero") options.scale = 0;
  if (settings.softcap !== null) options.softcap = settings.softcap;
  if (settings.sink !== null) options.sink = new Float32Array(qHeads).fill(settings.sink);
  if (settings.causal ?? input.causal) options.causal = "bottomRight";
  if (settings.window !== null) {
    // So many keys up to the position; as many on the other side where the mask lets them be seen.
    const side = settings.window - 1;
    options.window = { left: side, right: side, keepFirst: settings.keep };
  }
  if (input.kvLen) options.kvLen = input.kvLen;
  return options;
}
