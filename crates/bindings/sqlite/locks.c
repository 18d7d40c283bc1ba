/* SQLite's locks among the connections of this process, which own the database together. */
#include "untorn_sqlite.h"
SQLITE_EXTENSION_INIT3

/* The caller holds `registry`. Never waits: a waiter that has SHARED would keep the writer from EXCLUSIVE. */
static int grant(struct handle *handle, int level) {
    struct database *database = handle->database;
    if (level == SQLITE_LOCK_SHARED) {
        int rc = database->pending ? SQLITE_BUSY : early_begin(handle);
        if (rc != SQLITE_OK)
            return rc;
        database->shared++;
        database->grants++;
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
            database->writes++;
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
    /* Somebody has written since. */
    if (handle->absent)
        return SQLITE_BUSY;
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
        if (rc == SQLITE_IOERR_LOCK)
            sorry(rc, "%s: this connection has read a schema of a commit that failed: close it", handle->database->path);
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

/* The caller holds `registry`. */
static void give_writers(struct handle *handle) {
    struct database *database = handle->database;
    if (database->writer == handle) {
        database->writer = NULL;
        database->pending = 0;
    }
    handle->granted = database->grants;
    handle->written = database->writes;
    handle->deleted = 0;
}

void lock_give(struct handle *handle, int level) {
    struct database *database = handle->database;
    if (handle->lock <= level)
        return;
    pthread_mutex_lock(&registry);
    give_writers(handle);
    if (level == SQLITE_LOCK_NONE) {
        database->shared -= !handle->absent;
        handle->absent = 0;
    }
    handle->lock = level;
    pthread_mutex_unlock(&registry);
    if (level == SQLITE_LOCK_NONE)
        unuse(handle);
}

/* Gives all locks back for others, while SQLite takes the handle for one with SHARED. */
void lock_leave(struct handle *handle) {
    pthread_mutex_lock(&registry);
    give_writers(handle);
    handle->database->shared -= !handle->absent;
    handle->absent = 1;
    handle->lock = SQLITE_LOCK_SHARED;
    pthread_mutex_unlock(&registry);
}

/* Takes SHARED again, unless somebody has written meanwhile. */
void lock_return(struct handle *handle) {
    struct database *database = handle->database;
    pthread_mutex_lock(&registry);
    if (handle->absent && database->writes == handle->written && !database->pending) {
        database->shared++;
        handle->absent = 0;
    }
    pthread_mutex_unlock(&registry);
}
