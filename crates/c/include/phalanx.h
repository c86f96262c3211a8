/* phalanx.h: process groups and collectives for C and C++. docs/reference/c.md has the whole story.
 *
 * It is written by a test of phalanx (crates/c/tests/header.rs): change the sources in crates/c/src, not this file.
 *
 * What a program owes:
 * - A pointer is null or points to what its type says: a buffer to as many elements as are given, a string to text that a null byte ends.
 * - A group is freed once, by phalanx_group_free, a work by phalanx_work_free, and neither is used afterwards.
 * - The memory of an operation is left alone until the operation is over: until the call returns, or until phalanx_work_wait returns anything
 *   but PHALANX_PENDING. What is only read may be read meanwhile.
 *
 * Null pointers where there must be none, numbers that name nothing, lengths that no memory has and buffers that overlap are
 * PHALANX_ERROR_MISUSE, and the group works on. Functions may be called from any thread. None throws, and none ends the process.
 */

#ifndef PHALANX_H
#define PHALANX_H

#include <stddef.h>
#include <stdint.h>

// The version of this interface. It grows when programs that were built against an older header can no longer work with the library.
#define PHALANX_ABI_VERSION 1

// How a call has ended.
enum phalanx_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // All went well.
  PHALANX_OK = 0,
  // No error: the operation is not over yet.
  PHALANX_PENDING = 1,
  // The call makes no sense. Nothing was sent; the group works on.
  PHALANX_ERROR_MISUSE = 2,
  // The backend can't do this. Nothing was sent; the group works on.
  PHALANX_ERROR_UNSUPPORTED = 3,
  // No message came within the time of `phalanx_recv_timeout` or `phalanx_recv_any_timeout`. The group works on.
  PHALANX_ERROR_NO_MESSAGE = 4,
  // A rank died, left, or can't be reached.
  PHALANX_ERROR_PEER_LOST = 5,
  // The operation did not end within the group's time limit.
  PHALANX_ERROR_TIMEOUT = 6,
  // Ranks wait for each other in a circle.
  PHALANX_ERROR_DEADLOCK = 7,
  // Ranks called different operations, or the same with other types, counts or roots.
  PHALANX_ERROR_MISMATCH = 8,
  // A rank sent what no correct rank sends.
  PHALANX_ERROR_PROTOCOL = 9,
  // A rank called `phalanx_abort`.
  PHALANX_ERROR_ABORTED = 10,
  // The group failed earlier, and does nothing more.
  PHALANX_ERROR_POISONED = 11,
  // The ranks did not find each other.
  PHALANX_ERROR_RENDEZVOUS = 12,
  // The self-test found that a machine of the job computes wrong sums.
  PHALANX_ERROR_WRONG_SUM = 13,
  // The variables make no sense.
  PHALANX_ERROR_CONFIG = 14,
  // This machine lacks something.
  PHALANX_ERROR_UNAVAILABLE = 15,
  // A library below phalanx failed.
  PHALANX_ERROR_LIBRARY = 16,
  // The operating system refused.
  PHALANX_ERROR_IO = 17,
  // A bug in phalanx. Please report it.
  PHALANX_ERROR_INTERNAL = 18,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum phalanx_status phalanx_status;
#else
typedef int32_t phalanx_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The type of the elements of a buffer. Functions take the number, and look whether it is one of these.
enum phalanx_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  PHALANX_F32 = 0,
  PHALANX_F64 = 1,
  // IEEE 754 binary16.
  PHALANX_F16 = 2,
  // The upper half of an `F32`.
  PHALANX_BF16 = 3,
  PHALANX_I8 = 4,
  PHALANX_I16 = 5,
  PHALANX_I32 = 6,
  PHALANX_I64 = 7,
  PHALANX_U8 = 8,
  PHALANX_U16 = 9,
  PHALANX_U32 = 10,
  PHALANX_U64 = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum phalanx_dtype phalanx_dtype;
#else
typedef int32_t phalanx_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a reduction combines the values of the ranks. Functions take the number, and look whether it is one of these.
enum phalanx_op
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The sum.
  PHALANX_SUM = 0,
  // The sum divided by the number of ranks; of integers, what is whole of it.
  PHALANX_AVG = 1,
  // The product.
  PHALANX_PROD = 2,
  // The smallest.
  PHALANX_MIN = 3,
  // The largest.
  PHALANX_MAX = 4,
  // Bitwise and; integers only.
  PHALANX_BIT_AND = 5,
  // Bitwise or; integers only.
  PHALANX_BIT_OR = 6,
  // Bitwise exclusive or; integers only.
  PHALANX_BIT_XOR = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum phalanx_op phalanx_op;
#else
typedef int32_t phalanx_op;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Some ranks that work together: this rank's handle on them. All threads of a process may use it.
typedef struct phalanx_group phalanx_group;

// An operation in flight. The buffers belong to it until it is over.
typedef struct phalanx_work phalanx_work;

// How the ranks of a job meet through something that the program has already, such as a store or MPI. It is called once in `phalanx_join`: on rank 0 with
// the words that all others need, elsewhere with null. It returns these words, in memory that stays until it is called again, or null if they could not
// be passed on or had within so many seconds. They hold the job's secret: nobody else may read them. It must not throw.
typedef const char *(*phalanx_share)(void *context, const char *words, double seconds);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the interface that the library has: compare it with `PHALANX_ABI_VERSION`, that of the header.
int phalanx_abi_version(void);

// The name of a status, as in this header: `"…_ERROR_TIMEOUT"`. It is there for good.
const char *phalanx_status_name(int status);

// What went wrong in this thread's latest call that failed: a line of text, `""` if none has. It stays until another call of this thread fails.
const char *phalanx_last_error(void);

// The rank at fault in this thread's latest call that failed, among all ranks of the job: the one that died, did not come, or aborted. -1 where there is
// none.
int phalanx_last_error_rank(void);

// Joins the job that the environment describes, and makes the group of all its ranks: a job of `phalanx run`, `mpirun` or `srun`, or of torchrun with
// `PHALANX_SECRET`; else a group of one. Collective among the processes of the job.
//
// From here on `SIGPIPE` no longer ends the process.
phalanx_status phalanx_init(phalanx_group **group);

// Joins a job of which the program knows the ranks, and makes the group of all of them.
//
// `variables` are strings `NAME=value`, the last of which a null pointer follows, as in `environ`: `PHALANX_RANK=1`, `PHALANX_WORLD_SIZE=4`, …. Those
// of the environment do not count. With `share` the ranks meet through it, and no secret is needed; if it is null, through `PHALANX_STORE`. `context` is
// what `share` is called with, one call at a time, on any thread.
phalanx_status phalanx_join(const char *const *variables,
                            phalanx_share share,
                            void *context,
                            phalanx_group **group);

// This rank within the group, from 0. -1 if `group` is null.
int phalanx_rank(const phalanx_group *group);

// How many ranks the group has. -1 if `group` is null.
int phalanx_world_size(const phalanx_group *group);

// This rank among those of the group on its host. -1 if `group` is null.
int phalanx_local_rank(const phalanx_group *group);

// How many ranks of the group are on this host. -1 if `group` is null.
int phalanx_local_world_size(const phalanx_group *group);

// The name by which errors and traces know the group. It is there as long as the group.
const char *phalanx_name(const phalanx_group *group);

// What performs the operations: `"shm"`, `"tcp"`, …. It is there as long as the group.
const char *phalanx_backend_name(const phalanx_group *group);

// What performs the operations, in a sentence. It is there as long as the group.
const char *phalanx_describe(const phalanx_group *group);

// Leaves the group in good order, and waits until the others do. The group can't be used afterwards; `phalanx_group_free` frees it. Of a group that was
// finalized this does nothing.
phalanx_status phalanx_finalize_at(const phalanx_group *group,
                                   const char *file,
                                   unsigned int line);

// Fails the group on all its ranks, which are told the reason. From any thread, also while others wait in an operation.
phalanx_status phalanx_abort(const phalanx_group *group, const char *reason);

// Frees this handle. No other thread may be using it; operations in flight go on. A group that was not finalized is left when its last handle and its
// last work are gone. Null is allowed.
void phalanx_group_free(phalanx_group *group);

// Splits the group: ranks that give the same `color` are in one group, in the order of `key`, then of their ranks. A rank whose color is negative is in
// none, and gets null. Collective.
phalanx_status phalanx_split_at(const phalanx_group *group,
                                int64_t color,
                                int64_t key,
                                phalanx_group **part,
                                const char *file,
                                unsigned int line);

// Makes a group of `count` ranks of this one, in whose order they count there too. Only they need call it; a rank that is not among them gets null.
phalanx_status phalanx_new_group_at(const phalanx_group *group,
                                    const int *ranks,
                                    size_t count,
                                    phalanx_group **part,
                                    const char *file,
                                    unsigned int line);

// Makes another handle on this group, with another time limit for each operation, in seconds (`INFINITY`: none). Ranks may have different limits; the first
// that passes fails the group for all.
phalanx_status phalanx_with_timeout_at(const phalanx_group *group,
                                       double seconds,
                                       phalanx_group **handle,
                                       const char *file,
                                       unsigned int line);

// Makes another handle on this group, whose reductions add up in the order of the ranks: the same bits on every machine, whatever carries the data.
phalanx_status phalanx_reproducible_at(const phalanx_group *group,
                                       phalanx_group **handle,
                                       const char *file,
                                       unsigned int line);

// Every rank ends with the combination of all ranks' buffers, in place. `count` elements on each rank.
phalanx_status phalanx_all_reduce_at(const phalanx_group *group,
                                     void *buffer,
                                     size_t count,
                                     int dtype,
                                     int op,
                                     phalanx_work **work,
                                     const char *file,
                                     unsigned int line);

// The root ends with the combination of all ranks' buffers, in place; elsewhere the buffer holds anything afterwards. `count` elements on each rank.
phalanx_status phalanx_reduce_at(const phalanx_group *group,
                                 void *buffer,
                                 size_t count,
                                 int dtype,
                                 int op,
                                 int root,
                                 phalanx_work **work,
                                 const char *file,
                                 unsigned int line);

// Every rank ends with the root's buffer. `count` elements on each rank.
phalanx_status phalanx_broadcast_at(const phalanx_group *group,
                                    void *buffer,
                                    size_t count,
                                    int dtype,
                                    int root,
                                    phalanx_work **work,
                                    const char *file,
                                    unsigned int line);

// Rank r ends with the combination of the buffers of ranks 0 to r, in place. `count` elements on each rank.
phalanx_status phalanx_scan_at(const phalanx_group *group,
                               void *buffer,
                               size_t count,
                               int dtype,
                               int op,
                               phalanx_work **work,
                               const char *file,
                               unsigned int line);

// Every rank ends with the inputs of all, in the order of the ranks. `count` elements in, `count` × world_size out. The input may be this rank's block of
// the output.
phalanx_status phalanx_all_gather_at(const phalanx_group *group,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     int dtype,
                                     phalanx_work **work,
                                     const char *file,
                                     unsigned int line);

// Every rank ends with its block of the combination of all inputs. `count` × world_size elements in, `count` out. The output may be this rank's block of
// the input; the rest of that holds anything afterwards then.
phalanx_status phalanx_reduce_scatter_at(const phalanx_group *group,
                                         const void *input,
                                         void *output,
                                         size_t count,
                                         int dtype,
                                         int op,
                                         phalanx_work **work,
                                         const char *file,
                                         unsigned int line);

// The root ends with the inputs of all, in the order of the ranks. `count` elements in; `count` × world_size out on the root, elsewhere `output` is not looked
// at. The root's input may be its block of the output.
phalanx_status phalanx_gather_at(const phalanx_group *group,
                                 const void *input,
                                 void *output,
                                 size_t count,
                                 int dtype,
                                 int root,
                                 phalanx_work **work,
                                 const char *file,
                                 unsigned int line);

// Every rank ends with its block of the root's input. `count` × world_size elements in on the root, elsewhere `input` is not looked at; `count` out. The root's
// output may be its block of the input.
phalanx_status phalanx_scatter_at(const phalanx_group *group,
                                  const void *input,
                                  void *output,
                                  size_t count,
                                  int dtype,
                                  int root,
                                  phalanx_work **work,
                                  const char *file,
                                  unsigned int line);

// Every rank ends with one block of each rank's input, in the order of the ranks. `count` × world_size elements in and out.
phalanx_status phalanx_all_to_all_at(const phalanx_group *group,
                                     const void *input,
                                     void *output,
                                     size_t count,
                                     int dtype,
                                     phalanx_work **work,
                                     const char *file,
                                     unsigned int line);

// Waits until all ranks have come here.
phalanx_status phalanx_barrier_at(const phalanx_group *group, phalanx_work **work, const char *file, unsigned int line);

// Waits until all ranks have come here, for at most so many seconds; the error says which have not.
phalanx_status phalanx_monitored_barrier_at(const phalanx_group *group,
                                            double seconds,
                                            const char *file,
                                            unsigned int line);

// As `phalanx_all_gather`, with `counts[r]` elements from rank r. All ranks give the same counts. The output has their sum.
phalanx_status phalanx_all_gather_v_at(const phalanx_group *group,
                                       const void *input,
                                       void *output,
                                       const size_t *counts,
                                       int dtype,
                                       phalanx_work **work,
                                       const char *file,
                                       unsigned int line);

// As `phalanx_reduce_scatter`, with `counts[r]` elements for rank r. All ranks give the same counts. The input has their sum.
phalanx_status phalanx_reduce_scatter_v_at(const phalanx_group *group,
                                           const void *input,
                                           void *output,
                                           const size_t *counts,
                                           int dtype,
                                           int op,
                                           phalanx_work **work,
                                           const char *file,
                                           unsigned int line);

// As `phalanx_gather`, with `counts[r]` elements from rank r. All ranks give the same counts. The output has their sum.
phalanx_status phalanx_gather_v_at(const phalanx_group *group,
                                   const void *input,
                                   void *output,
                                   const size_t *counts,
                                   int dtype,
                                   int root,
                                   phalanx_work **work,
                                   const char *file,
                                   unsigned int line);

// As `phalanx_scatter`, with `counts[r]` elements for rank r. All ranks give the same counts. The input has their sum.
phalanx_status phalanx_scatter_v_at(const phalanx_group *group,
                                    const void *input,
                                    void *output,
                                    const size_t *counts,
                                    int dtype,
                                    int root,
                                    phalanx_work **work,
                                    const char *file,
                                    unsigned int line);

// As `phalanx_all_to_all`, with `send_counts[r]` elements to rank r and `recv_counts[r]` from it, which must be what rank r sends. Input and output have the sums
// of these.
phalanx_status phalanx_all_to_all_v_at(const phalanx_group *group,
                                       const void *input,
                                       const size_t *send_counts,
                                       void *output,
                                       const size_t *recv_counts,
                                       int dtype,
                                       phalanx_work **work,
                                       const char *file,
                                       unsigned int line);

// Sends the buffer to rank `dst`. Messages to one rank with one tag arrive in their order. Up to 256 KiB need no receiver.
phalanx_status phalanx_send_at(const phalanx_group *group,
                               const void *buffer,
                               size_t count,
                               int dtype,
                               int dst,
                               uint64_t tag,
                               phalanx_work **work,
                               const char *file,
                               unsigned int line);

// Receives the message with this tag that rank `src` sent, which must have this count and these elements.
phalanx_status phalanx_recv_at(const phalanx_group *group,
                               void *buffer,
                               size_t count,
                               int dtype,
                               int src,
                               uint64_t tag,
                               phalanx_work **work,
                               const char *file,
                               unsigned int line);

// As `phalanx_recv`, for at most so many seconds: if no message has come by then, it returns `PHALANX_ERROR_NO_MESSAGE`, and the group goes on.
phalanx_status phalanx_recv_timeout_at(const phalanx_group *group,
                                       void *buffer,
                                       size_t count,
                                       int dtype,
                                       int src,
                                       uint64_t tag,
                                       double seconds,
                                       const char *file,
                                       unsigned int line);

// Receives a message with this tag from whichever rank sends one first, and stores that rank in `source`, if it is not null.
phalanx_status phalanx_recv_any_at(const phalanx_group *group,
                                   void *buffer,
                                   size_t count,
                                   int dtype,
                                   uint64_t tag,
                                   int *source,
                                   const char *file,
                                   unsigned int line);

// As `phalanx_recv_any`, for at most so many seconds: if no message has come by then, it returns `PHALANX_ERROR_NO_MESSAGE`, and the group goes on.
phalanx_status phalanx_recv_any_timeout_at(const phalanx_group *group,
                                           void *buffer,
                                           size_t count,
                                           int dtype,
                                           uint64_t tag,
                                           double seconds,
                                           int *source,
                                           const char *file,
                                           unsigned int line);

// Begins a `phalanx_recv_any`. `phalanx_work_source` says which rank has sent the message.
phalanx_status phalanx_recv_any_async_at(const phalanx_group *group,
                                         void *buffer,
                                         size_t count,
                                         int dtype,
                                         uint64_t tag,
                                         phalanx_work **work,
                                         const char *file,
                                         unsigned int line);

// Waits until the operation is over, for at most so many seconds (`INFINITY`: as long as it takes, which the group's time limit bounds). Returns
// `PHALANX_PENDING` if it is not over then, and how it has ended otherwise, as often as asked. After that the buffers are the program's again.
phalanx_status phalanx_work_wait(const phalanx_work *work,
                                 double seconds);

// 1 if the operation is over, well or not, and the buffers are the program's again; 0 if it is not, or if `work` is null.
int phalanx_work_is_done(const phalanx_work *work);

// The rank whose message `phalanx_recv_any_async` received; -1 before that is over, if it failed, and of other operations.
int phalanx_work_source(const phalanx_work *work);

// Waits until the operation is over, since it uses the program's memory, and frees the work. How the operation ended is what `phalanx_work_wait` says;
// nobody hears of it here. Null is allowed.
void phalanx_work_free(phalanx_work *work);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* The operations, as programs call them: with the place of the call, which errors and traces name. Those that end in _async begin the operation and
 * store a work in their last argument, a phalanx_work **; if that is null, they wait. Other languages call the functions that end in _at. */
#define phalanx_finalize(...) phalanx_finalize_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_split(...) phalanx_split_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_new_group(...) phalanx_new_group_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_with_timeout(...) phalanx_with_timeout_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_reproducible(...) phalanx_reproducible_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_all_reduce(...) phalanx_all_reduce_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_all_reduce_async(...) phalanx_all_reduce_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_reduce(...) phalanx_reduce_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_reduce_async(...) phalanx_reduce_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_broadcast(...) phalanx_broadcast_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_broadcast_async(...) phalanx_broadcast_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_scan(...) phalanx_scan_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_scan_async(...) phalanx_scan_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_all_gather(...) phalanx_all_gather_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_all_gather_async(...) phalanx_all_gather_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_reduce_scatter(...) phalanx_reduce_scatter_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_reduce_scatter_async(...) phalanx_reduce_scatter_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_gather(...) phalanx_gather_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_gather_async(...) phalanx_gather_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_scatter(...) phalanx_scatter_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_scatter_async(...) phalanx_scatter_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_all_to_all(...) phalanx_all_to_all_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_all_to_all_async(...) phalanx_all_to_all_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_barrier(...) phalanx_barrier_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_barrier_async(...) phalanx_barrier_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_monitored_barrier(...) phalanx_monitored_barrier_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_all_gather_v(...) phalanx_all_gather_v_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_all_gather_v_async(...) phalanx_all_gather_v_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_reduce_scatter_v(...) phalanx_reduce_scatter_v_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_reduce_scatter_v_async(...) phalanx_reduce_scatter_v_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_gather_v(...) phalanx_gather_v_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_gather_v_async(...) phalanx_gather_v_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_scatter_v(...) phalanx_scatter_v_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_scatter_v_async(...) phalanx_scatter_v_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_all_to_all_v(...) phalanx_all_to_all_v_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_all_to_all_v_async(...) phalanx_all_to_all_v_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_send(...) phalanx_send_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_send_async(...) phalanx_send_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_recv(...) phalanx_recv_at(__VA_ARGS__, NULL, __FILE__, __LINE__)
#define phalanx_recv_async(...) phalanx_recv_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_recv_timeout(...) phalanx_recv_timeout_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_recv_any(...) phalanx_recv_any_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_recv_any_timeout(...) phalanx_recv_any_timeout_at(__VA_ARGS__, __FILE__, __LINE__)
#define phalanx_recv_any_async(...) phalanx_recv_any_async_at(__VA_ARGS__, __FILE__, __LINE__)

#endif  /* PHALANX_H */
