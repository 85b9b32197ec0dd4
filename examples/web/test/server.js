// The page as any static host would serve it: from a folder that is not the root, with nothing but files.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
  ".json": "application/json", ".svg": "image/svg+xml", ".wasm": "application/wasm",
};

/** Serves `folder` below `prefix`. */
export async function serve(folder, prefix) {
  const server = createServer((request, response) => {
    const path = new URL(request.url, "http://localhost").pathname;
    let file = path.startsWith(prefix) ? join(folder, normalize(path.slice(prefix.length))) : folder;
    if (path === prefix) file = join(folder, "index.html");
    try {
      if (!statSync(file).isFile()) throw new Error("no file");
    } catch {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream" });
    createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://localhost:${server.address().port}${prefix}`, close: () => (server.closeAllConnections(), server.close()) };
}
