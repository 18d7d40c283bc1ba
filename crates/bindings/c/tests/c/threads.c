/* Threads: each thread has its own errors; handles are closed during calls of other threads; many threads commit. */
#include "check.h"
#include <pthread.h>
#include <signal.h>

enum { THREADS = 4, ROUNDS = 200 };

static untorn_store *store;

static void *own_errors(void *unused) {
    (void)unused;
    CHECK(untorn_last_error() == UNTORN_E_NONE && !*untorn_error_message());
    BAD_HANDLE(untorn_size(NULL));
    return NULL;
}

static void errors_belong_to_threads(void) {
    FAILS(untorn_store_open(NULL, NULL), EFAULT, UNTORN_E_NULL);
    char *before = strdup(untorn_error_message());
    pthread_t thread;
    CHECK(before && pthread_create(&thread, NULL, own_errors, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(untorn_last_error() == UNTORN_E_NULL && strcmp(before, untorn_error_message()) == 0);
    free(before);
}

/* Uses a file until another thread closes its handle. */
static void *use_until_closed(void *file) {
    char buf[8];
    for (;;) {
        ssize_t n = untorn_pread(file, buf, sizeof buf, 0);
        if (n == -1) break;
        CHECK(n == 8 && memcmp(buf, "whatever", 8) == 0);
    }
    CHECK(errno == EBADF && untorn_last_error() == UNTORN_E_BAD_HANDLE);
    return NULL;
}

static void *close_it(void *file) { return untorn_close(file) == 0 ? file : NULL; }

static void closing_races_with_everything(void) {
    for (int round = 0; round < ROUNDS / 4; round++) {
        untorn_file *file = untorn_open_at(store, "raced", UNTORN_CREATE | UNTORN_TRUNC, 0644);
        CHECK(file);
        write_text(file, "whatever", 0);
        pthread_t users[THREADS], closers[2];
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&users[i], NULL, use_until_closed, file) == 0);
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&closers[i], NULL, close_it, file) == 0);
        int closed = 0;
        for (int i = 0; i < 2; i++) {
            void *result;
            CHECK(pthread_join(closers[i], &result) == 0);
            closed += result != NULL;
        }
        CHECK(closed == 1);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(users[i], NULL) == 0);
    }
}

/* Commits a file of its own, in every possible way. */
static void *commit_own_file(void *number) {
    char name[16], text[32];
    snprintf(name, sizeof name, "own%d", *(int *)number);
    untorn_file *file = untorn_open_at(store, name, UNTORN_CREATE, 0644);
    CHECK(file);
    for (int round = 0; round < ROUNDS; round++) {
        snprintf(text, sizeof text, "round %08d", round);
        write_text(file, text, 0);
        untorn_ticket *ticket;
        untorn_txn *txn;
        switch (round % 4) {
        case 0: CHECK(untorn_commit(file) == 0); break;
        case 1: CHECK(untorn_syncv(&file, 1) == 0); break;
        case 2:
            ticket = untorn_commit_async(file);
            CHECK(ticket && untorn_ticket_wait(ticket) == 0 && untorn_ticket_free(ticket) == 0);
            break;
        default:
            txn = untorn_txn_begin(store);
            CHECK(txn && untorn_txn_add(txn, file) == 0 && untorn_txn_commit(txn) == 0);
        }
        check_reads(file, text);
    }
    CHECK(untorn_close(file) == 0);
    return NULL;
}

static void *append_to_shared(void *file) {
    for (int i = 0; i < ROUNDS; i++) CHECK(untorn_append(file, "0123456789abcdef", 16) % 16 == 0);
    return NULL;
}

/* A signal that all threads of the program block, as for sigwait(), waits for the program: the library's thread, which was
 * started before, does not take it, which would end the process. */
static void signals_are_the_programs(void) {
    untorn_store *other = open_store("signals", NULL);
    untorn_file *file = untorn_open_at(other, "file", UNTORN_CREATE, 0644);
    CHECK(file && untorn_pwrite(file, "data", 4, 0) == 4 && untorn_commit(file) == 0);
    usleep(150000); /* the library's thread runs */
    sigset_t set, before;
    CHECK(sigemptyset(&set) == 0 && sigaddset(&set, SIGUSR2) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0 && sigismember(&before, SIGTERM) == 0);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    int signal = 0;
    CHECK(sigwait(&set, &signal) == 0 && signal == SIGUSR2 && pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    CHECK(untorn_close(file) == 0 && untorn_store_close(other) == 0);
}

int main(int argc, char **argv) {
    enter_scratch(argc, argv);
    signals_are_the_programs();
    errors_belong_to_threads();
    untorn_options options = {.size = sizeof options, .failure_class = UNTORN_CLASS_PROCESS, .journal_bytes = 1 << 20};
    store = open_store("store", &options);
    closing_races_with_everything();

    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, commit_own_file, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);

    untorn_file *shared = untorn_open_at(store, "shared", UNTORN_CREATE, 0644);
    CHECK(shared);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, append_to_shared, shared) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(untorn_size(shared) == 16 * THREADS * ROUNDS);
    CHECK(untorn_commit(shared) == 0 && untorn_close(shared) == 0);
    CHECK(untorn_store_close(store) == 0);
    check_plain("store/own0", "round 00000199");
    return 0;
}
