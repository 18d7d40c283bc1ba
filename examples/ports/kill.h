/* Shared by both kill tests: a child process that works, reports its progress to its parent, and is killed at a
 * random moment. */
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

/* Steps are numbered from 1. The last step that has begun, and the last one that is done. */
struct progress {
    uint64_t begun, done;
};

static inline uint64_t mix(uint64_t n) {
    n += 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
    n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
    return n ^ (n >> 31);
}

static inline volatile struct progress *shared_progress(void) {
    void *page = mmap(NULL, sizeof(struct progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    return (volatile struct progress *)page;
}

static inline uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Runs `work` in a child process, from the step after the last one that is done, and kills the child after a
 * random time. Every other time the kill comes at the begin of a step, because a step mostly waits for the
 * disk. Returns 0 if the child ended by itself, because it found broken data. */
static inline int kill_at(uint64_t chance, void (*work)(volatile struct progress *),
                          volatile struct progress *progress) {
    fflush(NULL);
    const uint64_t first = progress->done + 1;
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        work(progress);
        _exit(1);
    }
    if (chance & 1) {
        usleep((useconds_t)((chance >> 8) % 60000));
    } else {
        const uint64_t step = first + (chance >> 8) % 8, give_up = now_us() + 150000;
        while (progress->begun < step && now_us() < give_up) {}
        const uint64_t moment = now_us() + (chance >> 32) % 100;
        while (now_us() < moment) {}
    }
    int status;
    if (kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid) abort();
    return WIFSIGNALED(status);
}

#endif
