// What the peers' programs share: cases, method and output, as ../src/{task,op,timing,line}.rs have them. For C and C++.
//
//   program op budget_s samples warmup touch rounds port bytes...        with -1 for what the method decides
//
// Each size is measured `rounds` times, when it is this library's turn: a byte comes from `port` of this host then, and a byte goes back.
// A sample is {rewrite the buffer, barrier, clock, operation, clock}, and the longest of all ranks counts. The result is
// checked before and after. Rank 0 prints a line a case:
//
//   case <bytes> <in|out> <variant, or -> <wrong elements> <ns back to back> <ns of each sample>...
#pragma once
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum Op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, SEND_RECV, BARRIER, OPS };
static const char *const OP_NAMES[OPS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                          "gather",     "scatter",        "all_to_all", "send_recv", "barrier"};
// How long a rank spins before it measures, so that ranks that wake up together do not share a core.
static const double SETTLE_S = 0.01;
enum { SAMPLES_MIN = 7, SAMPLES_MAX = 4000, PROBES = 4, LOOK_EVERY = 16, PERIOD = 1021, ROOT = 0 };

typedef struct {
  enum Op op;
  double budget_s;
  int samples, warmup, touch, rounds;
  // The socket from which turns come, once `meet` has been called.
  int turns, port;
  // Sizes of the whole buffer.
  char **bytes;
  int bytes_len;
} Task;

// One operation at one size. `in` is what this rank contributes; where the operation works in place it is overwritten
// and `out` is the same memory, else `out` receives. What comes back to a rank that has sent is received there, too: in the
// buffer that it has sent, it would be right from before. Blocks have `count` elements, or the buffer where there are none.
typedef struct {
  enum Op op;
  int rank, world, in_place;
  size_t bytes, count, in_len, out_len;
  float *in, *out, *memory[2];
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

static Task parse(int argc, char **argv) {
  Task t = {OPS, 0, 0, 0, 0, 0, -1, 0, argv + 8, argc - 8};
  for (int op = 0; argc > 8 && op < OPS; op++)
    if (!strcmp(argv[1], OP_NAMES[op])) t.op = (enum Op)op;
  if (t.op == OPS) {
    fprintf(stderr, "usage: %s op budget_s samples warmup touch rounds port bytes...\n", argv[0]);
    exit(2);
  }
  t.budget_s = atof(argv[2]);
  t.samples = atoi(argv[3]);
  t.warmup = atoi(argv[4]);
  t.touch = atoi(argv[5]);
  t.rounds = atoi(argv[6]);
  t.port = atoi(argv[7]);
  return t;
}

// Connects to the benchmark, which gives the turns.
static void meet(Task *t) {
  struct sockaddr_in there;
  memset(&there, 0, sizeof there);
  there.sin_family = AF_INET;
  there.sin_port = htons((uint16_t)t->port);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  t->turns = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(t->turns, (struct sockaddr *)&there, sizeof there)) {
    perror("connecting to the benchmark, which gives the turns");
    exit(1);
  }
}

// Waits for the turn of this library. Ends the process if there will be none.
static void begin_turn(const Task *t) {
  char byte;
  if (read(t->turns, &byte, 1) != 1) exit(1);
  for (double begun = now(); now() - begun < SETTLE_S;) {
  }
}

static void end_turn(const Task *t) {
  char byte = 0;
  if (write(t->turns, &byte, 1) != 1) exit(1);
}

// Small whole numbers: sums are exact in any order.
static float contribution(size_t rank, size_t i) { return (float)((i % PERIOD * 7 + rank * 31) % 128); }

static void touch(Case *c) {
  static float pattern[PERIOD];
  static int written = 0;
  if (!written)
    for (size_t i = 0; i < PERIOD; i++) pattern[i] = contribution(c->rank, i);
  written = 1;
  for (size_t i = 0; i < c->in_len; i += PERIOD) {
    size_t len = c->in_len - i < PERIOD ? c->in_len - i : PERIOD;
    memcpy(c->in + i, pattern, len * sizeof(float));
  }
}

static float sum(const Case *c, size_t i) {
  float s = 0;
  for (int r = 0; r < c->world; r++) s += contribution(r, i);
  return s;
}

static float expected(const Case *c, size_t i) {
  switch (c->op) {
    case ALL_REDUCE:
    case REDUCE: return sum(c, i);
    case REDUCE_SCATTER: return sum(c, c->rank * c->count + i);
    case BROADCAST: return contribution(ROOT, i);
    case ALL_GATHER:
    case GATHER: return contribution(i / c->count, i % c->count);
    case SCATTER: return contribution(ROOT, c->rank * c->count + i);
    case ALL_TO_ALL: return contribution(i / c->count, c->rank * c->count + i % c->count);
    default: return contribution(c->rank & ~1, i);
  }
}

// Whether the operation deals out blocks, one for each rank.
static int is_divided(enum Op op) {
  return op == REDUCE_SCATTER || op == ALL_GATHER || op == GATHER || op == SCATTER || op == ALL_TO_ALL;
}

// Whether `bytes` are enough to be dealt out; sets up the case's buffers if so.
static int begin(Case *c, enum Op op, int in_place, size_t bytes, int rank, int world) {
  size_t len = bytes / sizeof(float), count = is_divided(op) ? len / world : len, whole = count * world;
  size_t at_root = rank == ROOT ? whole : 0;
  Case made = {op, rank, world, in_place, bytes, count, count, count, NULL, NULL, {NULL, NULL}};
  if (!count && op != BARRIER) return 0;
  if (op == REDUCE_SCATTER) made.in_len = whole;
  if (op == ALL_GATHER) made.out_len = whole;
  if (op == GATHER) made.out_len = at_root;
  if (op == SCATTER) made.in_len = at_root;
  if (op == ALL_TO_ALL) made.in_len = made.out_len = whole;
  if (op == REDUCE && rank != ROOT) made.out_len = 0;
  for (int i = 0; i < 2; i++) {
    made.memory[i] = (float *)aligned_alloc(4096, (whole * sizeof(float) + 8192) & ~(size_t)4095);
    memset(made.memory[i], 0, whole * sizeof(float));
  }
  made.in = made.memory[0];
  int comes_back = op == SEND_RECV && rank < (rank ^ 1) && (rank ^ 1) < world;
  made.out = in_place && !comes_back ? made.memory[0] : made.memory[1];
  // In place, a rank's block of a gathered buffer is where it will be found, and so it is for one scattered.
  if (in_place && (op == ALL_GATHER || (op == GATHER && rank == ROOT))) made.in = made.out + rank * count;
  *c = made;
  return 1;
}

static void end(Case *c) {
  free(c->memory[0]);
  free(c->memory[1]);
}

static double sample(const Peer *p, Case *c, const Task *t) {
  if (t->touch) touch(c);
  p->barrier(p->context);
  double begun = now();
  p->perform(p->context, c);
  return now() - begun;
}

// Performs the operation once; the most elements that any rank got wrong. What an earlier one has written must not pass for its result.
static double checked(const Peer *p, Case *c) {
  for (size_t i = 0; i < c->out_len; i++) c->out[i] = -1;
  touch(c);
  p->barrier(p->context);
  p->perform(p->context, c);
  double wrong = 0;
  int idle = c->op == SEND_RECV && (c->rank ^ 1) >= c->world;
  for (size_t i = 0; !idle && i < c->out_len; i++) wrong += c->out[i] != expected(c, i);
  p->longest(p->context, &wrong, 1);
  return wrong;
}

static int affordable(const Peer *p, Case *c, const Task *t) {
  double quickest = INFINITY;
  for (int i = 0; i < PROBES; i++) quickest = fmin(quickest, sample(p, c, t));
  p->longest(p->context, &quickest, 1);
  double fit = t->budget_s / quickest;
  return fit < SAMPLES_MIN ? SAMPLES_MIN : fit > SAMPLES_MAX ? SAMPLES_MAX : (int)fit;
}

static void measure(const Peer *p, Case *c, const Task *t, const char *variant) {
  static double samples[SAMPLES_MAX];
  double wrong = checked(p, c);
  int wanted = t->samples > 0 ? t->samples : affordable(p, c, t), done = 0;
  int warmup = t->warmup >= 0 ? t->warmup : wanted / 10 + 1;
  for (int i = 0; i < warmup; i++) sample(p, c, t);
  double begun = now();
  while (done < wanted) {
    samples[done++] = sample(p, c, t);
    if (t->samples <= 0 && done % LOOK_EVERY == 0) {
      double over = now() - begun - (4 * t->budget_s + 1);
      p->longest(p->context, &over, 1);
      if (over > 0) break;
    }
  }
  p->longest(p->context, samples, done);
  p->barrier(p->context);
  begun = now();
  for (int i = 0; i < done; i++) p->perform(p->context, c);
  double back_to_back = (now() - begun) / done, ns = c->op == SEND_RECV ? 5e8 : 1e9;
  p->longest(p->context, &back_to_back, 1);
  wrong += checked(p, c);
  if (c->rank) return;
  printf("case %zu %s %s %.0f %.1f", c->bytes, c->in_place ? "in" : "out", variant, wrong, back_to_back * ns);
  for (int i = 0; i < done; i++) printf(" %.0f", samples[i] * ns);
  printf("\n");
  fflush(stdout);
}
