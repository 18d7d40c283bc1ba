/* Reading without owning.
 *
 * A database that this process only reads stays a plain file: its connections have SQLite's SHARED lock, like those of
 * SQLite's own VFS, and read the file. Other processes read it at the same time, and write it between transactions. That is
 * so if nothing waits in a journal; otherwise the first lock opens the store.
 *
 * The first write takes all lock bytes, without giving SHARED back, so that the pages that were read are still those of the
 * file. Other connections of this process that have SHARED read the file until their transactions end: before that, no
 * transaction gets EXCLUSIVE, so nothing is committed. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

/* Whether this handle may read the file as it is because another one does, or because it is the first; if so, it counts. */
static int join(struct handle *handle, int is_first) {
    struct database *database = handle->database;
    struct store *store = database->store;
    pthread_mutex_lock(&registry);
    int may = !database->file && !database->replaced && !store->failed && !store->closing &&
              (is_first || database->readers > 0);
    if (may) {
        database->readers++;
        store->locked++;
        handle->plain = 1;
    }
    pthread_mutex_unlock(&registry);
    return may;
}

/* Whether SQLite would have to roll a journal back: one that has begun, and whose writer is gone. */
static int has_hot_journal(struct database *database, const char *name) {
    char first = 0;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 1;
    ssize_t n = pread(fd, &first, 1, 0);
    close(fd);
    return n < 0 || (n == 1 && first && !lock_bytes_is_reserved(database));
}

/* Whether the file is the database, without anything that waits in a journal. The caller has SHARED. */
static int is_plain(struct database *database) {
    char name[PATH_MAX + 16];
    unsigned char header[20];
    struct stat found;
    sqlite3_snprintf(sizeof name, name, "%s-journal", database->path);
    if (lstat(name, &found) == 0 && (!S_ISREG(found.st_mode) || has_hot_journal(database, name)))
        return 0;
    sqlite3_snprintf(sizeof name, name, "%s-wal", database->path);
    if (lstat(name, &found) == 0)
        return 0;
    ssize_t n = pread(database->lock_bytes, header, sizeof header, 0);
    if (n < 0 || (n == sizeof header && (header[18] == 2 || header[19] == 2)))
        return 0;
    return untorn_is_plain(database->lock_bytes) == 1;
}

/* The caller holds `store.opening`. SQLITE_NOTFOUND: the database must be opened in its store. */
static int first_use(struct handle *handle) {
    struct database *database = handle->database;
    int rc = lock_bytes_read(database);
    if (rc != SQLITE_OK)
        return rc;
    if (is_plain(database) && join(handle, 1))
        return SQLITE_OK;
    lock_bytes_unread(database);
    return SQLITE_NOTFOUND;
}

int plain_has_readers(struct database *database) {
    pthread_mutex_lock(&registry);
    int readers = database->readers;
    pthread_mutex_unlock(&registry);
    return readers > 0;
}

static int is_owned(struct database *database) {
    pthread_mutex_lock(&registry);
    int owned = database->file != NULL;
    pthread_mutex_unlock(&registry);
    return owned;
}

/* Begins to read. SQLITE_NOTFOUND: the database is open in its store, or must be. */
int plain_use(struct handle *handle) {
    struct database *database = handle->database;
    if (is_owned(database))
        return SQLITE_NOTFOUND;
    if (join(handle, 0))
        return SQLITE_OK;
    pthread_mutex_lock(&database->store->opening);
    int rc = SQLITE_NOTFOUND;
    if (!is_owned(database))
        rc = join(handle, 0) ? SQLITE_OK : first_use(handle);
    pthread_mutex_unlock(&database->store->opening);
    return rc;
}

static void leave(struct handle *handle) {
    handle->plain = 0;
    handle->database->readers--;
    handle->database->store->locked--;
}

/* Ends reading. The last one gives SHARED back, unless a writer has taken all lock bytes. */
void plain_unuse(struct handle *handle) {
    struct database *database = handle->database;
    pthread_mutex_lock(&registry);
    leave(handle);
    int is_last = database->readers == 0 && !database->file;
    pthread_mutex_unlock(&registry);
    if (!is_last)
        return;
    pthread_mutex_lock(&database->store->opening);
    pthread_mutex_lock(&registry);
    is_last = database->readers == 0 && !database->file;
    pthread_mutex_unlock(&registry);
    if (is_last)
        lock_bytes_unread(database);
    pthread_mutex_unlock(&database->store->opening);
}

/* Opens the database in its store, for a handle that reads it and is about to write. */
int plain_own(struct handle *handle) {
    int rc = database_use(handle->database);
    if (rc != SQLITE_OK)
        return rc;
    pthread_mutex_lock(&registry);
    leave(handle);
    pthread_mutex_unlock(&registry);
    return SQLITE_OK;
}

int plain_read(struct handle *handle, void *to, int len, sqlite3_int64 offset) {
    ssize_t n = pread(handle->database->lock_bytes, to, len, offset);
    if (n < 0)
        return sorry(SQLITE_IOERR_READ, "%s: %m", handle->database->path);
    if (n == len)
        return SQLITE_OK;
    memset((char *)to + n, 0, len - n);
    return SQLITE_IOERR_SHORT_READ;
}

int plain_size(struct handle *handle, sqlite3_int64 *size) {
    struct stat is;
    if (fstat(handle->database->lock_bytes, &is) != 0)
        return SQLITE_IOERR_FSTAT;
    *size = is.st_size;
    return SQLITE_OK;
}
