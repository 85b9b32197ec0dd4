// The bodies of tests/numerics in a real Chromium: the same files as on native, with the same tolerances and the same reference in float64,
// compiled for wasm (`cargo xtask web --numerics`).
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { root, withWebgpu } from "./browser.js";
import { serve } from "./server.js";

test("tests/numerics in a browser", async (t) => {
  const server = await serve(join(root, "target/web/numerics"), "/");
  t.after(() => server.close());
  const browser = await withWebgpu();
  t.after(() => browser.close());

  /** A page with the tests, and what it said about a failure. */
  const open = async () => {
    const page = await browser.newPage();
    const said = [];
    page.on("console", (message) => message.type() === "error" && said.push(message.text()));
    page.on("pageerror", (error) => said.push(String(error)));
    await page.goto(server.url);
    await page.waitForFunction(() => globalThis.tests, null, { timeout: 60_000 });
    return { page, said };
  };

  let at = await open();
  const names = await at.page.evaluate(() => Object.keys(globalThis.tests));
  assert.ok(names.length > 20, `only ${names.length} tests were found`);
  for (const name of names.sort()) {
    await t.test(name, async () => {
      const passed = await at.page.evaluate((name) => globalThis.tests[name]().then(() => true, () => false), name);
      const { page, said } = at;
      if (passed && said.length === 0) return;
      // A WebAssembly instance that has failed is in an unknown state.
      at = await open();
      await page.close();
      assert.fail(said.join("\n") || "failed without a word");
    });
  }
});
