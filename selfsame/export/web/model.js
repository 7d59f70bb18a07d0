// The model, fetched once, checked byte by byte before any library sees it, and run by onnxruntime-web.

import { Refused } from "./rules.js";

const MARK = '"digest":"';
const [INPUT, OUTPUT] = ["selfsame.raw", "selfsame.embedding"];
const utf8 = (text) => new TextEncoder().encode(text);

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function places(bytes, mark) {
  const found = [];
  for (let at = bytes.indexOf(mark[0]); at >= 0; at = bytes.indexOf(mark[0], at + 1))
    if (mark.every((byte, i) => bytes[at + i] === byte)) found.push(at);
  return found;
}

// Refuse a model whose digest, taken with zeros in its own place, is not its card's, or that holds another card.
export async function checkModel(bytes, cardText) {
  const card = JSON.parse(cardText);
  const found = places(bytes, utf8(MARK));
  const inCard = places(utf8(cardText), utf8(MARK));
  if (found.length !== 1 || inCard.length !== 1) throw new Refused("The model has been changed: it is not one that selfsame wrote.");
  const begin = found[0] - inCard[0];
  if (!utf8(cardText).every((byte, i) => bytes[begin + i] === byte))
    throw new Refused("The model has been changed: the card in it is another one than the page's.");
  const blank = bytes.slice();
  blank.fill(48, found[0] + MARK.length, found[0] + MARK.length + 64);
  if ((await sha256(blank)) !== card.digest)
    throw new Refused("The model has been changed: its digest does not fit its content. Nothing is verified with it.");
  return card;
}

async function fetched(name, manifest) {
  let answer;
  try {
    answer = await fetch(`./${name}`);
  } catch {
    throw new Refused(`${name} could not be loaded.`);
  }
  if (!answer.ok) throw new Refused(`${name} could not be loaded (${answer.status}).`);
  const bytes = new Uint8Array(await answer.arrayBuffer());
  if (manifest && (await sha256(bytes)) !== manifest.files[name])
    throw new Refused(
      name === "model.onnx"
        ? "The model has been changed: its digest does not fit its content. Nothing is verified with it."
        : `${name} has been changed: its digest is not the manifest's.`,
    );
  return bytes;
}

const text = (bytes) => new TextDecoder().decode(bytes);

export async function loadModel(told) {
  if (!crypto.subtle) throw new Refused("This page needs https, or localhost: without them a browser has no cryptography.");
  told("Loading the model …");
  const manifest = JSON.parse(text(await fetched("manifest.json")));
  const cardText = text(await fetched("card.json", manifest));
  const bytes = await fetched("model.onnx", manifest);
  const card = await checkModel(bytes, cardText);
  told("Loading the runtime …");
  const wasm = await fetched(manifest.runtime.wasm, manifest);
  const ort = await import(`./${manifest.runtime.script}`);
  Object.assign(ort.env.wasm, { numThreads: 1, proxy: false, wasmBinary: wasm });
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  return { card, manifest, embed: (raw) => embedded(ort, session, card, raw) };
}

// The embedding of one raw sample.
async function embedded(ort, session, card, raw) {
  const shape = card.shape.map((size) => (size === -1 ? raw.length : size));
  const into = new ort.Tensor(card.dtype, raw, [1, ...shape]);
  const out = (await session.run({ [INPUT]: into }))[OUTPUT];
  if (out.data.length !== card.width || !out.data.every(Number.isFinite))
    throw new Refused("The network's answer to this sample is not finite.");
  return Float32Array.from(out.data);
}
