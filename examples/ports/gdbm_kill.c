/* Kills a program that stores batches of records in a GDBM database, each batch ended by gdbm_sync, many
 * times, and compares the database with an oracle after each kill: gdbm_kill FILE ROUNDS SEED. Now and then the database
 * is reorganized: GDBM writes it anew, and renames the new file over the old one. At the end a second process finds the
 * database in use, and the first one ends without closing it. */
#include <gdbm.h>
#include <string.h>

#include "kill.h"

#define KEYS 2000
#define BATCH 200

/* In the oracle: the step that last stored to a key, 0 for none. */
typedef uint64_t model[KEYS];

static const char *path;

static GDBM_FILE open_database(void) { return gdbm_open(path, 512, GDBM_WRCREAT, 0644, NULL); }

static datum key_of(uint64_t key, char *buf) {
    return (datum){buf, sprintf(buf, "key %llu", (unsigned long long)key)};
}

/* The value that step n stores to a key. The length differs between keys and between steps. */
static datum value_of(uint64_t n, uint64_t key, char *buf) {
    int len = sprintf(buf, "%llu ", (unsigned long long)n), pad = (int)(mix(n ^ key << 20) % 400);
    memset(buf + len, 'x', (size_t)pad);
    return (datum){buf, len + pad};
}

static uint64_t key_in(uint64_t n, int i) { return mix(n * BATCH + (uint64_t)i) % KEYS; }
static int removes(uint64_t n, int i) { return mix(~(n * BATCH + (uint64_t)i)) % 4 == 0; }

static void take(model m, uint64_t n) {
    for (int i = 0; i < BATCH; i++) m[key_in(n, i)] = removes(n, i) ? 0 : n;
}

static void work(volatile struct progress *progress) {
    char key[32], value[512];
    GDBM_FILE db = open_database();
    if (!db) _exit(2);
    for (uint64_t n = progress->done + 1;; n++) {
        progress->begun = n;
        for (int i = 0; i < BATCH; i++) {
            uint64_t k = key_in(n, i);
            if (removes(n, i)) {
                if (gdbm_delete(db, key_of(k, key)) != 0 && gdbm_errno != GDBM_ITEM_NOT_FOUND) _exit(3);
            } else if (gdbm_store(db, key_of(k, key), value_of(n, k, value), GDBM_REPLACE) != 0) {
                _exit(4);
            }
        }
        if (gdbm_sync(db) != 0) _exit(5);
        if (n % 4 == 0 && gdbm_reorganize(db) != 0) _exit(6);
        progress->done = n;
    }
}

/* Whether the database holds exactly the contents of the oracle. */
static int holds(GDBM_FILE db, const model m) {
    char key[32], value[512];
    gdbm_count_t count, expected = 0;
    for (uint64_t k = 0; k < KEYS; k++) {
        datum got = gdbm_fetch(db, key_of(k, key));
        datum want = m[k] ? value_of(m[k], k, value) : (datum){NULL, 0};
        int same = got.dsize == want.dsize && !got.dptr == !want.dptr &&
                   (!got.dptr || memcmp(got.dptr, want.dptr, (size_t)got.dsize) == 0);
        free(got.dptr);
        if (!same) return 0;
        expected += m[k] != 0;
    }
    return gdbm_count(db, &count) == 0 && count == expected;
}

/* A process has the database open; a second one cannot, and changes nothing; the first one ends without closing. */
static int second_process(void) {
    char key[32] = "last", value[] = "synced at the end";
    int ends[2], status;
    if (pipe(ends) != 0) return 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        GDBM_FILE db = open_database();
        if (!db || gdbm_store(db, (datum){key, 4}, (datum){value, sizeof value}, GDBM_REPLACE) != 0) _exit(1);
        if (gdbm_sync(db) != 0 || write(ends[1], "x", 1) != 1 || read(ends[0], &byte, 0) != 0) _exit(2);
        usleep(200000);
        exit(0);
    }
    char byte;
    if (pid < 0 || read(ends[0], &byte, 1) != 1) return 0;
    GDBM_FILE second = open_database();
    if (second) return 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) return 0;
    GDBM_FILE db = open_database();
    if (!db) return 0;
    datum got = gdbm_fetch(db, (datum){key, 4});
    int same = got.dsize == sizeof value && memcmp(got.dptr, value, sizeof value) == 0;
    free(got.dptr);
    return same && gdbm_close(db) == 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    path = argv[1];
    int rounds = atoi(argv[2]);
    uint64_t seed = strtoull(argv[3], NULL, 0), known = 0, torn = 0, in_flight = 0, steps = 0;
    volatile struct progress *progress = shared_progress();
    model now = {0}, next;
    for (int round = 0; round < rounds; round++) {
        if (known == 0) { /* GDBM writes a new file before it maps it */
            GDBM_FILE db = open_database();
            if (!db || gdbm_sync(db) != 0 || gdbm_close(db) != 0) return 2;
        }
        int killed = kill_at(mix(seed + (uint64_t)round), work, progress);
        for (; known < progress->done; known++) take(now, known + 1);
        memcpy(next, now, sizeof now);
        if (progress->begun > known) take(next, progress->begun);
        GDBM_FILE db = open_database();
        int is_now = killed && db && holds(db, now), is_next = killed && db && holds(db, next);
        if (db) gdbm_close(db);
        if (!is_now && !is_next) {
            torn++;
            unlink(path);
            memset(now, 0, sizeof now);
            steps += known;
            known = progress->begun = progress->done = 0;
        } else if (!is_now) {
            in_flight++;
            memcpy(now, next, sizeof now);
            known = progress->done = progress->begun;
        }
    }
    printf("gdbm: %d kills, %llu batches, %llu finished by recovery, %llu torn (seed %#llx)\n", rounds,
           (unsigned long long)(steps + known), (unsigned long long)in_flight, (unsigned long long)torn,
           (unsigned long long)seed);
    if (!second_process()) return puts("gdbm: a second process broke the database, or was let in"), 1;
    return torn > 0;
}
