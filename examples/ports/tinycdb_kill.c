/* Kills a program that makes constant databases, each in a file of its own that is renamed over the last one, many
 * times, and looks at the database after each kill: tinycdb_kill FILE ROUNDS SEED. Nothing is synced: the rename is what
 * counts. Compiled with untorn_posix.h, as the library is. */
#include <cdb.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "kill.h"

#define KEYS 200

static char path[4096], fresh[4200];

static int key_of(uint64_t key, char *buf) { return sprintf(buf, "key %llu", (unsigned long long)key); }

static int value_of(uint64_t n, uint64_t key, char *buf) {
    int len = sprintf(buf, "%llu ", (unsigned long long)n), pad = (int)(mix(n ^ key << 20) % 400);
    memset(buf + len, 'x', (size_t)pad);
    return len + pad;
}

static void work(volatile struct progress *progress) {
    char key[32], value[512];
    for (uint64_t n = progress->done + 1;; n++) {
        progress->begun = n;
        struct cdb_make make;
        int fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || cdb_make_start(&make, fd) != 0) _exit(2);
        for (uint64_t k = 0; k < KEYS; k++)
            if (cdb_make_add(&make, key, (unsigned)key_of(k, key), value, (unsigned)value_of(n, k, value)) != 0) _exit(3);
        if (cdb_make_finish(&make) != 0) _exit(4);
        /* Half of the times the new file is still open. */
        if (n % 2 && close(fd) != 0) _exit(5);
        if (rename(fresh, path) != 0) _exit(6);
        if (n % 2 == 0 && close(fd) != 0) _exit(7);
        progress->done = n;
    }
}

/* The step whose database this is, whole. 0: none. */
static uint64_t step_of(void) {
    char key[32], value[512], want[512];
    struct cdb db;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || cdb_init(&db, fd) != 0) return 0;
    uint64_t n = 0;
    for (uint64_t k = 0; k < KEYS; k++) {
        if (cdb_find(&db, key, (unsigned)key_of(k, key)) <= 0 || cdb_datalen(&db) >= sizeof value) return 0;
        if (cdb_read(&db, value, cdb_datalen(&db), cdb_datapos(&db)) != 0) return 0;
        if (k == 0) n = strtoull(value, NULL, 10);
        if (cdb_datalen(&db) != (unsigned)value_of(n, k, want) || memcmp(value, want, cdb_datalen(&db)) != 0) return 0;
    }
    cdb_free(&db);
    close(fd);
    return n;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    snprintf(path, sizeof path, "%s", argv[1]);
    snprintf(fresh, sizeof fresh, "%s.tmp", argv[1]);
    int rounds = atoi(argv[2]);
    uint64_t seed = strtoull(argv[3], NULL, 0), torn = 0, in_flight = 0;
    volatile struct progress *progress = shared_progress();
    for (int round = 0; round < rounds; round++) {
        int killed = kill_at(mix(seed + (uint64_t)round), work, progress);
        uint64_t found = step_of();
        if (!killed || found < progress->done || found > progress->begun) {
            torn++;
        } else {
            in_flight += found > progress->done;
            progress->done = progress->begun = found;
        }
    }
    printf("tinycdb: %d kills, %llu databases, %llu finished by recovery, %llu torn (seed %#llx)\n", rounds,
           (unsigned long long)progress->done, (unsigned long long)in_flight, (unsigned long long)torn,
           (unsigned long long)seed);
    return torn > 0;
}
