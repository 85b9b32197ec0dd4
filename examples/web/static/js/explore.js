// The explorer: settings in, GPU results out, drawn as they come. The latest settings win; a frame never waits for the GPU.

import { css, isLight } from "./colour.js";
import { bars, curve, heatmap, legend } from "./draw.js";
import { input } from "./inputs.js";
import { DEFAULTS, toOptions } from "./settings.js";

const $ = (id) => document.getElementById(id);
const number = (x) => (x === 0 ? "0" : Math.abs(x) >= 0.001 && Math.abs(x) < 1000 ? x.toPrecision(3) : x.toExponential(2));

export class Explorer {
  /** `gpu()` gives a context; `failed(error)` is told what went wrong; `changed()` that the address is to follow. */
  constructor({ gpu, failed, changed }) {
    Object.assign(this, { gpu, failed, changed });
    this.settings = { ...DEFAULTS };
    /** What is on the screen, with the settings that it belongs to. */
    this.shown = null;
    this.row = 0;
    this.key = 0;
    this.dirty = false;
    this.running = false;
    this.compiled = new Set();
    legend($("legend"));
    this.listen();
  }

  // ---- settings and controls

  /** New settings; the controls follow. */
  set(settings) {
    this.settings = { ...settings };
    this.showControls();
    this.request();
  }

  change(part) {
    Object.assign(this.settings, part);
    this.showControls();
    this.changed();
    this.request();
  }

  listen() {
    const on = (id, read) => $(id).addEventListener("input", () => this.change(read($(id))));
    on("source", (e) => ({ source: e.value, batch: 0, head: 0, causal: null, window: null, keep: 0 }));
    on("text", (e) => ({ text: e.value }));
    on("position", (e) => ({ position: Number(e.value) }));
    on("batch", (e) => ({ batch: Number(e.value) }));
    on("temperature", (e) => ({ temperature: Number((2 ** Number(e.value)).toPrecision(4)) }));
    on("scale", (e) => ({ scale: e.value }));
    on("softcap", (e) => ({ softcap: e.value === e.max ? null : Number((2 ** Number(e.value)).toPrecision(4)) }));
    on("sink", (e) => ({ sink: e.value === e.min ? null : Number(e.value) }));
    on("causal", (e) => ({ causal: e.checked }));
    on("window", (e) => ({ window: e.value === e.max ? null : Number(e.value) }));
    on("keep", (e) => ({ keep: Number(e.value) }));
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("reset").addEventListener("click", () => {
      const { source, text } = this.settings;
      this.change({ ...DEFAULTS, source, text });
    });
    $("copy-link").addEventListener("click", () => {
      this.changed(true);
      this.copy(location.href, "The link is copied.");
    });
    $("copy-numbers").addEventListener("click", () => this.copy(this.json(), "The numbers are copied, as JSON."));
    $("heads").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const count = $("heads").children.length;
      if (!step || !count) return;
      event.preventDefault();
      this.change({ head: (this.settings.head + step + count) % count });
      $("heads").children[this.settings.head].focus();
    });
    const heat = $("heat");
    const at = (event) => {
      if (!this.shown) return;
      const box = heat.getBoundingClientRect();
      const { seqQ, seqK } = this.shown.shape;
      this.point(((event.clientY - box.top) / box.height) * seqQ, ((event.clientX - box.left) / box.width) * seqK);
    };
    heat.addEventListener("pointermove", at);
    heat.addEventListener("pointerdown", at);
    $("entropies").addEventListener("pointerdown", (event) => {
      if (!this.shown) return;
      const box = $("entropies").getBoundingClientRect();
      this.point(((event.clientY - box.top) / box.height) * this.shown.shape.seqQ, this.key);
    });
    heat.addEventListener("keydown", (event) => {
      if (!this.shown) return;
      const last = this.shown.shape.seqK - 1;
      const [row, key] = {
        ArrowUp: [this.row - 1, this.key], ArrowDown: [this.row + 1, this.key],
        ArrowLeft: [this.row, this.key - 1], ArrowRight: [this.row, this.key + 1],
        Home: [this.row, 0], End: [this.row, last],
        PageUp: [this.row - 10, this.key], PageDown: [this.row + 10, this.key],
      }[event.key] ?? [];
      if (row === undefined) return;
      event.preventDefault();
      this.point(row, key);
    });
    const redraw = () => this.shown && this.draw();
    new ResizeObserver(redraw).observe($("curve"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  async copy(text, done) {
    try {
      await navigator.clipboard.writeText(text);
      $("copied").textContent = done;
    } catch {
      $("copied").textContent = "The browser does not allow copying here.";
    }
  }

  showControls() {
    const s = this.settings;
    const put = (id, value) => {
      if ($(id).value !== String(value)) $(id).value = value;
    };
    put("source", s.source);
    put("text", s.text);
    put("position", s.position);
    put("temperature", Math.log2(s.temperature));
    put("scale", s.scale);
    put("softcap", s.softcap === null ? $("softcap").max : Math.log2(s.softcap));
    put("sink", s.sink === null ? $("sink").min : s.sink);
    put("window", s.window === null ? $("window").max : s.window);
    put("keep", s.keep);
    $("text-fields").hidden = s.source !== "text";
    $("keep").disabled = s.window === null;
    $("position-out").textContent = `${Math.round(s.position * 100)} %`;
    $("temperature-out").textContent = number(s.temperature);
    $("softcap-out").textContent = s.softcap === null ? "off" : number(s.softcap);
    $("sink-out").textContent = s.sink === null ? "off" : `logit ${s.sink}`;
    $("window-out").textContent = s.window === null ? "all keys" : `${s.window} keys`;
    $("keep-out").textContent = s.window === null ? "all" : String(s.keep);
    if (this.shown) $("causal").checked = s.causal ?? this.shown.causal;
  }

  // ---- computing

  /** Asks for a picture of the settings as they are when there is time for it. */
  request() {
    this.dirty = true;
    if (this.running || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.run();
    });
  }

  async run() {
    if (this.running || !this.dirty) return;
    this.running = true;
    this.dirty = false;
    try {
      const picture = await this.compute({ ...this.settings });
      if (picture) this.show(picture);
    } catch (error) {
      this.failed(error, () => this.request());
    } finally {
      this.running = false;
    }
    if (this.dirty) this.request();
  }

  async compute(settings) {
    const context = this.gpu();
    if (!context) return null;
    const source = await this.input(settings);
    const { shape } = source;
    // A link may name what this source does not have.
    for (const [name, most] of [["batch", shape.batch - 1], ["head", shape.qHeads - 1]]) {
      if (this.settings[name] === settings[name]) this.settings[name] = Math.min(settings[name], most);
      settings[name] = Math.min(settings[name], most);
    }
    const options = toOptions(settings, source);
    const { q, k, v } = source;
    const problem = { q, k, v, shape };
    const place = { batch: settings.batch, head: settings.head };
    const start = performance.now();
    const plain = this.plain(context, source, settings.scale, options.scale, place);
    const [fused, weights, before] = await Promise.all([
      context.attention({ ...problem, options: { ...options, lse: true, entropy: true } }),
      context.scores({ ...problem, options, stage: "probs", ...place }),
      plain,
    ]);
    const time = performance.now() - start;
    // The first time that a variant is needed it is compiled.
    const compiled = !this.compiled.has(fused.kernel);
    this.compiled.add(fused.kernel);
    return { settings, source, shape, causal: source.causal, options, fused, weights, before, time, compiled };
  }

  /** The input of the settings. Text is embedded again only when it changed. */
  async input(settings) {
    const name = settings.source === "text" ? `${settings.position} ${settings.text}` : settings.source;
    if (this.inputName !== name) {
      this.inputValue = await input(settings);
      this.inputName = name;
    }
    return this.inputValue;
  }

  /** The scores before temperature, cap and masks: what the curve stands on. They change with the source, head and scale. */
  plain(context, source, name, scale, { batch, head }) {
    const known = this.known;
    if (known?.context === context && known.source === source && known.name === name && known.batch === batch && known.head === head) {
      return known.scores;
    }
    const { q, k, v, shape } = source;
    const options = scale === undefined ? {} : { scale };
    const scores = context.scores({ q, k, v, shape, options, stage: "raw", batch, head });
    this.known = { context, source, name, batch, head, scores };
    scores.catch(() => (this.known = null));
    return scores;
  }

  // ---- showing

  show(picture) {
    const first = this.shown?.source !== picture.source || this.shown.settings.batch !== picture.settings.batch;
    this.shown = picture;
    this.frame = (this.frame ?? 0) + 1;
    const { shape, source, settings } = picture;
    const rows = shape.seqQ;
    const heads = Array.from({ length: shape.qHeads }, (_, head) => {
      const start = (settings.batch * shape.qHeads + head) * rows;
      return picture.fused.entropy.subarray(start, start + rows);
    });
    const start = (settings.batch * shape.qHeads + settings.head) * rows;
    picture.lse = picture.fused.lse.subarray(start, start + rows);
    picture.entropy = heads[settings.head];
    picture.means = heads.map((list) => list.reduce((a, b) => a + b, 0) / rows);
    picture.labels = source.labels[settings.batch];
    picture.valid = source.kvLen ? source.kvLen[settings.batch] : shape.seqK;
    if (first) {
      this.row = Math.min(Math.floor(rows * 0.75), picture.valid - 1);
      const line = picture.weights.subarray(this.row * shape.seqK, (this.row + 1) * shape.seqK);
      this.key = line.indexOf(Math.max(...line));
      this.prepare(picture);
    }
    this.row = Math.min(this.row, rows - 1);
    this.key = Math.min(this.key, shape.seqK - 1);
    this.showHeads(picture);
    $("causal").checked = settings.causal ?? source.causal;
    this.draw();
  }

  /** What belongs to an input: the ranges of sliders, sequences, words. */
  prepare({ source, shape, settings, labels, valid }) {
    $("about").textContent = source.about;
    $("window").max = shape.seqK;
    $("window").value = settings.window ?? shape.seqK;
    $("batch-field").hidden = shape.batch < 2;
    $("batch").replaceChildren(...Array.from({ length: shape.batch }, (_, b) => {
      const option = document.createElement("option");
      option.value = b;
      option.textContent = `${b + 1} (${source.kvLen ? source.kvLen[b] : shape.seqK} tokens)`;
      return option;
    }));
    $("batch").value = settings.batch;
    $("heat").style.aspectRatio = `${shape.seqK} / ${shape.seqQ}`;
    $("words").hidden = false;
    $("words").replaceChildren(...labels.slice(0, valid).map((label, n) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.tabIndex = -1; // the heatmap is the way for keys
      button.addEventListener("click", () => this.point(n, this.key));
      return button;
    }));
  }

  showHeads({ means, settings, shape, valid }) {
    const box = $("heads");
    if (box.children.length !== means.length) {
      box.replaceChildren(...means.map((_, head) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("role", "radio");
        button.addEventListener("click", () => this.change({ head }));
        return button;
      }));
    }
    const most = Math.log(Math.max(2, Math.min(valid, shape.seqK)));
    means.forEach((mean, head) => {
      const button = box.children[head];
      const chosen = head === settings.head;
      button.textContent = head;
      button.setAttribute("aria-checked", chosen);
      button.setAttribute("aria-label", `head ${head}, mean entropy ${mean.toFixed(2)} nats`);
      button.tabIndex = chosen ? 0 : -1;
      button.style.setProperty("--share", Math.min(1, mean / most));
    });
  }

  seen(n) {
    const { shape, options, valid } = this.shown;
    const [i, j] = [Math.floor(n / shape.seqK), n % shape.seqK];
    if (j >= valid || (options.causal && j > i)) return false;
    const { window } = options;
    return !window || j < window.keepFirst || Math.abs(i - j) <= window.left;
  }

  draw() {
    const { shape, weights, entropy, means, settings, fused, time, compiled, valid } = this.shown;
    heatmap($("heatmap"), weights, (n) => this.seen(n), shape.seqQ, shape.seqK);
    const most = Math.log(Math.max(2, valid));
    bars($("entropies"), entropy, most, this.row);
    $("most").textContent = number(most);
    const mean = means[settings.head];
    $("entropies").setAttribute("aria-label", `Entropy of each row, from ${number(Math.min(...entropy))} to ${number(Math.max(...entropy))} nats`);
    $("summary").textContent =
      `Mean entropy ${mean.toFixed(3)} nats: a row attends to about ${Math.exp(mean).toFixed(1)} keys.`;
    $("time").textContent = `${time.toFixed(compiled ? 0 : 1)} ms to the GPU and back${compiled ? ", compiling" : ""}`;
    $("summary").title = fused.kernel;
    this.drawRow();
  }

  point(row, key) {
    const { seqQ, seqK } = this.shown.shape;
    this.row = Math.min(seqQ - 1, Math.max(0, Math.floor(row)));
    this.key = Math.min(seqK - 1, Math.max(0, Math.floor(key)));
    if (this.pointing) return;
    this.pointing = true;
    requestAnimationFrame(() => {
      this.pointing = false;
      const { entropy, valid } = this.shown;
      bars($("entropies"), entropy, Math.log(Math.max(2, valid)), this.row);
      this.drawRow();
    });
  }

  drawRow() {
    const { shape, weights, entropy, lse, before, labels, options, settings } = this.shown;
    const { row, key } = this;
    const first = row * shape.seqK;
    const cursor = $("cursor");
    cursor.hidden = false;
    cursor.style.left = `${(100 * key) / shape.seqK}%`;
    cursor.style.top = `${(100 * row) / shape.seqQ}%`;
    cursor.style.width = `${100 / shape.seqK}%`;
    cursor.style.height = `${100 / shape.seqQ}%`;
    const visible = Array.from({ length: shape.seqK }, (_, j) => j).filter((j) => this.seen(first + j));
    const name = (n) => `${n}${labels[n] !== undefined && labels[n] !== String(n) ? ` “${labels[n]}”` : ""}`;
    const weight = this.seen(first + key) ? `weight ${number(weights[first + key])}, score ${number(before[first + key])}` : "hidden by the mask";
    const sum = visible.reduce((total, j) => total + weights[first + j], 0);
    const rest = options.sink ? ` ${((1 - sum) * 100).toFixed(1)} % goes to the sink.` : "";
    $("readout").textContent =
      `Query ${name(row)}, key ${name(key)}: ${weight}. The row's entropy is ${number(entropy[row])} nats, about ` +
      `${Math.exp(entropy[row]).toFixed(1)} of ${visible.length} keys.${rest}`;
    $("heatmap").parentElement.dataset.row = row;

    $("curve-title").textContent = `The softmax of row ${name(row)}`;
    const scores = visible.map((j) => before[first + j]);
    const [low, high] = [Math.min(0, ...scores), Math.max(1, ...scores)];
    const pad = (high - low) * 0.04;
    const score = (x) => {
      const sharp = x / settings.temperature;
      return settings.softcap === null ? sharp : settings.softcap * Math.tanh(sharp / settings.softcap);
    };
    const line = (x) => (Number.isFinite(lse[row]) ? Math.exp(score(x) - lse[row]) : 0);
    curve($("curve"), visible.map((j) => [before[first + j], weights[first + j], j === key]), line, [low - pad, high + pad]);
    const top = [...visible].sort((a, b) => weights[first + b] - weights[first + a]).slice(0, 5);
    $("curve").setAttribute("aria-label", top.length
      ? `The softmax of row ${name(row)}: the most weight is on ${top.map((j) => `key ${name(j)} (${number(weights[first + j])})`).join(", ")}`
      : `The softmax of row ${name(row)}: it sees no key`);
    [...$("words").children].forEach((button, j) => {
      const w = this.seen(first + j) ? weights[first + j] : null;
      button.style.backgroundColor = w === null ? "" : css(w);
      button.className = w === null ? "" : isLight(w) ? "light" : "dark";
      if (j === row) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      button.title = w === null ? "hidden" : `weight ${number(w)}`;
    });
  }

  json() {
    if (!this.shown) return "{}";
    const { settings, shape, labels, weights, entropy, lse, fused } = this.shown;
    const list = (x) => Array.from(x, (v) => (Number.isFinite(v) ? v : String(v)));
    return JSON.stringify({ settings, shape, labels, kernel: fused.kernel, entropy: list(entropy), lse: list(lse), weights: list(weights) });
  }
}
