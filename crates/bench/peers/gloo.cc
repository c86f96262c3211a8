// Gloo alone over TCP loopback, with each of its all_reduce algorithms. Started once a rank:
//   RANK=0 WORLD_SIZE=2 STORE_DIR=<empty folder> gloo <flags: see method.h>
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
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <functional>
#include <memory>
#include <string>
#ifndef PSARG
#define PSARG(x) x
#define PSARG2(x) x
#endif

using Context = std::shared_ptr<gloo::rendezvous::Context>;

static int rank_, world;
// Measured operations go over one mesh, the method's own over another.
static Context mesh, control;
// The case's operation, prepared: Gloo's options and algorithms are made once and run often.
static std::function<void()> prepared;

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

static void ping_pong(gloo::transport::UnboundBuffer *buffer) {
  int peer = rank_ ^ 1;
  if (peer >= world) return;
  for (int turn = 0; turn < 2; turn++) {
    if ((rank_ & 1) == turn) {
      buffer->send(peer, 0);
      buffer->waitSend();
    } else {
      buffer->recv(peer, 0);
      buffer->waitRecv();
    }
  }
}

static std::function<void()> all_reduce(const std::string &name, Case *c) {
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

static std::function<void()> prepare(const std::string &name, Case *c) {
  switch (c->op) {
    case ALL_REDUCE: return all_reduce(name, c);
    case BROADCAST: {
      auto options = std::make_shared<gloo::BroadcastOptions>(mesh);
      options->setOutput(c->in, c->in_len);
      options->setRoot(0);
      return [options] { gloo::broadcast(*options); };
    }
    case ALL_GATHER: {
      auto options = std::make_shared<gloo::AllgatherOptions>(mesh);
      options->setInput(c->in, c->in_len);
      options->setOutput(c->out, c->out_len);
      return [options] { gloo::allgather(*options); };
    }
    case REDUCE_SCATTER: {
      // Works in place and leaves the block at the front.
      std::vector<float *> buffers{c->in};
      std::vector<int> counts(world, (int)c->block);
      auto algorithm =
          std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(mesh, buffers, c->in_len, counts);
      return [algorithm, c] {
        algorithm->run();
        memcpy(c->out, c->in, c->out_len * sizeof(float));
      };
    }
    case ALL_TO_ALL: {
      auto options = std::make_shared<gloo::AlltoallOptions>(mesh);
      options->setInput(c->in, c->in_len);
      options->setOutput(c->out, c->out_len);
      return [options] { gloo::alltoall(*options); };
    }
    case SEND_RECV: {
      std::shared_ptr<gloo::transport::UnboundBuffer> buffer =
          mesh->createUnboundBuffer(c->in, c->in_len * sizeof(float));
      return [buffer] { ping_pong(buffer.get()); };
    }
    default: return [] { barrier(mesh); };
  }
}

int main(int, char **argv) {
  Flags flags = parse(argv + 1);
  rank_ = atoi(getenv("RANK"));
  world = atoi(getenv("WORLD_SIZE"));
  gloo::transport::tcp::attr loopback;
  loopback.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(loopback);
  auto files = std::make_shared<gloo::rendezvous::FileStore>(getenv("STORE_DIR"));
  mesh = connect("mesh", files, device);
  control = connect("control", files, device);
  Peer peer = {nullptr, [](void *) { barrier(control); }, [](void *, Case *) { prepared(); }, longest};
  for (int op = 0; op < OPS; op++) {
    std::vector<std::string> algorithms{""};
    if (op == ALL_REDUCE) algorithms = {"ring", "bcube", "halving_doubling", "ring_chunked"};
    for (auto &name : algorithms)
      for (int s = 0; s < (op == BARRIER ? 1 : SIZES_LEN); s++) {
        Case c;
        if (!begin(&c, &flags, (enum Op)op, SIZES[s], rank_, world)) continue;
        prepared = prepare(name, &c);
        std::string transport = name.empty() ? flags.transport : flags.transport + ("-" + name);
        Flags named = flags;
        named.transport = transport.c_str();
        barrier(control);
        measure(&peer, &c, &named);
        prepared = nullptr;
        end(&c);
      }
  }
  barrier(control);
}
