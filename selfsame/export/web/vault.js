// Enrolments in this browser alone: IndexedDB holds them sealed with AES-GCM, under a key from a passphrase (PBKDF2) or
// from a passkey (WebAuthn's PRF). Name, model and the way to the key are bound to each.

import { Refused } from "./rules.js";

const ROUNDS = 1_000_000; // of PBKDF2 with SHA-256
const [SHORTEST, LONGEST, FEWEST_KINDS, LONGEST_NAME] = [10, 1000, 5, 64];
const [BASE, STORE] = ["selfsame", "enrolments"];

const utf8 = (text) => new TextEncoder().encode(text);
const random = (bytes) => crypto.getRandomValues(new Uint8Array(bytes));

// IndexedDB, as promises

function base() {
  return new Promise((done, failed) => {
    const asked = indexedDB.open(BASE, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    asked.onsuccess = () => done(asked.result);
    asked.onerror = () => failed(new Refused("This browser keeps nothing for this page (a private window?)."));
  });
}

async function ask(mode, act) {
  const open = await base();
  try {
    return await new Promise((done, failed) => {
      const work = open.transaction(STORE, mode, { durability: "strict" });
      const asked = act(work.objectStore(STORE));
      work.oncomplete = () => done(asked.result);
      work.onerror = work.onabort = () => failed(new Refused("The browser could not keep or read the enrolment."));
    });
  } finally {
    open.close();
  }
}

// Keys

export function checkedName(text) {
  const name = text.normalize("NFC").trim();
  if (!name || utf8(name).length > LONGEST_NAME || /\p{C}/u.test(name))
    throw new Refused(`A name has 1 to ${LONGEST_NAME} bytes of printable text.`);
  return name;
}

export function strong(passphrase) {
  const length = [...passphrase].length;
  if (length < SHORTEST || length > LONGEST || new Set(passphrase).size < FEWEST_KINDS)
    throw new Refused(`A passphrase has ${SHORTEST} characters or more, ${FEWEST_KINDS} different ones among them.`);
  return passphrase;
}

async function fromPassphrase(passphrase, way) {
  const raw = await crypto.subtle.importKey("raw", utf8(passphrase.normalize("NFKC")), "PBKDF2", false, ["deriveKey"]);
  const how = { name: "PBKDF2", hash: "SHA-256", salt: way.salt, iterations: way.rounds };
  return crypto.subtle.deriveKey(how, raw, { name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
}

async function fromSecret(secret, way) {
  const raw = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveKey"]);
  const how = { name: "HKDF", hash: "SHA-256", salt: way.salt, info: utf8("selfsame template") };
  return crypto.subtle.deriveKey(how, raw, { name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
}

export const passkeysHere = () => globalThis.PublicKeyCredential !== undefined && isSecureContext;

async function touched(way) {
  const asked = {
    challenge: random(32),
    allowCredentials: [{ type: "public-key", id: way.credential }],
    userVerification: "required",
    extensions: { prf: { eval: { first: way.salt } } },
  };
  let found;
  try {
    found = await navigator.credentials.get({ publicKey: asked });
  } catch {
    throw new Refused("The passkey was not given.");
  }
  const secret = found.getClientExtensionResults().prf?.results?.first;
  if (!secret) throw new Refused("This passkey cannot derive keys (WebAuthn PRF); take a passphrase.");
  return fromSecret(secret, way);
}

async function newPasskey(user) {
  let made;
  try {
    made = await navigator.credentials.create({
      publicKey: {
        challenge: random(32),
        rp: { name: "selfsame" },
        user: { id: random(16), name: user, displayName: user },
        pubKeyCredParams: [
          { type: "public-key", alg: -7 },
          { type: "public-key", alg: -257 },
        ],
        authenticatorSelection: { userVerification: "required", residentKey: "preferred" },
        extensions: { prf: {} },
      },
    });
  } catch {
    throw new Refused("No passkey was made.");
  }
  if (!made.getClientExtensionResults().prf?.enabled)
    throw new Refused("This passkey cannot derive keys (WebAuthn PRF); take a passphrase.");
  return { kind: "passkey", salt: random(32), credential: new Uint8Array(made.rawId) };
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

// What is bound to the sealed text: whose it is, of which model, and the way to its key.
function bound({ user, digest, way }) {
  const told = [user, digest, way.kind, way.rounds ?? 0, hex(way.salt), hex(way.credential ?? [])];
  return utf8(JSON.stringify(told));
}

// Enrolments

const idOf = (user, digest) => `${digest}/${user}`;

// Users of this model, in the order of their names: [{user, kind}].
export async function users(digest) {
  const all = await ask("readonly", (store) => store.getAll());
  const mine = all.filter((one) => one.digest === digest).map((one) => ({ user: one.user, kind: one.way.kind }));
  return mine.sort((a, b) => a.user.localeCompare(b.user));
}

// Seal an enrolment; `passphrase` null: under a new passkey.
export async function keep(user, digest, enrolment, passphrase) {
  if ((await users(digest)).some((one) => one.user === user)) throw new Refused(`${user} is enrolled already; delete that first.`);
  const way =
    passphrase === null
      ? await newPasskey(user)
      : { kind: "passphrase", salt: random(16), rounds: ROUNDS };
  const key = passphrase === null ? await touched(way) : await fromPassphrase(strong(passphrase), way);
  const kept = { id: idOf(user, digest), user, digest, way, nonce: random(12) };
  const plain = utf8(JSON.stringify({ ...enrolment, template: Array.from(enrolment.template) }));
  const how = { name: "AES-GCM", iv: kept.nonce, additionalData: bound(kept) };
  kept.sealed = new Uint8Array(await crypto.subtle.encrypt(how, key, plain));
  await ask("readwrite", (store) => store.add(kept));
}

export async function unlock(user, digest, passphrase) {
  const kept = await ask("readonly", (store) => store.get(idOf(user, digest)));
  if (!kept) throw new Refused(`${user} is not enrolled here.`);
  const key = kept.way.kind === "passkey" ? await touched(kept.way) : await fromPassphrase(passphrase, kept.way);
  const how = { name: "AES-GCM", iv: kept.nonce, additionalData: bound(kept) };
  let plain;
  try {
    plain = await crypto.subtle.decrypt(how, key, kept.sealed);
  } catch {
    throw new Refused("Wrong passphrase, or what was kept is damaged.");
  }
  const found = JSON.parse(new TextDecoder().decode(plain));
  return { ...found, template: Float32Array.from(found.template) };
}

export const holds = async (user, digest) =>
  (await ask("readonly", (store) => store.count(idOf(user, digest)))) > 0;

export const remove = (user, digest) => ask("readwrite", (store) => store.delete(idOf(user, digest)));
