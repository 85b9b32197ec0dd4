// The tests by name, each a function whose promise fails where the test does.
import init from "./numerics.js";

const wasm = await init();
const names = Object.keys(wasm).filter((name) => name.startsWith("test "));
globalThis.tests = Object.fromEntries(names.map((name) => [name.slice("test ".length), WebAssembly.promising(wasm[name])]));
