/* Ranks add up, wait, and add up meanwhile. With the argument "mismatch" they disagree instead, and read what went wrong where.
 *
 *     cargo build --release -p phalanx-c
 *     cc -std=c99 -I crates/c/include crates/c/examples/hello.c -L target/release -lphalanx_c -Wl,-rpath,$PWD/target/release -o hello
 *     phalanx run -n 2 ./hello
 */
#include <phalanx.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *doing, phalanx_status status) {
    fprintf(stderr, "%s: %s: %s\n", doing, phalanx_status_name(status), phalanx_last_error());
    return 1;
}

/* Rank 0 brings one element more than the others. All ranks get the same error, and no sum. */
static int disagree(phalanx_group *group) {
    double values[3] = {1.0, 2.0, 3.0};
    size_t count = phalanx_rank(group) == 0 ? 3 : 2;
    phalanx_status status = phalanx_all_reduce(group, values, count, PHALANX_F64, PHALANX_SUM);
    printf("%s: %s\n", phalanx_status_name(status), phalanx_last_error());
    phalanx_group_free(group);
    return status == PHALANX_ERROR_MISMATCH ? 0 : 1;
}

int main(int argc, char **argv) {
    if (phalanx_abi_version() != PHALANX_ABI_VERSION) {
        fprintf(stderr, "this program was built for another version of phalanx\n");
        return 1;
    }
    phalanx_group *group = NULL;
    phalanx_status status = phalanx_init(&group);
    if (status != PHALANX_OK) {
        return failed("joining the job", status);
    }
    int rank = phalanx_rank(group), world_size = phalanx_world_size(group);
    if (argc > 1 && strcmp(argv[1], "mismatch") == 0) {
        return disagree(group);
    }

    float sums[2] = {(float)rank, 1.0f};
    status = phalanx_all_reduce(group, sums, 2, PHALANX_F32, PHALANX_SUM);
    if (status != PHALANX_OK) {
        return failed("adding up", status);
    }
    printf("hello from rank %d of %d: the ranks add up to %g\n", rank, world_size, sums[0]);

    int64_t largest = rank;
    phalanx_work *work = NULL;
    status = phalanx_all_reduce_async(group, &largest, 1, PHALANX_I64, PHALANX_MAX, &work);
    if (status != PHALANX_OK) {
        return failed("beginning to look for the largest rank", status);
    }
    /* ... compute, and leave `largest` alone ... */
    do {
        status = phalanx_work_wait(work, 10.0);
    } while (status == PHALANX_PENDING);
    phalanx_work_free(work);
    if (status != PHALANX_OK) {
        return failed("looking for the largest rank", status);
    }
    printf("the largest rank is %d\n", (int)largest);

    status = phalanx_finalize(group);
    phalanx_group_free(group);
    return status == PHALANX_OK ? 0 : failed("leaving", status);
}
