/* What the programs of the tests share: a check that says which line failed. */
#ifndef CHECK_H
#define CHECK_H

#include <phalanx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, phalanx_last_error()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define OK(call) CHECK((call) == PHALANX_OK)

/* A call that makes no sense: the words say why and where, and the group works on. */
#define MISUSE(call, words)                                                                    \
    do {                                                                                       \
        CHECK((call) == PHALANX_ERROR_MISUSE);                                                 \
        CHECK(strstr(phalanx_last_error(), words) != NULL);                                    \
    } while (0)

/* The same of an operation, whose error has the line of the call. */
#define REFUSED(call, words)                                                                   \
    do {                                                                                       \
        char place[64];                                                                        \
        MISUSE(call, words);                                                                   \
        snprintf(place, sizeof place, ", at %s:%d", __FILE__, __LINE__);                       \
        CHECK(strstr(phalanx_last_error(), place) != NULL);                                    \
    } while (0)

#endif
