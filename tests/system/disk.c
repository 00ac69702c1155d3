/* A disk that fails when a test says so: loaded before libc, between SQLite and the kernel.
 *
 * The file that the variable DISK names is shared with the test (tests/system/disk.py): numbers, and
 * a part of the path of the files that are concerned. All others are left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum point { BEFORE_WRITE = 1, BEFORE_SYNC = 2, AFTER_SYNC = 3 };

struct control {
    int32_t syncs;         /* syncs that have ended well */
    int32_t writes;        /* writes that have ended */
    int32_t failed;        /* calls that were made to fail */
    int32_t sync_us;       /* time that each sync takes longer */
    int32_t failing_syncs; /* number of syncs that fail from now on */
    int32_t writes_left;   /* number of writes after which the disk is full; -1: it is never full */
    int32_t point;         /* where a signal is sent; 0: nowhere */
    int32_t countdown;     /* the number of times that this point is reached until then */
    int32_t signal;
    char unused[28];
    char path[64];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("DISK");
    int file = name != NULL ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *found = MAP_FAILED;
    if (file >= 0) {
        found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    if (found != MAP_FAILED) control = found;
}

static int is_concerned(int file) {
    char link[32], path[4096];
    if (control == NULL || control->path[0] == 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *part = strstr(path, control->path);
    /* A part that ends with a slash is a folder, any other one is the end of the path. */
    size_t size = strlen(control->path);
    return part != NULL && (control->path[size - 1] == '/' || part[size] == 0);
}

static void reach(int32_t point) {
    if (control->point == point && __sync_sub_and_fetch(&control->countdown, 1) == 0) {
        kill(getpid(), control->signal);
        while (control->signal == SIGKILL) pause();
    }
}

static int synced(int file, const char *name) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (!is_concerned(file)) return sync(file);
    reach(BEFORE_SYNC);
    if (control->sync_us > 0) {
        struct timespec wait = {control->sync_us / 1000000, control->sync_us % 1000000 * 1000};
        nanosleep(&wait, NULL);
    }
    if (control->failing_syncs > 0) {
        __sync_sub_and_fetch(&control->failing_syncs, 1);
        __sync_add_and_fetch(&control->failed, 1);
        errno = EIO;
        return -1;
    }
    int answer = sync(file);
    __sync_add_and_fetch(&control->syncs, 1);
    reach(AFTER_SYNC);
    return answer;
}

int fsync(int file) { return synced(file, "fsync"); }
int fdatasync(int file) { return synced(file, "fdatasync"); }

/* Whether a write may happen; else errno says why not. */
static int may_write(int file) {
    if (!is_concerned(file)) return 1;
    reach(BEFORE_WRITE);
    if (control->writes_left == 0) {
        __sync_add_and_fetch(&control->failed, 1);
        errno = ENOSPC;
        return 0;
    }
    if (control->writes_left > 0) __sync_sub_and_fetch(&control->writes_left, 1);
    __sync_add_and_fetch(&control->writes, 1);
    return 1;
}

typedef ssize_t (*pwrite_call)(int, const void *, size_t, off64_t);
typedef ssize_t (*write_call)(int, const void *, size_t);

ssize_t write(int file, const void *data, size_t size) {
    if (!may_write(file)) return -1;
    return ((write_call)dlsym(RTLD_NEXT, "write"))(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    if (!may_write(file)) return -1;
    return ((pwrite_call)dlsym(RTLD_NEXT, "pwrite64"))(file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return pwrite64(file, data, size, at);
}

int posix_fallocate64(int file, off64_t at, off64_t size) {
    if (!may_write(file)) return errno;
    return ((int (*)(int, off64_t, off64_t))dlsym(RTLD_NEXT, "posix_fallocate64"))(file, at, size);
}

int posix_fallocate(int file, off_t at, off_t size) { return posix_fallocate64(file, at, size); }
