/* Convolutions by six points (Winograd, 1980). Along a line, M places of the output read the six places of the input that
   lie under them. Both sides of such a product are polynomials, and six points decide what comes out: the numbers are taken
   to these points, multiplied there one by one, and taken back. In a square of 6 x 6 that is 36 multiplications for M x M
   places, where SIDE x SIDE taps need M x M x SIDE x SIDE: M is 2 for 5 taps (100) and 4 for 3 (144).

   The points are 0, +-NEAR, +-FAR and infinity; NEAR * FAR = 1, which keeps the rounding small. A square lies as 36 planes. */

#define SQUARE 36
static const real NEAR = 0.70710678118654752440, FAR = 1.41421356237309504880;

/* Six numbers of the input at the points. */
INLINE void input_points(const vec d0, const vec d1, const vec d2, const vec d3, const vec d4, const vec d5, vec *t,
                         const int STEP) {
  const vec e1 = d4 - 2.0f * d2, o1 = NEAR * (d3 - 2.0f * d1), e2 = d4 - 0.5f * d2, o2 = FAR * (d3 - 0.5f * d1);
  t[0] = d0 - 2.5f * d2 + d4;
  t[STEP] = e1 + o1;
  t[2 * STEP] = e1 - o1;
  t[3 * STEP] = e2 + o2;
  t[4 * STEP] = e2 - o2;
  t[5 * STEP] = d1 - 2.5f * d3 + d5;
}

/* The taps of a line of kernels at the points, over what the points stand apart. */
INLINE void kernel_points(const vec *g, const int FROM, const int SIDE, vec *t, const int STEP) {
  const vec g0 = g[0], g1 = g[FROM], g2 = g[2 * FROM];
  const vec g3 = SIDE == 5 ? g[3 * FROM] : (vec){0}, g4 = SIDE == 5 ? g[4 * FROM] : (vec){0};
  const vec e1 = (g0 + 0.5f * g2 + 0.25f * g4) / -1.5f, o1 = NEAR * (g1 + 0.5f * g3) / -1.5f;
  const vec e2 = (g0 + 2.0f * g2 + 4.0f * g4) / 6.0f, o2 = FAR * (g1 + 2.0f * g3) / 6.0f;
  t[0] = g0;
  t[STEP] = e1 + o1;
  t[2 * STEP] = e1 - o1;
  t[3 * STEP] = e2 + o2;
  t[4 * STEP] = e2 - o2;
  t[5 * STEP] = SIDE == 5 ? g4 : g2;
}

/* The way back for derivatives: from those at the points to those in the taps. */
INLINE void kernel_taps(const vec *t, const int FROM, const int SIDE, vec *g, const int STEP) {
  const vec s1 = (t[FROM] + t[2 * FROM]) / -1.5f, d1 = NEAR * (t[FROM] - t[2 * FROM]) / -1.5f;
  const vec s2 = (t[3 * FROM] + t[4 * FROM]) / 6.0f, d2 = FAR * (t[3 * FROM] - t[4 * FROM]) / 6.0f;
  g[0] = t[0] + s1 + s2;
  g[STEP] = d1 + d2;
  g[2 * STEP] = 0.5f * s1 + 2.0f * s2;
  if (SIDE == 5) {
    g[3 * STEP] = 0.5f * d1 + 2.0f * d2;
    g[4 * STEP] = 0.25f * s1 + 4.0f * s2 + t[5 * FROM];
  } else {
    g[2 * STEP] += t[5 * FROM];
  }
}

/* From the points to M places of the output. */
INLINE void output_places(const vec *t, const int FROM, const int M, vec *y, const int STEP) {
  const vec s1 = t[FROM] + t[2 * FROM], d1 = NEAR * (t[FROM] - t[2 * FROM]);
  const vec s2 = t[3 * FROM] + t[4 * FROM], d2 = FAR * (t[3 * FROM] - t[4 * FROM]);
  y[0] = t[0] + s1 + s2;
  if (M == 2) {
    y[STEP] = d1 + d2 + t[5 * FROM];
  } else {
    y[STEP] = d1 + d2;
    y[2 * STEP] = 0.5f * s1 + 2.0f * s2;
    y[3 * STEP] = 0.5f * d1 + 2.0f * d2 + t[5 * FROM];
  }
}

/* The way back for derivatives: from those in M places of the output to those at the points. */
INLINE void output_points(const vec *y, const int FROM, const int M, vec *t, const int STEP) {
  const vec y0 = y[0], y1 = y[FROM], y2 = M == 4 ? y[2 * FROM] : (vec){0}, y3 = M == 4 ? y[3 * FROM] : (vec){0};
  const vec e1 = y0 + 0.5f * y2, o1 = NEAR * (y1 + 0.5f * y3), e2 = y0 + 2.0f * y2, o2 = FAR * (y1 + 2.0f * y3);
  t[0] = y0;
  t[STEP] = e1 + o1;
  t[2 * STEP] = e1 - o1;
  t[3 * STEP] = e2 + o2;
  t[4 * STEP] = e2 - o2;
  t[5 * STEP] = M == 4 ? y3 : y1;
}

/* A square of the input, CS numbers a place, at the points. */
INLINE void lift_whole(const real *a, const int ROW, const int STEP, const int CS, real *to, const int PLANE) {
  for (int c = 0; c < CS; c += V) {
    vec t[SQUARE], s[6];
    for (int j = 0; j < 6; j++) {
      const real *p = a + j * STEP + c;
      input_points(AT(p), AT(p + ROW), AT(p + 2 * ROW), AT(p + 3 * ROW), AT(p + 4 * ROW), AT(p + 5 * ROW), t + j, 6);
    }
    for (int k = 0; k < 6; k++) {
      const vec *u = t + 6 * k;
      input_points(u[0], u[1], u[2], u[3], u[4], u[5], s, 1);
      for (int l = 0; l < 6; l++) PUT(to + (6 * k + l) * PLANE + c) = s[l];
    }
  }
}

/* The same for one of which only `tall` rows and `broad` columns are there; the rest counts as zeros. */
INLINE void lift(const real *a, const int ROW, const int STEP, const int CS, const int tall, const int broad, real *to,
                 const int PLANE) {
  if (tall >= 6 && broad >= 6) {
    lift_whole(a, ROW, STEP, CS, to, PLANE);
    return;
  }
  real part[SQUARE * WIDEST];
  memset(part, 0, sizeof(real) * SQUARE * CS);
  for (int i = 0; i < 6 && i < tall; i++)
    for (int j = 0; j < 6 && j < broad; j++)
      memcpy(part + (6 * i + j) * CS, a + i * ROW + j * STEP, sizeof(real) * CS);
  lift_whole(part, 6 * CS, CS, CS, to, PLANE);
}

/* The derivatives in M x M places of the output, of which `tall` x `broad` are there, at the points. */
INLINE void lift_pulls(const real *dy, const int ROW, const int STEP, const int CS, const int M, const int tall,
                       const int broad, real *to, const int PLANE) {
  for (int c = 0; c < CS; c += V) {
    vec y[16], t[24], s[6];
    for (int i = 0; i < M; i++)
      for (int j = 0; j < M; j++) y[M * i + j] = i < tall && j < broad ? AT(dy + i * ROW + j * STEP + c) : (vec){0};
    for (int j = 0; j < M; j++) output_points(y + j, M, M, t + j, M);
    for (int k = 0; k < 6; k++) {
      output_points(t + M * k, 1, M, s, 1);
      for (int l = 0; l < 6; l++) PUT(to + (6 * k + l) * PLANE + c) = s[l];
    }
  }
}

/* M x M places of the output from the points: on `row`, or what is there, or nothing. */
INLINE void land(const real *from, const int PLANE, const int CS, const int M, const real *row, const int ADD,
                 real *out, const int ROW, const int STEP, const int tall, const int broad) {
  for (int c = 0; c < CS; c += V) {
    const vec begin = row ? AT(row + c) : (vec){0};
    vec t[24], u[6], y[4];
    for (int l = 0; l < 6; l++) {
      for (int k = 0; k < 6; k++) u[k] = AT(from + (6 * k + l) * PLANE + c);
      output_places(u, 1, M, t + l, 6);
    }
    for (int i = 0; i < M; i++) {
      if (i >= tall) break;
      output_places(t + 6 * i, 1, M, y, 1);
      for (int j = 0; j < M; j++) {
        if (j >= broad) break;
        real *to = out + i * ROW + j * STEP + c;
        PUT(to) = (ADD ? AT(to) : begin) + y[j];
      }
    }
  }
}

/* As many of a vector's numbers as there are, then zeros. */
INLINE vec some(const real *p, const int count) {
  if (count >= V) return AT(p);
  vec found = {0};
  for (int i = 0; i < count; i++) found[i] = p[i];
  return found;
}

INLINE void square_of(const vec *g, const int SIDE, vec *u) {
  vec t[30];
  for (int j = 0; j < SIDE; j++) kernel_points(g + j, SIDE, SIDE, t + j, SIDE);
  for (int k = 0; k < 6; k++) kernel_points(t + SIDE * k, 1, SIDE, u + 6 * k, 1);
}

/* Kernels (O, SIDE, SIDE, I) at the points: (SQUARE, I, OB), from channel FIRST of the output on. */
INLINE void pack_points(const real *w, const int O, const int SIDE, const int I, const int OB, const int FIRST,
                        real *out) {
  if (FIRST + OB > O) memset(out, 0, sizeof(real) * SQUARE * I * OB);
  for (int o = 0; o < OB && FIRST + o < O; o++)
    for (int i = 0; i < I; i += V) {
      vec g[25], u[SQUARE];
      for (int t = 0; t < SIDE * SIDE; t++) g[t] = some(w + ((FIRST + o) * SIDE * SIDE + t) * I + i, I - i);
      square_of(g, SIDE, u);
      for (int q = 0; q < SQUARE; q++)
        for (int k = 0; k < V && i + k < I; k++) out[(q * I + i + k) * OB + o] = u[q][k];
    }
}

/* The same turned round, for the derivatives in the input: (SQUARE, O, IB), from channel FIRST of the input on. */
INLINE void pack_points_turned(const real *w, const int O, const int SIDE, const int I, const int IB, const int FIRST,
                               real *out) {
  for (int o = 0; o < O; o++)
    for (int i = 0; i < IB; i += V) {
      vec g[25], u[SQUARE];
      for (int t = 0; t < SIDE * SIDE; t++)
        g[SIDE * SIDE - 1 - t] = some(w + (o * SIDE * SIDE + t) * I + FIRST + i, I - FIRST - i);
      square_of(g, SIDE, u);
      for (int q = 0; q < SQUARE; q++) PUT(out + (q * O + o) * IB + i) = u[q];
    }
}

/* What was added up at the points (SQUARE, I, OS) as derivatives in the kernels, (TAPS, OS). */
INLINE void sums_of_points(const real *sum, const int SIDE, const int I, const int OS, real *out) {
  for (int i = 0; i < I; i++)
    for (int c = 0; c < OS; c += V) {
      vec u[SQUARE], t[30], g[25];
      for (int q = 0; q < SQUARE; q++) u[q] = AT(sum + (q * I + i) * OS + c);
      for (int l = 0; l < 6; l++) kernel_taps(u + l, 6, SIDE, t + l, 6);
      for (int k = 0; k < SIDE; k++) kernel_taps(t + 6 * k, 1, SIDE, g + SIDE * k, 1);
      for (int q = 0; q < SIDE * SIDE; q++) PUT(out + (q * I + i) * OS + c) = g[q];
    }
}
