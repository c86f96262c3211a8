/* Calls that make no sense: each is refused in words, with its line, and the group works on. */
#include "check.h"
#include <math.h>

static void nulls(phalanx_group *group) {
    int source;
    double value = 1.0;
    phalanx_work *work = (phalanx_work *)&value;
    phalanx_group *made = (phalanx_group *)&value;
    MISUSE(phalanx_init(NULL), "the place for the new group is a null pointer");
    MISUSE(phalanx_join(NULL, NULL, NULL, NULL), "the place for the new group is a null pointer");
    REFUSED(phalanx_all_reduce(NULL, &value, 1, PHALANX_F64, PHALANX_SUM), "all_reduce: the group is a null pointer");
    REFUSED(phalanx_all_reduce_async(NULL, &value, 1, PHALANX_F64, PHALANX_SUM, &work), "the group is a null pointer");
    CHECK(work == NULL);
    REFUSED(phalanx_split(NULL, 0, 0, &made), "split: the group is a null pointer");
    CHECK(made == NULL);
    REFUSED(phalanx_split(group, 0, 0, NULL), "split: the place for the new group is a null pointer");
    REFUSED(phalanx_finalize(NULL), "finalize: the group is a null pointer");
    MISUSE(phalanx_abort(NULL, "why"), "abort: the group is a null pointer");
    REFUSED(phalanx_all_reduce(group, NULL, 2, PHALANX_F64, PHALANX_SUM), "the buffer is a null pointer, and should have 2 elements of f64");
    REFUSED(phalanx_all_gather(group, NULL, &value, 1, PHALANX_F64), "the input is a null pointer");
    REFUSED(phalanx_all_gather(group, &value, NULL, 1, PHALANX_F64), "the output is a null pointer");
    REFUSED(phalanx_gather_v(group, &value, NULL, NULL, PHALANX_F64, 0), "the counts are no array");
    REFUSED(phalanx_new_group(group, NULL, 1, &made), "the ranks are no array");
    REFUSED(phalanx_recv_any(group, NULL, 1, PHALANX_F64, 0, &source), "the buffer is a null pointer");
    MISUSE(phalanx_work_wait(NULL, 1.0), "the work is a null pointer");
    CHECK(phalanx_rank(NULL) == -1 && phalanx_world_size(NULL) == -1 && phalanx_local_rank(NULL) == -1);
    CHECK(strcmp(phalanx_name(NULL), "") == 0 && strcmp(phalanx_backend_name(NULL), "") == 0);
    CHECK(phalanx_work_is_done(NULL) == 0 && phalanx_work_source(NULL) == -1);
    phalanx_work_free(NULL);
    phalanx_group_free(NULL);
    /* No elements may be nowhere. */
    OK(phalanx_all_reduce(group, NULL, 0, PHALANX_F64, PHALANX_SUM));
}

static void numbers(phalanx_group *group) {
    double values[4] = {0};
    phalanx_group *made = NULL;
    int next = 1 - phalanx_rank(group);
    REFUSED(phalanx_all_reduce(group, values, 1, 12, PHALANX_SUM), "there is no element type 12");
    REFUSED(phalanx_all_reduce(group, values, 1, -1, PHALANX_SUM), "there is no element type -1");
    REFUSED(phalanx_all_reduce(group, values, 1, PHALANX_F64, 99), "there is no operator 99");
    REFUSED(phalanx_all_reduce(group, values, 1, PHALANX_F64, PHALANX_BIT_OR), "for integers");
    REFUSED(phalanx_all_reduce(group, values, (size_t)-1, PHALANX_F64, PHALANX_SUM), "a negative count?");
    REFUSED(phalanx_all_reduce(group, values, SIZE_MAX / 8, PHALANX_F64, PHALANX_SUM), "no memory has");
    REFUSED(phalanx_all_gather(group, values, values + 2, (size_t)-1, PHALANX_F64), "a negative count?");
    REFUSED(phalanx_all_to_all(group, values, values + 2, SIZE_MAX / 2, PHALANX_F64), "no memory has");
    REFUSED(phalanx_broadcast(group, values, 1, PHALANX_F64, 2), "there is no rank 2: the group has ranks 0 to 1");
    REFUSED(phalanx_broadcast(group, values, 1, PHALANX_F64, -1), "there is no rank -1");
    REFUSED(phalanx_send(group, values, 1, PHALANX_F64, 7, 0), "there is no rank 7");
    REFUSED(phalanx_send(group, values, 1, PHALANX_F64, 1 - next, 0), "");
    REFUSED(phalanx_recv(group, (char *)values + 1, 1, PHALANX_F64, next, 0), "no multiple of 8");
    REFUSED(phalanx_recv_timeout(group, values, 1, PHALANX_F64, next, 0, -1.0), "no time in seconds");
    REFUSED(phalanx_monitored_barrier(group, NAN), "no time in seconds");
    REFUSED(phalanx_with_timeout(group, -1.0, &made), "no time in seconds");
    REFUSED(phalanx_split(group, INT64_MAX, 0, &made), "there is no color");
    REFUSED(phalanx_new_group(group, (int[]){0, 1, 0}, 3, &made), "3 ranks of a group that has 2");
    REFUSED(phalanx_new_group(group, (int[]){-1}, 1, &made), "there is no rank -1");
    REFUSED(phalanx_new_group(group, (int[]){0, 0}, 2, &made), "");
    CHECK(made == NULL);
    size_t counts[2] = {SIZE_MAX, 2};
    REFUSED(phalanx_all_gather_v(group, values, values, counts, PHALANX_F64), "the sum of the counts");
    CHECK(strcmp(phalanx_status_name(-5), "no status of phalanx") == 0);
    CHECK(strcmp(phalanx_status_name(PHALANX_ERROR_MISUSE), "PHALANX_ERROR_MISUSE") == 0);
}

static void overlaps(phalanx_group *group) {
    int32_t values[8] = {0};
    phalanx_work *work = NULL;
    int rank = phalanx_rank(group);
    REFUSED(phalanx_all_gather(group, values + 1 + 2 * rank, values, 2, PHALANX_I32), "overlap in memory");
    REFUSED(phalanx_reduce_scatter(group, values, values + 1 + 2 * rank, 2, PHALANX_I32, PHALANX_SUM), "overlap in memory");
    REFUSED(phalanx_all_to_all(group, values, values, 2, PHALANX_I32), "overlap in memory");
    REFUSED(phalanx_all_to_all_async(group, values, values + 3, 2, PHALANX_I32, &work), "overlap in memory");
    CHECK(work == NULL);
    if (rank == 0) {
        REFUSED(phalanx_gather(group, values + 1, values, 2, PHALANX_I32, 0), "overlap in memory");
        REFUSED(phalanx_scatter(group, values, values + 1, 2, PHALANX_I32, 0), "overlap in memory");
    }
}

int main(void) {
    CHECK(strcmp(phalanx_last_error(), "") == 0);
    phalanx_group *group = NULL;
    const char *strange[] = {"no variable", NULL}, *unknown[] = {"PHALANX_RANK=3", NULL};
    MISUSE(phalanx_join(strange, NULL, NULL, &group), "is no variable");
    CHECK(phalanx_join(unknown, NULL, NULL, &group) == PHALANX_ERROR_CONFIG && group == NULL);
    OK(phalanx_init(&group));
    nulls(group);
    numbers(group);
    overlaps(group);
    OK(phalanx_barrier(group));
    OK(phalanx_finalize(group));
    phalanx_group_free(group);
    printf("done\n");
    return 0;
}
