// The page: a GPU, three parts, and what to do when the GPU is gone.

import { AttentionContext, version } from "../package/index.js";
import { Bench } from "./bench.js";
import { Check } from "./check.js";
import { Explorer } from "./explore.js";
import { fromFragment, toFragment } from "./settings.js";

const $ = (id) => document.getElementById(id);
const TABS = ["explore", "bench", "check"];

const page = { context: null, tab: "explore" };

// ---- notices

/** Shows what is wrong and what to do; `again` is what the button does. */
function notice(title, text, { help = false, again = null } = {}) {
  $("notice-title").textContent = title;
  $("notice-text").textContent = text;
  $("notice-help").hidden = !help;
  $("notice-again").hidden = !again;
  $("notice-again").onclick = again;
  $("notice").hidden = false;
}

function failed(error, again) {
  console.warn(error);
  if (error instanceof WebAssembly.RuntimeError) {
    // The instance is in an unknown state: only a new one helps. The address keeps the settings.
    notice("Something broke", String(error), { again: () => location.reload() });
  } else if (error.kind === "DeviceLost") {
    lost(error.message);
  } else if (error.kind === "OutOfMemory" || error.kind === "LimitExceeded") {
    notice("The GPU has not enough memory for this", error.message, { again: () => restart(again) });
  } else {
    notice("That did not work", error.message ?? String(error), { again: () => restart(again) });
  }
}

function lost(message) {
  page.context = null;
  for (const part of parts) part.stop?.();
  $("adapter").textContent = "The GPU is gone.";
  notice("The GPU was lost", `${message || "The browser gives no reason."} Drivers are reset or updated, and laptops change their GPU; nothing of the settings is lost.`, {
    again: () => restart(),
  });
}

// ---- the GPU

async function open() {
  if (!navigator.gpu) {
    const where = globalThis.isSecureContext ? "" : " This page came over plain http, where browsers hide it.";
    notice("This browser has no WebGPU", `The page computes everything on the GPU, and cannot without it.${where}`, { help: true });
    $("adapter").textContent = "no WebGPU";
    return false;
  }
  try {
    const context = await AttentionContext.create();
    page.context = context;
    const { name, driver, kind, features, limits } = context.info();
    const facts = await described();
    $("adapter").textContent = [facts || name || "a GPU that the browser does not name", driver, kind === "Other" ? "" : kind.replace("Cpu", "processor"),
      `buffers up to ${Math.round(limits.maxStorageBufferBindingSize / 2 ** 20)} MiB`,
      features.includes("TIMESTAMP_QUERY") ? "timestamps" : ""].filter(Boolean).join(", ");
    context.lost.then(({ message }) => {
      if (page.context === context) lost(message);
    });
    return true;
  } catch (error) {
    notice("No GPU could be had", error.message ?? String(error), { help: true, again: () => restart() });
    $("adapter").textContent = "no GPU";
    return false;
  }
}

/** What the browser itself says of the adapter: wgpu passes on only a part of it. */
async function described() {
  const info = (await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }))?.info;
  return info ? [info.description, info.vendor, info.architecture].filter(Boolean).slice(0, 3).join(" ") : "";
}

/** Starts again: with a new device where the old one is gone, else with the same. */
async function restart(again) {
  $("notice").hidden = true;
  if (!page.context && !(await open())) return;
  if (again) again();
  else page.explorer.request();
}

// ---- parts

function select(tab, focus = false) {
  page.tab = tab;
  for (const name of TABS) {
    const button = $(`tab-${name}`);
    button.setAttribute("aria-selected", name === tab);
    button.tabIndex = name === tab ? 0 : -1;
    $(name).hidden = name !== tab;
  }
  if (focus) $(`tab-${tab}`).focus();
  page.explorer?.shown && tab === "explore" && page.explorer.draw();
}

let timer = 0;

/** The address follows the settings, but not at every step of a slider: browsers limit how often. */
function follow(now = false) {
  clearTimeout(timer);
  const write = () => history.replaceState(null, "", toFragment(page.tab, page.explorer.settings));
  if (now) write();
  else timer = setTimeout(write, 300);
}

const gpu = () => page.context;
page.explorer = new Explorer({ gpu, failed, changed: follow });
page.bench = new Bench({ gpu, failed });
page.check = new Check({ gpu, failed });
const parts = [page.explorer, page.bench, page.check];

for (const name of TABS) {
  $(`tab-${name}`).addEventListener("click", () => {
    select(name);
    follow(true);
  });
}
document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = { Home: 0, End: TABS.length - 1 }[event.key] ?? (step && (TABS.indexOf(page.tab) + step + TABS.length) % TABS.length);
  if (at === undefined) return;
  event.preventDefault();
  select(TABS[at], true);
  follow(true);
});

function read() {
  const { tab, settings } = fromFragment(location.hash);
  select(tab);
  page.explorer.set(settings);
}
addEventListener("hashchange", read);
// A page that is left stops what it started; one that is come back to goes on.
addEventListener("pagehide", () => parts.forEach((part) => part.stop?.()));
addEventListener("pageshow", (event) => event.persisted && page.explorer.request());

// For a visit without a network. Where a browser allows none, nothing is lost but that.
navigator.serviceWorker?.register("sw.js").catch((error) => console.warn(error));

$("version").textContent = version();
/** For the console, and for tests. */
globalThis.wgpuAttention = page;
read();
if (await open()) page.explorer.request();
document.documentElement.dataset.ready = "true";
