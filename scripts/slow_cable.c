/* A cable between two network namespaces, of a known rate and delay, for kernels with and without netem:
 *
 *   slow_cable HOST HOST GBIT_PER_S DELAY_MS        the hosts are 10.77.0.1 and 10.77.0.2
 *
 * Each end is a tun device. What one host sends is given to the other when its last byte would have come through, and the delay is
 * over. Packets are as large as they can be, so that this program takes little of a core. Says `up` once it is, and ends when it is
 * killed. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 65520, SLOTS = 1024 };
/* What may wait for its turn: a sender that is ahead by more has to wait itself. */
static const double AHEAD_S = 2e-3;

struct packet {
    double due;
    int len;
    char bytes[MTU];
};

struct end {
    int file;
    /* When the link has taken all that this end has sent. */
    double free;
    /* What is under way to the other end, a ring. */
    struct packet *ring;
    unsigned first, count;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void open_end(struct end *end, const char *host, int number) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    char command[1024];
    snprintf(request.ifr_name, sizeof request.ifr_name, "cable%u%d", (unsigned)getpid() % 10000, number);
    end->file = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (end->file < 0 || ioctl(end->file, TUNSETIFF, &request) < 0) die("/dev/net/tun");
    end->ring = calloc(SLOTS, sizeof *end->ring);
    if (!end->ring) die("memory");
    snprintf(command, sizeof command,
             "set -e; ip link set %s netns %s; ip -n %s link set %s name cable; ip -n %s link set cable mtu %d up;"
             "ip -n %s link set lo up; ip -n %s addr add 10.77.0.%d/24 dev cable",
             request.ifr_name, host, host, request.ifr_name, host, MTU, host, host, number);
    if (system(command) != 0) exit(1);
}

int main(int argc, char **argv) {
    struct end ends[2] = {0};
    if (argc != 5) {
        fprintf(stderr, "usage: slow_cable HOST HOST GBIT_PER_S DELAY_MS\n");
        return 2;
    }
    const double byte_s = 8e-9 / atof(argv[3]), delay_s = atof(argv[4]) * 1e-3;
    for (int i = 0; i < 2; i++) open_end(&ends[i], argv[1 + i], i + 1);
    puts("up");
    fflush(stdout);
    for (;;) {
        double t = now(), wake = t + 1;
        struct pollfd polled[2];
        for (int i = 0; i < 2; i++) {
            struct end *end = &ends[i];
            for (; end->count && end->ring[end->first].due <= t; end->count--, end->first = (end->first + 1) % SLOTS) {
                struct packet *packet = &end->ring[end->first];
                /* A full queue drops packets. */
                if (write(ends[1 - i].file, packet->bytes, packet->len) < 0 && errno != EAGAIN && errno != ENOBUFS) die("write");
            }
            if (end->count && end->ring[end->first].due < wake) wake = end->ring[end->first].due;
            int takes = end->count < SLOTS && end->free - t < AHEAD_S;
            if (!takes && end->free - AHEAD_S < wake) wake = end->free - AHEAD_S;
            polled[i] = (struct pollfd){.fd = takes ? end->file : -1, .events = POLLIN};
        }
        double rest = wake - now();
        struct timespec limit = {.tv_sec = rest > 0 ? (time_t)rest : 0};
        limit.tv_nsec = rest > 0 ? (long)((rest - limit.tv_sec) * 1e9) : 0;
        if (ppoll(polled, 2, &limit, NULL) < 0 && errno != EINTR) die("poll");
        for (int i = 0; i < 2; i++) {
            struct end *end = &ends[i];
            if (polled[i].fd < 0 || !(polled[i].revents & POLLIN)) continue;
            struct packet *packet = &end->ring[(end->first + end->count) % SLOTS];
            packet->len = read(end->file, packet->bytes, MTU);
            if (packet->len <= 0) continue;
            t = now();
            end->free = (end->free > t ? end->free : t) + packet->len * byte_s;
            packet->due = end->free + delay_s;
            end->count++;
        }
    }
}
