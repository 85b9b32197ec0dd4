// The page in a real Chromium, on a WebGPU adapter that computes on the processor (SwiftShader): what a visitor does, with every number
// compared with float64 that is computed here.
//
//   npm install --prefix examples/web/test && npm test --prefix examples/web/test
//
// The page must have been built (`cargo xtask web`). SCREENSHOTS names a folder for pictures.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root, withWebgpu, withoutWebgpu } from "./browser.js";
import { readCase, row } from "./float64.js";
import { serve } from "./server.js";

const site = join(root, "target/web/site");
const cases = join(root, "tests/cases");
const screenshots = process.env.SCREENSHOTS ?? join(root, "target/web/screenshots");
mkdirSync(screenshots, { recursive: true });

let server;
let browser;

before(async () => {
  server = await serve(site, "/some/folder/");
  browser = await withWebgpu();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

/** A new page with whatever goes wrong in it. */
async function open(fragment = "", options = {}, { from = browser, url = server.url } = {}) {
  const context = await from.newContext({ viewport: { width: 1200, height: 900 }, serviceWorkers: "block", ...options });
  const page = await context.newPage();
  const troubles = [];
  page.on("console", (message) => message.type() === "error" && troubles.push(message.text()));
  page.on("pageerror", (error) => troubles.push(String(error)));
  const own = (asked) => asked.startsWith(url) || asked === "about:blank";
  page.on("request", (request) => own(request.url()) || troubles.push(`asks for ${request.url()}`));
  await page.goto(url + fragment);
  await page.waitForSelector("html[data-ready]", { timeout: 60_000 });
  return { page, troubles, close: () => context.close() };
}

/** What the explorer shows once it has settled on its settings. */
async function shown(page) {
  await page.waitForFunction(() => {
    const { explorer } = globalThis.wgpuAttention;
    const same = explorer.shown && JSON.stringify(explorer.shown.settings) === JSON.stringify(explorer.settings);
    return same && !explorer.running && !explorer.dirty && !explorer.waiting;
  }, null, { timeout: 60_000 });
  return page.evaluate(async () => {
    const { explorer } = globalThis.wgpuAttention;
    const { reference, referenceScores } = await import("./package/index.js");
    const { settings, source, shape, options, weights, fused, labels, entropy } = explorer.shown;
    const { q, k, v } = source;
    const bounds = reference({ q, k, v, shape, options });
    const place = { batch: settings.batch, head: settings.head };
    const scores = referenceScores({ q, k, v, shape, options, ...place });
    const list = (x) => Array.from(x);
    return {
      settings, shape, labels, causal: Boolean(options.causal), q: list(q), k: list(k), kvLen: source.kvLen && list(source.kvLen),
      weights: list(weights), entropy: list(fused.entropy), head: list(entropy), lse: list(fused.lse),
      entropyBounds: list(bounds.entropy.bound), entropyTruth: list(bounds.entropy.value),
      weightBounds: list(scores.bound), weightTruth: list(scores.value),
    };
  });
}

const SCALES = { rsqrt: (d) => 1 / Math.sqrt(d), mup: (d) => 8 / d, one: () => 1, zero: () => 0 };

/** Compares all entropies, and the weights of the head, with float64 that is computed here. The bounds on f32's error are the
 *  crate's; its own float64 has to agree with ours to what float64 itself can be off: the same bound, 2^29 times smaller, and we allow
 *  eight of it, because sums here are in another order. */
function agrees(it) {
  const { settings, shape } = it;
  const f32 = (x) => (x === null ? null : Math.fround(x));
  const options = {
    scale: SCALES[settings.scale](shape.headDimQk), temperature: f32(settings.temperature), softcap: f32(settings.softcap), sink: f32(settings.sink),
    causal: it.causal, window: settings.window, keep: settings.keep,
  };
  const check = (what, got, want, bound, own) => {
    assert.ok(Math.abs(got - want) <= bound, `${what} is ${got}, float64 says ${want} within ${bound}`);
    assert.ok(Math.abs(own - want) <= 8 * bound * 2 ** -29, `${what}: the crate's float64 says ${own}, ours ${want}`);
  };
  for (let batch = 0; batch < shape.batch; batch++) {
    const valid = it.kvLen ? it.kvLen[batch] : shape.seqK;
    for (let head = 0; head < shape.qHeads; head++) {
      for (let i = 0; i < shape.seqQ; i++) {
        const truth = row({ q: it.q, k: it.k, shape, batch, head, i, valid }, options);
        const at = (batch * shape.qHeads + head) * shape.seqQ + i;
        check(`entropy ${at}`, it.entropy[at], truth.entropy, it.entropyBounds[at], it.entropyTruth[at]);
        if (batch === settings.batch && head === settings.head) {
          for (let j = 0; j < shape.seqK; j++) {
            const n = i * shape.seqK + j;
            check(`weight ${i}, ${j}`, it.weights[n], truth.weights[j], it.weightBounds[n], it.weightTruth[n]);
          }
        }
      }
    }
  }
}

/** Moves a slider as a hand does: the value, and the event that a browser sends. */
const slide = (page, id, value) => page.locator(`#${id}`).fill(String(value));

test("loads without an error, and the slider changes entropies that agree with float64", async () => {
  const { page, troubles, close } = await open();
  const first = await shown(page);
  // The page's q and k are those of the file, read here.
  const file = readCase(readFileSync(join(cases, "real_smollm2_layer12.safetensors")));
  assert.deepEqual(first.q, Array.from(file.tensors.q));
  assert.deepEqual(first.k, Array.from(file.tensors.k));
  agrees(first);
  await page.screenshot({ path: join(screenshots, "explore.png"), fullPage: true });
  let last = first;
  for (const [value, temperature] of [[-1, 0.5], [-2, 0.25], [2, 4]]) {
    await slide(page, "temperature", value);
    const now = await shown(page);
    assert.equal(now.settings.temperature, temperature);
    assert.notDeepEqual(now.head, last.head);
    agrees(now);
    last = now;
  }
  const mean = (x) => x.reduce((a, b) => a + b, 0) / x.length;
  assert.ok(mean(last.head) > mean(first.head), "a higher temperature is flatter");
  assert.match(await page.textContent("#summary"), new RegExp(`Mean entropy ${mean(last.head).toFixed(3)} nats`));
  assert.deepEqual(troubles, []);
  await close();
});

test("every control does what it says", async () => {
  const { page, troubles, close } = await open();
  await shown(page);
  const steps = [
    () => page.selectOption("#scale", "mup"),
    () => slide(page, "softcap", 2),
    () => slide(page, "sink", 1.5),
    () => slide(page, "window", 9),
    () => slide(page, "keep", 3),
    () => page.locator("#causal").click(),
    () => page.locator("#heads button").nth(4).click(),
    () => page.selectOption("#scale", "zero"),
    () => page.selectOption("#scale", "one"),
    () => page.selectOption("#source", "minilm-0"),
    () => page.selectOption("#batch", "1"),
    () => page.selectOption("#source", "smollm2-0"),
    () => page.selectOption("#source", "text"),
    () => page.fill("#text", "Sharp words, sharper words: the sharpest word!"),
    () => slide(page, "position", 1),
    () => page.fill("#text", ""),
    () => page.locator("#reset").click(),
  ];
  const seen = new Set();
  for (const step of steps) {
    await step();
    const now = await shown(page);
    agrees(now);
    seen.add(JSON.stringify(now.settings));
  }
  assert.equal(seen.size, steps.length, "each step changes the settings");
  assert.deepEqual(troubles, []);
  await close();
});

test("a link carries the settings, and what it cannot have is left out", async () => {
  const { page, close } = await open("#explore?source=text&text=one+two+three+two&temperature=0.5&sink=1&window=2&keep=1&causal=true&head=7&scale=odd&softcap=-3");
  const now = await shown(page);
  const expected = { source: "text", text: "one two three two", temperature: 0.5, sink: 1, window: 2, keep: 1, causal: true, head: 0, scale: "rsqrt", softcap: null };
  for (const [name, value] of Object.entries(expected)) assert.equal(now.settings[name], value, name);
  assert.deepEqual(now.labels, ["one", "two", "three", "two"]);
  agrees(now);
  await slide(page, "temperature", 1);
  await shown(page);
  await page.waitForFunction(() => location.hash.includes("temperature=2"));
  const again = await open(new URL(page.url()).hash);
  assert.deepEqual((await shown(again.page)).settings, (await shown(page)).settings);
  await again.close();
  await close();
});

test("moves fast, and the last move wins", async () => {
  const { page, troubles, close } = await open();
  await shown(page);
  const frames = await page.evaluate(async () => {
    const slider = document.getElementById("temperature");
    const { explorer } = globalThis.wgpuAttention;
    const before = explorer.frame;
    let longest = 0;
    let last = performance.now();
    for (let n = 0; n < 90; n++) {
      slider.value = String(-2 + n / 30);
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      await new Promise((resolve) => requestAnimationFrame(resolve));
      const now = performance.now();
      [longest, last] = [Math.max(longest, now - last), now];
    }
    return { drawn: explorer.frame - before, longest };
  });
  const now = await shown(page);
  assert.equal(now.settings.temperature, Number((2 ** 0.95).toPrecision(4)));
  agrees(now);
  assert.ok(frames.drawn > 3, `${frames.drawn} pictures while the slider moved`);
  console.log(`# ${frames.drawn} pictures for 90 frames of the slider, the longest frame took ${frames.longest.toFixed(0)} ms`);
  assert.deepEqual(troubles, []);
  await close();
});

test("keys alone are enough", async () => {
  const { page, troubles, close } = await open();
  await shown(page);
  await page.locator("#tab-explore").focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.getAttribute("#tab-bench", "aria-selected"), "true");
  assert.ok(await page.isVisible("#bench") && await page.isHidden("#explore"));
  await page.keyboard.press("End");
  assert.ok(await page.isVisible("#check"));
  await page.keyboard.press("Home");
  await page.locator("#temperature").focus();
  await page.keyboard.press("ArrowLeft");
  assert.equal((await shown(page)).settings.temperature, Number((2 ** -0.05).toPrecision(4)));
  await page.locator("#heat").focus();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("End");
  await page.waitForFunction(() => document.getElementById("readout").textContent.startsWith("Query 65, key 85: hidden by the mask."));
  await page.keyboard.press("Home");
  await page.waitForFunction(() => document.getElementById("readout").textContent.includes("key 0: weight"));
  // Everything that can be reached has a name.
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, select, input, textarea, [tabindex='0'], canvas[role=img]")]
    .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()))
    .map((e) => e.outerHTML.slice(0, 80)));
  assert.deepEqual(nameless, []);
  assert.deepEqual(troubles, []);
  await close();
});

for (const [name, options] of Object.entries({
  phone: { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 },
  dark: { colorScheme: "dark", reducedMotion: "reduce" },
})) {
  test(`${name}: nothing sticks out, text can be read`, async () => {
    const { page, troubles, close } = await open("#explore?source=text&temperature=0.7", options);
    agrees(await shown(page));
    for (const tab of ["check", "bench", "explore"]) {
      await page.locator(`#tab-${tab}`).click();
      const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide[0] <= wide[1], `${tab} is ${wide[0]} wide on a screen of ${wide[1]}`);
    }
    const weak = await page.evaluate(contrasts);
    assert.deepEqual(weak, []);
    await page.screenshot({ path: join(screenshots, `explore-${name}.png`), fullPage: true });
    assert.deepEqual(troubles, []);
    await close();
  });
}

/** Texts whose contrast is below 4.5 to 1 (WCAG AA). Runs in the page. */
function contrasts() {
  const parse = (text) => text.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((s, c, n) => s + c * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] === undefined || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("p, label, legend, button, h1, h2, option, output, td, th, div.corner, .legend span, a")) {
    if (!element.textContent.trim() || !element.checkVisibility() || element.disabled) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${((a + 0.05) / (b + 0.05)).toFixed(2)}: ${element.outerHTML.slice(0, 100)}`);
  }
  return found;
}

test("the check: every case that this version computes passes, on both kernels", async () => {
  const { page, troubles, close } = await open("#check");
  const files = readdirSync(cases).filter((name) => name.endsWith(".safetensors")).sort();
  // What cannot be computed yet, told from the files alone.
  const later = files.filter((name) => {
    const { case: header, names } = readCase(readFileSync(join(cases, name)));
    return header.op !== "attention" || names.includes("dout");
  });
  for (const kernel of ["", "naive"]) {
    await page.selectOption("#check-kernel", kernel);
    await page.click("#check-start");
    await page.waitForFunction(() => !globalThis.wgpuAttention.check.running, null, { timeout: 300_000 });
    const results = await page.evaluate(() => globalThis.wgpuAttention.check.results);
    assert.equal(results.length, files.length);
    const failed = results.filter((r) => !r.passes && !r.missing.length);
    assert.deepEqual(failed, []);
    const passed = results.filter((r) => r.passes);
    assert.ok(passed.length >= files.length - later.length, `${passed.length} of ${files.length} passed`);
    assert.match(await page.textContent("#check-status"), new RegExp(`^${passed.length} passed, 0 failed`));
    // What is no attention has no such choice.
    if (kernel) assert.ok(passed.every((r) => r.kernel === undefined || r.kernel === kernel));
    console.log(`# ${kernel || "planner"}: ${await page.textContent("#check-status")}`);
  }
  await page.screenshot({ path: join(screenshots, "check.png"), fullPage: true });
  assert.deepEqual(troubles, []);
  await close();
});

test("the quick benchmark gives a row for each problem, stops when told to, and its report is the program's", async () => {
  const { page, troubles, close } = await open("#bench");
  const run = async () => {
    await page.waitForFunction(() => !globalThis.wgpuAttention.bench.running, null, { timeout: 300_000 });
    return page.evaluate(() => globalThis.wgpuAttention.bench.report);
  };
  await page.click("#bench-quick");
  await page.waitForFunction(() => globalThis.wgpuAttention.bench.report?.rows.length >= 1, null, { timeout: 120_000 });
  await page.click("#bench-stop");
  const stopped = await run();
  assert.ok(stopped.rows.length >= 1 && stopped.rows.length < 6, `${stopped.rows.length} rows`);
  assert.match(await page.textContent("#bench-status"), /stopped/);
  await page.click("#bench-quick");
  const report = await run();
  assert.equal(report.format, "wgpu-attention bench");
  assert.equal(report.rows.length + report.left_out.length, 6);
  assert.deepEqual(report.left_out, []);
  for (const row of report.rows) {
    // Times are this machine's; what can be known of them is how they hang together.
    const [batch, heads, , queries, keys, dim] = row.shape;
    const pairs = row.causal && queries > 1 ? (queries * (queries + 1)) / 2 : queries * keys;
    const gflops = (4 * dim * batch * heads * pairs) / (row.ms * 1e-3) / 1e9;
    assert.ok(row.ms > 0 && Math.abs(row.gflops - gflops) <= 1e-9 * gflops, JSON.stringify(row));
    assert.ok(row.checked.worst <= 1 && row.checked.rows > 0);
  }
  assert.ok(Object.values(report.roofs).every((x) => x > 0 && Number.isFinite(x)));
  console.log(`# ${await page.textContent("#bench-status")}`);
  await page.screenshot({ path: join(screenshots, "bench.png"), fullPage: true });
  assert.deepEqual(troubles, []);
  await close();
});

test("without a network, once it has been visited", async () => {
  const mine = await serve(site, "/elsewhere/");
  const { page, troubles, close } = await open("", { serviceWorkers: "allow" }, mine);
  await shown(page);
  await page.evaluate(() => navigator.serviceWorker.ready);
  await mine.close();
  await assert.rejects(fetch(mine.url));
  await page.reload();
  await page.waitForSelector("html[data-ready]", { timeout: 60_000 });
  await slide(page, "temperature", 1);
  agrees(await shown(page));
  await page.selectOption("#source", "minilm-0");
  agrees(await shown(page));
  assert.deepEqual(troubles, []);
  await close();
});

test("a lost GPU is told of, and a new one takes its place", async () => {
  const { page, close } = await open("#explore?temperature=0.5");
  await shown(page);
  const session = await browser.newBrowserCDPSession();
  await session.send("Browser.crashGpuProcess").catch(() => {});
  await page.waitForSelector("#notice:not([hidden])", { timeout: 60_000 });
  assert.match(await page.textContent("#notice-title"), /The GPU was lost/);
  await page.screenshot({ path: join(screenshots, "lost.png") });
  // A browser takes its time to start the GPU again; the page may be asked more than once.
  for (let n = 0; n < 60 && !(await page.evaluate(() => Boolean(globalThis.wgpuAttention.context))); n++) {
    if (await page.isVisible("#notice-again")) await page.click("#notice-again");
    await page.waitForTimeout(500);
  }
  assert.ok(await page.isHidden("#notice"));
  await slide(page, "temperature", 1);
  const now = await shown(page);
  assert.equal(now.settings.temperature, 2);
  agrees(now);
  await close();
});

test("a GPU without memory is told of, and the page goes on when there is some", async () => {
  const { page, troubles, close } = await open("#explore?temperature=0.5");
  await shown(page);
  // The error is the driver's own: each buffer is asked for as large as one may be, and SwiftShader has no memory for that.
  await page.evaluate(() => {
    const { createBuffer } = GPUDevice.prototype;
    GPUDevice.prototype.createBuffer = function (descriptor) {
      return createBuffer.call(this, { ...descriptor, size: this.limits.maxBufferSize });
    };
    globalThis.enoughAgain = () => (GPUDevice.prototype.createBuffer = createBuffer);
  });
  await slide(page, "temperature", 1);
  await page.waitForSelector("#notice:not([hidden])");
  assert.match(await page.textContent("#notice-title"), /not enough memory/);
  assert.match(await page.textContent("#notice-text"), /out of device memory/);
  await page.screenshot({ path: join(screenshots, "memory.png") });
  // Still none: it is told of again.
  await page.click("#notice-again");
  await page.waitForSelector("#notice:not([hidden])");
  await page.evaluate(() => void globalThis.enoughAgain());
  await page.click("#notice-again");
  const now = await shown(page);
  assert.ok(await page.isHidden("#notice"));
  assert.equal(now.settings.temperature, 2);
  agrees(now);
  assert.deepEqual(troubles, []);
  await close();
});

test("leaving while work runs breaks nothing, and coming back goes on", async () => {
  const { page, troubles, close } = await open("#check");
  await page.click("#check-start");
  await page.waitForFunction(() => globalThis.wgpuAttention.check.results.length > 1, null, { timeout: 60_000 });
  await page.goto("about:blank");
  await page.goBack();
  await page.waitForSelector("html[data-ready]");
  await page.locator("#tab-explore").click();
  agrees(await shown(page));
  assert.deepEqual(troubles, []);
  await close();
});

test("the package by itself: its example, its errors, out of memory, several calls at once", async () => {
  const { page, troubles, close } = await open();
  // The example of the package's own page, as it stands there.
  const readme = readFileSync(join(site, "package/README.md"), "utf8");
  const [, example] = readme.match(/```html\n([\s\S]*?)```/);
  const other = await page.context().newPage();
  await other.route("**/example.html", (route) => route.fulfill({ contentType: "text/html", body: example.replace("./wgpu-attention/", "./package/") }));
  await other.goto(`${server.url}example.html`);
  await other.waitForFunction(() => document.querySelector("#result").textContent.includes("attention/"), null, { timeout: 60_000 });
  const found = await page.evaluate(async () => {
    const { AttentionContext, attention, reference } = await import("./package/index.js");
    const x = Float32Array.from({ length: 2 * 8 * 4 }, (_, n) => Math.sin(n));
    const shape = { qHeads: 2, seqQ: 8, headDimQk: 4 };
    const plain = { q: x, k: x, v: x, shape };
    const error = async (args) => {
      try {
        await attention(args);
        return "no error";
      } catch (e) {
        return { name: e.name, kind: e.kind, field: e.field, value: e.value, isError: e instanceof Error, message: e.message };
      }
    };
    const out = {};
    out.errors = [];
    for (const args of [
      { ...plain, shape: { ...shape, kvHeads: 3 } }, { ...plain, q: x.slice(1) }, { ...plain, q: [1, 2] }, { ...plain, options: { temperature: 0 } },
      { ...plain, options: { temprature: 1 } }, { ...plain, options: { causal: true } }, { ...plain, options: { scoreMod: "fn score_mod() {" } },
      { ...plain, shape: { qHeads: 2, seqQ: 8.5, headDimQk: 4 } }, {}, undefined, 7,
    ]) out.errors.push(await error(args));
    // Every way to say an option, each against float64.
    const heads = Float32Array.of(0.5, 2);
    const pairs = 2 * 8 * 8;
    const bytes = Uint8Array.from({ length: pairs }, (_, n) => n % 3 > 0);
    const all = [
      {}, { temperature: 0.5 }, { temperature: heads }, { temperature: { perRow: Float32Array.from({ length: 16 }, (_, n) => 1 + n / 8) } },
      { scale: 0.3 }, { scale: { perHeadDim: 8 } }, { lengthScale: { ssmax: heads }, causal: "topLeft" }, { lengthScale: { logTrainLen: 2 } },
      { lengthScale: { llama4: { coef: 0.1, floor: 4 } } }, { lengthScale: { yarn: 4 } }, { causal: "bottomRight" }, { causal: -2 },
      { causal: Int32Array.of(1) }, { window: { left: 2, right: 1, keepFirst: 1 }, alignment: "topLeft" }, { kvLen: Uint32Array.of(5) }, { qLen: Uint32Array.of(6) },
      { mask: { data: bytes, sizes: [1, 2, 8, 8] } }, { mask: { data: Uint8Array.of(0b10110111), sizes: [1, 1, 1, 8], format: "bits" } },
      { softcap: 2 }, { bias: { data: Float32Array.from({ length: 64 }, (_, n) => (n % 5 ? n / 64 : -Infinity)), sizes: [1, 1, 8, 8], dtype: "f16" } },
      { alibi: true }, { alibi: heads }, { sink: "zero" }, { sink: heads }, { layout: "bshd" }, { dtype: "f16" }, { dtype: { q: "bf16", out: "f16" } },
      { kernel: "naive" }, { adaptiveTemperature: true }, { topK: 3 },
      { documents: { q: Int32Array.of(1, 1, 1, 2, 2, 2, 2, 3), k: Int32Array.of(1, 1, 1, 2, 2, 2, 2, 3) } },
      { qkNorm: { kind: "l2" }, scale: 1, temperature: 0.1 }, { qkNorm: { kind: "rms", eps: 1e-5, qGain: Float32Array.of(1, 2, 3, 4), kGain: Float32Array.of(4, 3, 2, 1) } },
      { normalizer: "sparsemax", stats: false }, { normalizer: "entmax15", stats: false }, { normalizer: { sigmoid: "minusLogSeqK" }, stats: false }, { normalizer: { sigmoid: -1 }, stats: false },
    ];
    out.worst = [];
    for (const { stats = true, ...options } of all) {
      const args = { ...plain, options: stats ? { ...options, lse: true, entropy: true, rowMax: true } : options };
      const [got, truth] = [await attention(args), reference(args)];
      let worst = 0;
      for (const name of stats ? ["out", "lse", "entropy", "rowMax"] : ["out"]) {
        got[name].forEach((value, n) => {
          if (value === truth[name].value[n]) return;
          const share = Math.abs(value - truth[name].value[n]) / truth[name].bound[n];
          worst = Math.max(worst, Number.isNaN(share) ? Infinity : share);
        });
      }
      out.worst.push([JSON.stringify(options), worst]);
    }
    // Two sequences of 3 and 5, packed one after the other.
    const packed = { q: x, k: x, v: x, shape: { batch: 2, qHeads: 2, seqQ: 5, headDimQk: 4 },
      options: { cuSeqlensQ: Uint32Array.of(0, 3, 8), cuSeqlensK: Uint32Array.of(0, 3, 8), causal: "topLeft", layout: "bshd" } };
    {
      const [got, truth] = [await attention(packed), reference(packed)];
      out.worst.push(["packed", Math.max(...got.out.map((value, n) => Math.abs(value - truth.out.value[n]) / truth.out.bound[n]))]);
    }
    // User code, where it comes to something that there is without: a causal mask, and one score for all pairs, which is what a scale
    // of 0 gives. Neither rounds anything more.
    const mask = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool { return k_index <= q_index; }";
    const score = "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 { return param_f32(1u); }";
    for (const [mine, same] of [[{ maskMod: mask }, { causal: "topLeft" }], [{ scoreMod: score, user: Float32Array.of(7, 2) }, { scale: 0 }]]) {
      const [got, truth] = [await attention({ ...plain, options: mine }), reference({ ...plain, options: same })];
      const worst = Math.max(...got.out.map((value, n) => Math.abs(value - truth.out.value[n]) / truth.out.bound[n]));
      out.worst.push([JSON.stringify(mine), worst]);
    }
    // Many at once.
    const context = await AttentionContext.create({ defaultLimits: true });
    const same = await Promise.all(Array.from({ length: 8 }, () => context.attention(plain)));
    out.same = same.every((r) => r.out.every((value, n) => value === same[0].out[n]));
    out.limit = context.info().limits.maxComputeWorkgroupStorageSize;
    // Too much: refused with the limit's name, and the context lives on.
    const large = 34e6;
    const k = new Float32Array(large);
    const one = { q: new Float32Array(1), k, v: k, shape: { qHeads: 1, seqQ: 1, seqK: large, headDimQk: 1 } };
    out.large = await context.attention(one).then(() => "no error", (e) => e.kind);
    out.after = (await context.attention(plain)).out.length;
    // Within every limit, but more than the driver has: the 2^30 bytes of out.
    const wide = await AttentionContext.create();
    const v = Float32Array.from({ length: 64 }, (_, n) => n);
    const huge = { q: new Float32Array(2 ** 22), k: Float32Array.of(1), v, shape: { qHeads: 1, seqQ: 2 ** 22, seqK: 1, headDimQk: 1, headDimV: 64 } };
    out.memory = await wide.attention(huge).then(() => "no error", ({ kind, field }) => `${kind} ${field}`);
    out.afterMemory = Array.from((await wide.attention({ ...huge, q: Float32Array.of(3), shape: { ...huge.shape, seqQ: 1 } })).out);
    wide.destroy();
    // Gone: calls say so, and the promise tells.
    const lost = context.lost;
    context.destroy();
    out.lost = (await lost).reason;
    out.gone = await context.attention(plain).then(() => "no error", (e) => e.kind);
    return out;
  });
  const kinds = found.errors.map((e) => `${e.kind} ${e.field}`);
  assert.deepEqual(kinds, ["HeadsNotMultiple qHeads", "Length q", "Value q", "Value temperature", "Unknown options.temprature", "Value options.causal",
    "UserCode scoreMod", "Value shape.seqQ", "Missing shape", "Missing shape", "Value "]);
  assert.ok(found.errors.every((e) => e.isError && e.name === "AttentionError" && e.message));
  for (const [options, worst] of found.worst) assert.ok(worst <= 1, `${options}: ${worst} times the bound`);
  assert.ok(found.same);
  assert.equal(found.limit, 16384);
  assert.equal(found.large, "LimitExceeded");
  assert.equal(found.after, 64);
  assert.equal(found.memory, "OutOfMemory out");
  assert.deepEqual(found.afterMemory, Array.from({ length: 64 }, (_, n) => n));
  assert.equal(found.lost, "destroyed");
  assert.equal(found.gone, "DeviceLost");
  assert.deepEqual(troubles, []);
  await close();
});

test("the package beside attention: gradients, softmax, drawing tokens", async () => {
  const { page, troubles, close } = await open();
  const found = await page.evaluate(async () => {
    const { AttentionContext, reference, referenceGradients, referenceSample, referenceSoftmax } = await import("./package/index.js");
    const context = await AttentionContext.create();
    const wave = (length, step) => Float32Array.from({ length }, (_, n) => 2 * Math.sin(n * step));
    const share = (got, { value, bound }) => Math.max(...got.map((x, n) => (x === value[n] ? 0 : Math.abs(x - value[n]) / bound[n])));
    const worst = [];
    // Gradients: all that there are, with grouped heads.
    const shape = { qHeads: 2, kvHeads: 1, seqQ: 7, headDimQk: 4 };
    const forward = {
      q: wave(56, 0.7), k: wave(28, 0.9), v: wave(28, 1.1), shape,
      options: {
        causal: "bottomRight", temperature: Float32Array.of(0.5, 2), sink: Float32Array.of(0.1, 1), softcap: 3, layout: { k: "bshd", out: "bshd" },
        bias: { data: wave(49, 1.3), sizes: [1, 1, 7, 7] }, lse: true,
      },
    };
    const { lse } = await context.attention(forward);
    const { lse: _, ...options } = forward.options;
    const back = { ...forward, options, lse, dOut: wave(56, 0.3), dLse: wave(14, 0.4), ofBias: true, ofSinks: true, ofTemperature: true };
    const [gradients, right] = [await context.gradients(back), referenceGradients(back)];
    for (const name of Object.keys(right)) worst.push([name, share(gradients[name], right[name])]);
    // The temperature of head 1 by differences of the float64 reference: what a loss made of out and lse changes by.
    const loss = (t) => {
      const truth = reference({ ...forward, options: { ...options, temperature: Float32Array.of(0.5, t) } });
      const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0);
      return dot(truth.out.value, back.dOut) + dot(truth.lse.value, back.dLse);
    };
    const difference = (loss(2 + 2 ** -10) - loss(2 - 2 ** -10)) / 2 ** -9;
    // Softmax.
    const x = wave(3 * 50, 0.77);
    x[3] = -Infinity;
    for (const kind of ["softmax", "logSoftmax", "sparsemax", "entmax15"]) {
      const sparse = kind === "sparsemax" || kind === "entmax15";
      const args = { x, rowLength: 50, kind, temperature: Float32Array.of(0.5, 1, 2), argmax: true, lse: !sparse, entropy: !sparse };
      const [got, truth] = [await context.softmax(args), referenceSoftmax(args)];
      for (const name of sparse ? ["out"] : ["out", "lse", "entropy"]) worst.push([`${kind} ${name}`, share(got[name], truth[name])]);
      worst.push([`${kind} argmax`, got.argmax.every((place, n) => place === truth.argmax[n]) ? 0 : Infinity]);
    }
    const plain = await context.softmax({ x: Float32Array.of(1, 2, 3), rowLength: 3 });
    // Tokens.
    const logits = wave(4 * 300, 0.61);
    const draws = [];
    for (const args of [
      { greedy: true }, { seeds: Uint32Array.of(1, 2, 3, 4), logProbs: true },
      { seeds: Uint32Array.of(1, 2, 3, 4), offset: 9, chain: [{ temperature: 0.8 }, { topK: 40 }, { topP: 0.95 }, { minP: 0.05 }], logProbs: true },
      { seeds: Uint32Array.of(5, 6, 7, 8), chain: [{ typical: 0.9 }, { topNSigma: 2 }, { dynamicTemperature: { low: 0.5, high: 1.5 } }] },
      { seeds: Uint32Array.of(5, 6, 7, 8), history: new Uint32Array(8).fill(17), chain: [{ penalties: { repetition: 1.3, presence: 0.5 } }] },
      { greedy: true, bias: { tokens: Uint32Array.of(5, 6, 7, 8), values: new Float32Array(4).fill(100) }, chain: [{ logitBias: true }] },
      { greedy: true, allowed: new Uint32Array(4 * 10).fill(0).fill(8, 0, 1), chain: [{ allowed: true }] },
    ]) {
      const problem = { logits, vocab: 300, ...args };
      draws.push([await context.sample(problem), referenceSample(problem)]);
    }
    const largest = [0, 1, 2, 3].map((row) => {
      const line = logits.subarray(row * 300, row * 300 + 300);
      return line.indexOf(Math.max(...line));
    });
    const errors = [];
    for (const call of [
      () => context.softmax({ x, rowLength: 49 }), () => context.softmax({ x, rowLength: 50, kind: "hardmax" }), () => context.sample({ logits, vocab: 300 }),
      () => context.sample({ logits, vocab: 300, greedy: true, chain: [{ topK: 3, topP: 1 }] }), () => context.sample({ logits, vocab: 300, greedy: true, chain: [{ topQ: 3 }] }),
      () => context.gradients({ ...back, options: { ...options, topK: 2 } }), () => context.gradients({ ...forward, lse }),
    ]) errors.push(await call().then(() => "no error", ({ name, kind, field }) => `${name} ${kind} ${field}`));
    context.destroy();
    const list = ({ tokens, logProbs }) => ({ tokens, logProbs: logProbs && Array.from(logProbs) });
    return {
      worst, gradient: gradients.dTemperature[1], difference, plain: Array.from(plain.out), draws: draws.map((pair) => pair.map(list)), largest, errors,
    };
  });
  for (const [what, worst] of found.worst) assert.ok(worst <= 1, `${what}: ${worst} times the bound`);
  // Differences are off by their step's square, f32 by its own; the gradient is of the order of 1.
  assert.ok(Math.abs(found.gradient - found.difference) <= 1e-4 * Math.max(1, Math.abs(found.difference)), `${found.gradient}, but ${found.difference}`);
  const total = Math.exp(1) + Math.exp(2) + Math.exp(3);
  found.plain.forEach((p, n) => assert.ok(Math.abs(p - Math.exp(n + 1) / total) <= 1e-6));
  for (const [got, twin] of found.draws) assert.deepEqual(got, twin);
  assert.deepEqual(found.draws[0][0].tokens, found.largest);
  assert.deepEqual(found.draws[5][0].tokens, [5, 6, 7, 8]);
  assert.deepEqual(found.draws[6][0].tokens, [3, null, null, null]);
  assert.deepEqual(found.errors, ["AttentionError Value rowLength", "AttentionError Value kind", "AttentionError Missing seeds", "AttentionError Value chain",
    "AttentionError Unknown chain.topQ", "AttentionError Incompatible topK", "AttentionError Missing dOut"]);
  assert.deepEqual(troubles, []);
  await close();
});

test("without WebGPU it says so and what to do", async (t) => {
  const plain = await withoutWebgpu();
  t.after(() => plain.close());
  const { page, troubles, close } = await open("", {}, { from: plain });
  assert.match(await page.textContent("#notice-title"), /no WebGPU|No GPU/);
  assert.ok(await page.isVisible("#notice-help"));
  assert.match(await page.textContent("#notice-help"), /Firefox/);
  await page.screenshot({ path: join(screenshots, "no-webgpu.png") });
  assert.deepEqual(troubles, []);
  await close();
});
