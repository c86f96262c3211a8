// The collectives of an MPI library, in place and out of place. mpicc -O3 -march=native mpi.c -o mpi -lm; see method.h.
#include "method.h"
#include <mpi.h>

#define COMM MPI_COMM_WORLD

static void barrier(void *context) {
  (void)context;
  MPI_Barrier(COMM);
}

static void longest(void *context, double *values, size_t len) {
  (void)context;
  MPI_Allreduce(MPI_IN_PLACE, values, (int)len, MPI_DOUBLE, MPI_MAX, COMM);
}

static void ping_pong(Case *c) {
  int peer = c->rank ^ 1, len = (int)c->count;
  if (peer >= c->world) return;
  if (c->rank < peer) MPI_Send(c->in, len, MPI_FLOAT, peer, 0, COMM);
  MPI_Recv(c->out, len, MPI_FLOAT, peer, 0, COMM, MPI_STATUS_IGNORE);
  if (c->rank > peer) MPI_Send(c->in, len, MPI_FLOAT, peer, 0, COMM);
}

static void perform(void *context, Case *c) {
  int n = (int)c->count, at_root = c->rank == ROOT;
  const void *in = c->in_place ? MPI_IN_PLACE : c->in;
  const void *root_in = at_root ? in : c->in;
  switch (c->op) {
    case ALL_REDUCE: MPI_Allreduce(in, c->out, n, MPI_FLOAT, MPI_SUM, COMM); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(in, c->out, n, MPI_FLOAT, MPI_SUM, COMM); break;
    case ALL_GATHER: MPI_Allgather(in, n, MPI_FLOAT, c->out, n, MPI_FLOAT, COMM); break;
    case BROADCAST: MPI_Bcast(c->in, n, MPI_FLOAT, ROOT, COMM); break;
    case REDUCE: MPI_Reduce(root_in, c->out, n, MPI_FLOAT, MPI_SUM, ROOT, COMM); break;
    case GATHER: MPI_Gather(root_in, n, MPI_FLOAT, c->out, n, MPI_FLOAT, ROOT, COMM); break;
    case SCATTER: {
      void *out = c->in_place && at_root ? MPI_IN_PLACE : c->out;
      MPI_Scatter(c->in, n, MPI_FLOAT, out, n, MPI_FLOAT, ROOT, COMM);
      break;
    }
    case ALL_TO_ALL: MPI_Alltoall(in, n, MPI_FLOAT, c->out, n, MPI_FLOAT, COMM); break;
    case SEND_RECV: ping_pong(c); break;
    default: barrier(context);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  Task task = parse(argc, argv);
  Peer peer = {NULL, barrier, perform, longest};
  int rank, world, op = task.op;
  MPI_Comm_rank(COMM, &rank);
  MPI_Comm_size(COMM, &world);
  meet(&task);
  // These know no other way than in place.
  int only_in_place = op == BROADCAST || op == SEND_RECV || op == BARRIER;
  for (int s = 0; s < task.bytes_len; s++)
    for (int round = 0; round < task.rounds; round++) {
      begin_turn(&task);
      for (int in_place = only_in_place; in_place < 2; in_place++) {
        Case c;
        if (!begin(&c, task.op, in_place, strtoull(task.bytes[s], NULL, 10), rank, world)) continue;
        measure(&peer, &c, &task, "-");
        end(&c);
      }
      end_turn(&task);
    }
  MPI_Finalize();
}
