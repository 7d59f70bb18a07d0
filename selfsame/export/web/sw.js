// The page without a network: every file is checked and kept when it is first loaded, and nothing else is asked for.

const VERSION = "@VERSION@"; // the manifest's digest, so that it changes with every file of the page
const PREFIX = `selfsame ${self.registration.scope} `;

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function checked(name, digest) {
  const answer = await fetch(`./${name}`, { cache: "no-cache" });
  const bytes = await answer.arrayBuffer();
  if (!answer.ok || (await sha256(bytes)) !== digest) throw new Error(`${name} is not the manifest's`);
  return new Response(bytes, { headers: { "Content-Type": answer.headers.get("Content-Type") ?? "" } });
}

self.addEventListener("install", (event) => {
  event.waitUntil(
    (async () => {
      const manifest = await checked("manifest.json", VERSION);
      const { files } = await manifest.clone().json();
      const kept = await caches.open(PREFIX + VERSION);
      await kept.put("./manifest.json", manifest);
      for (const [name, digest] of Object.entries(files)) await kept.put(`./${name}`, await checked(name, digest));
      await kept.put("./", await kept.match("./index.html"));
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
