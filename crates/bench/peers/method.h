// What the peers' benchmarks share: cases, method and output. The same as ../src/{op,case,timing,line}.rs; for C and C++.
//
// A sample is {write the buffer, barrier, clock, operation, clock}, and the longest of all ranks counts; the median is
// reported. The result is checked before anything is timed.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum Op { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECV, BARRIER, OPS };
static const char *const OP_NAMES[OPS] = {"all_reduce", "broadcast",  "all_gather", "reduce_scatter",
                                          "all_to_all", "send_recv", "barrier"};
static const size_t SIZES[] = {4, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
enum { SIZES_LEN = sizeof SIZES / sizeof *SIZES, SAMPLES_MIN = 7, SAMPLES_MAX = 4000, PROBES = 4, LOOK_EVERY = 16 };

// What to measure: budget_ms ops min_bytes max_bytes peer transport.
typedef struct {
  double budget_s;
  const char *ops, *peer, *transport;
  size_t min_bytes, max_bytes;
} Flags;

// One operation at one size. `in` is overwritten where the operation works in place; `out` is unused then.
typedef struct {
  enum Op op;
  int rank, world;
  size_t bytes, block, in_len, out_len;
  float *in, *out;
} Case;

// How a library performs what the method needs.
typedef struct {
  void *context;
  void (*barrier)(void *context);
  void (*perform)(void *context, Case *c);
  // Replaces each value by the greatest of all ranks.
  void (*longest)(void *context, double *values, size_t len);
} Peer;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static Flags parse(char **args) {
  Flags f;
  f.budget_s = atof(args[0]) * 1e-3;
  f.ops = args[1];
  f.min_bytes = strtoull(args[2], NULL, 10);
  f.max_bytes = strtoull(args[3], NULL, 10);
  f.peer = args[4];
  f.transport = args[5];
  return f;
}

// Small whole numbers: sums are exact in any order.
static float contribution(size_t rank, size_t i) { return (float)(i % 128 + rank); }

static void touch(Case *c) {
  for (size_t i = 0; i < c->in_len; i++) c->in[i] = contribution(c->rank, i);
}

static float sum(const Case *c, size_t i) {
  float s = 0;
  for (int r = 0; r < c->world; r++) s += contribution(r, i);
  return s;
}

static float expected(const Case *c, size_t i) {
  switch (c->op) {
    case ALL_REDUCE: return sum(c, i);
    case BROADCAST: return contribution(0, i);
    case ALL_GATHER: return contribution(i / c->in_len, i % c->in_len);
    case REDUCE_SCATTER: return sum(c, c->rank * c->block + i);
    case ALL_TO_ALL: return contribution(i / c->block, c->rank * c->block + i % c->block);
    default: return contribution(c->rank & ~1, i);
  }
}

static void check(const Case *c) {
  const float *result = c->out_len ? c->out : c->in;
  size_t len = c->out_len ? c->out_len : c->in_len;
  for (size_t i = 0; i < len; i++)
    if (result[i] != expected(c, i)) {
      fprintf(stderr, "rank %d, %s of %zu bytes: wrong at element %zu\n", c->rank, OP_NAMES[c->op], c->bytes, i);
      exit(1);
    }
}

// Whether `op` at `bytes` is asked for and makes sense; sets up its buffers if so.
static int begin(Case *c, const Flags *f, enum Op op, size_t bytes, int rank, int world) {
  const char *found = strstr(f->ops, OP_NAMES[op]);
  if (!found || (op != BARRIER && (bytes < f->min_bytes || bytes > f->max_bytes))) return 0;
  if (op == BARRIER) bytes = 0;
  size_t len = bytes / sizeof(float), block = len / world, whole = block * world;
  Case made = {op, rank, world, bytes, block, len, 0, NULL, NULL};
  if (op == ALL_GATHER) made.in_len = block, made.out_len = whole;
  if (op == REDUCE_SCATTER) made.in_len = whole, made.out_len = block;
  if (op == ALL_TO_ALL) made.in_len = whole, made.out_len = whole;
  if (op != BARRIER && !made.in_len) return 0;
  made.in = (float *)aligned_alloc(64, (made.in_len * sizeof(float) + 64) & ~(size_t)63);
  made.out = (float *)aligned_alloc(64, (made.out_len * sizeof(float) + 64) & ~(size_t)63);
  *c = made;
  return 1;
}

static void end(Case *c) {
  free(c->in);
  free(c->out);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double sample(const Peer *p, Case *c) {
  touch(c);
  p->barrier(p->context);
  double begun = now();
  p->perform(p->context, c);
  return now() - begun;
}

static void measure(const Peer *p, Case *c, const Flags *f) {
  touch(c);
  p->perform(p->context, c);
  check(c);
  double quickest = INFINITY;
  for (int i = 0; i < PROBES; i++) quickest = fmin(quickest, sample(p, c));
  p->longest(p->context, &quickest, 1);
  double fit = f->budget_s / quickest;
  int wanted = fit < SAMPLES_MIN ? SAMPLES_MIN : fit > SAMPLES_MAX ? SAMPLES_MAX : (int)fit, done = 0;
  for (int i = 0; i <= wanted / 10; i++) sample(p, c);
  static double samples[SAMPLES_MAX];
  double begun = now();
  while (done < wanted) {
    samples[done++] = sample(p, c);
    if (done % LOOK_EVERY == 0) {
      double over = now() - begun - (4 * f->budget_s + 1);
      p->longest(p->context, &over, 1);
      if (over > 0) break;
    }
  }
  p->longest(p->context, samples, done);
  p->barrier(p->context);
  begun = now();
  for (int i = 0; i < done; i++) p->perform(p->context, c);
  double back_to_back = (now() - begun) / done, mean = 0;
  p->longest(p->context, &back_to_back, 1);
  if (c->rank) return;
  for (int i = 0; i < done; i++) mean += samples[i] / done;
  qsort(samples, done, sizeof *samples, ascending);
  double us = 1e6 / (c->op == SEND_RECV ? 2 : 1), median = samples[done / 2] * us;
  printf("%s,%s,%s,%d,%zu,%.3f,%.4f,%.3f,%.3f,%.3f,%d\n", f->peer, f->transport, OP_NAMES[c->op], c->world, c->bytes,
         median, c->bytes / median * 1e-3, mean * us, back_to_back * us, samples[0] * us, done);
  fflush(stdout);
}
