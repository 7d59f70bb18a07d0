// Where samples come from: a canvas, the camera, the microphone, files. Each gives raw samples of the card's kind.

import { Refused } from "./rules.js";
import { fromInk, fromPixels, fromSound, readWav, toPcm } from "./samples.js";

const SECONDS = 3; // of a recording where the model takes any length
const INK = 22; // width of a stroke, of the canvas's 256

export class Drawing {
  constructor(card, canvas, changed) {
    Object.assign(this, { card, canvas, changed, last: null });
    this.pen = canvas.getContext("2d", { willReadFrequently: true });
    this.cursor = [128, 128];
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.#end());
    canvas.addEventListener("keydown", (event) => this.#key(event));
    this.clear();
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * 256) / box.width, ((event.clientY - box.top) * 256) / box.height];
  }

  #begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.#at(event);
    this.#line(this.last, this.last);
  }

  #move(event) {
    if (!this.last) return;
    const now = this.#at(event);
    this.#line(this.last, now);
    this.last = now;
  }

  #end() {
    if (this.last) this.changed?.();
    this.last = null;
  }

  // Arrows move the pen and draw; with Shift they move it alone.
  #key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!way) return;
    event.preventDefault();
    const now = this.cursor.map((place, axis) => Math.max(8, Math.min(248, place + 12 * way[axis])));
    if (!event.shiftKey) this.#line(this.cursor, now);
    this.cursor = now;
    this.changed?.();
  }

  #line(from, to) {
    Object.assign(this.pen, { strokeStyle: "#fff", lineWidth: INK, lineCap: "round", lineJoin: "round" });
    this.pen.beginPath();
    this.pen.moveTo(...from);
    this.pen.lineTo(...to);
    this.pen.stroke();
  }

  clear() {
    this.pen.fillStyle = "#000";
    this.pen.fillRect(0, 0, 256, 256);
    this.cursor = [128, 128];
  }

  async sample() {
    const rgba = this.pen.getImageData(0, 0, 256, 256).data;
    return fromInk(this.card, Uint8Array.from({ length: 256 * 256 }, (_, i) => rgba[4 * i]), 256);
  }

  stop() {}
}

const DENIED = {
  NotAllowedError: "is not allowed here: permit it for this page in the browser's settings, or use files.",
  NotFoundError: "was not found; use files.",
  NotReadableError: "is in use by another program; use files.",
};

async function media(what, asked) {
  try {
    return await navigator.mediaDevices.getUserMedia(asked);
  } catch (error) {
    throw new Refused(`The ${what} ${DENIED[error.name] ?? "cannot be used; use files."}`);
  }
}

export class Camera {
  static async open(card, video) {
    const stream = await media("camera", { video: { facingMode: "user", width: { ideal: 640 } }, audio: false });
    video.srcObject = stream;
    await video.play();
    return new Camera(card, video, stream);
  }

  constructor(card, video, stream) {
    Object.assign(this, { card, video, stream, canvas: document.createElement("canvas") });
  }

  // The middle of the picture in the shape that the model takes.
  async sample() {
    const [, tall, wide] = this.card.shape;
    const { videoWidth, videoHeight } = this.video;
    const scale = Math.min(videoWidth / wide, videoHeight / tall);
    const [width, height] = [Math.floor(wide * scale), Math.floor(tall * scale)];
    Object.assign(this.canvas, { width, height });
    const pen = this.canvas.getContext("2d", { willReadFrequently: true });
    pen.drawImage(this.video, (videoWidth - width) >> 1, (videoHeight - height) >> 1, width, height, 0, 0, width, height);
    return fromPixels(this.card, pen.getImageData(0, 0, width, height).data, width, height);
  }

  stop() {
    this.stream.getTracks().forEach((track) => track.stop());
    this.video.srcObject = null;
  }
}

export class Microphone {
  // The worklet is loaded with the page, before the page closes itself to every connection.
  static async prepare(card) {
    const context = new AudioContext(card.rate ? { sampleRate: card.rate } : {});
    await context.audioWorklet.addModule("./recorder.js");
    return context;
  }

  static async open(card, context) {
    const stream = await media("microphone", { audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
    await context.resume();
    return new Microphone(card, context, stream);
  }

  constructor(card, context, stream) {
    Object.assign(this, { card, context, stream });
    this.from = context.createMediaStreamSource(stream);
    this.node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
    this.from.connect(this.node);
  }

  get seconds() {
    const length = this.card.shape[1];
    return length === -1 ? SECONDS : length / this.context.sampleRate;
  }

  async sample() {
    const wanted = Math.ceil(this.seconds * this.context.sampleRate);
    const parts = [];
    let number = 0;
    await new Promise((done) => {
      this.node.port.onmessage = ({ data }) => {
        parts.push(data);
        number += data.length;
        if (number >= wanted) done();
      };
    });
    this.node.port.onmessage = null;
    const floats = new Float32Array(number);
    let at = 0;
    for (const part of parts) {
      floats.set(part, at);
      at += part.length;
    }
    return fromSound(this.card, toPcm(floats.subarray(0, wanted)), this.context.sampleRate);
  }

  stop() {
    this.from.disconnect();
    this.stream.getTracks().forEach((track) => track.stop());
    this.context.suspend();
  }
}

// The samples in files that the user names, in the order of their names.
export async function fromFiles(card, kind, files) {
  const sorted = [...files].sort((a, b) => (a.name < b.name ? -1 : 1));
  const out = [];
  for (const file of sorted) {
    try {
      out.push(kind === "recording" ? await sound(card, file) : await picture(card, file));
    } catch (error) {
      throw error instanceof Refused ? new Refused(`${file.name}: ${error.message}`) : error;
    }
  }
  return out;
}

async function sound(card, file) {
  const { rate, pcm } = readWav(await file.arrayBuffer());
  return fromSound(card, pcm, rate);
}

async function picture(card, file) {
  let image;
  try {
    image = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: "from-image" });
  } catch {
    throw new Refused("this is not a picture that the browser can read.");
  }
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0);
  return fromPixels(card, pen.getImageData(0, 0, image.width, image.height).data, image.width, image.height);
}
