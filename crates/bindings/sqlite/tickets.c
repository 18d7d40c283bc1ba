/* Numbers of the commits that this process starts in a store, and its failure class.
 *
 * The LSN of a commit is known only when the commit is durable. A program that does not wait (synchronous=OFF) needs a
 * number before: it is the count of commits that the VFS has started. Commits become durable in this order. */
#include "untorn_sqlite.h"
SQLITE_EXTENSION_INIT3

/* The last commit that was started. */
sqlite3_int64 tickets_started(struct store *store) {
    pthread_mutex_lock(&registry);
    sqlite3_int64 started = store->started;
    pthread_mutex_unlock(&registry);
    return started;
}

/* Notes a commit of these handles. If it is durable, so are those that were noted before it began; of those that began
 * meanwhile nothing is known. */
void tickets_note(struct handle **group, size_t n, int durable, sqlite3_int64 before) {
    struct store *store = group[0]->database->store;
    pthread_mutex_lock(&registry);
    store->started++;
    if (durable && store->started == before + 1)
        before++;
    if (durable && store->durable < before)
        store->durable = before;
    for (size_t i = 0; i < n; i++)
        group[i]->ticket = store->started;
    pthread_mutex_unlock(&registry);
}

/* The store closes. Of commits that are not known to be durable, recovery decides. */
void tickets_close(struct store *store, int plain) {
    pthread_mutex_lock(&registry);
    if (!plain && store->durable < store->started) {
        store->lost_from = store->durable + 1;
        store->lost_to = store->started;
    }
    store->durable = store->started;
    pthread_mutex_unlock(&registry);
}

/* The last commit that is known to be durable. */
sqlite3_int64 tickets_durable(struct store *store) {
    pthread_mutex_lock(&registry);
    sqlite3_int64 durable = store->durable;
    pthread_mutex_unlock(&registry);
    return durable;
}

static sqlite3_int64 durable_lsn(untorn_store *store) {
    untorn_status status = {.size = sizeof status};
    return untorn_store_status(store, &status) == 0 ? (sqlite3_int64)status.lsn : 0;
}

/* Waits for all commits that were started. The caller holds `store.opening`. */
static int wait_for_all(struct store *store) {
    pthread_mutex_lock(&registry);
    sqlite3_int64 started = store->started;
    pthread_mutex_unlock(&registry);
    if (store->open && untorn_store_wait(store->open) != 0)
        return sorry(SQLITE_IOERR_FSYNC, "%s: %s", store->path, untorn_error_message());
    /* The tickets tell whether the commits have succeeded. */
    pthread_mutex_lock(&registry);
    int failed = store_has_failed(store);
    if (!failed && store->durable < started)
        store->durable = started;
    pthread_mutex_unlock(&registry);
    if (!failed)
        return SQLITE_OK;
    return sorry(SQLITE_IOERR_FSYNC, "%s: a commit has failed; end all transactions, then the store opens again", store->path);
}

/* Waits for a commit, or with 0 for all that were started. Tells an LSN up to which the store is durable; 0: unknown, as
 * the store is not open. */
int tickets_wait(struct store *store, sqlite3_int64 ticket, sqlite3_int64 *lsn) {
    int rc = SQLITE_OK;
    pthread_mutex_lock(&store->opening);
    pthread_mutex_lock(&registry);
    int known = ticket <= store->started, lost = ticket && ticket >= store->lost_from && ticket <= store->lost_to;
    int wait = !ticket || ticket > store->durable;
    pthread_mutex_unlock(&registry);
    if (!known)
        rc = sorry(SQLITE_MISUSE, "%s: this process has started no commit %lld yet", store->path, ticket);
    else if (lost)
        rc = sorry(SQLITE_IOERR_FSYNC, "%s: the store failed before commit %lld was known to be durable", store->path, ticket);
    else if (wait)
        rc = wait_for_all(store);
    *lsn = rc == SQLITE_OK && store->open ? durable_lsn(store->open) : 0;
    pthread_mutex_unlock(&store->opening);
    return rc;
}

/* The failure class in which the store is open, or opens next. */
const char *class_name(struct store *store) {
    untorn_status status = {.size = sizeof status};
    uint32_t of = store->failure_class;
    if (store->open && untorn_store_status(store->open, &status) == 0)
        of = status.failure_class;
    return of == UNTORN_CLASS_PROCESS ? "process" : "power";
}

/* Sets the failure class. SQLITE_OK, or a sentence says why not. */
int class_set(struct store *store, uint32_t class) {
    if (store->failure_class == class)
        return SQLITE_OK;
    if (store->found)
        return sorry(SQLITE_BUSY, "%s: another part of this program has opened the store, in class %s", store->path,
                     class_name(store));
    int rc = store_release(store);
    if (rc == SQLITE_BUSY)
        return sorry(rc, "%s: a connection has a transaction: set the class when none has", store->path);
    if (rc == SQLITE_OK)
        store->failure_class = class;
    return rc;
}
