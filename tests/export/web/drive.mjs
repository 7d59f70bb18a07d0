// Drives the page in headless Chromium, one scenario a call: node drive.mjs '{"scenario": ..., ...}'.
// Prints one line of JSON: what was seen. What it must be is said in test_page_browser.py.

import { createRequire } from "node:module";
import { readdirSync } from "node:fs";
import { join } from "node:path";

const asked = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(asked.packages, "here.js"))("playwright-core");
const PASSPHRASE = "correct horse battery";
const FLAGS = [
  "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync", "--use-fake-device-for-media-stream", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
]; // prettier-ignore

const requests = [];
const faults = [];
let context;
let page;
let ready; // seconds until the page was, the first time

async function open(more = []) {
  const granted = asked.denied ? [] : ["camera", "microphone"];
  context = await chromium.launchPersistentContext(asked.profile, {
    executablePath: asked.chromium,
    headless: true,
    chromiumSandbox: false,
    args: [...FLAGS, ...(asked.denied ? ["--deny-permission-prompts"] : []), ...more],
    viewport: { width: asked.width ?? 1280, height: 900 },
    colorScheme: asked.scheme ?? "light",
  });
  await context.grantPermissions(granted, { origin: new URL(asked.url).origin });
  context.on("request", (request) => requests.push(request.url()));
  page = context.pages()[0] ?? (await context.newPage());
  page.setDefaultTimeout(600000); // a page that hangs; a slow machine may take its time
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  if (asked.passkey) await virtualPasskeys();
  await load();
}

async function load() {
  const began = performance.now();
  await page.goto(asked.url);
  await page.waitForFunction(
    () => document.getElementById("state").textContent === "Ready." || !document.getElementById("fault").hidden,
  );
  ready ??= (performance.now() - began) / 1000;
}

async function virtualPasskeys() {
  const session = await context.newCDPSession(page);
  await session.send("WebAuthn.enable");
  const options = {
    protocol: "ctap2", ctap2Version: "ctap2_1", transport: "internal", hasResidentKey: true, hasUserVerification: true,
    isUserVerified: true, automaticPresenceSimulation: true, hasPrf: true,
  }; // prettier-ignore
  await session.send("WebAuthn.addVirtualAuthenticator", { options });
}

const text = (id) => page.textContent(`#${id}`);
const filled = (id) => page.waitForFunction((name) => document.getElementById(name).textContent, id);
const files = (folder) => readdirSync(folder).sort().map((name) => join(folder, name)); // prettier-ignore
const shot = (name) => asked.shots && page.screenshot({ path: join(asked.shots, `${name}.png`), fullPage: true });

async function startEnrol(user) {
  await page.click("#new");
  await page.fill("#name", user);
}

async function count(number) {
  await page.waitForFunction((n) => document.querySelectorAll("#taken li").length === n, number);
}

// Gives what the page says: of the enrolment, or why not.
async function finishEnrol() {
  if (asked.rule) {
    await page.check(`input[name=rule][value=${asked.rule.name}]`);
    if (asked.rule.fpr) await page.selectOption("#fpr", String(asked.rule.fpr));
  }
  if (asked.passkey) await page.check("input[name=lock][value=passkey]");
  else for (const id of ["passphrase", "again"]) await page.fill(`#${id}`, PASSPHRASE);
  await page.click("#enrol-go");
  await page.waitForFunction(
    () => document.getElementById("enrol").hidden || document.getElementById("enrol-fault").textContent,
  );
  return (await text("enrol-fault")) || text("state");
}

async function enrolFiles(user, folder) {
  await startEnrol(user);
  await page.setInputFiles("#enrol-source input[type=file]", files(folder));
  await count(files(folder).length);
  await shot("enrol");
  return finishEnrol();
}

async function unlock(user, passphrase = PASSPHRASE) {
  await page.click(`[aria-label="Verify ${user}"]`);
  if (!asked.passkey) await page.fill("#unlock-passphrase", passphrase);
  await page.click("#unlock-go");
  await page.waitForFunction(
    () => !document.getElementById("live").hidden || document.getElementById("unlock-fault").textContent,
  );
  return text("unlock-fault");
}

async function verifyFiles(folder) {
  const before = await page.locator("#results li").count();
  await page.setInputFiles("#verify-source input[type=file]", files(folder));
  const wanted = before + files(folder).length;
  await page.waitForFunction((n) => document.querySelectorAll("#results li").length === n, wanted);
  const all = await page.$$eval("#results li", (items) => items.map(({ dataset }) => ({ ...dataset })));
  return all.slice(before).map(({ name, score, accepted }) => [name, Number(score), accepted === "true"]);
}

const numbers = () => page.$eval("#numbers", ({ dataset }) => ({ ...dataset }));
const decided = () => page.waitForFunction(() => document.getElementById("numbers").dataset.score);

async function proof() {
  const [beyond, blocked, own] = await Promise.all(["beyond", "blocked", "own"].map(text));
  return { beyond: Number(beyond), blocked: Number(blocked), own: Number(own) };
}

// A stroke through points of the drawing area, 0 to 256.
async function stroke(place, points) {
  const canvas = page.locator(`${place} canvas`);
  await canvas.scrollIntoViewIfNeeded();
  const box = await canvas.boundingBox();
  const at = ([x, y]) => [box.x + (x * box.width) / 256, box.y + (y * box.height) / 256];
  await page.mouse.move(...at(points[0]));
  await page.mouse.down();
  for (const point of points.slice(1)) await page.mouse.move(...at(point));
  await page.mouse.up();
}

const ring = (wobble) =>
  Array.from({ length: 13 }, (_, i) => [
    128 + (62 + wobble) * Math.cos((i * Math.PI) / 6),
    128 + (95 - wobble) * Math.sin((i * Math.PI) / 6),
  ]);
const bar = (wobble) => [[128 + wobble, 30], [128, 128], [126, 226]]; // prettier-ignore

const SCENARIOS = {
  // Enrols one user or several with files; scores the owner's and a stranger's; a wrong passphrase; deletes.
  async files() {
    const began = Date.now();
    await open();
    const loaded = Date.now() - began;
    const about = await enrolFiles("nina", asked.enrol);
    await enrolFiles("otto", asked.stranger);
    const wrong = await unlock("nina", "wrong horse battery");
    await page.click("#unlock-form .lock");
    await unlock("nina");
    const { threshold } = await numbers();
    const own = await verifyFiles(asked.verify);
    const accepted = await text("decision");
    await shot("accepted");
    const other = await verifyFiles(asked.stranger);
    const refused = await text("decision");
    await shot("refused");
    const told = await proof();
    const stopped = await page.evaluate(() => {
      document.querySelectorAll("meta[http-equiv]").forEach((one) => one.remove()); // takes no policy back
      return fetch("./card.json").then(() => false, () => true); // prettier-ignore
    });
    await page.click("#live .lock");
    await page.click('[aria-label="Delete nina"]');
    await page.click('[aria-label="Delete nina for good?"]');
    await page.waitForFunction(() => document.querySelectorAll("#people li").length === 1);
    const rows = await page.evaluate(
      () => new Promise((done) => {
        const asked = indexedDB.open("selfsame", 1);
        asked.onsuccess = () => {
          const all = asked.result.transaction("enrolments").objectStore("enrolments").getAll();
          all.onsuccess = () => done(all.result.map((one) => [one.user, one.sealed.length, Object.keys(one).sort()]));
        };
      }),
    ); // prettier-ignore
    return { loaded, about, wrong, threshold: Number(threshold), own, accepted, other, refused, told, stopped, rows };
  },

  async enrolOnly() {
    await open();
    return { about: await enrolFiles("nina", asked.enrol), people: await page.locator("#people li").count() };
  },

  async cameraEnrol() {
    await open([`--use-file-for-fake-video-capture=${asked.video}`]);
    await startEnrol("nina");
    await page.click("#enrol-source .start");
    await page.waitForSelector("#enrol-source .take:not([hidden])");
    for (let number = 1; number <= 10; number += 1) {
      await page.waitForTimeout(110);
      await page.click("#enrol-source .take");
      await count(number);
    }
    return { about: await finishEnrol() };
  },

  async cameraVerify() {
    await open([`--use-file-for-fake-video-capture=${asked.video}`]);
    await unlock("nina");
    await page.click("#verify-source .start");
    await decided();
    await page.waitForTimeout(600);
    await shot("camera");
    return { decision: await text("decision"), numbers: await numbers(), told: await proof() };
  },

  async microphone() {
    await open([`--use-file-for-fake-audio-capture=${asked.sound}`]);
    await enrolFiles("nina", asked.enrol);
    await unlock("nina");
    const own = await verifyFiles(asked.verify);
    const other = await verifyFiles(asked.stranger);
    await page.$eval("#numbers", (one) => delete one.dataset.score);
    await page.click("#verify-source .start");
    await decided();
    const heard = [];
    for (let number = 0; number < 4; number += 1) {
      heard.push(Number((await numbers()).score));
      await page.waitForTimeout(700);
    }
    return { own, other, heard, threshold: Number((await numbers()).threshold), told: await proof() };
  },

  async denied() {
    await open();
    await startEnrol("nina");
    await page.click("#enrol-source .start");
    await page.waitForFunction(() => document.querySelector("#enrol-source .source-fault").textContent);
    return { fault: await page.textContent("#enrol-source .source-fault") };
  },

  async fault() {
    await open();
    return { fault: await text("fault"), shown: await page.isVisible("main") };
  },

  async drawing() {
    await open();
    await startEnrol("zero");
    for (let number = 1; number <= 10; number += 1) {
      await stroke("#enrol-source", ring((number % 5) * 3 - 6));
      await page.click("#enrol-source .take");
      await count(number);
    }
    await shot("drawing-enrol");
    const about = await finishEnrol();
    await unlock("zero");
    await stroke("#verify-source", ring(2));
    await decided();
    const own = [await text("decision"), Number((await numbers()).score)];
    await page.waitForTimeout(300);
    await shot("drawing-accepted");
    await page.click("#verify-source .clear");
    await page.$eval("#numbers", (one) => delete one.dataset.score);
    await stroke("#verify-source", bar(4));
    await decided();
    await page.waitForTimeout(300); // the gauge arrives
    await shot("drawing-refused");
    const other = [await text("decision"), Number((await numbers()).score)];
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await page.click("#verify-source .clear"); // gives the drawing area the focus
    await page.$eval("#numbers", (one) => delete one.dataset.score);
    for (const key of ["Shift+ArrowLeft", "ArrowUp", "ArrowUp", "ArrowRight"]) await page.keyboard.press(key);
    await decided();
    const unnamed = await page.$$eval("button, input, select, canvas[tabindex]", (all) =>
      all.filter((one) => one.offsetParent && !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).length,
    );
    return { about, own, other, wide, unnamed };
  },

  async offline() {
    await open();
    await filled("offline");
    await page.evaluate(() => navigator.serviceWorker.ready);
    await context.setOffline(true);
    await load();
    return { state: await text("state"), kept: await text("offline"), fault: await text("fault") };
  },

  // Seconds: until the page is ready, the first time and from the service worker; to unlock; to verdicts on files.
  async times() {
    const timed = async (work) => {
      const began = performance.now();
      await work();
      return (performance.now() - began) / 1000;
    };
    await open();
    await filled("offline");
    await page.evaluate(() => navigator.serviceWorker.ready);
    const again = await timed(load);
    await enrolFiles("nina", asked.enrol);
    const unlocked = await timed(() => unlock("nina"));
    const first = await timed(() => verifyFiles(asked.first));
    const more = await timed(() => verifyFiles(asked.more));
    return { ready, again, unlocked, first, more };
  },

  async passkey() {
    await open();
    const about = await enrolFiles("nina", asked.enrol);
    const locked = await unlock("nina");
    return { about, locked, own: await verifyFiles(asked.verify) };
  },
};

try {
  const seen = await SCENARIOS[asked.scenario]();
  console.log(JSON.stringify({ ...seen, requests, faults }));
} finally {
  await context?.close();
}
