/* Early release of the writer's lock: a durable commit is started, the lock is given back, and then the writer waits for
 * the flush. Writers on several connections so share flushes.
 *
 *   PHASETWO          the commit is started: a *flight*
 *   xUnlock SHARED    the lock is given back; the writer waits, and an error still fails its COMMIT
 *   xLock SHARED      somebody else begins on data whose flight has not landed ...
 *   xUnlock NONE      ... and waits for it at its own end
 *
 * SQLite returns the error of xUnlock only if it calls xUnlock. That is certain if it has just deleted its journal: with
 * locking_mode=EXCLUSIVE it neither deletes it nor unlocks. In all other cases PHASETWO waits. */
#include "untorn_sqlite.h"
#include <string.h>
SQLITE_EXTENSION_INIT3

struct flight {
    untorn_ticket *ticket;
    int users; /* the database, and handles */
};

/* The caller holds `registry`. */
static struct flight *use(struct flight *flight) {
    flight->users++;
    return flight;
}

static void unuse(struct flight *flight) {
    pthread_mutex_lock(&registry);
    int is_last = flight && --flight->users == 0;
    pthread_mutex_unlock(&registry);
    if (is_last) {
        (void)untorn_ticket_free(flight->ticket);
        sqlite3_free(flight);
    }
}

/* The writer's journal is gone, as the last step before its commit. */
void early_note_deleted(struct database *database) {
    pthread_mutex_lock(&registry);
    if (database->writer && database->writer->synced)
        database->writer->deleted = 1;
    pthread_mutex_unlock(&registry);
}

/* Whether a commit of this handle alone may go on without its lock, and somebody gains by that. */
int early_may_start(struct handle *handle) {
    pthread_mutex_lock(&registry);
    int may = handle->deleted && handle->database->handles > 1 && !handle->database->was_empty && !handle->own;
    pthread_mutex_unlock(&registry);
    return may;
}

/* Starts the commit. Returns 0 with the error of untorn.h. */
int early_start(struct handle *handle) {
    struct database *database = handle->database;
    struct flight *flight = sqlite3_malloc64(sizeof *flight);
    untorn_ticket *ticket = flight ? untorn_commit_async(database->file) : NULL;
    if (!ticket) {
        sqlite3_free(flight);
        return 0;
    }
    *flight = (struct flight){.ticket = ticket, .users = 2};
    pthread_mutex_lock(&registry);
    struct flight *before = database->newest;
    handle->own = database->newest = flight;
    pthread_mutex_unlock(&registry);
    unuse(before);
    return 1;
}

/* Whether the last commit for which nobody has waited yet has failed. The caller holds `registry`. */
int early_has_failed(struct database *database) {
    return database->newest && untorn_ticket_poll(database->newest->ticket) < 0;
}

/* The schema cookie in the database. */
static unsigned cookie_of(struct database *database) {
    unsigned char bytes[4] = {0};
    (void)untorn_pread(database->file, bytes, sizeof bytes, 40);
    return (unsigned)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

/* A handle begins to read. The caller holds `registry`, and the handle gets its lock only with SQLITE_OK. */
int early_begin(struct handle *handle) {
    struct database *database = handle->database;
    if (handle->is_void)
        return SQLITE_IOERR_LOCK;
    if (!database->newest || handle->seen)
        return SQLITE_OK;
    int landed = untorn_ticket_poll(database->newest->ticket);
    /* Its writer is about to take it back, or to mark the store. */
    if (landed < 0)
        return SQLITE_BUSY;
    if (landed == 0) {
        handle->seen = use(database->newest);
        handle->cookie = cookie_of(database);
    }
    return SQLITE_OK;
}

/* Whether no other statement of the connection, and no other connection of its shared cache, reads the database. */
static int is_alone(struct handle *handle) {
    int busy = 0;
    sqlite3 *connection = handle->connection ? *handle->connection : NULL;
    if (!connection || handle->sharers > 1)
        return 0;
    for (sqlite3_stmt *at = sqlite3_next_stmt(connection, NULL); at; at = sqlite3_next_stmt(connection, at))
        busy += sqlite3_stmt_busy(at) != 0;
    return busy <= 1;
}

/* No room, and nobody has begun on the commit: it is taken back. */
static int take_back(struct handle *handle) {
    struct database *database = handle->database;
    pthread_mutex_lock(&registry);
    int is_alone = database->grants == handle->granted && !database->writer;
    if (is_alone) {
        database->writer = handle;
        database->pending = 1;
    }
    pthread_mutex_unlock(&registry);
    if (!is_alone)
        return 0;
    int done = untorn_rollback(database->file) == 0;
    struct flight *newest;
    pthread_mutex_lock(&registry);
    newest = database->newest;
    database->newest = NULL;
    database->writer = NULL;
    database->pending = 0;
    pthread_mutex_unlock(&registry);
    unuse(newest);
    return done;
}

/* Waits for the handle's own commit. */
static int land_own(struct handle *handle) {
    struct flight *own = handle->own;
    int rc = SQLITE_OK;
    if (untorn_ticket_wait(own->ticket) != 0 || is_fault("landed")) {
        int is_full = untorn_last_error() == UNTORN_E_NO_SPACE;
        rc = commit_failed(handle->database);
        if (is_full && !take_back(handle)) {
            /* Later transactions may have taken its changes with them. */
            pthread_mutex_lock(&registry);
            handle->database->store->failed = 1;
            pthread_mutex_unlock(&registry);
            rc = SQLITE_IOERR_FSYNC;
        }
    }
    handle->own = NULL;
    unuse(own);
    return rc;
}

/* Waits for the commit on which the handle began. Rows that it returned cannot be taken back; its next transaction must
 * not use anything that it knows from them. */
static void land_seen(struct handle *handle) {
    struct flight *seen = handle->seen;
    if (untorn_ticket_wait(seen->ticket) != 0) {
        sorry(SQLITE_IOERR_FSYNC, "%s: a commit that was read has failed: %s", handle->database->path,
              untorn_error_message());
        pthread_mutex_lock(&registry);
        handle->database->store->failed = 1;
        pthread_mutex_unlock(&registry);
        handle->tainted = handle->forgets = 1;
    }
    handle->seen = NULL;
    unuse(seen);
}

/* Gives locks back, and waits for commits that have not landed. While it waits, the handle keeps nobody from writing. */
int early_unlock(struct handle *handle, int level) {
    int rc = SQLITE_OK, waits = handle->own || (handle->seen && level == SQLITE_LOCK_NONE);
    if (!waits) {
        lock_give(handle, level);
        return SQLITE_OK;
    }
    if (level == SQLITE_LOCK_NONE || is_alone(handle))
        lock_leave(handle);
    else
        lock_give(handle, level);
    if (handle->own)
        rc = land_own(handle);
    if (handle->seen && level == SQLITE_LOCK_NONE)
        land_seen(handle);
    if (level == SQLITE_LOCK_NONE)
        lock_give(handle, level);
    else
        lock_return(handle);
    return rc;
}

/* The store is open again after a failure. Connections that have read a schema which is gone now cannot go on: the next
 * schema may have the same number. */
void early_reopened(struct database *database) {
    unsigned cookie = cookie_of(database);
    pthread_mutex_lock(&registry);
    for (struct handle *handle = handles; handle; handle = handle->next)
        if (handle->database == database && handle->tainted) {
            handle->is_void |= handle->cookie != cookie;
            handle->tainted = 0;
        }
    pthread_mutex_unlock(&registry);
}

/* The file closes; nobody has a lock. */
void early_forget(struct database *database) {
    pthread_mutex_lock(&registry);
    struct flight *newest = database->newest;
    database->newest = NULL;
    pthread_mutex_unlock(&registry);
    unuse(newest);
}

/* SQLite asks at the beginning of a transaction whether the file has changed, by 16 bytes of the header. An answer that is
 * too short empties its page cache. */
int early_forgets(struct handle *handle, int len, sqlite3_int64 offset) {
    int forgets = handle->forgets && len == 16 && offset == 24;
    if (forgets)
        handle->forgets = 0;
    return forgets;
}
