// Compiles WGSL files with Tint, the browser's own front end (Dawn from the npm package `webgpu`): syntax, types, limits and
// uniform control flow. It makes no pipelines, whose compilation is the driver's.
//
//   node tint.mjs FOLDER      from a folder in which `npm install webgpu` has run
//
// Prints each error and a count; exit status 1 where there was one, 2 where there is no adapter.
import { create, globals } from "webgpu";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

Object.assign(globalThis, globals);
const folder = process.argv[2];
// No driver, and so every feature. Kept: what it made dies with it.
const gpu = create(["backend=null"]);
const adapter = await gpu.requestAdapter();
if (!adapter) {
  console.error("no adapter");
  process.exit(2);
}
// WebGPU's default limits and no feature; for shaders that use subgroups or f16 as a type, which are never given to a device without, one that has
// them.
const device = await adapter.requestDevice();
const features = ["subgroups", "shader-f16"].filter((name) => adapter.features.has(name));
const able = await (await gpu.requestAdapter()).requestDevice({ requiredFeatures: features });
let errors = 0;
const files = readdirSync(folder).filter((name) => name.endsWith(".wgsl")).sort();
for (const name of files) {
  let code = readFileSync(join(folder, name), "utf8");
  const needs = [
    ["subgroups", /\bsubgroup[A-Z]\w*\(/.test(code)],
    ["shader-f16", code.includes("enable f16;")],
  ];
  const needed = needs.filter(([, needed]) => needed).map(([name]) => name);
  const missing = needed.filter((name) => !features.includes(name));
  if (missing.length > 0) {
    console.error(`${name}: this adapter has no ${missing.join(" and no ")}`);
    errors += 1;
    continue;
  }
  // naga does not know the directive that browsers want.
  if (needed.includes("subgroups")) code = `enable subgroups;\n${code}`;
  const on = needed.length > 0 ? able : device;
  on.pushErrorScope("validation");
  const module = on.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const failed = messages.filter((message) => message.type === "error");
  for (const { lineNum, linePos, message } of failed) {
    console.error(`${name}:${lineNum}:${linePos}: ${message}`);
  }
  const error = await on.popErrorScope();
  if (error && failed.length === 0) console.error(`${name}: ${error.message}`);
  if (error || failed.length > 0) errors += 1;
}
console.log(`${files.length} shaders, ${errors} refused by Tint`);
process.exit(errors || files.length === 0 ? 1 : 0);
