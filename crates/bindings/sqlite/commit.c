/* The commit point.
 *
 * SQLite's last step of a transaction is FCNTL_COMMIT_PHASETWO for each database, or the deletion of the super-journal for
 * several. Only there something is committed: before it (at xSync) SQLite can still roll back, and the databases of a
 * transaction would be committed one after the other. */
#include "untorn_sqlite.h"
#include <string.h>
SQLITE_EXTENSION_INIT3

/* SQLite's code for a commit that failed. Nothing but a full disk lets the store go on. */
int commit_failed(struct database *database) {
    untorn_error kind = untorn_last_error();
    int code = kind == UNTORN_E_NO_SPACE ? SQLITE_FULL : kind == UNTORN_E_NO_MEMORY ? SQLITE_IOERR_NOMEM : SQLITE_IOERR_FSYNC;
    sorry(code, "%s: %s", database->path, untorn_error_message());
    if (code == SQLITE_IOERR_FSYNC) {
        pthread_mutex_lock(&registry);
        database->store->failed = 1;
        pthread_mutex_unlock(&registry);
    }
    return code;
}

/* Keeps the ticket of a commit that nobody waits for: the next lock looks whether it has failed. */
static void remember(struct database *database, untorn_ticket *ticket) {
    pthread_mutex_lock(&registry);
    untorn_ticket *before = database->last;
    database->last = ticket;
    pthread_mutex_unlock(&registry);
    if (before)
        (void)untorn_ticket_free(before);
}

/* After its first commit a database must not be empty on disk: SQLite takes an empty file for a new database. The log keeps
 * no commit of it, so that a new copy that is removed again can be made anew. */
static void commit_empty_first(struct database *database) {
    if (!database->was_empty)
        return;
    if (untorn_store_checkpoint(database->store->open) == 0)
        database->was_empty = 0;
    else
        sorry(SQLITE_NOTICE, "%s: %s", database->path, untorn_error_message());
}

/* Commits the files of these handles as one. */
static int commit(struct handle **group, size_t n, int durable) {
    untorn_file **files = sqlite3_malloc64(n * sizeof *files);
    untorn_ticket *ticket = NULL;
    int done, waited = durable && !(n == 1 && early_may_start(group[0]));
    if (!files)
        return SQLITE_IOERR_NOMEM;
    sqlite3_int64 before = tickets_started(group[0]->database->store);
    FAULT("commit", SQLITE_FULL);
    TRACE("commit of %d\n", (int)n);
    for (size_t i = 0; i < n; i++)
        files[i] = group[i]->database->file;
    if (durable && !waited)
        done = early_start(group[0]);
    else if (durable)
        done = (n == 1 ? untorn_commit(files[0]) : untorn_syncv(files, n)) == 0;
    else
        done = (ticket = n == 1 ? untorn_commit_async(files[0]) : untorn_syncv_async(files, n)) != NULL;
    sqlite3_free(files);
    if (!done)
        return commit_failed(group[0]->database);
    remember(group[0]->database, ticket);
    tickets_note(group, n, waited, before);
    pthread_mutex_lock(&registry);
    for (size_t i = 0; i < n; i++)
        group[i]->changed = group[i]->synced = group[i]->durable = 0;
    pthread_mutex_unlock(&registry);
    for (size_t i = 0; i < n; i++)
        commit_empty_first(group[i]->database);
    return SQLITE_OK;
}

/* Whether a handle is in the transaction that another handle commits. */
static int belongs(const struct handle *handle, const struct handle *to) {
    if (handle == to)
        return 1;
#ifdef UNTORN_SQLITE_NO_GROUP
    return 0;
#endif
    return to->connection && handle->connection && *handle->connection == *to->connection && handle->synced &&
           handle->changed && handle->lock == SQLITE_LOCK_EXCLUSIVE && handle->database->store == to->database->store;
}

/* The handles of a transaction: of a super-journal, or of the connection of one handle. Freed with sqlite3_free(). */
static struct handle **collect(struct super *super, struct handle *first, size_t *n) {
    size_t all = 0;
    *n = 0;
    pthread_mutex_lock(&registry);
    for (struct handle *handle = handles; handle; handle = handle->next)
        all++;
    struct handle **group = sqlite3_malloc64((all + 1) * sizeof *group);
    for (struct handle *handle = handles; group && handle; handle = handle->next)
        if (super ? handle->super == super && handle->changed : belongs(handle, first))
            group[(*n)++] = handle;
    pthread_mutex_unlock(&registry);
    return group;
}

static int commit_group(struct super *super, struct handle *first) {
    size_t n;
    struct handle **group = collect(super, first, &n);
    int durable = super != NULL, rc = SQLITE_OK;
    if (!group)
        return SQLITE_IOERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        durable |= group[i]->durable;
    if (n > 0)
        rc = commit(group, n, durable);
    sqlite3_free(group);
    return rc;
}

/* SQLite drops its pages after an error, and rolls the other databases back. */
int commit_phase_two(struct handle *handle) {
    if (!handle->changed && !handle->synced)
        return SQLITE_OK;
    int rc = handle->database->store->failed
                 ? sorry(SQLITE_IOERR_FSYNC, "%s: an earlier commit has failed", handle->database->path)
                 : commit_group(NULL, handle);
    if (rc != SQLITE_OK)
        (void)roll_back(handle);
    return rc;
}

int commit_super(struct super *super) {
    return commit_group(super, NULL);
}

/* Discards the transaction's changes, if there are any. */
int roll_back(struct handle *handle) {
    int changed = handle->changed;
    handle->changed = handle->synced = handle->durable = 0;
    if (!changed)
        return SQLITE_OK;
    return untorn_rollback(handle->database->file) == 0 ? SQLITE_OK : commit_failed(handle->database);
}

/* Databases of several stores cannot be one commit. The second one is refused when its transaction begins to write. */
int refuse_two_stores(struct handle *handle) {
    const char *other = NULL;
    char path[512];
    pthread_mutex_lock(&registry);
    for (struct handle *at = handles; at && handle->connection; at = at->next)
        if (at != handle && at->connection && *at->connection == *handle->connection && at->lock >= SQLITE_LOCK_RESERVED &&
            at->database->store != handle->database->store)
            other = sqlite3_snprintf(sizeof path, path, "%s", at->database->path);
    pthread_mutex_unlock(&registry);
    if (!other)
        return SQLITE_OK;
    return sorry(SQLITE_IOERR_LOCK,
                 "%s and %s are of two stores and cannot be changed in one transaction: open both with vfs=untorn&store=DIR, "
                 "a directory that has both", other, handle->database->path);
}
