// The collectives of an MPI library. mpicc -O3 -march=native mpi.c -o mpi -lm; mpirun -n 2 mpi <flags: see method.h>
#include "method.h"
#include <mpi.h>

static void barrier(void *context) {
  (void)context;
  MPI_Barrier(MPI_COMM_WORLD);
}

static void longest(void *context, double *values, size_t len) {
  (void)context;
  MPI_Allreduce(MPI_IN_PLACE, values, (int)len, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void ping_pong(Case *c) {
  int peer = c->rank ^ 1, len = (int)c->in_len;
  if (peer >= c->world) return;
  if (c->rank < peer) MPI_Send(c->in, len, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
  MPI_Recv(c->in, len, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (c->rank > peer) MPI_Send(c->in, len, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void perform(void *context, Case *c) {
  int len = (int)c->in_len, block = (int)c->block;
  switch (c->op) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, c->in, len, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case BROADCAST: MPI_Bcast(c->in, len, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case ALL_GATHER: MPI_Allgather(c->in, len, MPI_FLOAT, c->out, len, MPI_FLOAT, MPI_COMM_WORLD); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(c->in, c->out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case ALL_TO_ALL: MPI_Alltoall(c->in, block, MPI_FLOAT, c->out, block, MPI_FLOAT, MPI_COMM_WORLD); break;
    case SEND_RECV: ping_pong(c); break;
    default: barrier(context);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  Flags flags = parse(argv + 1);
  Peer peer = {NULL, barrier, perform, longest};
  int rank, world;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (int op = 0; op < OPS; op++)
    for (int s = 0; s < (op == BARRIER ? 1 : SIZES_LEN); s++) {
      Case c;
      if (!begin(&c, &flags, (enum Op)op, SIZES[s], rank, world)) continue;
      measure(&peer, &c, &flags);
      end(&c);
    }
  MPI_Finalize();
}
