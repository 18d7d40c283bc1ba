/* Kills a program that stores batches of records in a QDBM database, each batch ended by dpsync, many times, and
 * compares the database with an oracle after each kill: qdbm_kill FILE ROUNDS SEED. Now and then the database is
 * optimized, which writes it anew by way of a second file. */
#include <depot.h>
#include <stdlib.h>
#include <string.h>

#include "kill.h"

#define KEYS 1000
#define BATCH 50

/* In the oracle: the step that last stored to a key, 0 for none. */
typedef uint64_t model[KEYS];

static const char *path;

static DEPOT *open_database(void) { return dpopen(path, DP_OWRITER | DP_OCREAT, 500); }

static int key_of(uint64_t key, char *buf) { return sprintf(buf, "key %llu", (unsigned long long)key); }

/* The value that step n stores to a key. The length differs between keys and between steps. */
static int value_of(uint64_t n, uint64_t key, char *buf) {
    int len = sprintf(buf, "%llu ", (unsigned long long)n), pad = (int)(mix(n ^ key << 20) % 400);
    memset(buf + len, 'x', (size_t)pad);
    return len + pad;
}

static uint64_t key_in(uint64_t n, int i) { return mix(n * BATCH + (uint64_t)i) % KEYS; }
static int removes(uint64_t n, int i) { return mix(~(n * BATCH + (uint64_t)i)) % 4 == 0; }

static void take(model m, uint64_t n) {
    for (int i = 0; i < BATCH; i++) m[key_in(n, i)] = removes(n, i) ? 0 : n;
}

static void work(volatile struct progress *progress) {
    char key[32], value[512];
    DEPOT *db = open_database();
    if (!db) _exit(2);
    for (uint64_t n = progress->done + 1;; n++) {
        progress->begun = n;
        for (int i = 0; i < BATCH; i++) {
            uint64_t k = key_in(n, i);
            int len = key_of(k, key);
            if (removes(n, i)) {
                if (!dpout(db, key, len) && dpecode != DP_ENOITEM) _exit(3);
            } else if (!dpput(db, key, len, value, value_of(n, k, value), DP_DOVER)) {
                _exit(4);
            }
        }
        if (n % 4 == 0 && !dpoptimize(db, -1)) _exit(6);
        if (!dpsync(db)) _exit(5);
        progress->done = n;
    }
}

/* Whether the database holds exactly the contents of the oracle. */
static int holds(DEPOT *db, const model m) {
    char key[32], value[512];
    int expected = 0;
    for (uint64_t k = 0; k < KEYS; k++) {
        int len = -1;
        char *got = dpget(db, key, key_of(k, key), 0, -1, &len);
        int want = m[k] ? value_of(m[k], k, value) : -1;
        int same = len == want && (!got || memcmp(got, value, (size_t)want) == 0);
        free(got);
        if (!same) return 0;
        expected += m[k] != 0;
    }
    return dprnum(db) == expected;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    path = argv[1];
    int rounds = atoi(argv[2]);
    uint64_t seed = strtoull(argv[3], NULL, 0), known = 0, torn = 0, in_flight = 0, steps = 0;
    volatile struct progress *progress = shared_progress();
    model now = {0}, next;
    for (int round = 0; round < rounds; round++) {
        int killed = kill_at(mix(seed + (uint64_t)round), work, progress);
        for (; known < progress->done; known++) take(now, known + 1);
        memcpy(next, now, sizeof now);
        if (progress->begun > known) take(next, progress->begun);
        DEPOT *db = open_database();
        int is_now = killed && db && holds(db, now), is_next = killed && db && holds(db, next);
        if (db) dpclose(db);
        if (!is_now && !is_next) {
            torn++;
            dpremove(path);
            memset(now, 0, sizeof now);
            steps += known;
            known = progress->begun = progress->done = 0;
        } else if (!is_now) {
            in_flight++;
            memcpy(now, next, sizeof now);
            known = progress->done = progress->begun;
        }
    }
    printf("qdbm: %d kills, %llu batches, %llu finished by recovery, %llu torn (seed %#llx)\n", rounds,
           (unsigned long long)(steps + known), (unsigned long long)in_flight, (unsigned long long)torn,
           (unsigned long long)seed);
    return torn > 0;
}
