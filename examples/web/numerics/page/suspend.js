// What a WebAssembly stack is set aside for: one turn of the browser's event loop.
export const suspend = new WebAssembly.Suspending(() => new Promise((resolve) => setTimeout(resolve)));
