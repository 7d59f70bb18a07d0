/* What the passes of a small network are made of, for one image at a time. emit.py puts this in front of the code that
   it writes for one network; every size in capitals is then a constant, and the compiler does the rest.

   An image lies place by place, its channels innermost and filled up with zeros to whole vectors (CS numbers a place);
   it is ROW numbers from one row to the next, and V numbers are a vector. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if REAL == 64
typedef double real;
typedef int64_t whole;
#define ROOT sqrt
#else
typedef float real;
typedef int32_t whole;
#define ROOT sqrtf
#endif

typedef real vec __attribute__((vector_size(sizeof(real) * V)));
typedef whole mask __attribute__((vector_size(sizeof(real) * V)));
typedef real loose __attribute__((vector_size(sizeof(real) * V), aligned(sizeof(real)), may_alias)); /* anywhere */

#define INLINE static inline __attribute__((always_inline))
#define AT(p) ((vec)*(const loose *)(p))
#define PUT(p) (*(loose *)(p))

INLINE vec pick(mask which, vec yes, vec no) { return (vec)((which & (mask)yes) | (~which & (mask)no)); }

/* As PyTorch's max pooling: the first of equals, and not a number wherever there is one. */
INLINE mask beats(vec a, vec b) { return (a > b) | (a != a); }

INLINE vec activated(vec v, const real slope) {
  if (slope == 1.0f) return v;
  return pick(v > 0.0f, v, slope == 0.0f ? pick(v == v, (vec){0}, v) : v * slope);
}

/* The samples of an image (C, H, W), with B zeros around. */
INLINE void take_image(const real *x, real *out, const int H, const int W, const int C, const int CS, const int B) {
  const int ROW = (W + 2 * B) * CS;
  memset(out, 0, sizeof(real) * (H + 2 * B) * ROW);
  out += B * ROW + B * CS;
  for (int c = 0; c < C; c++)
    for (int i = 0; i < H; i++)
      for (int j = 0; j < W; j++) out[i * ROW + j * CS + c] = x[(c * H + i) * W + j];
}

/* The sums over an image of each channel's numbers less `from`, or of their squares. */
INLINE void add_up(const real *y, const int H, const int W, const int ROW, const int CS, const real *from,
                   const int SQUARE, real *out) {
  for (int c = 0; c < CS; c += V) {
    const vec m = AT(from + c);
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int i = 0; i < H; i++) {
      const real *p = y + i * ROW + c;
      int j = 0;
      for (; j + 4 <= W; j += 4, p += 4 * CS) {
        const vec a = AT(p) - m, b = AT(p + CS) - m, d = AT(p + 2 * CS) - m, e = AT(p + 3 * CS) - m;
        s0 += SQUARE ? a * a : a;
        s1 += SQUARE ? b * b : b;
        s2 += SQUARE ? d * d : d;
        s3 += SQUARE ? e * e : e;
      }
      for (; j < W; j++, p += CS) {
        const vec a = AT(p) - m;
        s0 += SQUARE ? a * a : a;
      }
    }
    PUT(out + c) = (s0 + s1) + (s2 + s3);
  }
}

/* Group norm as a * y + b for each channel; behind these two stand its mean and 1 / deviation. */
INLINE void norm_terms(const real *y, const int H, const int W, const int ROW, const int CS, const int C,
                       const int GROUPS, const real eps, const real *gamma, const real *beta, real *terms) {
  real sum[WIDEST] = {0}, mean[WIDEST] = {0};
  const int EACH = C / GROUPS;
  const real count = (real)H * W * EACH;
  add_up(y, H, W, ROW, CS, mean, 0, sum);
  for (int g = 0; g < GROUPS; g++) {
    real s = 0;
    for (int c = g * EACH; c < (g + 1) * EACH; c++) s += sum[c];
    for (int c = g * EACH; c < (g + 1) * EACH; c++) mean[c] = s / count;
  }
  add_up(y, H, W, ROW, CS, mean, 1, sum);
  memset(terms, 0, sizeof(real) * 4 * CS);
  for (int g = 0; g < GROUPS; g++) {
    real s = 0;
    for (int c = g * EACH; c < (g + 1) * EACH; c++) s += sum[c];
    const real scale = 1.0f / ROOT(s / count + eps);
    for (int c = g * EACH; c < (g + 1) * EACH; c++) {
      const real a = gamma ? gamma[c] * scale : scale;
      terms[c] = a;
      terms[CS + c] = (beta ? beta[c] : 0.0f) - mean[c] * a;
      terms[2 * CS + c] = mean[c];
      terms[3 * CS + c] = scale;
    }
  }
}

/* Norm, sum with another image, pooling and activation, H x W being the size of what comes out. Where there is no norm,
   `terms` is not read; where nothing is added, TROW is 0. Of `more`, every TSTEP numbers one is added, to its TS channels. */
INLINE void tail_forward(const real *y, const int H, const int W, const int ROW, const int CS, const int NORM,
                         const real *terms, const real *more, const int TROW, const int TSTEP, const int TS,
                         const real slope, const int POOL, real *z, const int OUT) {
  for (int c = 0; c < CS; c += V) {
    const vec a = NORM ? AT(terms + c) : (vec){0}, b = NORM ? AT(terms + CS + c) : (vec){0};
    for (int i = 0; i < H; i++)
      for (int j = 0; j < W; j++) {
        const real *p = y + POOL * (i * ROW + j * CS) + c;
        vec best = NORM ? a * AT(p) + b : AT(p);
#pragma GCC unroll 16
        for (int q = 1; q < POOL * POOL; q++) {
          const vec one = AT(p + (q / POOL) * ROW + (q % POOL) * CS);
          const vec v = NORM ? a * one + b : one;
          best = pick(beats(v, best), v, best);
        }
        if (TROW && c < TS) best += AT(more + i * TROW + j * TSTEP + c);
        PUT(z + i * OUT + j * CS + c) = activated(best, slope);
      }
  }
}

/* Which of a window's places the largest number came from, and that number before the norm. */
INLINE mask winner(const real *p, const int ROW, const int CS, const int NORM, vec a, vec b, const int POOL, vec *raw) {
  vec kept = AT(p), best = NORM ? a * kept + b : kept;
  mask which = {0};
#pragma GCC unroll 16
  for (int q = 1; q < POOL * POOL; q++) {
    const vec one = AT(p + (q / POOL) * ROW + (q % POOL) * CS);
    const vec v = NORM ? a * one + b : one;
    const mask now = beats(v, best);
    best = pick(now, v, best);
    kept = pick(now, one, kept);
    which = (now & ((mask){0} + q)) | (~now & which);
  }
  *raw = kept;
  return which;
}

INLINE vec pulled(const real *dz, const real *z, const real slope) {
  const vec d = AT(dz);
  if (slope == 1.0f) return d;
  return pick(AT(z) > 0.0f, d, slope == 0.0f ? (vec){0} : d * slope);
}

/* The derivatives of a tail: in its input, to dy (DROW numbers a row, DSTEP a place, of which H x W windows and what they
   leave out of YH x YW are written); in what was added, to dm; in the norm's parameters, added to dgamma and dbeta. */
INLINE void tail_backward(const real *y, const int YH, const int YW, const int H, const int W, const int ROW,
                          const int CS, const int C, const int NORM, const int GROUPS, const real *gamma,
                          const real *terms, const real slope, const int POOL, const real *z, const int OUT,
                          const real *dz, const int ZROW, const int ZSTEP, real *dy, const int DROW, const int DSTEP,
                          const int DADD, real *dm, const int MROW, const int MSTEP, const int MADD, const int MS,
                          real *dgamma, real *dbeta) {
  real k1[WIDEST] = {0}, k2[WIDEST] = {0};
  if (NORM) {
    for (int c = 0; c < CS; c += V) {
      const vec a = AT(terms + c), b = AT(terms + CS + c);
      vec g1 = {0}, g2 = {0};
      for (int i = 0; i < H; i++)
        for (int j = 0; j < W; j++) {
          vec raw;
          (void)winner(y + POOL * (i * ROW + j * CS) + c, ROW, CS, NORM, a, b, POOL, &raw);
          const vec g = pulled(dz + i * ZROW + j * ZSTEP + c, z + i * OUT + j * CS + c, slope);
          g1 += g;
          g2 += g * (raw - AT(terms + 2 * CS + c));
        }
      PUT(k1 + c) = g1;
      PUT(k2 + c) = g2 * AT(terms + 3 * CS + c);
    }
    const int EACH = C / GROUPS;
    const real count = (real)YH * YW * EACH;
    for (int g = 0; g < GROUPS; g++) {
      real s1 = 0, s2 = 0;
      for (int c = g * EACH; c < (g + 1) * EACH; c++) {
        dbeta[c] += k1[c];
        dgamma[c] += k2[c];
        s1 += (gamma ? gamma[c] : 1.0f) * k1[c];
        s2 += (gamma ? gamma[c] : 1.0f) * k2[c];
      }
      for (int c = g * EACH; c < (g + 1) * EACH; c++) {
        const real scale = terms[3 * CS + c], slant = scale * scale * s2 / count;
        k1[c] = scale * s1 / count - terms[2 * CS + c] * slant;
        k2[c] = slant;
      }
    }
  }
  for (int c = 0; c < CS; c += V) {
    const vec a = NORM ? AT(terms + c) : (vec){0}, b = NORM ? AT(terms + CS + c) : (vec){0};
    const vec c1 = AT(k1 + c), c2 = AT(k2 + c);
    for (int i = 0; i < H; i++)
      for (int j = 0; j < W; j++) {
        const real *p = y + POOL * (i * ROW + j * CS) + c;
        real *d = dy + POOL * (i * DROW + j * DSTEP) + c;
        vec raw;
        const mask which = winner(p, ROW, CS, NORM, a, b, POOL, &raw);
        const vec g = pulled(dz + i * ZROW + j * ZSTEP + c, z + i * OUT + j * CS + c, slope);
        const vec push = NORM ? g * a : g;
#pragma GCC unroll 16
        for (int q = 0; q < POOL * POOL; q++) {
          const int at = (q / POOL) * ROW + (q % POOL) * CS, to = (q / POOL) * DROW + (q % POOL) * DSTEP;
          vec v = POOL == 1 ? push : pick(which == (mask){0} + q, push, (vec){0});
          if (NORM) v -= c1 + c2 * AT(p + at);
          PUT(d + to) = DADD ? AT(d + to) + v : v;
        }
        if (MROW && c < MS) {
          real *m = dm + i * MROW + j * MSTEP + c;
          PUT(m) = MADD ? AT(m) + g : g;
        }
      }
    for (int i = 0; i < YH; i++) /* what no window covers */
      for (int j = i < H * POOL ? W * POOL : 0; j < YW; j++) {
        real *d = dy + i * DROW + j * DSTEP + c;
        const vec v = NORM ? -(c1 + c2 * AT(y + i * ROW + j * CS + c)) : (vec){0};
        PUT(d) = DADD ? AT(d) + v : v;
      }
  }
}

/* An image's numbers channel by channel, or each channel's mean; and back. */
INLINE void features_forward(const real *z, const int H, const int W, const int ROW, const int CS, const int C,
                             const int MEAN, real *out) {
  if (MEAN) {
    real sum[WIDEST], none[WIDEST] = {0};
    add_up(z, H, W, ROW, CS, none, 0, sum);
    for (int c = 0; c < C; c++) out[c] = sum[c] / (H * W);
    return;
  }
  for (int i = 0; i < H; i++)
    for (int j = 0; j < W; j++)
      for (int c = 0; c < C; c++) out[(c * H + i) * W + j] = z[i * ROW + j * CS + c];
}

INLINE void features_backward(const real *pull, const int H, const int W, const int C, const int MEAN, real *dz,
                              const int DROW, const int DSTEP) {
  for (int i = 0; i < H; i++)
    for (int j = 0; j < W; j++)
      for (int c = 0; c < C; c++)
        dz[i * DROW + j * DSTEP + c] = MEAN ? pull[c] / (H * W) : pull[(c * H + i) * W + j];
}

/* The sum over places of a convolution's derivatives, added to those in its bias. */
INLINE void bias_backward(const real *dy, const int H, const int W, const int DROW, const int DSTEP, const int CS,
                          real *out) {
  for (int c = 0; c < CS; c += V) {
    vec s = {0};
    for (int i = 0; i < H; i++)
      for (int j = 0; j < W; j++) s += AT(dy + i * DROW + j * DSTEP + c);
    PUT(out + c) += s;
  }
}

/* Kernels (O, TAPS) as (blocks of OB channels, TAPS, OB), with zeros where there are no more channels. */
INLINE void pack_kernels(const real *w, const int O, const int SIDE, const int I, const int OB, const int FIRST,
                         real *out) {
  const int TAPS = SIDE * SIDE * I;
  for (int t = 0; t < TAPS; t++)
    for (int o = 0; o < OB; o++) out[t * OB + o] = FIRST + o < O ? w[(FIRST + o) * TAPS + t] : 0.0f;
}

/* Kernels (O, SIDE, SIDE, I) turned round, for the derivatives in the input: (SIDE, SIDE, O, IB), from channel FIRST on. */
INLINE void pack_turned(const real *w, const int O, const int SIDE, const int I, const int IB, const int FIRST,
                        real *out) {
  for (int t = 0; t < SIDE * SIDE; t++)
    for (int o = 0; o < O; o++)
      for (int i = 0; i < IB; i++)
        out[((SIDE * SIDE - 1 - t) * O + o) * IB + i] = FIRST + i < I ? w[(o * SIDE * SIDE + t) * I + FIRST + i] : 0.0f;
}

/* Each of O rows less its mean and over its deviation; TINY is added to the variance. */
INLINE void standardise(const real *w, const int O, const int TAPS, const real tiny, real *out) {
  for (int o = 0; o < O; o++, w += TAPS, out += TAPS) {
    real s = 0, q = 0;
    for (int t = 0; t < TAPS; t++) s += w[t];
    const real mean = s / TAPS;
    for (int t = 0; t < TAPS; t++) q += (w[t] - mean) * (w[t] - mean);
    const real scale = 1.0f / ROOT(q / TAPS + tiny);
    for (int t = 0; t < TAPS; t++) out[t] = (w[t] - mean) * scale;
  }
}

/* What was added up for kernels as (TAPS, OS), added to `out` as (O, TAPS). */
INLINE void give_kernels(const real *sum, const int O, const int TAPS, const int OS, real *out) {
  for (int o = 0; o < O; o++)
    for (int t = 0; t < TAPS; t++) out[o * TAPS + t] += sum[t * OS + o];
}

/* The same where the kernels `w` were standardised. */
INLINE void give_standard(const real *sum, const real *w, const int O, const int TAPS, const int OS, const real tiny,
                          real *out) {
  for (int o = 0; o < O; o++, w += TAPS) {
    real s = 0, q = 0, g = 0, h = 0;
    for (int t = 0; t < TAPS; t++) s += w[t];
    const real mean = s / TAPS;
    for (int t = 0; t < TAPS; t++) q += (w[t] - mean) * (w[t] - mean);
    const real scale = 1.0f / ROOT(q / TAPS + tiny);
    for (int t = 0; t < TAPS; t++) {
      g += sum[t * OS + o];
      h += sum[t * OS + o] * (w[t] - mean) * scale;
    }
    for (int t = 0; t < TAPS; t++)
      out[o * TAPS + t] += scale * (sum[t * OS + o] - g / TAPS - (w[t] - mean) * scale * (h / TAPS));
  }
}

INLINE void give(const real *sum, const int COUNT, real *out) {
  for (int i = 0; i < COUNT; i++) out[i] += sum[i];
}
