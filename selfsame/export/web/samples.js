// Samples as the model's card wants them, from pictures, drawings and recordings: what selfsame/device/samples.py reads.

import { Refused } from "./rules.js";

const SHORTEST = 0.1; // seconds of a recording
const BITS = 22; // Pillow's precision of a resampling weight

export function kindOf(card) {
  const [first, height, width] = card.shape;
  if (card.dtype === "uint8" && card.shape.length === 3 && (first === 1 || first === 3))
    return first === 1 && /^(digits|mnist|emnist)/.test(card.data) ? "drawing" : height && width ? "picture" : "";
  return card.dtype === "int16" && card.shape.length === 2 && first === 1 ? "recording" : "";
}

// Pictures

// One plane of bytes resized as Pillow's BILINEAR does it, in its own whole numbers.
function resizeRows(plane, width, height, size) {
  const scale = width / size;
  const wide = Math.max(scale, 1);
  const out = new Uint8Array(size * height);
  for (let x = 0; x < size; x += 1) {
    const centre = (x + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - wide + 0.5));
    const last = Math.min(width, Math.trunc(centre + wide + 0.5));
    const weight = Array.from({ length: last - first }, (_, i) =>
      Math.max(0, 1 - Math.abs((i + first - centre + 0.5) * (1 / wide))),
    );
    const total = weight.reduce((sum, one) => sum + one, 0);
    const whole = weight.map((one) => Math.trunc(0.5 + (one / total) * 2 ** BITS));
    for (let y = 0; y < height; y += 1) {
      let sum = 2 ** (BITS - 1);
      for (let i = 0; i < whole.length; i += 1) sum += plane[y * width + first + i] * whole[i];
      out[y * size + x] = Math.min(255, Math.max(0, Math.floor(sum / 2 ** BITS)));
    }
  }
  return out;
}

function turned(plane, width, height) {
  const out = new Uint8Array(plane.length);
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) out[x * height + y] = plane[y * width + x];
  return out;
}

export function resized(plane, width, height, newWidth, newHeight) {
  let [now, wide] = [plane, width];
  if (newWidth !== width) [now, wide] = [resizeRows(now, width, height, newWidth), newWidth];
  if (newHeight === height) return now;
  return turned(resizeRows(turned(now, wide, height), height, wide, newHeight), newHeight, wide);
}

// RGBA bytes as the planes that the card wants, grey as Pillow makes it.
export function fromPixels(card, rgba, width, height) {
  const [channels, tall, wide] = card.shape;
  const number = width * height;
  const planes = Array.from({ length: channels }, (_, c) => {
    const plane = new Uint8Array(number);
    for (let i = 0; i < number; i += 1)
      plane[i] =
        channels === 3
          ? rgba[4 * i + c]
          : (rgba[4 * i] * 19595 + rgba[4 * i + 1] * 38470 + rgba[4 * i + 2] * 7471 + 0x8000) >> 16;
    return resized(plane, width, height, wide, tall);
  });
  const out = new Uint8Array(channels * tall * wide);
  planes.forEach((plane, c) => out.set(plane, c * tall * wide));
  return out;
}

// A drawing in bright ink: cut to the ink, brought to the size that the data set's own digits have, and blurred by it.
export function fromInk(card, ink, side) {
  const [, tall, wide] = card.shape;
  let [left, right, top, bottom] = [side, -1, side, -1];
  for (let y = 0; y < side; y += 1)
    for (let x = 0; x < side; x += 1)
      if (ink[y * side + x] > 64) {
        [left, right] = [Math.min(left, x), Math.max(right, x)];
        [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
      }
  if (right < 0) throw new Refused("Nothing is drawn yet.");
  const margin = tall >= 28 ? tall / 7 : 0; // MNIST's digits stand in 20 of 28 pixels
  const box = Math.max(right - left + 1, bottom - top + 1);
  const whole = Math.max(1, Math.round((box * tall) / (tall - 2 * margin)));
  const square = new Uint8Array(whole * whole);
  const x0 = Math.round((left + right + 1 - whole) / 2);
  const y0 = Math.round((top + bottom + 1 - whole) / 2);
  for (let y = 0; y < whole; y += 1)
    for (let x = 0; x < whole; x += 1) {
      const [u, v] = [x + x0, y + y0];
      if (u >= 0 && u < side && v >= 0 && v < side) square[y * whole + x] = ink[v * side + u];
    }
  return resized(square, whole, whole, wide, tall);
}

// Recordings

export function fromSound(card, pcm, rate) {
  if (card.rate && rate !== card.rate)
    throw new Refused(`The recording has ${rate} samples a second, the model takes ${card.rate}.`);
  if (pcm.length < Math.max(1, SHORTEST * rate))
    throw new Refused(`The recording is ${(pcm.length / Math.max(rate, 1)).toFixed(2)} s long, at least ${SHORTEST} s is needed.`);
  if (pcm.every((one) => one === pcm[0])) throw new Refused("The recording is silent.");
  const length = card.shape[1];
  if (length === -1) return Int16Array.from(pcm);
  const start = Math.floor(Math.max(0, pcm.length - length) / 2);
  return Int16Array.from({ length }, (_, i) => pcm[(start + i) % pcm.length]);
}

// {rate, pcm} of a PCM wav file of one channel and 16 bits.
export function readWav(bytes) {
  const view = new DataView(bytes);
  const name = (at) => String.fromCharCode(...new Uint8Array(bytes, at, 4));
  if (bytes.byteLength < 44 || name(0) !== "RIFF" || name(8) !== "WAVE") throw new Refused("This is not a wav file.");
  let rate = 0;
  for (let at = 12; at + 8 <= bytes.byteLength; ) {
    const [chunk, size] = [name(at), view.getUint32(at + 4, true)];
    if (chunk === "fmt ") {
      const [format, channels, bits] = [at + 8, at + 10, at + 22].map((place) => view.getUint16(place, true));
      if (format !== 1 || channels !== 1 || bits !== 16)
        throw new Refused("The wav file must have 1 channel of 16 bits, not compressed.");
      rate = view.getUint32(at + 12, true);
    } else if (chunk === "data") {
      if (!rate || at + 8 + size > bytes.byteLength) throw new Refused("The wav file is damaged or cut off.");
      const pcm = Int16Array.from({ length: size >> 1 }, (_, i) => view.getInt16(at + 8 + 2 * i, true));
      return { rate, pcm };
    }
    at += 8 + size + (size & 1);
  }
  throw new Refused("The wav file holds no sound.");
}

export const toPcm = (floats) =>
  Int16Array.from(floats, (x) => Math.max(-32768, Math.min(32767, Math.round(x * 32768))));
