// The page without a network: every file is kept when it is first loaded, and nothing else is ever asked for.

const VERSION = "@VERSION@"; // changes with every file of the page
const PREFIX = `selfsame ${self.registration.scope} `;

self.addEventListener("install", (event) => {
  event.waitUntil(
    (async () => {
      const manifest = await (await fetch("./manifest.json", { cache: "no-cache" })).json();
      const kept = await caches.open(PREFIX + VERSION);
      await kept.addAll(["./", "./manifest.json", ...Object.keys(manifest.files).map((name) => `./${name}`)]);
    })(),
  );
});

self.addEventListener("activate", (event) => {
  event.waitUntil(
    (async () => {
      const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== PREFIX + VERSION);
      await Promise.all(old.map((name) => caches.delete(name)));
      await self.clients.claim();
    })(),
  );
});

self.addEventListener("fetch", (event) => {
  event.respondWith(
    (async () => {
      const kept = await caches.open(PREFIX + VERSION);
      return (await kept.match(event.request, { ignoreSearch: event.request.mode === "navigate" })) ?? Response.error();
    })(),
  );
});
