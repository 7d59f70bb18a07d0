// How embeddings are compared and a threshold is chosen: the device's rules (selfsame/device), in the browser.
// A larger score is a closer match, and a sample is accepted at score >= threshold.

const TINY = 1e-12;
const FINEST = 1000000000n; // the largest denominator of a rate that a user means
const LEVELS = [0.5, 0.8, 0.95];
const SURE_OWNERS = 19; // of a cohort that honest samples are refused by once in twenty times
const MOST_PAIRED = 20; // samples that are compared with each other
const CEILINGS = { cosine: 1, distance: 0, "squared-distance": 0 };
const FLOORS = { cosine: -1, distance: -Infinity, "squared-distance": -Infinity };
export const MOST_FPR = 0.1; // strangers that may be expected to be let in

export class Refused extends Error {} // what a user can mend; its message is one plain sentence

// Vectors

export function placed(card, vector) {
  if (card.place === "as-is") return Float32Array.from(vector);
  const length = Math.fround(Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0)));
  return Float32Array.from(vector, (x) => x / Math.max(length, TINY));
}

export function template(card, vectors) {
  const all = vectors.map((vector) => placed(card, vector));
  const mean = Float32Array.from(all[0], (_, d) => all.reduce((sum, one) => sum + one[d], 0) / all.length);
  if (!mean.every(Number.isFinite) || mean.every((x) => x === 0))
    throw new Refused("These samples give a vector that stands for nobody.");
  return mean;
}

export function score(card, vector, template) {
  const own = placed(card, vector);
  let out;
  if (card.score === "cosine") {
    const other = placed(card, template);
    out = own.reduce((sum, x, d) => sum + x * other[d], 0);
  } else {
    const square = own.reduce((sum, x, d) => sum + (x - template[d]) ** 2, 0);
    out = card.score === "squared-distance" ? -square : -Math.sqrt(square);
  }
  if (!Number.isFinite(out)) throw new Refused("The model gives scores that are not finite.");
  return Math.fround(out);
}

// Rates and chances

// A rate as the user means it, [numerator, denominator]: 0.9 is nine tenths (Python's Fraction.limit_denominator).
export function exactRate(value) {
  if (!(value >= 0 && value <= 1)) throw new Refused(`A rate must be 0 to 1, not ${value}.`);
  let [n, d, doubled] = [0n, 1n, value];
  while (!Number.isInteger(doubled)) [doubled, d] = [doubled * 2, d * 2n];
  n = BigInt(doubled);
  if (d <= FINEST) return [n, d];
  const [wholeN, wholeD] = [n, d];
  let [p0, q0, p1, q1] = [0n, 1n, 1n, 0n];
  for (;;) {
    const a = n / d;
    const q2 = q0 + a * q1;
    if (q2 > FINEST) break;
    [p0, q0, p1, q1] = [p1, q1, p0 + a * p1, q2];
    [n, d] = [d, n - a * d];
  }
  const k = (FINEST - q0) / q1;
  const [p2, q2] = [p0 + k * p1, q0 + k * q1];
  const twice = 2n * d * (q0 + k * q1); // as Python 3.12 chooses between the two nearest
  return twice <= wholeD ? [p1, q1] : [p2, q2];
}

function logFactorial(n) {
  let sum = 0;
  for (let i = 2; i <= n; i += 1) sum += Math.log(i);
  return sum;
}

// The chance that the true TPR at the k-th smallest of n scores is at least q.
export function keptChance(k, n, q) {
  const [top, bottom] = exactRate(q);
  const p = Number(bottom - top) / Number(bottom);
  if (p === 0 || p === 1) return p;
  const [all, logP, logQ] = [logFactorial(n), Math.log(p), Math.log1p(-p)];
  let fewer = 0;
  for (let j = 0; j < k; j += 1)
    fewer += Math.exp(all - logFactorial(j) - logFactorial(n - j) + j * logP + (n - j) * logQ);
  return Math.min(1, Math.max(0, 1 - fewer));
}

function rising(chance, wanted) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 40; i += 1) {
    const middle = (low + high) / 2;
    if (chance(middle) < wanted) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

// Between which two shares the true one lies, by so many hits of independent tries (Clopper and Pearson).
export function shareInterval(hits, number, confidence = 0.95) {
  const rest = (1 - confidence) / 2;
  const low = hits === 0 ? 0 : rising((p) => keptChance(hits, number, 1 - p), rest);
  const high = hits === number ? 1 : rising((p) => keptChance(hits + 1, number, 1 - p), 1 - rest);
  return [low, high];
}

// Strangers: one population of the card

// The population whose templates are nearest in size, of attempts of one sample; undefined where there is none.
export function find(cohort, kind, size) {
  const far = (one) => Math.abs(Math.log(Math.max(1, size) / Math.max(1, one.template)));
  const fits = cohort.filter((one) => one.kind === kind && one.together <= 1);
  return fits.reduce((best, one) => (best === undefined || far(one) < far(best) ? one : best), undefined);
}

export const words = (strangers) => `${strangers.owners} owners and ${strangers.who}`;

function interp(x, xs, ys) {
  if (x < xs[0]) return ys[0];
  if (x >= xs[xs.length - 1]) return ys[ys.length - 1];
  let at = 0;
  while (xs[at + 1] <= x) at += 1;
  return ys[at] + ((ys[at + 1] - ys[at]) / (xs[at + 1] - xs[at])) * (x - xs[at]);
}

// The share of strangers that reach a threshold: {value, low, high}.
export function letIn(strangers, threshold) {
  const { rate, pooled, low: lows, highs } = strangers;
  const most = highs[highs.length - 1];
  const value = threshold < pooled[0] ? 1 : Math.exp(interp(threshold, pooled, rate.map(Math.log)));
  const under = most.filter((one) => one < threshold).length;
  const over = lows.filter((one) => one <= threshold).length;
  const high = under === 0 ? 1 : rate[under - 1];
  const low = over < rate.length ? rate[over] : 0;
  return { value, low: Math.min(low, value), high: Math.max(high, value) };
}

export function nextAfter(value) {
  if (value === 0) return Number.MIN_VALUE;
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  view.setBigInt64(0, view.getBigInt64(0) + (value > 0 ? 1n : -1n));
  return view.getFloat64(0);
}

// [the lowest threshold known to let in at most this share of strangers, for which share of owners].
export function bound(strangers, fpr, confidence = 0.95) {
  const rows = strangers.highs.length;
  const fitting = LEVELS.slice(0, rows).findIndex((level) => level >= confidence);
  const row = fitting < 0 ? rows - 1 : fitting;
  const at = strangers.rate.findIndex((rate) => rate <= fpr * (1 + 1e-9));
  if (at < 0)
    throw new Refused(
      `The model's cohort of ${strangers.owners} owners shows rates from ${strangers.rate[strangers.rate.length - 1]} on, not ${fpr}.`,
    );
  return [nextAfter(strangers.highs[row][at]), strangers.confidence[row]];
}

// Rules: {name: "tpr", tpr} or {name: "fpr", fpr}

const RULES = {
  tpr({ tpr }, scores) {
    const sorted = Float64Array.from(scores).sort();
    const n = sorted.length;
    const [top, bottom] = exactRate(tpr);
    const i = Math.max(1, Number((BigInt(n) * (bottom - top)) / bottom)); // FedUV, Algorithm 2
    const chance = keptChance(i, n, tpr);
    const note = `aims at a TPR of ${percent4(tpr)} and reaches it with a chance of ${percent4(chance)}`;
    return { value: sorted[i - 1], note };
  },
  fpr({ fpr }, scores, strangers) {
    if (!strangers) throw new Refused("The model carries no cohort of strangers, by which this rule goes.");
    const [value, sure] = bound(strangers, fpr);
    const note = `at most ${percent4(fpr)} of strangers for ${(100 * sure).toPrecision(3) * 1} % of owners, by ${words(strangers)}`;
    return { value, note };
  },
};

export const threshold = (rule, scores, strangers) => RULES[rule.name](rule, scores, strangers);

// What a threshold will do: the owner's samples that it refuses, the strangers that it lets in (undefined: unknown).
export function expect(value, scores, strangers) {
  const below = scores.filter((one) => one < value).length;
  const [low, high] = shareInterval(below, scores.length);
  const refused = { value: (below + 1) / (scores.length + 1), low, high };
  return { refused, letIn: strangers && letIn(strangers, value), source: strangers ? words(strangers) : "" };
}

export function check(value, kind, expected, mostFpr = MOST_FPR) {
  if (value <= FLOORS[kind]) throw new Refused("At this threshold everybody would be let in.");
  if (value > CEILINGS[kind]) throw new Refused("At this threshold nobody would be let in.");
  if (expected.letIn && expected.letIn.value > mostFpr)
    throw new Refused(
      `At the threshold ${value.toFixed(4)}, ${percent(expected.letIn.value)} of strangers are expected to be let in, more than ${percent(mostFpr)}. Give more or better samples, or take the other rule.`,
    );
}

// Refuse scores that strangers would have, or doubt them in words.
export function checkOnePerson(own, strangers, what) {
  const limit = strangers?.limits.filter(([size]) => size <= own.length).pop()?.[1];
  if (limit === undefined) return "";
  const share = own.filter((one) => one < strangers.even).length / own.length;
  if (share <= limit) return "";
  const odd = `${percent(share)} of ${what} score as strangers do (below ${strangers.even.toFixed(4)}), of ${strangers.owners} owners nobody had more than ${percent(limit)}`;
  if (strangers.owners < SURE_OWNERS) return odd;
  throw new Refused(`${odd}. Are the samples all of one person, and of the right one?`);
}

function spaced(length, most) {
  const number = Math.min(length, most);
  const step = (length - 1) / Math.max(1, number - 1);
  return Array.from({ length: number }, (_, i) => (i === number - 1 ? length - 1 : Math.floor(i * step)));
}

export function doubts(card, vectors, scores, madeFrom) {
  const found = [];
  const pairs = find(card.cohort, "enrolled", 1);
  if (pairs?.template === 1 && vectors.length > 1) {
    const few = spaced(vectors.length, MOST_PAIRED).map((at) => vectors[at]);
    const upper = few.flatMap((one, i) => few.slice(i + 1).map((two) => score(card, two, template(card, [one]))));
    found.push(checkOnePerson(upper, pairs, "their pairs"));
  }
  found.push(checkOnePerson(scores, find(card.cohort, "enrolled", madeFrom), "their scores against the template"));
  return found.filter(Boolean);
}

// What a device keeps of its user. The first half of the samples makes the template, the other half the threshold: a
// sample that made the template fits it too well.
export function enrol(card, vectors, rule, mostFpr = MOST_FPR) {
  if (vectors.length < 2) throw new Refused("At least 2 samples are needed: some make the template, others the threshold.");
  const split = vectors.length - Math.floor(vectors.length / 2);
  const vector = template(card, vectors.slice(0, split));
  const scores = vectors.slice(split).map((one) => score(card, one, vector));
  const odd = doubts(card, vectors, scores, split);
  const strangers = find(card.cohort, "enrolled", split);
  const { value, note } = threshold(rule, scores, strangers);
  const expected = expect(value, scores, strangers);
  check(value, card.score, expected, mostFpr);
  return { template: vector, scores, rule, threshold: value, madeFrom: split, note, expected, doubts: odd };
}

// Numbers in words

export const percent = (share) => `${Number((100 * share).toPrecision(share < 0.1 ? 2 : 3))}\u00a0%`;
const percent4 = (share) => `${Number((100 * share).toPrecision(4))}\u00a0%`;
