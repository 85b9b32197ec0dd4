// The check: every case file on the visitor's GPU, one after the other.

const $ = (id) => document.getElementById(id);

export class Check {
  constructor({ gpu, failed }) {
    Object.assign(this, { gpu, failed });
    this.results = [];
    $("check-start").addEventListener("click", () => this.start());
    $("check-stop").addEventListener("click", () => this.stop());
    $("check-copy").addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(this.json());
        $("check-status").textContent = "The results are copied, as JSON.";
      } catch {
        $("check-status").textContent = "The browser does not allow copying here.";
      }
    });
  }

  /** Ends a run after the case that is being computed. */
  stop() {
    this.stopped = true;
  }

  async start() {
    const context = this.gpu();
    if (this.running || !context) return;
    [this.running, this.stopped, this.results] = [true, false, []];
    this.buttons();
    $("check-table").hidden = false;
    $("check-table").tBodies[0].replaceChildren();
    const kernel = $("check-kernel").value;
    try {
      const folder = new URL("../cases/", import.meta.url);
      const names = await (await this.load(new URL("list.json", folder))).json();
      for (const [n, name] of names.entries()) {
        if (this.stopped) break;
        this.progress(n, names.length, name);
        const file = new Uint8Array(await (await this.load(new URL(name, folder))).arrayBuffer());
        this.add(await context.checkCase(file, kernel ? { kernel } : {}));
      }
      this.progress(this.results.length, names.length);
    } catch (error) {
      this.failed(error, () => this.start());
    } finally {
      this.running = false;
      this.buttons();
      $("check-progress").hidden = true;
      $("check-status").textContent = this.summary();
    }
  }

  async load(url) {
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(`cannot load ${url.pathname}: ${answer.status}`);
    return answer;
  }

  buttons() {
    $("check-start").disabled = this.running;
    $("check-kernel").disabled = this.running;
    $("check-stop").disabled = !this.running;
    $("check-copy").disabled = this.running || !this.results.length;
  }

  progress(done, all, name) {
    $("check-progress").hidden = false;
    $("check-progress").max = all;
    $("check-progress").value = done;
    if (name) $("check-status").textContent = `${done} of ${all}: ${name}`;
  }

  add(report) {
    this.results.push(report);
    const row = $("check-table").tBodies[0].insertRow();
    const cell = (text, name = "") => {
      const td = row.insertCell();
      td.textContent = text;
      td.className = name;
    };
    const ran = report.kernel !== undefined;
    cell(report.name);
    if (report.passes) cell("pass", "pass");
    else if (report.missing.length) cell(`not in this version: ${report.missing.join(", ")}`, "hint");
    else cell(`FAIL: ${report.failure}`, "fail");
    cell(ran ? report.maxAbs.toExponential(1) : "", "n");
    cell(report.kernel ?? "");
  }

  counts() {
    const passed = this.results.filter((r) => r.passes).length;
    const missing = this.results.filter((r) => !r.passes && r.missing.length).length;
    return { passed, missing, failed: this.results.length - passed - missing };
  }

  summary() {
    const { passed, missing, failed } = this.counts();
    const rest = missing ? `, ${missing} ask for what this version does not compute` : "";
    return `${passed} passed, ${failed} failed${rest}${this.stopped ? " (stopped)" : ""}.`;
  }

  json() {
    return JSON.stringify({ adapter: this.gpu()?.info(), userAgent: navigator.userAgent, ...this.counts(), cases: this.results }, null, 1);
  }
}
