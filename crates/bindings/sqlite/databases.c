/* The stores and databases of this process. Both outlive connections: opening a store costs more than most requests. They
 * close when the process exits, and by `PRAGMA untorn_release`. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
struct handle *handles;
unsigned generation;
static struct store *stores;
static struct database *databases;
static _Thread_local char sentence[1024];
static _Atomic int exiting;

/* Keeps the reason of a failure for `PRAGMA untorn_error`, and hands it to SQLite's log, whose receiver may be gone when the
 * process exits. */
int sorry(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (!exiting)
        sqlite3_log(code, "untorn: %s", sentence);
    return code;
}

/* Keeps a reason without telling the log. */
void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
}

char *last_sentence(void) {
    return sqlite3_mprintf("%s", *sentence ? sentence : "no error");
}

static void before_fork(void) {
    pthread_mutex_lock(&registry);
}

static void after_fork(void) {
    pthread_mutex_unlock(&registry);
}

/* The parent's stores are not the child's, and a living child must not keep the parent's locks. */
static void in_child(void) {
    for (struct database *database = databases; database; database = database->next)
        if (database->lock_bytes >= 0)
            close(database->lock_bytes);
    handles = NULL;
    databases = NULL;
    stores = NULL;
    generation++;
    pthread_mutex_unlock(&registry);
}

static int is_directory(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* The store of a database: that of `store=DIR`, or that of the directory that it lies in, or one of its own. */
int store_choose(const char *path, const char *asked, char *dir, int *standalone) {
    char own[PATH_MAX + 16];
    *standalone = 0;
    if (asked) {
        if (!realpath(asked, dir))
            return sorry(SQLITE_CANTOPEN, "store=%s: %m", asked);
        size_t len = strlen(dir);
        if (strncmp(path, dir, len) != 0 || path[len] != '/')
            return sorry(SQLITE_CANTOPEN, "store=%s: %s does not lie in that directory", asked, path);
        return SQLITE_OK;
    }
    sqlite3_snprintf(PATH_MAX, dir, "%s", path);
    *strrchr(dir, '/') = '\0';
    sqlite3_snprintf(sizeof own, own, "%s/.untorn", dir);
    if (!is_directory(own)) {
        *standalone = 1;
        sqlite3_snprintf(PATH_MAX, dir, "%s", path);
    }
    return SQLITE_OK;
}

/* The caller holds `registry`. */
static struct store *store_find_or_add(const char *path, int standalone) {
    struct store *store = stores;
    while (store && (store->standalone != standalone || strcmp(store->path, path) != 0))
        store = store->next;
    if (!store && (store = sqlite3_malloc64(sizeof *store + strlen(path) + 1))) {
        *store = (struct store){.next = stores, .path = (char *)(store + 1), .standalone = standalone};
        strcpy(store->path, path);
        pthread_mutex_init(&store->opening, NULL);
        stores = store;
    }
    return store;
}

static struct database *database_add(const char *path, struct store *store, const struct stat *is) {
    struct database *database = store ? sqlite3_malloc64(sizeof *database + strlen(path) + 1) : NULL;
    if (!database)
        return NULL;
    *database = (struct database){.next = databases, .path = (char *)(database + 1), .store = store, .lock_bytes = -1};
    strcpy(database->path, path);
    database->device = is->st_dev;
    database->inode = is->st_ino;
    database->journal.spill = -1;
    pthread_mutex_init(&database->journal.guard, NULL);
    databases = database;
    return database;
}

/* The database of a path, which exists, with one more handle. */
int database_find_or_add(const char *path, const char *asked, struct database **found) {
    char dir[PATH_MAX + 1];
    int standalone, rc = store_choose(path, asked, dir, &standalone);
    struct stat is;
    if (rc != SQLITE_OK)
        return rc;
    if (stat(path, &is) != 0 || !S_ISREG(is.st_mode))
        return sorry(SQLITE_CANTOPEN, "%s: it is not a regular file", path);
    pthread_mutex_lock(&registry);
    struct store *store = store_find_or_add(dir, standalone);
    struct database *database = databases;
    while (database && strcmp(database->path, path) != 0)
        database = database->next;
    int same = database && database->device == is.st_dev && database->inode == is.st_ino;
    if (database && database->store != store && !database->file && database->handles == 0)
        database->store = store;
    if (database && !same && database->handles == 0) {
        database->replaced = database->file != NULL;
        database->device = is.st_dev;
        database->inode = is.st_ino;
        same = 1;
    }
    if (!database && (database = database_add(path, store, &is)))
        same = 1;
    int other = database && asked && database->store != store;
    if (same && !other)
        database->handles++;
    pthread_mutex_unlock(&registry);
    *found = database;
    if (!database)
        return SQLITE_NOMEM;
    if (other)
        return sorry(SQLITE_CANTOPEN, "store=%s: %s is open in the store of %s (PRAGMA untorn_release closes it)", asked, path,
                     database->store->path);
    if (!same)
        return sorry(SQLITE_CANTOPEN, "%s: a connection has a database of this name that was removed or renamed", path);
    return SQLITE_OK;
}

/* Whether this process has the database open, or keeps it. */
int database_is_here(const char *path) {
    pthread_mutex_lock(&registry);
    struct database *database = databases;
    while (database && strcmp(database->path, path) != 0)
        database = database->next;
    int is_here = database && (database->file || database->handles > 0);
    pthread_mutex_unlock(&registry);
    return is_here;
}

/* The caller holds `registry`. */
struct database *database_of_journal(const char *name) {
    static const char end[] = "-journal";
    size_t len = strlen(name), of_end = sizeof end - 1;
    if (len <= of_end || strcmp(name + len - of_end, end) != 0)
        return NULL;
    struct database *database = databases;
    while (database && (database->handles == 0 || strncmp(database->path, name, len - of_end) != 0 ||
                        database->path[len - of_end] != '\0'))
        database = database->next;
    return database;
}

static int not_opened(const struct database *database) {
    untorn_error kind = untorn_last_error();
    int code = kind == UNTORN_E_BUSY ? SQLITE_BUSY : kind == UNTORN_E_NO_SPACE ? SQLITE_FULL : SQLITE_CANTOPEN;
    return sorry(code, "%s: %s", database->path, untorn_error_message());
}

/* Opens the store, unless it is open, and the file. */
static int open_in_store(struct database *database) {
    struct store *store = database->store;
    untorn_options options = {.size = sizeof options, .flags = UNTORN_CREATE, .failure_class = store->failure_class};
    if (store->standalone) {
        if (!(database->file = untorn_open(database->path, 0, 0, &options)))
            return not_opened(database);
        if (!(store->open = untorn_store_of(database->file)))
            return not_opened(database);
        return SQLITE_OK;
    }
    if (!store->open) {
        store->open = untorn_store_find(store->path);
        store->found = store->open != NULL;
    }
    if (!store->open && !(store->open = untorn_store_open(store->path, &options)))
        return not_opened(database);
    if (!(database->file = untorn_open_at(store->open, database->path + strlen(store->path) + 1, 0, 0)))
        return not_opened(database);
    return SQLITE_OK;
}

static void give_up(struct database *database) {
    if (database->file)
        (void)untorn_close(database->file);
    database->file = NULL;
    if (database->store->standalone && database->store->open) {
        (void)untorn_store_release(database->store->open);
        database->store->open = NULL;
    }
    /* Another owner may remove the marker. */
    database->marked = 0;
    lock_bytes_give(database);
}

/* The opened file must be the one whose bytes are locked, and not in WAL mode, which needs shared memory. */
static int check_opened(struct database *database) {
    unsigned char header[100];
    uint64_t device, inode;
    struct stat is;
    if (fstat(database->lock_bytes, &is) != 0 || untorn_identity(database->file, &device, &inode) != 1 ||
        device != is.st_dev || inode != is.st_ino)
        return sorry(SQLITE_CANTOPEN, "%s: another file took its name just now", database->path);
    database->device = is.st_dev;
    database->inode = is.st_ino;
    database->was_empty = is.st_size == 0;
    if (untorn_pread(database->file, header, sizeof header, 0) == sizeof header && (header[18] == 2 || header[19] == 2))
        return sorry(SQLITE_CANTOPEN, "%s is in WAL mode: run `sqlite3 %s 'PRAGMA journal_mode=DELETE'` first",
                     database->path, database->path);
    return SQLITE_OK;
}

/* The caller holds `store.opening`. */
static int database_open(struct database *database) {
    /* Readers of this process would wait for SQLite's own VFS, and have seen that there is no journal. */
    int rc = plain_has_readers(database) ? SQLITE_OK : plain_journal_roll_back(database);
    if (rc == SQLITE_OK)
        rc = lock_bytes_take(database);
    if (rc != SQLITE_OK)
        return rc;
    rc = plain_journal_remove(database);
    if (rc == SQLITE_OK)
        rc = open_in_store(database);
    if (rc == SQLITE_OK)
        rc = check_opened(database);
    if (rc == SQLITE_OK)
        early_reopened(database);
    else
        give_up(database);
    return rc;
}

/* Whether a file that is closed is plain then: its store was closed whole, or failed to close, or stays open. */
enum left { PLAIN, NOT_PLAIN, STORE_STAYS };

/* Closes one file of a store, or all of them. Returns whether they are plain. */
static int files_close(struct store *store, struct database *only, enum left left) {
    int all = 1;
    for (struct database *database = databases; database; database = database->next) {
        if (database->store != store || !database->file || (only && database != only))
            continue;
        int plain = (left == STORE_STAYS ? untorn_close_plain : untorn_close)(database->file) == 0 && left != NOT_PLAIN;
        if (left == STORE_STAYS && !plain)
            sorry(SQLITE_IOERR_CLOSE, "%s: %s", database->path, untorn_error_message());
        all &= plain;
        early_forget(database);
        if (database->last)
            (void)untorn_ticket_free(database->last);
        pthread_mutex_lock(&registry);
        database->file = NULL;
        database->last = NULL;
        database->replaced = 0;
        pthread_mutex_unlock(&registry);
        if (plain)
            marker_remove(database);
        database->marked = 0;
        lock_bytes_give(database);
    }
    return all;
}

/* Closes a store in which nobody has a lock. The caller holds `store.opening`. Returns whether the files are plain. */
static int store_close(struct store *store) {
    int plain = 1;
    if (store->open && store->found) {
        plain = files_close(store, NULL, STORE_STAYS);
        (void)untorn_store_release(store->open);
    } else if (store->open) {
        /* Left at the exit of the process, in which connections are still open. */
        for (struct database *database = databases; database; database = database->next)
            if (database->store == store && database->file && untorn_has_changes(database->file) == 1)
                (void)untorn_rollback(database->file);
        plain = untorn_store_close(store->open) == 0;
        if (!plain)
            sorry(SQLITE_IOERR_CLOSE, "%s: %s", store->path, untorn_error_message());
        files_close(store, NULL, plain ? PLAIN : NOT_PLAIN);
    }
    tickets_close(store, plain && !store->failed);
    store->open = NULL;
    store->failed = 0;
    return plain;
}

/* Under its old name there is another file now. */
static void replaced_close(struct database *database) {
    struct store *store = database->store;
    if (store->standalone)
        store_close(store);
    else
        files_close(store, database, STORE_STAYS);
}

/* Whether a lock can be taken at once; if so, it counts. */
static int use_at_once(struct database *database) {
    struct store *store = database->store;
    pthread_mutex_lock(&registry);
    int ready = database->file && !database->replaced && !store->failed && !store->closing;
    if (ready)
        store->locked++;
    pthread_mutex_unlock(&registry);
    return ready;
}

/* Reads without a lock, as SQLite does only when it opens a database, for the size of its pages: the bytes may be old. */
ssize_t database_peek(struct database *database, void *to, int len, sqlite3_int64 offset) {
    ssize_t n;
    if (use_at_once(database)) {
        n = untorn_pread(database->file, to, len, offset);
        database_unuse(database);
        return n;
    }
    pthread_mutex_lock(&database->store->opening);
    n = lock_bytes_open(database) == SQLITE_OK ? pread(database->lock_bytes, to, len, offset) : 0;
    pthread_mutex_unlock(&database->store->opening);
    return n;
}

/* Whether nobody has a lock; if so, nobody gets one before `closing` is 0 again. */
static int close_for_others(struct store *store) {
    pthread_mutex_lock(&registry);
    int alone = store->locked == 0;
    store->closing = alone;
    pthread_mutex_unlock(&registry);
    return alone;
}

static void open_for_others(struct store *store) {
    pthread_mutex_lock(&registry);
    store->closing = 0;
    pthread_mutex_unlock(&registry);
}

/* A commit that nobody waited for has failed: later ones may build on it. */
static void look_at_last(struct database *database) {
    pthread_mutex_lock(&registry);
    if (database->last && untorn_ticket_poll(database->last) < 0)
        database->store->failed = 1;
    pthread_mutex_unlock(&registry);
}

/* Whether a commit has failed that somebody, or nobody, waited for. The caller holds `registry`. */
int store_has_failed(struct store *store) {
    for (struct database *database = databases; database; database = database->next)
        if (database->store == store &&
            ((database->last && untorn_ticket_poll(database->last) < 0) || early_has_failed(database)))
            store->failed = 1;
    return store->failed;
}

/* The store's directory may have been removed, and made again, since the store was opened. The caller holds
 * `store.opening`. */
static int open_or_open_store_again(struct database *database) {
    struct store *store = database->store;
    int was_open = store->open && !store->found && !store->standalone, rc = database_open(database);
    if (rc != SQLITE_CANTOPEN || !was_open || !close_for_others(store))
        return rc;
    store_close(store);
    return database_open(database);
}

/* Opens the database for a lock, unless it is open. A failed store is closed and opened again: recovery decides which
 * commits there are. */
int database_use(struct database *database) {
    struct store *store = database->store;
    int rc = SQLITE_OK;
    look_at_last(database);
    if (use_at_once(database))
        return SQLITE_OK;
    pthread_mutex_lock(&store->opening);
    if (!use_at_once(database)) {
        if (store->failed && !close_for_others(store)) {
            /* Busy handlers wait for the others. */
            tell("%s: a commit has failed; end all transactions, then the store opens again", store->path);
            rc = SQLITE_BUSY;
        } else {
            if (store->failed)
                store_close(store);
            if (database->replaced)
                replaced_close(database);
            if (!database->file)
                rc = open_or_open_store_again(database);
            open_for_others(store);
            if (rc == SQLITE_OK && !use_at_once(database))
                rc = SQLITE_BUSY;
        }
    }
    pthread_mutex_unlock(&store->opening);
    return rc;
}

void database_unuse(struct database *database) {
    pthread_mutex_lock(&registry);
    database->store->locked--;
    pthread_mutex_unlock(&registry);
}

/* Closes the store: its files are plain afterwards. SQLITE_BUSY: somebody has a lock. */
int store_release(struct store *store) {
    pthread_mutex_lock(&store->opening);
    int alone = close_for_others(store), plain = alone && store_close(store);
    if (alone)
        open_for_others(store);
    pthread_mutex_unlock(&store->opening);
    return plain ? SQLITE_OK : alone ? SQLITE_IOERR_CLOSE : SQLITE_BUSY;
}

/* The process exits. Transactions of other threads end without a commit. */
static void at_exit(void) {
    exiting = 1;
    for (struct store *store = stores; store; store = store->next)
        if (pthread_mutex_trylock(&store->opening) == 0) {
            pthread_mutex_lock(&registry);
            store->closing = 1;
            pthread_mutex_unlock(&registry);
            store_close(store);
            pthread_mutex_unlock(&store->opening);
        }
}

static void start(void) {
    pthread_atfork(before_fork, after_fork, in_child);
    atexit(at_exit);
}

void registry_start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}
