// Runs beside the page's own thread: hands on what the microphone gives.
class Recorder extends AudioWorkletProcessor {
  process([[channel]]) {
    if (channel) this.port.postMessage(channel.slice());
    return true;
  }
}

registerProcessor("recorder", Recorder);
