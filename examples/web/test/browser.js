// The browser that tests drive: the system's Chromium with a WebGPU adapter that computes on the processor (SwiftShader). CHROMIUM names
// another.
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const QUIET = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];
const WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

export const root = join(dirname(fileURLToPath(import.meta.url)), "../../..");
export const withWebgpu = () => chromium.launch({ executablePath, args: [...QUIET, ...WEBGPU] });
export const withoutWebgpu = () => chromium.launch({ executablePath, args: [...QUIET, "--disable-gpu", "--disable-features=WebGPU"] });
