// Opens pages in headless Chromium at every width and in both colour schemes: node look.mjs '{"pages": {...}, ...}'.
// Prints one line of JSON: what was seen. What it must be is said in test_pages_browser.py.

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const asked = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(asked.packages, "here.js"))("playwright-core");

// What sticks out of the window or of its own place, and words of figures that lie on one another.
function faultsOfPage() {
  const wide = document.documentElement.clientWidth;
  const named = (element) => `${element.tagName}.${element.getAttribute("class") ?? ""} ${element.textContent.trim().slice(0, 40)}`;
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  const found = [];
  if (document.documentElement.scrollWidth > wide) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.querySelectorAll("body *")) {
    if (!shown(element) || element.closest("pre")) continue;
    // A drawing cuts off what its parts reach beyond it; its words are looked at below.
    if (element instanceof SVGElement && element.ownerSVGElement) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1)) found.push(`out of the window: ${named(element)}`);
    if (element instanceof HTMLElement && element.clientWidth && element.scrollWidth > element.clientWidth + 1)
      found.push(`wider than its place: ${named(element)}`);
  }
  for (const drawing of document.querySelectorAll("figure svg, svg.flow")) {
    const words = [...drawing.querySelectorAll("text")].filter((text) => shown(text) && text.textContent.trim());
    const boxes = words.map((text) => text.getBoundingClientRect());
    const place = drawing.closest("figure, .card").getBoundingClientRect();
    boxes.forEach((a, one) => {
      if (a.left < place.left - 2 || a.right > place.right + 2) found.push(`out of its figure: ${named(words[one])}`);
      boxes.slice(one + 1).forEach((b, rest) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        const high = Math.min(a.height, b.height, a.width, b.width);
        if (across > 0.25 * high && down > 0.25 * high)
          found.push(`words on words: ${named(words[one])} / ${named(words[one + 1 + rest])}`);
      });
    });
  }
  return found;
}

// The smallest letters of any drawing, in CSS pixels as they are shown.
function smallestOfDrawings() {
  const sizes = [...document.querySelectorAll("figure svg text, svg.flow text")]
    .filter((text) => text.textContent.trim())
    .map((text) => {
      const { a, b } = text.getScreenCTM();
      return [parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b), text.textContent.trim()];
    });
  return sizes.sort((one, other) => one[0] - other[0])[0] ?? null;
}

const browser = await chromium.launch({ executablePath: asked.chromium, chromiumSandbox: false, args: ["--disable-gpu"] });
const seen = {};
for (const [name, file] of Object.entries(asked.pages)) {
  for (const scheme of ["light", "dark"]) {
    const page = await browser.newPage({ viewport: { width: asked.widths[0], height: 900 }, colorScheme: scheme });
    page.setDefaultTimeout(600000);
    const said = [];
    const requests = [];
    page.on("console", (message) => said.push(message.text()));
    page.on("pageerror", (error) => said.push(error.message));
    page.on("request", (request) => requests.push(request.url()));
    await page.goto(pathToFileURL(file).href);
    const group = page.locator("svg.space g.seen").first();
    let pointed = null;
    if (await group.count()) {
      await group.focus();
      pointed = await page.locator("svg.space g:focus text").first().isVisible();
      await group.blur();
    }
    const look = async (media) => {
      const faults = await page.evaluate(faultsOfPage);
      const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const smallest = await page.evaluate(smallestOfDrawings);
      seen[`${name} ${media}`] = { faults, said, requests, paper, pointed, smallest };
    };
    for (const width of asked.widths) {
      await page.setViewportSize({ width, height: 900 });
      await look(`${width} ${scheme}`);
      await page.screenshot({ path: join(asked.shots, `${name}-${width}-${scheme}.png`), fullPage: true });
    }
    await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
    await page.setViewportSize({ width: asked.widths[0], height: 900 });
    await look(`opened ${scheme}`);
    if (scheme === "dark") {
      await page.emulateMedia({ media: "print", colorScheme: "dark" });
      await page.setViewportSize({ width: 718, height: 1000 });
      await look("printed");
      await page.pdf({ path: join(asked.shots, `${name}.pdf`), format: "A4", printBackground: true });
    }
    await page.close();
  }
}
await browser.close();
console.log(JSON.stringify(seen));
