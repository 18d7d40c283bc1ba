/* What both kill tests share: a child that works, dies by SIGKILL at a random moment, and has told its
 * parent by then how far it was. */
#ifndef KILL_H
#define KILL_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Steps are numbered from 1. This one has begun, and is done if they are the same. */
struct told {
    uint64_t begun, done;
};

static inline uint64_t mix(uint64_t n) {
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

static inline volatile struct told *tell(void) {
    void *page = mmap(NULL, sizeof(struct told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    return (volatile struct told *)page;
}

static inline uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Runs `work` in a child, from the step after the last one that is done, and kills it: after a while, or,
 * every other time, in the first moments of some step, as most of the time goes into waiting for the disk.
 * Returns 0 if it ended by itself, because it found the data broken. */
static inline int kill_at(uint64_t chance, void (*work)(volatile struct told *), volatile struct told *told) {
    fflush(NULL);
    const uint64_t first = told->done + 1;
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        work(told);
        _exit(1);
    }
    if (chance & 1) {
        usleep((useconds_t)((chance >> 8) % 25000));
    } else {
        const uint64_t step = first + (chance >> 8) % 8, give_up = now_us() + 50000;
        while (told->begun < step && now_us() < give_up) {}
        const uint64_t moment = now_us() + (chance >> 32) % 100;
        while (now_us() < moment) {}
    }
    int status;
    if (kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid) abort();
    return WIFSIGNALED(status);
}

#endif
