// Gloo alone over TCP loopback, with each of its algorithms where there are several. Started once a rank:
//   RANK=0 WORLD_SIZE=2 STORE_DIR=<empty folder> gloo <arguments: see method.h>
// Debian's libgloo: g++ -O3 -march=native '-DPSARG(x)=*x' '-DPSARG2(x)=*x' gloo.cc -o gloo -lgloo -lpthread
// Upstream's, which takes shared pointers: without the two definitions.
#include "method.h"
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#ifndef PSARG
#define PSARG(x) x
#define PSARG2(x) x
#endif

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Operation = std::function<void()>;

static int rank_, world;
// Measured operations go over one mesh, the method's own over another.
static Context mesh, control;
// The case's operation, prepared: Gloo's options and algorithms are made once and run often.
static Operation prepared;

static Context connect(const std::string &name, std::shared_ptr<gloo::rendezvous::Store> files,
                       std::shared_ptr<gloo::transport::Device> device) {
  auto context = std::make_shared<gloo::rendezvous::Context>(rank_, world);
  context->setTimeout(std::chrono::seconds(120));
  auto store = std::make_shared<gloo::rendezvous::PrefixStore>(name, PSARG(files));
  context->connectFullMesh(PSARG2(store), device);
  return context;
}

static void add(void *into, const void *a, const void *b, size_t n) { gloo::sum<float>(into, a, b, n); }
static void greatest(void *into, const void *a, const void *b, size_t n) { gloo::max<double>(into, a, b, n); }

static void barrier(const Context &context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

static void longest(void *, double *values, size_t len) {
  gloo::AllreduceOptions options(control);
  options.setOutput(values, len);
  options.setReduceFunction(greatest);
  gloo::allreduce(options);
}

using Buffer = gloo::transport::UnboundBuffer;

static void ping_pong(Buffer *in, Buffer *out) {
  int peer = rank_ ^ 1;
  if (peer >= world) return;
  for (int turn = 0; turn < 2; turn++) {
    if ((rank_ & 1) == turn) {
      in->send(peer, 0);
      in->waitSend();
    } else {
      out->recv(peer, 0);
      out->waitRecv();
    }
  }
}

static Operation all_reduce(const std::string &name, Case *c) {
  if (name == "halving_doubling" || name == "ring_chunked") {
    std::vector<float *> buffers{c->in};
    std::shared_ptr<gloo::Algorithm> algorithm;
    if (name == "ring_chunked")
      algorithm = std::make_shared<gloo::AllreduceRingChunked<float>>(mesh, buffers, c->in_len);
    else
      algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(mesh, buffers, c->in_len);
    return [algorithm] { algorithm->run(); };
  }
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  auto options = std::make_shared<gloo::AllreduceOptions>(mesh);
  options->setAlgorithm(name == "ring" ? Algorithm::RING : Algorithm::BCUBE);
  options->setOutput(c->in, c->in_len);
  options->setReduceFunction(add);
  return [options] { gloo::allreduce(*options); };
}

static Operation prepare(const std::string &name, Case *c) {
  switch (c->op) {
    case ALL_REDUCE: return all_reduce(name, c);
    case REDUCE_SCATTER: {
      // Works in place and leaves the block at the front.
      std::vector<float *> buffers{c->in};
      std::vector<int> counts(world, (int)c->count);
      auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(mesh, buffers, c->in_len, counts);
      return [algorithm] { algorithm->run(); };
    }
    case ALL_GATHER: {
      auto options = std::make_shared<gloo::AllgatherOptions>(mesh);
      options->setInput(c->in, c->in_len);
      options->setOutput(c->out, c->out_len);
      return [options] { gloo::allgather(*options); };
    }
    case BROADCAST: {
      auto options = std::make_shared<gloo::BroadcastOptions>(mesh);
      options->setOutput(c->in, c->in_len);
      options->setRoot(ROOT);
      return [options] { gloo::broadcast(*options); };
    }
    case REDUCE: {
      auto options = std::make_shared<gloo::ReduceOptions>(mesh);
      options->setOutput(c->in, c->in_len);
      options->setReduceFunction(add);
      options->setRoot(ROOT);
      return [options] { gloo::reduce(*options); };
    }
    case GATHER: {
      auto options = std::make_shared<gloo::GatherOptions>(mesh);
      options->setInput(c->in, c->in_len);
      if (rank_ == ROOT) options->setOutput(c->out, c->out_len);
      options->setRoot(ROOT);
      return [options] { gloo::gather(*options); };
    }
    case SCATTER: {
      auto options = std::make_shared<gloo::ScatterOptions>(mesh);
      std::vector<float *> blocks;
      for (int r = 0; rank_ == ROOT && r < world; r++) blocks.push_back(c->in + r * c->count);
      if (rank_ == ROOT) options->setInputs(blocks, c->count);
      options->setOutput(c->out, c->out_len);
      options->setRoot(ROOT);
      return [options] { gloo::scatter(*options); };
    }
    case ALL_TO_ALL: {
      auto options = std::make_shared<gloo::AlltoallOptions>(mesh);
      options->setInput(c->in, c->in_len);
      options->setOutput(c->out, c->out_len);
      return [options] { gloo::alltoall(*options); };
    }
    case SEND_RECV: {
      std::shared_ptr<Buffer> in = mesh->createUnboundBuffer(c->in, c->in_len * sizeof(float));
      std::shared_ptr<Buffer> out = mesh->createUnboundBuffer(c->out, c->out_len * sizeof(float));
      return [in, out] { ping_pong(in.get(), out.get()); };
    }
    default: return [] { barrier(mesh); };
  }
}

int main(int argc, char **argv) {
  Task task = parse(argc, argv);
  rank_ = atoi(getenv("RANK"));
  world = atoi(getenv("WORLD_SIZE"));
  gloo::transport::tcp::attr loopback;
  loopback.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  auto files = std::make_shared<gloo::rendezvous::FileStore>(getenv("STORE_DIR"));
  mesh = connect("mesh", files, device);
  control = connect("control", files, device);
  Peer peer = {nullptr, [](void *) { barrier(control); }, [](void *, Case *) { prepared(); }, longest};
  std::vector<std::string> algorithms{"-"};
  if (task.op == ALL_REDUCE) algorithms = {"ring", "bcube", "halving_doubling", "ring_chunked"};
  bool in_place = !is_divided(task.op) || task.op == REDUCE_SCATTER;
  meet(&task);
  for (int s = 0; s < task.bytes_len; s++)
    for (int round = 0; round < task.rounds; round++) {
      begin_turn(&task);
      for (auto &name : algorithms) {
        Case c;
        if (!begin(&c, task.op, in_place, strtoull(task.bytes[s], nullptr, 10), rank_, world)) continue;
        prepared = prepare(name, &c);
        barrier(control);
        measure(&peer, &c, &task, name.c_str());
        prepared = nullptr;
        end(&c);
      }
      end_turn(&task);
    }
  barrier(control);
}
