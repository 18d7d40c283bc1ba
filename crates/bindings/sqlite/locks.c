/* SQLite's locks among the connections of this process, which own the database together. */
#include "untorn_sqlite.h"
SQLITE_EXTENSION_INIT3

/* The caller holds `registry`. Never waits: a waiter that has SHARED would keep the writer from EXCLUSIVE. */
static int grant(struct handle *handle, int level) {
    struct database *database = handle->database;
    if (level == SQLITE_LOCK_SHARED) {
        if (database->pending)
            return SQLITE_BUSY;
        database->shared++;
    } else {
        if (database->writer && database->writer != handle)
            return SQLITE_BUSY;
        database->writer = handle;
        if (level == SQLITE_LOCK_EXCLUSIVE) {
            database->pending = 1;
            if (database->shared > 1) {
                handle->lock = SQLITE_LOCK_PENDING;
                return SQLITE_BUSY;
            }
        }
    }
    handle->lock = level;
    return SQLITE_OK;
}

static void unuse(struct handle *handle) {
    if (handle->plain)
        plain_unuse(handle);
    else
        database_unuse(handle->database);
}

/* Takes a lock. The first one opens the database; if it has nothing in a journal, the first one to write does. */
int lock_take(struct handle *handle, int level) {
    if (handle->lock >= level)
        return SQLITE_OK;
    if (handle->generation != generation)
        return sorry(SQLITE_IOERR_LOCK, "the connection was opened before a fork: open another one in the child");
    int was = handle->lock, rc = SQLITE_OK;
    if (was == SQLITE_LOCK_NONE && (rc = plain_use(handle)) == SQLITE_NOTFOUND)
        rc = database_use(handle->database);
    if (rc == SQLITE_OK && handle->plain && level >= SQLITE_LOCK_RESERVED)
        rc = plain_own(handle);
    if (rc != SQLITE_OK)
        return rc;
    pthread_mutex_lock(&registry);
    rc = grant(handle, level);
    pthread_mutex_unlock(&registry);
    if (rc != SQLITE_OK) {
        if (was == SQLITE_LOCK_NONE)
            unuse(handle);
        return rc;
    }
    if (was < SQLITE_LOCK_RESERVED && level >= SQLITE_LOCK_RESERVED) {
        if ((rc = refuse_two_stores(handle)) == SQLITE_OK)
            rc = marker_make(handle->database);
        if (rc != SQLITE_OK)
            lock_give(handle, was);
    }
    return rc;
}

void lock_give(struct handle *handle, int level) {
    struct database *database = handle->database;
    if (handle->lock <= level)
        return;
    pthread_mutex_lock(&registry);
    if (database->writer == handle) {
        database->writer = NULL;
        database->pending = 0;
    }
    if (level == SQLITE_LOCK_NONE)
        database->shared--;
    handle->lock = level;
    pthread_mutex_unlock(&registry);
    if (level == SQLITE_LOCK_NONE)
        unuse(handle);
}
