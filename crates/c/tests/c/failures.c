/* What the other rank hears when rank 1 aborts, does not come, or leaves; what a child hears; that a write to nobody ends no program. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static phalanx_group *group;

static void *aborts(void *unused) {
    (void)unused;
    OK(phalanx_abort(group, "the loss is no number"));
    return NULL;
}

static volatile sig_atomic_t told;

static void count(int unused) {
    (void)unused;
    told++;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    int has_handler = strcmp(argv[1], "own handler") == 0;
    CHECK(signal(SIGPIPE, has_handler ? count : SIG_DFL) != SIG_ERR);
    OK(phalanx_init(&group));
    int rank = phalanx_rank(group), line = 0;
    float values[2] = {0};
    phalanx_work *work = NULL;
    if (strcmp(argv[1], "abort") == 0) {
        float coming[2];
        OK(phalanx_recv_async(group, coming, 2, PHALANX_F32, 1 - rank, 0, &work));
        CHECK(phalanx_work_wait(work, 0.01) == PHALANX_PENDING && phalanx_work_is_done(work) == 0);
        /* Rank 0 has seen that nothing comes. What becomes of this message is not asked: the group may have failed by then. */
        if (rank == 0) (void)phalanx_send(group, values, 1, PHALANX_F32, 1, 1);
        else OK(phalanx_recv(group, values, 1, PHALANX_F32, 0, 1));
        pthread_t thread;
        if (rank == 1) CHECK(pthread_create(&thread, NULL, aborts, NULL) == 0);
        CHECK(phalanx_work_wait(work, INFINITY) == PHALANX_ERROR_ABORTED);
        CHECK(strstr(phalanx_last_error(), "the loss is no number") != NULL && phalanx_last_error_rank() == 1);
        CHECK(phalanx_work_wait(work, 0.0) == PHALANX_ERROR_ABORTED && phalanx_work_source(work) == -1);
        phalanx_work_free(work);
        if (rank == 1) CHECK(pthread_join(thread, NULL) == 0);
        CHECK(phalanx_barrier(group) == PHALANX_ERROR_POISONED && phalanx_last_error_rank() == 1);
    } else if (strcmp(argv[1], "timeout") == 0 && rank == 0) {
        phalanx_group *quick = NULL;
        OK(phalanx_with_timeout(group, 0.2, &quick));
        line = __LINE__ + 1;
        CHECK(phalanx_all_reduce(quick, values, 2, PHALANX_F32, PHALANX_SUM) == PHALANX_ERROR_TIMEOUT);
        char place[64];
        snprintf(place, sizeof place, "%s:%d", __FILE__, line);
        CHECK(strstr(phalanx_last_error(), place) != NULL && phalanx_last_error_rank() == 1);
        phalanx_group_free(quick);
    } else if (strcmp(argv[1], "timeout") == 0) {
        /* It comes when the time is over. */
        CHECK(phalanx_recv(group, values, 2, PHALANX_F32, 0, 0) == PHALANX_ERROR_TIMEOUT);
    } else if (strcmp(argv[1], "fork") == 0) {
        OK(phalanx_recv_async(group, values, 2, PHALANX_F32, 1 - rank, 0, &work));
        pid_t child = fork();
        if (child == 0) {
            CHECK(phalanx_work_wait(work, INFINITY) == PHALANX_ERROR_MISUSE);
            CHECK(phalanx_barrier(group) == PHALANX_ERROR_MISUSE);
            phalanx_work_free(work);
            phalanx_group_free(group);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        float sent[2] = {1.0f, 2.0f};
        OK(phalanx_send(group, sent, 2, PHALANX_F32, 1 - rank, 0));
        OK(phalanx_work_wait(work, INFINITY));
        phalanx_work_free(work);
        CHECK(values[1] == 2.0f);
    } else if (strcmp(argv[1], "broken pipe") == 0 || has_handler) {
        int ends[2];
        CHECK(pipe(ends) == 0 && close(ends[0]) == 0);
        CHECK(write(ends[1], "x", 1) == -1 && told == has_handler);
    } else if (rank == 0) {
        CHECK(phalanx_recv(group, values, 2, PHALANX_F32, 1, 0) == PHALANX_ERROR_PEER_LOST);
        CHECK(phalanx_last_error_rank() == 1);
    }
    phalanx_group_free(group);
    printf("done\n");
    return 0;
}
