// The benchmark: the adapter's ceilings, then each problem of a preset, checked before it is timed; a table, and the roofline.

import { theme } from "./colour.js";
import { sheet } from "./draw.js";

const $ = (id) => document.getElementById(id);
const short = (x) => (x >= 100 ? x.toFixed(0) : x.toPrecision(3));

export class Bench {
  constructor({ gpu, failed }) {
    Object.assign(this, { gpu, failed });
    this.report = null;
    $("bench-quick").addEventListener("click", () => this.start("quick"));
    $("bench-models").addEventListener("click", () => this.start("models"));
    $("bench-stop").addEventListener("click", () => this.stop());
    $("bench-copy").addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(JSON.stringify(this.report, null, 1));
        $("bench-status").textContent = "The report is copied, as JSON.";
      } catch {
        $("bench-status").textContent = "The browser does not allow copying here.";
      }
    });
    const redraw = () => this.draw();
    new ResizeObserver(redraw).observe($("roofline"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  /** Ends a run after the problem that is being measured. */
  stop() {
    this.stopped = true;
  }

  async start(preset) {
    const context = this.gpu();
    if (this.running || !context) return;
    [this.running, this.stopped, this.report] = [true, false, null];
    this.buttons();
    $("bench-table").hidden = false;
    $("bench-table").tBodies[0].replaceChildren();
    $("roofline-figure").hidden = true;
    const begun = performance.now();
    try {
      this.progress(0, 1, "the adapter's ceilings");
      const benchmark = await context.benchmark({ seconds: 1 });
      const report = benchmark.report();
      report.machine.adapter ||= $("adapter").textContent;
      report.machine.system = navigator.userAgent;
      this.report = report;
      const problems = benchmark.problems(preset);
      for (const [number, problem] of problems.entries()) {
        if (this.stopped) break;
        this.progress(number + 1, problems.length + 1, problem);
        try {
          const row = await benchmark.row({ preset, number });
          report.rows.push(row);
          this.add(row.name || problem, row);
        } catch (error) {
          // What one problem needs too much of does not keep the others from running.
          if (!["OutOfMemory", "LimitExceeded", "Other"].includes(error.kind)) throw error;
          report.left_out.push({ problem, kernel: "", because: error.message, wrong: error.kind === "Other" });
          this.add(problem, null, error.message);
        }
        report.seconds = (performance.now() - begun) / 1000;
        this.draw();
      }
    } catch (error) {
      this.failed(error, () => this.start(preset));
    } finally {
      this.running = false;
      this.buttons();
      $("bench-progress").hidden = true;
      $("bench-status").textContent = this.summary();
    }
  }

  summary() {
    if (!this.report) return "";
    const { rows, left_out: left, machine, seconds } = this.report;
    const rest = left.length ? `, ${left.length} left out` : "";
    return `${rows.length} problems in ${seconds.toFixed(0)} s${rest}${this.stopped ? " (stopped)" : ""}. Clock: ${machine.clock} (${machine.clock_because}).`;
  }

  buttons() {
    for (const id of ["bench-quick", "bench-models"]) $(id).disabled = this.running;
    $("bench-stop").disabled = !this.running;
    $("bench-copy").disabled = this.running || !this.report;
  }

  progress(done, all, name) {
    $("bench-progress").hidden = false;
    $("bench-progress").max = all;
    $("bench-progress").value = done;
    $("bench-status").textContent = `Measuring ${name} …`;
  }

  add(name, row, because) {
    const line = $("bench-table").tBodies[0].insertRow();
    const cell = (text, kind = "") => {
      const td = line.insertCell();
      td.textContent = text;
      td.className = kind;
      return td;
    };
    cell(name);
    if (!row) {
      cell(because, "hint").colSpan = 4;
      return;
    }
    cell(`${short(row.ms)} ms`, "n").title = `quartiles ${short(row.spread.q1_ms)} and ${short(row.spread.q3_ms)} ms, ${row.spread.samples} samples of ${row.spread.calls} calls`;
    cell(short(row.gflops), "n");
    cell(short(row.gb_s), "n");
    cell(`${(row.share * 100).toFixed(0)} % of ${row.limit}`, "n").title = row.variant;
  }

  /** Operations a second over operations a byte, both logarithmic, under the lower of two ceilings. */
  draw() {
    const { report } = this;
    if (!report?.rows.length) return;
    $("roofline-figure").hidden = false;
    const { roofs } = report;
    const compute = Math.max(roofs.fma, roofs.dot);
    const memory = Math.max(roofs.copy, roofs.read);
    const { context, width, height } = sheet($("roofline"));
    const colours = theme();
    const [left, right, top, bottom] = [52, width - 10, 10, height - 34];
    const points = report.rows.map((row) => [row.intensity, row.gflops * 1e9]);
    const range = (list) => [Math.floor(Math.log10(Math.min(...list))), Math.ceil(Math.log10(Math.max(...list) * 1.05))];
    const [x0, x1] = range([...points.map((p) => p[0]), compute / memory]);
    const [y0, y1] = range([...points.map((p) => p[1]), compute]);
    const x = (v) => left + ((Math.log10(v) - x0) / (x1 - x0)) * (right - left);
    const y = (v) => bottom - ((Math.log10(v) - y0) / (y1 - y0)) * (bottom - top);
    context.strokeStyle = colours.grid;
    context.fillStyle = colours.soft;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const line = (...ends) => {
      context.beginPath();
      for (const [a, b] of ends) context.lineTo(a, b);
      context.stroke();
    };
    for (let n = y0; n <= y1; n++) {
      line([left, y(10 ** n)], [right, y(10 ** n)]);
      context.fillText(`${short(10 ** (n - 9))}`, left - 6, y(10 ** n));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let n = x0; n <= x1; n++) {
      line([x(10 ** n), top], [x(10 ** n), bottom]);
      context.fillText(String(10 ** n), x(10 ** n), bottom + 4);
    }
    context.fillText("operations a byte (up: GFLOP/s)", (left + right) / 2, bottom + 19);
    context.save();
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    context.strokeStyle = colours.bar;
    context.lineWidth = 2.5;
    line([x(10 ** x0), y(10 ** x0 * memory)], [x(compute / memory), y(compute)], [right, y(compute)]);
    context.restore();
    context.fillStyle = colours.mark;
    for (const [a, b] of points) {
      context.beginPath();
      context.arc(x(a), y(b), 4.5, 0, 2 * Math.PI);
      context.fill();
    }
    $("roofline-text").textContent =
      `Ceilings measured here: ${short(compute / 1e9)} GFLOP/s of multiply-adds, ${short(memory / 1e9)} GB/s of memory. A dot is a problem; ` +
      "the line is what the adapter allows it.";
  }
}
