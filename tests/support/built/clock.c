/* A wall clock that jumps: for LD_PRELOAD. CLOCK_JUMPS names a file of two 64-bit numbers, both in seconds: what is
 * added to the time, and what is added and taken away by turns. All other clocks stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *jumps;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("CLOCK_JUMPS");
    int fd = name != NULL ? open(name, O_RDONLY | O_CLOEXEC) : -1;

    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (fd >= 0) {
        void *place = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);

        jumps = place != MAP_FAILED ? place : NULL;
        close(fd);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static unsigned turns;
    int result = real(clock, now);

    if (result == 0 && jumps != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += jumps[0] + (turns++ & 1 ? jumps[1] : -jumps[1]);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);

    (void)zone;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *place)
{
    struct timespec found;

    clock_gettime(CLOCK_REALTIME, &found);
    if (place != NULL)
        *place = found.tv_sec;
    return found.tv_sec;
}
