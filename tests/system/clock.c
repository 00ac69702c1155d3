/* A wall clock that a test sets: loaded before libc, between a process and the kernel.
 *
 * The file that the variable CLOCK names is shared with the test (tests/system/clock.py): by how
 * many seconds the wall clock is set. The monotonic clocks, and all that waits, are left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *set_s;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("CLOCK");
    int file = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *found = MAP_FAILED;
    if (file >= 0) {
        found = mmap(NULL, sizeof *set_s, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    if (found != MAP_FAILED) set_s = found;
}

static int64_t by_s(void) { return set_s != NULL ? *set_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = next(clock, at);
    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += by_s();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    static int (*next)(struct timeval *, void *);
    if (next == NULL) next = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = next(at, zone);
    if (failed == 0) at->tv_sec += by_s();
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}
