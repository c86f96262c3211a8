/* Every operation, performed and begun, on any number of ranks. */
#include "check.h"
#include <math.h>

static int rank, n;

/* The sum of 0 to n - 1. */
static int sum(void) { return n * (n - 1) / 2; }

static void over(phalanx_work *work) {
    CHECK(work != NULL);
    OK(phalanx_work_wait(work, INFINITY));
    OK(phalanx_work_wait(work, 0.0));
    CHECK(phalanx_work_is_done(work) == 1);
    phalanx_work_free(work);
}

static void collectives(phalanx_group *group) {
    int32_t one[2] = {rank, 1}, *all = calloc((size_t)n * 2, sizeof *all), *others = calloc((size_t)n * 2, sizeof *all);
    OK(phalanx_all_reduce(group, one, 2, PHALANX_I32, PHALANX_SUM));
    CHECK(one[0] == sum() && one[1] == n);

    one[0] = rank + 1;
    OK(phalanx_reduce(group, one, 1, PHALANX_I32, PHALANX_MAX, n - 1));
    CHECK(rank != n - 1 || one[0] == n);

    double value = rank == 0 ? 2.5 : 0.0;
    OK(phalanx_broadcast(group, &value, 1, PHALANX_F64, 0));
    CHECK(value == 2.5);

    uint8_t bits = (uint8_t)(1 << rank);
    OK(phalanx_scan(group, &bits, 1, PHALANX_U8, PHALANX_BIT_OR));
    CHECK(bits == (2 << rank) - 1);

    one[0] = rank, one[1] = -rank;
    OK(phalanx_all_gather(group, one, all, 2, PHALANX_I32));
    for (int r = 0; r < n; r++) CHECK(all[2 * r] == r && all[2 * r + 1] == -r);

    /* In place: the input is this rank's block of the output. */
    memset(all, 0, (size_t)n * 2 * sizeof *all);
    all[2 * rank] = rank + 7;
    OK(phalanx_all_gather(group, all + 2 * rank, all, 2, PHALANX_I32));
    for (int r = 0; r < n; r++) CHECK(all[2 * r] == r + 7);

    for (int i = 0; i < 2 * n; i++) all[i] = i + rank;
    OK(phalanx_reduce_scatter(group, all, one, 2, PHALANX_I32, PHALANX_SUM));
    CHECK(one[0] == 2 * rank * n + sum() && one[1] == (2 * rank + 1) * n + sum());
    OK(phalanx_reduce_scatter(group, all, all + 2 * rank, 2, PHALANX_I32, PHALANX_SUM));
    CHECK(all[2 * rank] == 2 * rank * n + sum());

    one[0] = rank, one[1] = 3;
    OK(phalanx_gather(group, one, rank == 0 ? all : NULL, 2, PHALANX_I32, 0));
    for (int r = 0; rank == 0 && r < n; r++) CHECK(all[2 * r] == r && all[2 * r + 1] == 3);
    /* Elsewhere than on the root the whole is not looked at, whatever it is. */
    OK(phalanx_scatter(group, rank == 0 ? all : one, one, 2, PHALANX_I32, 0));
    CHECK(one[0] == rank && one[1] == 3);

    /* In place: the root's block stands in the whole. */
    one[0] = rank, one[1] = 4;
    for (int i = 0; i < 2 * n; i++) all[i] = i < 2 ? 6 : -1;
    OK(phalanx_gather(group, rank == 0 ? all : one, rank == 0 ? all : NULL, 2, PHALANX_I32, 0));
    for (int r = 0; rank == 0 && r < n; r++) CHECK(all[2 * r] == (r == 0 ? 6 : r) && all[2 * r + 1] == (r == 0 ? 6 : 4));
    one[0] = -1;
    OK(phalanx_scatter(group, all, rank == 0 ? all : one, 2, PHALANX_I32, 0));
    CHECK(rank == 0 ? all[0] == 6 && all[1] == 6 : one[0] == rank && one[1] == 4);

    for (int i = 0; i < 2 * n; i++) all[i] = 100 * rank + i;
    OK(phalanx_all_to_all(group, all, others, 2, PHALANX_I32));
    for (int r = 0; r < n; r++) CHECK(others[2 * r] == 100 * r + 2 * rank);

    OK(phalanx_barrier(group));
    OK(phalanx_monitored_barrier(group, 60.0));
    free(all), free(others);
}

/* Rank r has r + 1 elements. */
static void uneven(phalanx_group *group) {
    size_t *counts = calloc((size_t)n, sizeof *counts), *equal = calloc((size_t)n, sizeof *counts), whole = 0;
    for (int r = 0; r < n; r++) counts[r] = (size_t)r + 1, equal[r] = (size_t)rank + 1, whole += counts[r];
    int64_t *own = calloc((size_t)n, sizeof *own), *all = calloc(whole, sizeof *all);
    for (int i = 0; i <= rank; i++) own[i] = rank;
    OK(phalanx_all_gather_v(group, own, all, counts, PHALANX_I64));
    for (int r = 0, i = 0; r < n; r++)
        for (int j = 0; j <= r; j++) CHECK(all[i++] == r);

    OK(phalanx_reduce_scatter_v(group, all, own, counts, PHALANX_I64, PHALANX_SUM));
    for (int i = 0; i <= rank; i++) CHECK(own[i] == (int64_t)rank * n);

    OK(phalanx_gather_v(group, own, rank == n - 1 ? all : NULL, counts, PHALANX_I64, n - 1));
    CHECK(rank != n - 1 || all[whole - 1] == (int64_t)rank * n);
    memset(own, 0, (size_t)n * sizeof *own);
    OK(phalanx_scatter_v(group, rank == n - 1 ? all : NULL, own, counts, PHALANX_I64, n - 1));
    CHECK(own[rank] == (int64_t)rank * n);

    /* r + 1 elements to rank r, and rank + 1 from it. */
    int64_t *in = calloc((size_t)n * (size_t)n, sizeof *in);
    for (size_t i = 0; i < whole; i++) all[i] = rank;
    OK(phalanx_all_to_all_v(group, all, counts, in, equal, PHALANX_I64));
    for (int i = 0; i < n * (rank + 1); i++) CHECK(in[i] == i / (rank + 1));
    free(counts), free(equal), free(own), free(all), free(in);
}

static void messages(phalanx_group *group) {
    int next = (rank + 1) % n, before = (rank + n - 1) % n, source = -2;
    float sent[3] = {(float)rank, 1.0f, 2.0f}, got[3] = {0};
    OK(phalanx_send(group, sent, 3, PHALANX_F32, next, 5));
    OK(phalanx_recv(group, got, 3, PHALANX_F32, before, 5));
    CHECK(got[0] == (float)before && got[2] == 2.0f);

    OK(phalanx_send(group, sent, 3, PHALANX_F32, next, 6));
    OK(phalanx_recv_any(group, got, 3, PHALANX_F32, 6, &source));
    CHECK(source == before);

    phalanx_work *work = NULL, *coming = NULL;
    OK(phalanx_recv_async(group, got, 3, PHALANX_F32, before, 7, &coming));
    OK(phalanx_send_async(group, sent, 3, PHALANX_F32, next, 7, &work));
    over(work), over(coming);
    OK(phalanx_recv_any_async(group, got, 3, PHALANX_F32, 8, &coming));
    OK(phalanx_send(group, sent, 3, PHALANX_F32, next, 8));
    OK(phalanx_work_wait(coming, INFINITY));
    CHECK(phalanx_work_source(coming) == before);
    phalanx_work_free(coming);

    CHECK(phalanx_recv_timeout(group, got, 3, PHALANX_F32, before, 9, 0.01) == PHALANX_ERROR_NO_MESSAGE);
    CHECK(phalanx_recv_any_timeout(group, got, 3, PHALANX_F32, 9, 0.01, NULL) == PHALANX_ERROR_NO_MESSAGE);
    OK(phalanx_barrier(group));
    OK(phalanx_send(group, NULL, 0, PHALANX_F32, next, 9));
    OK(phalanx_recv_timeout(group, NULL, 0, PHALANX_F32, before, 9, 60.0));
}

/* All that can be begun, side by side, and waited for in another order. */
static void in_flight(phalanx_group *group) {
    int64_t sums[4] = {1, 1, 1, 1}, gathered[64], blocks[64], block[2] = {0, 0}, all[64], whole[64];
    size_t counts[64];
    phalanx_work *works[12];
    CHECK(n <= 64);
    for (int i = 0; i < 64; i++) blocks[i] = whole[i] = all[i] = 1, counts[i] = 1;
    OK(phalanx_all_reduce_async(group, &sums[0], 1, PHALANX_I64, PHALANX_SUM, &works[0]));
    OK(phalanx_reduce_async(group, &sums[1], 1, PHALANX_I64, PHALANX_SUM, 0, &works[1]));
    OK(phalanx_scan_async(group, &sums[2], 1, PHALANX_I64, PHALANX_SUM, &works[2]));
    OK(phalanx_all_gather_async(group, &sums[3], gathered, 1, PHALANX_I64, &works[3]));
    OK(phalanx_reduce_scatter_async(group, blocks, block, 1, PHALANX_I64, PHALANX_SUM, &works[4]));
    OK(phalanx_all_to_all_async(group, whole, all, 1, PHALANX_I64, &works[5]));
    OK(phalanx_barrier_async(group, &works[6]));
    OK(phalanx_broadcast_async(group, &block[1], 1, PHALANX_I64, 0, &works[7]));
    int64_t parts[64], own = rank, scattered = -1, uneven[64], parts_in[64] = {0}, parts_out[64];
    OK(phalanx_gather_async(group, &own, parts, 1, PHALANX_I64, 0, &works[8]));
    OK(phalanx_scatter_async(group, whole, &scattered, 1, PHALANX_I64, 0, &works[9]));
    OK(phalanx_all_gather_v_async(group, &own, uneven, counts, PHALANX_I64, &works[10]));
    OK(phalanx_all_to_all_v_async(group, parts_in, counts, parts_out, counts, PHALANX_I64, &works[11]));
    for (int i = 11; i >= 0; i--) over(works[i]);
    CHECK(sums[0] == n && (rank != 0 || sums[1] == n) && sums[2] == rank + 1);
    CHECK(gathered[n - 1] == 1 && block[0] == n && all[n - 1] == 1 && scattered == 1 && uneven[n - 1] == n - 1);
    CHECK(rank != 0 || parts[n - 1] == n - 1);
    CHECK(parts_out[n - 1] == 0);

    /* A work that is freed at once is waited for: the memory is the program's again. */
    int64_t freed = 1;
    phalanx_work *work = NULL;
    OK(phalanx_all_reduce_async(group, &freed, 1, PHALANX_I64, PHALANX_SUM, &work));
    phalanx_work_free(work);
    CHECK(freed == n);
}

static void parts(phalanx_group *group) {
    phalanx_group *part = NULL, *quick = NULL, *exact = NULL;
    OK(phalanx_split(group, rank % 2, -rank, &part));
    CHECK(phalanx_world_size(part) == (n + 1 - rank % 2) / 2);
    CHECK(phalanx_rank(part) == phalanx_world_size(part) - 1 - rank / 2);
    OK(phalanx_barrier(part));
    OK(phalanx_finalize(part));
    OK(phalanx_finalize(part));
    REFUSED(phalanx_barrier(part), "barrier: the group was finalized");
    phalanx_group_free(part);

    OK(phalanx_split(group, rank == 0 ? 0 : -1, 0, &part));
    CHECK((rank == 0) == (part != NULL));
    phalanx_group_free(part);

    int last_and_first[2] = {n - 1, 0};
    OK(phalanx_new_group(group, last_and_first, n > 1 ? 2 : 1, &part));
    CHECK((part != NULL) == (rank == 0 || rank == n - 1));
    if (part != NULL) CHECK(phalanx_rank(part) == (rank == 0 ? 0 : 1));
    phalanx_group_free(part);

    OK(phalanx_with_timeout(group, 60.0, &quick));
    OK(phalanx_reproducible(quick, &exact));
    float third = 1.0f / 3.0f;
    OK(phalanx_all_reduce(exact, &third, 1, PHALANX_F32, PHALANX_AVG));
    CHECK(fabsf(third - 1.0f / 3.0f) < 1e-6f);
    phalanx_group_free(quick), phalanx_group_free(exact);
}

int main(void) {
    phalanx_group *group = NULL;
    OK(phalanx_init(&group));
    rank = phalanx_rank(group), n = phalanx_world_size(group);
    CHECK(phalanx_local_rank(group) == rank && phalanx_local_world_size(group) == n);
    CHECK(strlen(phalanx_name(group)) > 0 && strlen(phalanx_describe(group)) > 0);
    CHECK(strcmp(phalanx_backend_name(group), getenv("PHALANX_BACKEND")) == 0);
    collectives(group);
    uneven(group);
    messages(group);
    in_flight(group);
    parts(group);
    CHECK(phalanx_last_error_rank() == -1);
    OK(phalanx_finalize(group));
    phalanx_group_free(group);
    printf("done\n");
    return 0;
}
