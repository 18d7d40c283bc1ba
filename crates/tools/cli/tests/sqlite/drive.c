/* Runs SQL on several connections, as a test tells it on standard input:
 *
 *   open N URI      opens connection N                    N SQL        runs SQL on connection N
 *   close N         closes it                             ack N        prints "ack N"
 *   load            loads the extension again             fork N SQL   runs SQL on connection N in a forked child
 *   fault KIND N    a call of this kind fails             threads, backup, shutdown, cycles: see below
 *
 * Each command but `ack` ends with a line "done CODE MESSAGE"; rows come before it, one a line. */
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef UNTORN_STATIC
/* libuntorn_sqlite.a; an SQLite that was compiled with SQLITE_EXTRA_INIT calls it by itself. */
int untorn_sqlite_init(const char *unused);
#endif

static sqlite3 *connections[64];
static const char *extension;

static int row(void *unused, int n, char **values, char **names) {
    (void)unused, (void)names;
    for (int i = 0; i < n; i++)
        printf("%s%s", i ? "|" : "row ", values[i] ? values[i] : "NULL");
    printf("\n");
    return 0;
}

static void done(int code, const char *message) {
    printf("done %d %s\n", code, message ? message : "");
    fflush(stdout);
}

static void load(void) {
    sqlite3 *any;
    char *error = NULL;
    sqlite3_open_v2(":memory:", &any, SQLITE_OPEN_READWRITE, "unix");
    sqlite3_enable_load_extension(any, 1);
    if (sqlite3_load_extension(any, extension, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", extension, error);
        exit(1);
    }
    sqlite3_close(any);
}

static void open_connection(int at, const char *uri) {
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
    if (strstr(uri, "mode=ro"))
        flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
    int code = sqlite3_open_v2(uri, &connections[at], flags, NULL);
    sqlite3_extended_result_codes(connections[at], 1);
    done(code, sqlite3_errmsg(connections[at]));
}

static void run(int at, const char *sql) {
    int code = sqlite3_exec(connections[at], sql, row, NULL, NULL);
    done(code, code == SQLITE_OK ? NULL : sqlite3_errmsg(connections[at]));
}

struct work {
    int at, seed, rounds, done, failed;
};

/* Moves amounts between two accounts until it has done so often enough, and tells of each move. A move may fail. */
static void *worker(void *argument) {
    struct work *work = argument;
    sqlite3 *mine = connections[work->at];
    sqlite3_busy_timeout(mine, 60000);
    while (work->done < work->rounds) {
        char sql[400];
        int amount = (work->seed = work->seed * 1103515245 + 12345) & 1023;
        snprintf(sql, sizeof sql,
                 "BEGIN IMMEDIATE; UPDATE account SET has = has - %d WHERE id = 1; UPDATE account SET has = has + %d WHERE id = 2; "
                 "UPDATE account SET has = has + 1 WHERE id = 3; COMMIT", amount, amount);
        int code = sqlite3_exec(mine, sql, NULL, NULL, NULL);
        if (code != SQLITE_OK) {
            sqlite3_exec(mine, "ROLLBACK", NULL, NULL, NULL);
            if ((code & 255) != SQLITE_BUSY && ++work->failed > work->rounds)
                return (void *)1;
            continue;
        }
        work->done++;
        printf("moved\n");
        fflush(stdout);
    }
    return NULL;
}

/* threads N ROUNDS: connections 0 to N-1 write at once. */
static void threads(int n, int rounds) {
    pthread_t running[16];
    struct work works[16];
    void *gave_up = NULL, *one;
    int failed = 0;
    for (int i = 0; i < n; i++) {
        works[i] = (struct work){.at = i, .seed = i, .rounds = rounds};
        pthread_create(&running[i], NULL, worker, &works[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(running[i], &one);
        gave_up = one ? one : gave_up;
        failed += works[i].failed;
    }
    printf("row %d\n", failed);
    done(gave_up != NULL, NULL);
}

static void fork_and_run(int at, const char *sql) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        run(at, sql);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* backup TO FROM: copies the main database of one connection to another. */
static void backup(int to, int from) {
    sqlite3_backup *copy = sqlite3_backup_init(connections[to], "main", connections[from], "main");
    if (copy) {
        sqlite3_backup_step(copy, -1);
        sqlite3_backup_finish(copy);
    }
    done(sqlite3_extended_errcode(connections[to]), sqlite3_errmsg(connections[to]));
}

static int compare(const void *one, const void *other) {
    return *(const int *)one - *(const int *)other;
}

/* cycles N URI: opens, reads the table t and closes, N times. Answers the median time in microseconds. */
static void cycles(int n, const char *uri) {
    int *times = malloc(n * sizeof *times), code = SQLITE_OK;
    for (int i = 0; times && i < n && code == SQLITE_OK; i++) {
        struct timespec from, to;
        sqlite3 *one = NULL;
        clock_gettime(CLOCK_MONOTONIC, &from);
        code = sqlite3_open_v2(uri, &one, SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI, NULL);
        if (code == SQLITE_OK)
            code = sqlite3_exec(one, "SELECT * FROM t", NULL, NULL, NULL);
        sqlite3_close(one);
        clock_gettime(CLOCK_MONOTONIC, &to);
        times[i] = (int)((to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000);
    }
    if (times && code == SQLITE_OK) {
        qsort(times, n, sizeof *times, compare);
        printf("row %d\n", times[n / 2]);
    }
    free(times);
    done(code, NULL);
}

int main(int argc, char **argv) {
    static char line[1 << 20];
    extension = argc > 1 ? argv[1] : NULL;
#ifdef UNTORN_STATIC
    if (!sqlite3_vfs_find("untorn") && (untorn_sqlite_init(NULL) != SQLITE_OK || !sqlite3_vfs_find("untorn")))
        return 1;
#endif
    if (extension)
        load();
    while (fgets(line, sizeof line, stdin)) {
        int at, other;
        line[strcspn(line, "\n")] = '\0';
        char *rest = strchr(line, ' ');
        if (strncmp(line, "ack ", 4) == 0) {
            printf("%s\n", line);
            fflush(stdout);
        } else if (sscanf(line, "open %d", &at) == 1) {
            open_connection(at, strchr(rest + 1, ' ') + 1);
        } else if (sscanf(line, "close %d", &at) == 1) {
            done(sqlite3_close(connections[at]), NULL);
        } else if (sscanf(line, "fork %d", &at) == 1) {
            fork_and_run(at, strchr(rest + 1, ' ') + 1);
        } else if (sscanf(line, "threads %d %d", &at, &other) == 2) {
            threads(at, other);
        } else if (sscanf(line, "backup %d %d", &at, &other) == 2) {
            backup(at, other);
        } else if (sscanf(line, "cycles %d", &at) == 1) {
            cycles(at, strchr(rest + 1, ' ') + 1);
        } else if (strncmp(line, "fault ", 6) == 0) {
            done(setenv("UNTORN_SQLITE_FAULT", rest + 1, 1), NULL);
        } else if (strcmp(line, "shutdown") == 0) {
            done(sqlite3_shutdown() || sqlite3_initialize(), NULL);
        } else if (strcmp(line, "load") == 0) {
            load();
            done(0, NULL);
        } else {
            run(atoi(line), rest + 1);
        }
    }
    return 0;
}
