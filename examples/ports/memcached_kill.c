/* Kills memcached at random moments while several clients work with it, starts it again, and compares what it has with an
 * oracle: memcached_kill live|evict|plain MEMCACHED FILE KILLS SEED. FILE is the live heap; with `plain` there is none. With
 * `evict` the cache has too little memory: keys may be missing, but no value may be an old one or torn. Each kill is followed
 * by a start on the same heap; now and then memcached is ended in order, and begins with a new heap.
 *
 * memcached_kill load MEMCACHED FILE|- KEYS SECONDS measures: it prints sets and gets of 100 bytes per second, and with a heap
 * the milliseconds that a start behind a kill takes until the first answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "kill.h"

#define CLIENTS 4
#define KEYS 3000    /* of each client; nobody else changes them */
#define FEW 50       /* of them are used in every other heap: values are replaced more often than made */
#define COUNTERS 8   /* of all clients */
#define BATCH 8      /* commands that are on their way at once */
#define APPENDS 6    /* to one value, at most */
#define ROOM (1 << 16)
#define LIVES 25     /* kills of one heap */

static const char *server, *heap;
static char socket_path[100], memory[32] = "400";
static int evicts, plain;
static unsigned used = KEYS;
static const char *threads = "3"; /* with four, the smallest hash table would be twice as large */

static void die(const char *what) {
    fprintf(stderr, "memcached_kill: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* A connection with a buffer for what is read. */
struct conn {
    int fd;
    size_t from, to;
    char buf[ROOM];
};

static int try_connect(struct conn *c) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
    c->from = c->to = 0;
    c->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (c->fd >= 0 && connect(c->fd, (struct sockaddr *)&at, sizeof at) == 0) return 1;
    close(c->fd);
    return 0;
}

static int fill(struct conn *c) {
    ssize_t n;
    if (c->from == c->to) c->from = c->to = 0;
    if (c->to == ROOM) {
        memmove(c->buf, c->buf + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
    n = read(c->fd, c->buf + c->to, ROOM - c->to);
    if (n <= 0) return 0;
    c->to += (size_t)n;
    return 1;
}

/* The next line, without its end. NULL: the server is gone. */
static char *line(struct conn *c) {
    for (;;) {
        char *end = memchr(c->buf + c->from, '\n', c->to - c->from), *start = c->buf + c->from;
        if (end) {
            end[-1] = 0;
            c->from = (size_t)(end + 1 - c->buf);
            return start;
        }
        if (!fill(c)) return NULL;
    }
}

static int bytes(struct conn *c, char *to, size_t n) {
    while (n > 0) {
        size_t there = c->to - c->from;
        if (there > n) there = n;
        memcpy(to, c->buf + c->from, there);
        c->from += there, to += there, n -= there;
        if (n > 0 && !fill(c)) return 0;
    }
    return 1;
}

/* What is lost is seen when the answers do not come. */
static void say(struct conn *c, const char *text, size_t n) {
    while (n > 0) {
        ssize_t done = send(c->fd, text, n, MSG_NOSIGNAL);
        if (done <= 0) return;
        text += done, n -= (size_t)done;
    }
}

static pid_t start(const char *extra) {
    fflush(NULL);
    unlink(socket_path);
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        char options[512];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(options, sizeof options, "%s%s%s", extra, plain ? "" : ",live_heap=", plain ? "" : heap);
        const char *arguments[] = {server, "-t", threads, "-m", memory, "-c", "64", "-s", socket_path, "-o", options,
                                   geteuid() == 0 ? "-u" : NULL, "root", NULL};
        if (!freopen("/dev/null", "w", stderr)) _exit(126);
        execv(server, (char **)arguments);
        _exit(127);
    }
    return pid;
}

static void connect_to(struct conn *c, pid_t pid) {
    for (int tries = 0; tries < 20000; tries++) {
        int status;
        if (try_connect(c)) return;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            fprintf(stderr, "memcached_kill: the server ended by itself, status %#x\n", status);
            exit(1);
        }
        usleep(1000);
    }
    die("cannot connect");
}

/* In the oracle: the set by which a key got its value, 0 for none, and how often something was appended since. */
struct value {
    uint64_t set;
    unsigned appends;
};

struct key {
    struct value now, next;
    int pending;
};

static struct client {
    struct conn conn;
    struct key keys[KEYS];
    uint64_t sets, chance, acknowledged, read;
    unsigned number, found;
    pthread_t thread;
} clients[CLIENTS];

/* Counters: how many increments were sent and acknowledged, and the largest answer. */
static uint64_t sent[COUNTERS], counted[COUNTERS], largest[COUNTERS];
static uint64_t violations;

static void violation(const char *format, ...) {
    va_list arguments;
    if (__atomic_fetch_add(&violations, 1, __ATOMIC_RELAXED) >= 20) return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

static uint64_t next(uint64_t *chance) { return *chance = mix(*chance); }

static size_t length_of(uint64_t set) {
    uint64_t n = mix(set ^ 77);
    switch (n % 16) {
    case 0: return 10 + (n >> 8) % 20480;
    case 1: case 2: case 3: return 10 + (n >> 8) % 2000;
    default: return 10 + (n >> 8) % 150;
    }
}

/* The bytes of a value: its key, its number, its length, and bytes that follow from these, a checksum of their own. */
static size_t render(char *to, unsigned client, unsigned key, struct value v) {
    size_t n = (size_t)sprintf(to, "%u.%u %llu ", client, key, (unsigned long long)v.set), i, end = n + length_of(v.set);
    uint64_t word = mix(v.set ^ (uint64_t)key << 40 ^ (uint64_t)client << 56);
    for (i = n; i < end; i++) {
        if (i % 8 == 0) word = mix(word);
        to[i] = (char)('a' + (word >> i % 8 * 8) % 26);
    }
    for (unsigned a = 1; a <= v.appends; a++) {
        size_t piece = 1 + mix(v.set + a) % 300;
        end = i + piece;
        for (; i < end; i++) to[i] = (char)('A' + (mix(v.set + a) + i) % 26);
    }
    return i;
}

static size_t appended(char *to, unsigned client, unsigned key, struct value v) {
    char all[ROOM];
    struct value before = {v.set, v.appends - 1};
    size_t from = render(all, client, key, before), end = render(all, client, key, v);
    memcpy(to, all + from, end - from);
    return end - from;
}

static int is_value(const char *got, size_t n, unsigned client, unsigned key, struct value v) {
    char expected[ROOM];
    return v.set && n == render(expected, client, key, v) && memcmp(got, expected, n) == 0;
}

/* A command with a value; its length. */
static size_t command(char *out, const char *verb, const struct client *c, unsigned key, const char *value, size_t size) {
    size_t len = (size_t)sprintf(out, "%s %u.%u 0 0 %zu\r\n", verb, c->number, key, size);
    memcpy(out + len, value, size);
    memcpy(out + len + size, "\r\n", 2);
    return len + size + 2;
}

/* Commands of a client, until the server is gone. */
static void *work(void *argument) {
    struct client *c = argument;
    static __thread char out[BATCH * (ROOM / 2)], got[ROOM];
    for (;;) {
        enum { SET, DELETE, APPEND, GET, COUNT };
        int kinds[BATCH];
        unsigned keys[BATCH], n, batch = 1 + (unsigned)(next(&c->chance) % BATCH);
        size_t len = 0;
        for (n = 0; n < batch; n++) {
            uint64_t chance = next(&c->chance);
            unsigned at = keys[n] = (unsigned)(chance >> 16) % used;
            struct key *key = &c->keys[at];
            static const int often[16] = {SET,    SET,    SET, SET, SET, SET, SET,   DELETE,
                                          APPEND, APPEND, GET, GET, GET, GET, COUNT, COUNT};
            kinds[n] = often[chance % 16];
            if (key->pending) kinds[n] = COUNT;
            else key->next = key->now;
            switch (kinds[n]) {
            case SET: {
                char value[ROOM];
                key->next = (struct value){++c->sets * CLIENTS + c->number, 0};
                size_t size = render(value, c->number, at, key->next);
                len += command(out + len, "set", c, at, value, size);
                break;
            }
            case DELETE:
                key->next = (struct value){0, 0};
                len += (size_t)sprintf(out + len, "delete %u.%u\r\n", c->number, at);
                break;
            case APPEND: {
                char piece[ROOM];
                if (!key->now.set || key->now.appends == APPENDS) {
                    kinds[n] = GET;
                    len += (size_t)sprintf(out + len, "get %u.%u\r\n", c->number, at);
                    break;
                }
                key->next.appends++;
                size_t size = appended(piece, c->number, at, key->next);
                len += command(out + len, "append", c, at, piece, size);
                break;
            }
            case GET: len += (size_t)sprintf(out + len, "get %u.%u\r\n", c->number, at); break;
            case COUNT:
                keys[n] = (unsigned)(chance >> 16) % COUNTERS;
                __atomic_fetch_add(&sent[keys[n]], 1, __ATOMIC_SEQ_CST);
                len += (size_t)sprintf(out + len, "incr counter%u 1\r\n", keys[n]);
                break;
            }
            if (kinds[n] != COUNT) key->pending = 1;
        }
        say(&c->conn, out, len);
        for (n = 0; n < batch; n++) {
            struct key *key = &c->keys[keys[n]];
            char *answer = line(&c->conn);
            if (!answer) return NULL;
            int missing = strcmp(answer, "NOT_FOUND") == 0 || strcmp(answer, "NOT_STORED") == 0 || strcmp(answer, "END") == 0;
            if (strncmp(answer, "SERVER_ERROR", 12) == 0 && evicts) {
                /* Out of memory: a set that fails takes the key away. */
                if (kinds[n] == SET) key->now = (struct value){0, 0};
                key->pending = 0;
                continue;
            }
            switch (kinds[n]) {
            case SET:
                if (strcmp(answer, "STORED") != 0) violation("set: %s\n", answer);
                key->now = key->next;
                break;
            case DELETE:
                if (strcmp(answer, "DELETED") != 0 && !(missing && (evicts || !key->now.set)))
                    violation("%u.%u: delete: %s, of %llu\n", c->number, keys[n], answer, (unsigned long long)key->now.set);
                key->now = key->next;
                break;
            case APPEND:
                if (strcmp(answer, "STORED") == 0) key->now = key->next;
                else if (missing && evicts) {} /* it may be gone, or there may be no room for the longer one */
                else violation("%u.%u: append: %s\n", c->number, keys[n], answer);
                break;
            case GET: {
                size_t size;
                if (missing) {
                    if (key->now.set && !evicts) violation("%u.%u is gone\n", c->number, keys[n]);
                    if (evicts) key->now = (struct value){0, 0};
                } else {
                    if (sscanf(answer, "VALUE %*s %*u %zu", &size) != 1 || size > ROOM - 2) {
                        violation("get: %s\n", answer);
                        return NULL;
                    }
                    if (!bytes(&c->conn, got, size + 2) || !line(&c->conn)) return NULL;
                    if (!is_value(got, size, c->number, keys[n], key->now))
                        violation("%u.%u: has %.40s, not set %llu\n", c->number, keys[n], got, (unsigned long long)key->now.set);
                }
                break;
            }
            case COUNT: {
                uint64_t value = strtoull(answer, NULL, 10), known = __atomic_load_n(&largest[keys[n]], __ATOMIC_SEQ_CST);
                if (missing && evicts) break;
                if (*answer < '0' || *answer > '9') violation("incr: %s\n", answer);
                while (known < value && !__atomic_compare_exchange_n(&largest[keys[n]], &known, value, 0, __ATOMIC_SEQ_CST,
                                                                     __ATOMIC_SEQ_CST)) {}
                __atomic_fetch_add(&counted[keys[n]], 1, __ATOMIC_SEQ_CST);
                break;
            }
            }
            if (kinds[n] != COUNT) key->pending = 0;
            c->acknowledged++;
        }
    }
}

/* Reads all keys of a client, and compares each with the oracle. */
static void *check(void *argument) {
    struct client *c = argument;
    static __thread char got[ROOM];
    unsigned first, n, most = 100;
    c->found = 0;
    for (first = 0; first < KEYS; first += most) {
        char out[ROOM / 4];
        size_t len = (size_t)sprintf(out, "get");
        static __thread unsigned char seen[KEYS];
        memset(seen + first, 0, most);
        for (n = first; n < first + most; n++) len += (size_t)sprintf(out + len, " %u.%u", c->number, n);
        len += (size_t)sprintf(out + len, "\r\n");
        say(&c->conn, out, len);
        for (;;) {
            char *answer = line(&c->conn);
            unsigned client, key;
            size_t size;
            if (!answer) {
                violation("the server is gone\n");
                return NULL;
            }
            if (strcmp(answer, "END") == 0) break;
            if (sscanf(answer, "VALUE %u.%u %*u %zu", &client, &key, &size) != 3 || client != c->number || key >= KEYS ||
                size > ROOM - 2) {
                violation("get: %s\n", answer);
                return NULL;
            }
            if (!bytes(&c->conn, got, size + 2)) return NULL;
            struct key *k = &c->keys[key];
            seen[key] = 1;
            c->found++;
            if (k->pending && is_value(got, size, client, key, k->next)) k->now = k->next;
            else if (!is_value(got, size, client, key, k->now))
                violation("%u.%u: has %.40s, neither set %llu (%u appended) nor %llu (%u), %s\n", client, key, got,
                          (unsigned long long)k->now.set, k->now.appends, (unsigned long long)k->next.set, k->next.appends,
                          k->pending ? "on its way" : "done");
        }
        for (n = first; n < first + most; n++) {
            struct key *k = &c->keys[n];
            if (!seen[n]) {
                if (k->now.set && !evicts && !(k->pending && !k->next.set)) violation("%u.%u: set %llu is gone\n", c->number, n,
                                                                                       (unsigned long long)k->now.set);
                k->now = (struct value){0, 0};
            }
            k->pending = 0;
        }
    }
    return NULL;
}

static void all(void *(*what)(void *)) {
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&clients[i].thread, NULL, what, &clients[i])) die("pthread_create");
}

static void join(void) {
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
}

static uint64_t stat_of(struct conn *c, const char *name) {
    uint64_t found = UINT64_MAX;
    char *answer, wanted[64];
    size_t n = (size_t)sprintf(wanted, "STAT %s ", name);
    say(c, "stats\r\n", 7);
    while ((answer = line(c)) && strcmp(answer, "END") != 0)
        if (strncmp(answer, wanted, n) == 0) found = strtoull(answer + n, NULL, 10);
    return found;
}

/* All keys and counters, and whether there is anything else. */
static void check_all(struct conn *c) {
    uint64_t found = 0;
    all(check);
    join();
    for (int i = 0; i < CLIENTS; i++) found += clients[i].found;
    for (unsigned i = 0; i < COUNTERS; i++) {
        char text[64], *answer;
        say(c, text, (size_t)sprintf(text, "get counter%u\r\n", i));
        if (!(answer = line(c))) return violation("the server is gone\n");
        if (strncmp(answer, "VALUE", 5) == 0) {
            uint64_t value = strtoull(line(c), NULL, 10);
            line(c);
            found++;
            if (value < largest[i] || value < counted[i] || value > sent[i])
                violation("counter %u: %llu, of %llu sent, %llu acknowledged, %llu answered\n", i, (unsigned long long)value,
                          (unsigned long long)sent[i], (unsigned long long)counted[i], (unsigned long long)largest[i]);
            sent[i] = counted[i] = largest[i] = value;
        } else {
            if (!evicts) violation("counter %u is gone\n", i);
            sent[i] = counted[i] = largest[i] = 0;
            say(c, text, (size_t)sprintf(text, "set counter%u 0 0 1\r\n0\r\n", i));
            line(c);
            found++;
        }
    }
    uint64_t items = stat_of(c, "curr_items");
    if (items != found) violation("curr_items is %llu, but %llu keys can be read\n", (unsigned long long)items,
                                  (unsigned long long)found);
}

static void remove_heap(void) {
    char command[1024];
    snprintf(command, sizeof command, "rm -rf '%s' '%s.untorn'", heap, heap);
    if (system(command) != 0) die("rm");
}

static int kills(int rounds, uint64_t seed) {
    static struct conn control;
    char text[64];
    uint64_t acknowledged = 0, expanding = 0, longest = 0, ended = 0, evicted = 0;
    int life = 0;
    for (int i = 0; i < CLIENTS; i++) clients[i].number = (unsigned)i;
    for (int round = 0; round <= rounds; round++) {
        uint64_t chance = mix(seed * 1000003 + (uint64_t)round), begun = now_us();
        if (life == 0) {
            for (int i = 0; i < CLIENTS; i++) memset(clients[i].keys, 0, sizeof clients[i].keys);
            memset(sent, 0, sizeof sent), memset(counted, 0, sizeof counted), memset(largest, 0, sizeof largest);
            used = used == KEYS && !evicts ? FEW : KEYS;
            remove_heap();
        }
        pid_t pid = start("hashpower=12");
        connect_to(&control, pid);
        if (life == 0) {
            for (unsigned i = 0; i < COUNTERS; i++) {
                say(&control, text, (size_t)sprintf(text, "set counter%u 0 0 1\r\n0\r\n", i));
                line(&control);
            }
        } else if (now_us() - begun > longest) {
            longest = now_us() - begun;
        }
        for (int i = 0; i < CLIENTS; i++) {
            connect_to(&clients[i].conn, pid);
            clients[i].chance = mix(chance ^ (uint64_t)i << 32);
        }
        expanding += stat_of(&control, "hash_is_expanding") == 1;
        check_all(&control);
        if (round == rounds || life == LIVES) {
            /* In order: the last cut is made, the memory is removed, and the next start reads the file. */
            int status;
            if (kill(pid, plain ? SIGTERM : SIGUSR1) != 0 || waitpid(pid, &status, 0) != pid) die("ending");
            if (status != 0) violation("ended with status %#x\n", status);
            for (int i = 0; i < CLIENTS; i++) close(clients[i].conn.fd);
            close(control.fd);
            ended++;
            if (life == LIVES) {
                life = -1, round--;
                goto again;
            }
            if (!plain) {
                pid = start("hashpower=12");
                connect_to(&control, pid);
                for (int i = 0; i < CLIENTS; i++) connect_to(&clients[i].conn, pid);
                check_all(&control);
                kill(pid, SIGUSR1);
                waitpid(pid, &status, 0);
            }
            break;
        }
        all(work);
        if (chance >> 60 & 1) say(&control, "lru_crawler crawl all\r\n", 23);
        /* Half of the kills come soon, when the hash table may grow; some behind the second in which it does otherwise. */
        usleep((useconds_t)((chance >> 8) % (chance & 1 ? 5000 : 150000)));
        if ((chance >> 4 & 15) == 0) usleep(1200000);
        if (evicts) evicted += stat_of(&control, "evictions");
        if (kill(pid, SIGKILL) != 0) die("kill");
        waitpid(pid, NULL, 0);
        join();
        for (int i = 0; i < CLIENTS; i++) {
            acknowledged += clients[i].acknowledged;
            clients[i].acknowledged = 0;
            close(clients[i].conn.fd);
        }
        close(control.fd);
    again:
        life++;
        if (plain) life = 1;
    }
    remove_heap();
    unlink(socket_path);
    printf("memcached%s: %d kills, %llu commands acknowledged, %llu starts while the table grew, %llu ends in order, ",
           evicts ? " (evicting)" : "", rounds, (unsigned long long)acknowledged, (unsigned long long)expanding,
           (unsigned long long)ended);
    if (evicts) printf("%llu evictions, ", (unsigned long long)evicted);
    printf("%.0f ms at most from start to answer, %llu violations (seed %#llx)\n", (double)longest / 1000,
           (unsigned long long)violations, (unsigned long long)seed);
    return violations > 0;
}

#define PIPELINE 50
#define LOADERS 2
static uint64_t load_keys, load_until, load_done[LOADERS];
static int load_sets, load_all;

static void *load(void *argument) {
    int number = (int)(intptr_t)argument;
    static __thread struct conn c;
    static __thread char out[PIPELINE * 200];
    uint64_t chance = (uint64_t)number + 1, done = 0, from = load_keys * (uint64_t)number / LOADERS;
    uint64_t end = load_keys * (uint64_t)(number + 1) / LOADERS;
    if (!try_connect(&c)) die("connect");
    while (load_all ? from < end : now_us() < load_until) {
        size_t len = 0;
        for (int i = 0; i < PIPELINE; i++) {
            unsigned long long key = load_all ? from++ : next(&chance) % load_keys;
            if (load_sets)
                len += (size_t)sprintf(out + len, "set key:%012llu 0 0 100\r\n%0100llu\r\n", key, (unsigned long long)chance);
            else
                len += (size_t)sprintf(out + len, "get key:%012llu\r\n", key);
        }
        say(&c, out, len);
        for (int i = 0; i < PIPELINE; i++) {
            char *answer = line(&c), value[102];
            if (!answer) die("the server is gone");
            if (load_sets) continue;
            if (strncmp(answer, "VALUE", 5) != 0 || !bytes(&c, value, 102) || !line(&c)) die("a key is missing");
        }
        done += PIPELINE;
    }
    close(c.fd);
    load_done[number] = done;
    return NULL;
}

static double run_load(int sets, int everything, double seconds) {
    pthread_t threads[LOADERS];
    uint64_t begun = now_us(), done = 0;
    load_sets = sets, load_all = everything, load_until = begun + (uint64_t)(seconds * 1e6);
    for (int i = 0; i < LOADERS; i++) pthread_create(&threads[i], NULL, load, (void *)(intptr_t)i);
    for (int i = 0; i < LOADERS; i++) pthread_join(threads[i], NULL), done += load_done[i];
    return (double)done / ((double)(now_us() - begun) / 1e6);
}

static int measure(uint64_t keys, double seconds) {
    static struct conn control;
    int status;
    load_keys = keys;
    threads = "4";
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)(64 + keys / 3000));
    if (!plain) remove_heap();
    pid_t pid = start("hashpower=20");
    connect_to(&control, pid);
    run_load(1, 1, 0);
    double sets = run_load(1, 0, seconds), gets = run_load(0, 0, seconds);
    double again = 0;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (!plain) {
        close(control.fd);
        uint64_t begun = now_us();
        pid = start("hashpower=20");
        connect_to(&control, pid);
        uint64_t items = stat_of(&control, "curr_items");
        again = (double)(now_us() - begun) / 1000;
        if (items != keys) die("items are missing");
        kill(pid, SIGUSR1);
        waitpid(pid, &status, 0);
        remove_heap();
    }
    printf("%.0f %.0f %.1f\n", sets, gets, again);
    unlink(socket_path);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    server = argv[2], heap = argv[3];
    plain = strcmp(argv[1], "plain") == 0 || strcmp(heap, "-") == 0;
    evicts = strcmp(argv[1], "evict") == 0;
    if (evicts) strcpy(memory, "4");
    snprintf(socket_path, sizeof socket_path, "/tmp/memcached_kill.%d", (int)getpid());
    if (strcmp(argv[1], "load") == 0) return measure(strtoull(argv[4], NULL, 0), atof(argv[5]));
    return kills(atoi(argv[4]), strtoull(argv[5], NULL, 0));
}
