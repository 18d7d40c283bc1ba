/* Threads that open, change, rename and close managed files, while signal handlers write to a file that is not managed,
 * and children that share the memory close descriptors. */
#include <untorn_posix.h>

#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define THREADS 3

static int rounds, in_handler, common;
static atomic_int running;
static atomic_long handled;

/* Addresses go from thread to thread, in the kernel, which the sanitizer does not see. */
#ifdef __SANITIZE_THREAD__
static pthread_mutex_t addresses = PTHREAD_MUTEX_INITIALIZER;
#define BEGIN_ADDRESSES CHECK(pthread_mutex_lock(&addresses) == 0)
#define END_ADDRESSES CHECK(pthread_mutex_unlock(&addresses) == 0)
#else
#define BEGIN_ADDRESSES (void)0
#define END_ADDRESSES (void)0
#endif

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    if (write(in_handler, "x", 1) != 1) _exit(9);
    handled++;
    errno = saved;
}

/* Each thread has a file of its own, under two names in turn, and a page of the common one. */
static void *work(void *argument) {
    long me = (long)argument;
    char names[2][32], text[64], found[64];
    snprintf(names[0], sizeof names[0], "thread-%ld.db", me);
    snprintf(names[1], sizeof names[1], "thread-%ld-too.db", me);
    for (int i = 0; i < rounds; i++) {
        BEGIN_ADDRESSES;
        int fd = open(names[i % 2], O_RDWR | O_CREAT, 0644);
        CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
        char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(at != MAP_FAILED);
        END_ADDRESSES;
        int len = snprintf(text, sizeof text, "round %d of thread %ld", i, me);
        memcpy(at, text, (size_t)len);
        int copy = dup(fd);
        CHECK(copy >= 0 && pread(copy, found, (size_t)len, 0) == len && memcmp(found, text, (size_t)len) == 0);
        CHECK(pwrite(common, text, (size_t)len, me * 4096) == len);
        CHECK(rename(names[i % 2], names[(i + 1) % 2]) == 0);
        at[0] = 'R';
        CHECK(msync(at, 4096, MS_SYNC) == 0);
        BEGIN_ADDRESSES;
        CHECK(munmap(at, 4096) == 0 && close(fd) == 0 && close(copy) == 0);
        END_ADDRESSES;
        CHECK(pread(common, found, (size_t)len, me * 4096) == len && memcmp(found, text, (size_t)len) == 0);
    }
    running--;
    return NULL;
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    rounds = getenv("UNDER_VALGRIND") ? 3 : getenv("BRIEF") ? 15 : 40;
    CHECK(untorn_manage("*.db") == 0);
    in_handler = open("handler", O_RDWR | O_CREAT | O_APPEND, 0644);
    common = open("common.db", O_RDWR | O_CREAT, 0644);
    CHECK(in_handler >= 0 && common >= 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t threads[THREADS];
    running = THREADS;
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int n = 0; running > 0; n++) {
        CHECK(pthread_kill(threads[n % THREADS], SIGUSR1) == 0);
        /* Valgrind makes it a fork without fork handlers for locks: the child would wait for the parent's threads. */
        if (n % 50 == 0 && !getenv("UNDER_VALGRIND")) {
            pid_t pid = vfork();
            if (pid == 0) {
                close(common);
                for (int fd = 3; fd < 40; fd++) close(fd);
                _exit(0);
            }
            int status;
            CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
        }
        usleep(200);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(handled > 0 && untorn_fd_is_managed(common) == 1 && fsync(common) == 0 && close(common) == 0);
    for (int i = 0; i < THREADS; i++) {
        char path[32], text[64], found[64];
        int len = snprintf(text, sizeof text, "Round %d of thread %d", rounds - 1, i);
        snprintf(path, sizeof path, rounds % 2 ? "thread-%d-too.db" : "thread-%d.db", i);
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0 && read(fd, found, (size_t)len) == len && memcmp(found, text, (size_t)len) == 0 && close(fd) == 0);
    }
    printf("%ld signals\n", (long)handled);
    return 0;
}
