// The page without a network. The network goes first, so that nobody sees an old page; what it gave is kept, and given where there is none.
const KEPT = "wgpu-attention";

self.addEventListener("install", (event) => event.waitUntil(fill()));
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && url.startsWith(self.registration.scope)) event.respondWith(answer(event.request));
});

/** Everything that the explorer needs. The other case files are kept when they are first used. */
async function fill() {
  const files = await (await fetch("files.json")).json();
  const kept = await caches.open(KEPT);
  await kept.addAll(["./", ...files.filter((file) => !file.startsWith("cases/") || file.startsWith("cases/real_"))]);
}

async function answer(request) {
  const kept = await caches.open(KEPT);
  try {
    const response = await fetch(request);
    if (response.ok) await kept.put(request, response.clone());
    return response;
  } catch (error) {
    return (await kept.match(request, { ignoreSearch: true })) ?? Promise.reject(error);
  }
}
