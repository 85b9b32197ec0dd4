// The package's TypeScript declarations hold together, and say what it does.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

test("TypeScript takes the declarations, and finds what is wrong", () => {
  const here = dirname(fileURLToPath(import.meta.url));
  const words = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "--types", "", "usage.ts"];
  const { status, stdout, stderr } = spawnSync(join(here, "node_modules/.bin/tsc"), words, { cwd: here, encoding: "utf8" });
  assert.equal(status, 0, `${stdout}${stderr}`);
});
