/* Two ranks that know who they are, and meet through a file: join RANK FILE. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <time.h>

static int calls;
static char said[4096];

static const char *share(void *context, const char *words, double seconds) {
    const char *file = context;
    char part[512];
    calls++;
    CHECK(seconds > 0.0);
    if (words != NULL) {
        /* Under another name until it is whole. */
        snprintf(part, sizeof part, "%s.part", file);
        FILE *out = fopen(part, "w");
        CHECK(out != NULL && fputs(words, out) >= 0 && fclose(out) == 0 && rename(part, file) == 0);
        return words;
    }
    for (double waited = 0.0; waited < seconds; waited += 0.01) {
        FILE *in = fopen(file, "r");
        if (in != NULL) {
            said[fread(said, 1, sizeof said - 1, in)] = 0;
            fclose(in);
            return said;
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return NULL;
}

static const char *refuse(void *context, const char *words, double seconds) {
    (void)context, (void)words, (void)seconds;
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    char rank[32];
    snprintf(rank, sizeof rank, "PHALANX_RANK=%s", argv[1]);
    const char *variables[] = {rank, "PHALANX_WORLD_SIZE=2", "PHALANX_INIT_TIMEOUT_S=60", NULL};
    phalanx_group *group = NULL;
    CHECK(phalanx_join(variables, refuse, NULL, &group) == PHALANX_ERROR_CONFIG && group == NULL);
    CHECK(strstr(phalanx_last_error(), "the program's function returned null") != NULL);
    OK(phalanx_join(variables, share, argv[2], &group));
    CHECK(calls == 1);
    int64_t sum = phalanx_rank(group) + 1;
    OK(phalanx_all_reduce(group, &sum, 1, PHALANX_I64, PHALANX_SUM));
    CHECK(sum == 3);
    OK(phalanx_finalize(group));
    phalanx_group_free(group);
    printf("done\n");
    return 0;
}
