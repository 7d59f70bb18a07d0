/* The two passes over the images of several networks, shared out among threads. What one network needs stands above. */

#include <pthread.h>

struct job {
  const real *theta, *x, *pull;
  real *saved, *emb, *grad, *carry, *space;
  int64_t step, count, first, last; /* numbers from one theta to the next; images of a network; this thread's images */
  int keep;
};

static void *forward_part(void *given) {
  const struct job *job = given;
  int64_t packed = -1;
  for (int64_t i = job->first; i < job->last;) {
    const int64_t m = i / job->count, end = (m + 1) * job->count < job->last ? (m + 1) * job->count : job->last;
    const int64_t n = end - i < CHUNK ? end - i : CHUNK;
    const real *theta = job->theta + m * job->step;
    if (packed < 0 || (job->step && packed != m)) pack_forward(theta, job->space);
    packed = m;
    real *saved = job->saved + (job->keep ? i * SAVED : 0);
    for (int64_t b = 0; b < n; b++)
      forward_image(job->x + (i + b) * SAMPLE, theta, job->space, saved + b * SAVED);
    linear_forward(saved + FEATURES, theta, job->emb + i * WIDTH, (int)n);
    i += n;
  }
  return 0;
}

/* A thread's first network may have been begun by another thread: what it adds to that goes to a row of its own. */
static void *backward_part(void *given) {
  const struct job *job = given;
  int64_t packed = -1, begun = -1;
  real *row = 0;
  memset(job->space, 0, sizeof(real) * SPACE);
  for (int64_t i = job->first; i < job->last;) {
    const int64_t m = i / job->count, end = (m + 1) * job->count < job->last ? (m + 1) * job->count : job->last;
    const int64_t n = end - i < CHUNK ? end - i : CHUNK;
    const real *theta = job->theta + m * job->step;
    if (m != begun) {
      if (begun >= 0) give_all(job->theta + begun * job->step, job->space, row);
      row = begun < 0 && i % job->count ? job->carry : job->grad + m * SIZE;
      begun = m;
    }
    if (packed < 0 || (job->step && packed != m)) pack_backward(theta, job->space);
    packed = m;
    const real *saved = job->saved + i * SAVED, *pull = job->pull + i * WIDTH;
    linear_backward(saved + FEATURES, theta, pull, job->space + PULLS, row, (int)n);
    for (int64_t b = 0; b < n; b++)
      backward_image(theta, saved + b * SAVED, job->space + PULLS + b * PULLED, job->space);
    i += n;
  }
  if (begun >= 0) give_all(job->theta + begun * job->step, job->space, row);
  return 0;
}

/* PyTorch's own threads, where they are GNU's: between two of its operators these wait by running in a circle, and other
   threads would have to share the processor with them. */
#ifdef __linux__
extern void GOMP_parallel(void (*part)(void *), void *given, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

struct team {
  void *(*part)(void *);
  struct job *jobs;
  int threads;
};

static void member(void *given) {
  const struct team *team = given;
  for (int t = omp_get_thread_num(); t < team->threads; t += omp_get_num_threads()) team->part(&team->jobs[t]);
}

static int as_team(void *(*part)(void *), struct job *jobs, int threads) {
  struct team team = {part, jobs, threads};
  if (!GOMP_parallel || !omp_get_thread_num || !omp_get_num_threads) return 0;
  GOMP_parallel(member, &team, (unsigned)threads, 0);
  return 1;
}
#else
static int as_team(void *(*part)(void *), struct job *jobs, int threads) {
  (void)part, (void)jobs, (void)threads;
  return 0;
}
#endif

static void share(void *(*part)(void *), struct job job, int64_t images, int threads) {
  struct job jobs[MOST_THREADS];
  for (int t = 0; t < threads; t++) {
    jobs[t] = job;
    jobs[t].first = images * t / threads;
    jobs[t].last = images * (t + 1) / threads;
    jobs[t].space = job.space + (int64_t)t * SPACE;
    if (!job.keep) jobs[t].saved = job.saved + (int64_t)t * CHUNK * SAVED;
    if (job.carry) jobs[t].carry = job.carry + (int64_t)t * SIZE;
  }
  if (threads > 1 && as_team(part, jobs, threads)) return;
  pthread_t others[MOST_THREADS];
  int begun[MOST_THREADS];
  for (int t = 1; t < threads; t++) begun[t] = !pthread_create(&others[t], 0, part, &jobs[t]);
  part(&jobs[0]);
  for (int t = 1; t < threads; t++) {
    if (begun[t])
      pthread_join(others[t], 0);
    else
      part(&jobs[t]);
  }
}

/* Embeddings (M, count, WIDTH) of images (M, count, SAMPLE). With `keep`, `saved` has room for all images, else for
   CHUNK of each thread. */
void selfsame_forward(const real *theta, int64_t step, const real *x, int64_t networks, int64_t count, real *saved,
                      int keep, real *emb, real *space, int threads) {
  struct job job = {.theta = theta, .x = x, .saved = saved, .emb = emb, .space = space, .step = step, .count = count,
                    .keep = keep};
  share(forward_part, job, networks * count, threads);
}

/* The derivatives in each theta, added to `grad` (M, SIZE), from those in the embeddings. `carry` is (threads, SIZE). */
void selfsame_backward(const real *theta, int64_t step, int64_t networks, int64_t count, real *saved,
                       const real *pull, real *grad, real *carry, real *space, int threads) {
  struct job job = {.theta = theta, .pull = pull, .saved = saved, .grad = grad, .carry = carry, .space = space,
                    .step = step, .count = count, .keep = 1};
  const int64_t images = networks * count;
  share(backward_part, job, images, threads);
  for (int t = 1; t < threads; t++) {
    const int64_t first = images * t / threads;
    if (first == images * (t + 1) / threads || first % count == 0) continue;
    const real *from = carry + (int64_t)t * SIZE;
    real *to = grad + first / count * SIZE;
    for (int64_t i = 0; i < SIZE; i++) to[i] += from[i];
  }
}

/* Numbers that Python has to find room for: of an image's kept numbers, and of a thread's own. */
const int64_t selfsame_saved = SAVED, selfsame_space = SPACE;
