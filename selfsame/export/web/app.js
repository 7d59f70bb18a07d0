// The page: who is enrolled, enrolment, live verification, and the proof that nothing left.

import { loadModel } from "./model.js";
import { Refused, MOST_FPR, enrol, expect, find, percent, score } from "./rules.js";
import { kindOf } from "./samples.js";
import { Camera, Drawing, Microphone, fromFiles } from "./sources.js";
import * as vault from "./vault.js";

const CLOSED = "default-src 'none'; script-src 'wasm-unsafe-eval'; style-src 'self'; connect-src 'none'; form-action 'none'";
const PAUSE = 150; // milliseconds between two pictures of the camera
const ADVISED = 10; // samples of an enrolment

const $ = (id) => document.getElementById(id);
const pause = (time) => new Promise((done) => setTimeout(done, time));

let model; // {card, manifest, embed}
let kind; // drawing, picture or recording
let sound; // the audio context, where the model takes recordings
let taken = []; // raw samples of an enrolment
let current; // {user, enrolment}, unlocked
const samplers = [];

// Faults: one plain sentence where the user looks

function told(error) {
  if (error instanceof Refused) return error.message;
  console.error(error);
  return `Something went wrong: ${error.message}`;
}

// Runs an action; what it refuses is said in the element.
async function trying(place, act) {
  place.textContent = "";
  try {
    await act();
  } catch (error) {
    place.textContent = told(error);
  }
}

// Proof: requests are counted, and the door is closed once all is loaded

function watch() {
  const counts = { own: 0, beyond: 0, blocked: 0 };
  const folder = new URL("./", location.href).href;
  const show = () => {
    for (const [name, count] of Object.entries(counts)) $(name).textContent = count;
  };
  new PerformanceObserver((list) => {
    for (const { name } of list.getEntries()) {
      if (!name.startsWith("http")) continue;
      const file = name.startsWith(folder) ? name.slice(folder.length) : null;
      const known = file !== null && (file in model.manifest.files || ["manifest.json", "sw.js"].includes(file));
      counts[known ? "own" : "beyond"] += 1;
    }
    show();
  }).observe({ type: "resource", buffered: true });
  document.addEventListener("securitypolicyviolation", () => {
    counts.blocked += 1;
    show();
  });
}

function closeDoor() {
  const policy = document.createElement("meta");
  policy.httpEquiv = "Content-Security-Policy";
  policy.content = CLOSED;
  document.head.append(policy);
  $("door").textContent = "All is loaded. From now on the browser forbids this page every connection.";
}

async function stayOffline() {
  if (!navigator.serviceWorker) return;
  try {
    await navigator.serviceWorker.register("./sw.js");
    navigator.serviceWorker.ready.then(() => {
      $("offline").textContent = "The page is kept by the browser: it opens without a network.";
    });
  } catch {
    $("offline").textContent = "The browser does not keep the page: without a network it will not open.";
  }
}

// Samples: one set of widgets in each of the two places

class Sampler {
  // `took(samples, names)` gets what the user gives; with `live` every change and every picture is given.
  constructor(place, live, took) {
    Object.assign(this, { place, live, took, source: null, running: 0 });
    place.append($("sampler").content.cloneNode(true));
    const [start, take, clear] = ["start", "take", "clear"].map((name) => place.querySelector(`.${name}`));
    Object.assign(this, { start, take, clear, fault: place.querySelector(".source-fault") });
    const files = place.querySelector("input[type=file]");
    files.accept = kind === "recording" ? ".wav,audio/wav" : "image/*";
    files.addEventListener("change", () => this.#try(() => this.#files(files)));
    take.addEventListener("click", () => this.#try(() => this.#take()));
    start.addEventListener("click", () => this.#try(() => (this.source ? this.stop() : this.#open())));
    clear.addEventListener("click", () => this.#clear());
    if (kind === "drawing") this.#draw();
    else this.#label(false);
    take.textContent = { drawing: "Add this drawing", picture: "Take a picture", recording: "Record" }[kind];
  }

  #try(act) {
    return trying(this.fault, act);
  }

  #draw() {
    const canvas = this.place.querySelector(".drawing");
    canvas.hidden = this.clear.hidden = false;
    this.take.hidden = this.live;
    this.source = new Drawing(model.card, canvas, this.live ? () => this.#try(() => this.#take()) : null);
  }

  #label(open) {
    const what = kind === "recording" ? "microphone" : "camera";
    this.start.hidden = false;
    this.start.textContent = `${open ? "Stop" : "Use"} the ${what}`;
    this.take.hidden = this.live || !open;
    this.place.querySelector(".camera").hidden = !open || kind !== "picture";
  }

  async #open() {
    const video = this.place.querySelector(".camera");
    this.source = await (kind === "picture" ? Camera.open(model.card, video) : Microphone.open(model.card, sound));
    this.#label(true);
    if (this.live) this.#run();
  }

  async #run() {
    const turn = (this.running += 1);
    await this.#try(async () => {
      while (this.source && turn === this.running) {
        await this.took([await this.source.sample()], null);
        await pause(PAUSE);
      }
    });
  }

  async #take() {
    this.take.disabled = true;
    try {
      await this.took([await this.source.sample()], null);
      if (kind === "drawing" && !this.live) this.source.clear();
    } finally {
      this.take.disabled = false;
    }
  }

  async #files(input) {
    const names = [...input.files].map((file) => file.name).sort();
    const samples = await fromFiles(model.card, kind, input.files);
    input.value = "";
    await this.took(samples, names);
  }

  #clear() {
    this.source.clear();
    this.place.querySelector(".drawing").focus();
  }

  stop() {
    this.running += 1;
    this.fault.textContent = "";
    if (kind === "drawing") return this.source.clear();
    this.source?.stop();
    this.source = null;
    return this.#label(false);
  }
}

// A small picture of a raw sample: its pixels, or a recording's loudness.
function thumbnail(raw) {
  const canvas = document.createElement("canvas");
  const [channels, tall, wide] = kind === "recording" ? [1, 32, 32] : model.card.shape;
  Object.assign(canvas, { width: wide, height: tall });
  const image = new ImageData(wide, tall);
  for (let i = 0; i < wide * tall; i += 1) {
    const value = (c) => (kind === "recording" ? loud(raw, i % wide, Math.floor(i / wide)) : raw[c * wide * tall + i]);
    for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = value(channels === 3 ? c : 0);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function loud(raw, column, row) {
  const part = raw.subarray(Math.floor((column * raw.length) / 32), Math.floor(((column + 1) * raw.length) / 32));
  const peak = part.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 32768;
  return Math.abs(row - 15.5) / 16 <= peak ? 255 : 0;
}

// Enrol

const HINTS = {
  drawing: "Write the same sign ten times or more, as you write it.",
  picture: "Ten pictures or more of one person, from a little different sides.",
  recording: "Ten recordings or more of one person.",
};

function showCount() {
  const more = taken.length && taken.length < ADVISED ? ` ${ADVISED} or more are advised.` : "";
  $("count").textContent = taken.length ? `${taken.length} taken.${more}` : "No samples yet.";
  $("forget").hidden = !taken.length;
}

function forget() {
  taken = [];
  $("taken").replaceChildren();
  showCount();
}

async function take(samples) {
  for (const raw of samples) {
    taken.push(raw);
    const item = document.createElement("li");
    item.append(thumbnail(raw));
    $("taken").append(item);
  }
  showCount();
}

function leave() {
  samplers.forEach((one) => one.stop());
  $("enrol").hidden = $("verify").hidden = true;
  current = null;
  forget();
  for (const id of ["name", "passphrase", "again", "unlock-passphrase"]) $(id).value = "";
  for (const id of ["enrol-fault", "unlock-fault", "verify-fault"]) $(id).textContent = "";
}

function startEnrol() {
  leave();
  $("enrol").hidden = false;
  $("enrol-title").focus();
}

function ruleAsked() {
  const name = document.querySelector("input[name=rule]:checked").value;
  return name === "tpr" ? { name, tpr: 0.9 } : { name, fpr: Number($("fpr").value) };
}

async function enrolNow() {
  const name = vault.checkedName($("name").value);
  const byPasskey = document.querySelector("input[name=lock]:checked").value === "passkey";
  const passphrase = byPasskey ? null : vault.strong($("passphrase").value);
  if (!byPasskey && $("again").value !== passphrase) throw new Refused("The two passphrases differ.");
  const vectors = [];
  for (const raw of taken) vectors.push(await model.embed(raw));
  const rule = ruleAsked();
  const { expected, doubts, ...kept } = enrol(model.card, vectors, rule, Math.max(MOST_FPR, rule.fpr ?? 0));
  await vault.keep(name, model.card.digest, kept, passphrase);
  leave();
  await showPeople();
  const odd = doubts.length ? ` ${doubts[0]}: are the samples all of one person?` : "";
  $("state").textContent = `${name} is enrolled; the threshold ${kept.note}. ${inWords(expected)}${odd}`;
}

function inWords({ refused, letIn, source }) {
  const own = `The owner's samples refused: ${share(refused, "95 % interval")}.`;
  if (!letIn) return `${own} The model knows no strangers: how many get in is not known.`;
  return `${own} Strangers' samples let in: ${share(letIn, "from owner to owner")}, by ${source}.`;
}

function share({ value, low, high }, what) {
  return value >= high ? `at most ${percent(high)}` : `${percent(value)} (${percent(low)} to ${percent(high)}, ${what})`;
}

// People

async function showPeople() {
  const found = await vault.users(model.card.digest);
  $("nobody").hidden = found.length > 0;
  $("people").replaceChildren(...found.map(person));
}

function button(text, label, act) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", textContent: text });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => act(made));
  return made;
}

function person({ user, kind: lock }) {
  const item = document.createElement("li");
  const who = document.createElement("span");
  who.className = "who";
  const how = document.createElement("small");
  how.textContent = ` (${lock})`;
  who.append(user, how);
  const verify = button("Verify", `Verify ${user}`, () => startVerify(user, lock));
  const remove = button("Delete me", `Delete ${user}`, async (pressed) => {
    if (!pressed.dataset.sure) {
      pressed.dataset.sure = "yes";
      pressed.textContent = "Delete for good?";
      pressed.setAttribute("aria-label", `Delete ${user} for good?`);
      return;
    }
    await vault.remove(user, model.card.digest);
    leave();
    await showPeople();
    $("state").textContent = `${user} is deleted; nothing of ${user} is left here.`;
    $("new").focus();
  });
  item.append(who, verify, remove);
  return item;
}

// Verify

function startVerify(user, lock) {
  leave();
  current = { user };
  $("verify-title").textContent = `Verify ${user}`;
  $("unlock-word").hidden = lock === "passkey";
  $("verify").hidden = $("unlock-form").hidden = false;
  $("live").hidden = true;
  (lock === "passkey" ? $("verify-title") : $("unlock-passphrase")).focus();
}

async function unlockNow() {
  const { user } = current;
  const enrolment = await vault.unlock(user, model.card.digest, $("unlock-passphrase").value);
  $("unlock-passphrase").value = "";
  current = { user, enrolment };
  $("unlock-form").hidden = true;
  $("live").hidden = false;
  $("results").replaceChildren();
  $("decision").textContent = "No sample yet.";
  $("decision").className = $("gauge").className = "";
  $("numbers").textContent = `threshold ${enrolment.threshold.toFixed(4)}`;
  $("numbers").dataset.threshold = enrolment.threshold;
  $("fill").style.width = "0";
  $("mark").style.left = `${100 * along(enrolment.threshold)}%`;
  const strangers = find(model.card.cohort, "enrolled", enrolment.madeFrom);
  $("expected").textContent = inWords(expect(enrolment.threshold, enrolment.scores, strangers));
  $("verify-title").focus();
}

// Where a score stands on the gauge, from 0 to 1.
function along(value) {
  const cosine = model.card.score === "cosine";
  const [low, high] = cosine ? [-1, 1] : [3 * Math.min(current.enrolment.threshold, -1e-6), 0];
  return Math.max(0, Math.min(1, (value - low) / (high - low)));
}

async function attempt(samples, names) {
  const { user, enrolment } = current;
  if (!(await vault.holds(user, model.card.digest))) {
    leave();
    await showPeople();
    $("state").textContent = `${user} is not enrolled here any more.`;
    return;
  }
  for (const [at, raw] of samples.entries()) {
    const value = score(model.card, await model.embed(raw), enrolment.template);
    if (current?.enrolment !== enrolment) return; // locked meanwhile
    show(value, value >= enrolment.threshold);
    if (names) listed(names[at], value, value >= enrolment.threshold);
  }
}

function show(value, accepted) {
  const word = accepted ? `Accepted: this is ${current.user}.` : `Refused: this is not ${current.user}.`;
  if ($("decision").textContent !== word) $("decision").textContent = word; // said once, not at every picture
  $("decision").className = $("gauge").className = accepted ? "accepted" : "refused";
  $("fill").style.width = `${100 * along(value)}%`;
  const numbers = `score ${value.toFixed(4)}, threshold ${current.enrolment.threshold.toFixed(4)}`;
  $("numbers").textContent = numbers;
  $("numbers").dataset.score = value;
  $("gauge").setAttribute("aria-valuenow", along(value).toFixed(3));
  $("gauge").setAttribute("aria-valuetext", numbers);
}

function listed(name, value, accepted) {
  const item = document.createElement("li");
  Object.assign(item.dataset, { name, score: value, accepted });
  item.textContent = `${name}: ${accepted ? "accepted" : "refused"}, score ${value.toFixed(4)}`;
  $("results").append(item);
}

// Begin

function wire() {
  samplers.push(new Sampler($("enrol-source"), false, take), new Sampler($("verify-source"), true, attempt));
  $("enrol-hint").textContent = HINTS[kind];
  $("new").addEventListener("click", startEnrol);
  $("forget").addEventListener("click", forget);
  $("enrol-stop").addEventListener("click", leave);
  document.querySelectorAll(".lock").forEach((one) => one.addEventListener("click", leave));
  submitted("enrol-form", "enrol-fault", "enrol-go", enrolNow);
  submitted("unlock-form", "unlock-fault", "unlock-go", unlockNow);
  document.querySelectorAll("input[name=lock]").forEach((one) =>
    one.addEventListener("change", () => {
      $("passphrases").hidden = one.value === "passkey" && one.checked;
    }),
  );
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && kind !== "drawing") samplers.forEach((one) => one.stop());
  });
  showCount();
}

function submitted(form, fault, go, act) {
  $(form).addEventListener("submit", async (event) => {
    event.preventDefault();
    $(go).disabled = true;
    await trying($(fault), act);
    $(go).disabled = false;
  });
}

function fillChoices() {
  const rates = [...new Set(model.card.cohort.flatMap((one) => (one.kind === "enrolled" ? one.rate : [])))];
  const offered = rates.filter((rate) => rate <= MOST_FPR).sort((a, b) => b - a);
  for (const rate of offered) $("fpr").append(new Option(percent(rate), rate, rate === 0.01, rate === 0.01));
  const choice = document.querySelector("input[name=rule][value=fpr]");
  choice.closest("label").hidden = !offered.length;
  $("passkey-choice").hidden = !vault.passkeysHere();
}

async function begin() {
  model = await loadModel((text) => ($("state").textContent = text));
  kind = kindOf(model.card);
  if (!kind) throw new Refused("This page takes pictures and recordings; the model takes something else.");
  watch();
  if (kind === "recording") sound = await Microphone.prepare(model.card);
  await stayOffline();
  closeDoor();
  fillChoices();
  wire();
  await showPeople();
  const { card } = model;
  $("about").textContent = `Model: ${card.method}, trained on ${card.data}; digest ${card.digest.slice(0, 12)}, checked.`;
  $("state").textContent = "Ready.";
  $("main").hidden = false;
}

begin().catch((error) => {
  $("state").textContent = "";
  $("fault").textContent = told(error);
  $("fault").hidden = false;
});
