/* A database file as SQLite's pager uses it. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

static struct handle *of(sqlite3_file *file) {
    return (struct handle *)file;
}

static int is_foreign(const struct handle *handle) {
    return handle->generation != generation;
}

static int db_close(sqlite3_file *file) {
    struct handle *handle = of(file);
    if (is_foreign(handle))
        return SQLITE_OK;
    if (handle->lock >= SQLITE_LOCK_RESERVED)
        (void)roll_back(handle);
    (void)early_unlock(handle, SQLITE_LOCK_NONE);
    pthread_mutex_lock(&registry);
    struct handle **at = &handles;
    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    struct database *database = handle->database;
    /* Under `registry`: the next connection may begin a journal at once. */
    if (--database->handles == 0)
        journal_remove(&database->journal);
    pthread_mutex_unlock(&registry);
    return SQLITE_OK;
}

/* Before the first lock SQLite reads the header, and under the lock again. */
static int db_read(sqlite3_file *file, void *to, int len, sqlite3_int64 offset) {
    struct handle *handle = of(file);
    if (is_foreign(handle))
        return SQLITE_IOERR_READ;
    FAULT("xRead", SQLITE_IOERR_READ);
    if (handle->absent)
        return sorry(SQLITE_IOERR_READ, "%s: another connection has written since this one's commit", handle->database->path);
    ssize_t n = 0;
    if (handle->lock == SQLITE_LOCK_NONE)
        n = database_peek(handle->database, to, len, offset);
    else if (!early_forgets(handle, len, offset)) {
        if (handle->plain)
            return plain_read(handle, to, len, offset);
        n = untorn_pread(handle->database->file, to, len, offset);
    }
    if (n < 0)
        return sorry(SQLITE_IOERR_READ, "%s: %s", handle->database->path, untorn_error_message());
    if (n == len)
        return SQLITE_OK;
    memset((char *)to + n, 0, len - n);
    return SQLITE_IOERR_SHORT_READ;
}

static int not_changed(const struct handle *handle) {
    int full = untorn_last_error() == UNTORN_E_NO_SPACE;
    return sorry(full ? SQLITE_FULL : SQLITE_IOERR_WRITE, "%s: %s", handle->database->path, untorn_error_message());
}

static int db_write(sqlite3_file *file, const void *from, int len, sqlite3_int64 offset) {
    struct handle *handle = of(file);
    TRACE("xWrite\n");
    if (is_foreign(handle) || handle->lock == SQLITE_LOCK_NONE)
        return SQLITE_IOERR_WRITE;
    handle->synced = 0;
    handle->changed = 1;
    FAULT("xWrite", SQLITE_IOERR_WRITE);
    return untorn_pwrite_changed(handle->database->file, from, len, offset) >= 0 ? SQLITE_OK : not_changed(handle);
}

static int db_truncate(sqlite3_file *file, sqlite3_int64 size) {
    struct handle *handle = of(file);
    TRACE("xTruncate\n");
    if (is_foreign(handle) || handle->lock == SQLITE_LOCK_NONE)
        return SQLITE_IOERR_TRUNCATE;
    handle->changed = 1;
    FAULT("xTruncate", SQLITE_IOERR_TRUNCATE);
    return untorn_ftruncate(handle->database->file, size) == 0 ? SQLITE_OK : not_changed(handle);
}

/* A note only: SQLite syncs the database on a rollback, too, and never with synchronous=OFF. */
static int db_sync(sqlite3_file *file, int flags) {
    (void)flags;
    TRACE("xSync\n");
    of(file)->durable = 1;
#ifdef UNTORN_SQLITE_COMMIT_AT_SYNC
    return commit_phase_two(of(file));
#else
    return SQLITE_OK;
#endif
}

static int db_size(sqlite3_file *file, sqlite3_int64 *size) {
    struct handle *handle = of(file);
    *size = 0;
    if (is_foreign(handle))
        return SQLITE_IOERR_FSTAT;
    if (handle->lock == SQLITE_LOCK_NONE) {
        struct stat is;
        *size = stat(handle->database->path, &is) == 0 ? is.st_size : 0;
        return SQLITE_OK;
    }
    if (handle->plain)
        return plain_size(handle, size);
    *size = untorn_size(handle->database->file);
    return *size >= 0 ? SQLITE_OK : SQLITE_IOERR_FSTAT;
}

static int db_lock(sqlite3_file *file, int level) {
    FAULT("xLock", SQLITE_IOERR_LOCK);
    int rc = lock_take(of(file), level);
    TRACE("xLock %d: %d\n", level, rc);
    return rc;
}

/* Changes that are left at the end of a transaction are those of a rollback, or of a failure. */
static int db_unlock(sqlite3_file *file, int level) {
    struct handle *handle = of(file);
    int rc = SQLITE_OK;
    TRACE("xUnlock %d\n", level);
    if (is_foreign(handle))
        return SQLITE_OK;
    if (handle->lock >= SQLITE_LOCK_RESERVED && level < SQLITE_LOCK_RESERVED) {
        rc = roll_back(handle);
        journal_empty(&handle->database->journal);
    }
    int landed = early_unlock(handle, level);
    return rc == SQLITE_OK ? landed : rc;
}

static int db_check_reserved(sqlite3_file *file, int *reserved) {
    struct handle *handle = of(file);
    if (is_foreign(handle))
        return SQLITE_IOERR_CHECKRESERVEDLOCK;
    pthread_mutex_lock(&registry);
    *reserved = handle->database->writer != NULL;
    pthread_mutex_unlock(&registry);
    return SQLITE_OK;
}

/* SQLite is about to commit; with several databases it names the super-journal, which must be ours. */
static int about_to_commit(struct handle *handle, const char *super_name) {
    struct database *database = handle->database;
    FAULT("SYNC", SQLITE_IOERR_FSYNC);
    pthread_mutex_lock(&registry);
    struct super *super = super_name ? super_find(super_name) : NULL;
    int fits = !super_name || (super && super->store == database->store);
    if (fits) {
        handle->synced = 1;
        handle->deleted = 0;
        if (super)
            handle->super = super;
    }
    pthread_mutex_unlock(&registry);
    if (fits)
        return SQLITE_OK;
    return sorry(SQLITE_IOERR_FSYNC,
                 "databases of one transaction must belong to one store: open each with vfs=untorn&store=DIR (%s)",
                 database->path);
}

static int has_moved(const struct handle *handle) {
    struct stat is;
    return stat(handle->database->path, &is) != 0 || is.st_dev != handle->database->device ||
           is.st_ino != handle->database->inode;
}

static int db_control(sqlite3_file *file, int op, void *argument) {
    struct handle *handle = of(file);
    switch (op) {
    case SQLITE_FCNTL_SYNC:
        TRACE("SYNC %s\n", argument ? "super" : "-");
        return about_to_commit(handle, argument);
    case SQLITE_FCNTL_COMMIT_PHASETWO:
        TRACE("PHASETWO\n");
        return is_foreign(handle) ? SQLITE_IOERR_FSYNC : commit_phase_two(handle);
    case SQLITE_FCNTL_PDB:
        pthread_mutex_lock(&registry);
        handle->connection = argument;
        handle->sharers++;
        pthread_mutex_unlock(&registry);
        return SQLITE_OK;
    case SQLITE_FCNTL_PRAGMA:
        return pragma(handle, argument);
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)argument = has_moved(handle);
        return SQLITE_OK;
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)argument = handle->lock;
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)argument = sqlite3_mprintf("untorn");
        return SQLITE_OK;
    case SQLITE_FCNTL_POWERSAFE_OVERWRITE:
        *(int *)argument = 1;
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int db_sector_size(sqlite3_file *file) {
    (void)file;
    return 512;
}

static int db_characteristics(sqlite3_file *file) {
    (void)file;
    return SQLITE_IOCAP_SAFE_APPEND | SQLITE_IOCAP_SEQUENTIAL | SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* Version 1: without shared memory, which WAL would need, and without mappings. */
static const sqlite3_io_methods db_methods = {
    .iVersion = 1, .xClose = db_close, .xRead = db_read, .xWrite = db_write, .xTruncate = db_truncate, .xSync = db_sync,
    .xFileSize = db_size, .xLock = db_lock, .xUnlock = db_unlock, .xCheckReservedLock = db_check_reserved,
    .xFileControl = db_control, .xSectorSize = db_sector_size, .xDeviceCharacteristics = db_characteristics,
};

/* Without locks, nothing would open the database in its store, or take a snapshot: SQLite would read old pages, or none. */
int refuse_unlocked(const char *name) {
    if (!sqlite3_uri_boolean(name, "nolock", 0) && !sqlite3_uri_boolean(name, "immutable", 0))
        return SQLITE_OK;
    return sorry(SQLITE_CANTOPEN, "%s: open it without nolock=1 and immutable=1: the VFS untorn needs locks", name);
}

/* Opens a database for a connection. It is not opened in its store yet: that may find another owner, and
 * sqlite3_open() has no busy handler. */
int handle_open(const char *name, sqlite3_file *file, int flags, int *flags_out) {
    struct handle *handle = of(file);
    struct database *database;
    int rc = refuse_unlocked(name);
    if (rc != SQLITE_OK)
        return rc;
    if (flags & SQLITE_OPEN_CREATE) {
        int exclusive = flags & SQLITE_OPEN_EXCLUSIVE ? 1 : 0;
        int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0644);
        if (fd < 0 && (errno != EEXIST || exclusive))
            return sorry(SQLITE_CANTOPEN, "%s: %m", name);
        if (fd >= 0)
            close(fd);
    }
    rc = database_find_or_add(name, sqlite3_uri_parameter(name, "store"), &database);
    if (rc != SQLITE_OK)
        return rc;
    *handle = (struct handle){.base.pMethods = &db_methods, .database = database, .generation = generation};
    pthread_mutex_lock(&registry);
    handle->next = handles;
    handles = handle;
    pthread_mutex_unlock(&registry);
    if (flags_out)
        *flags_out = flags;
    return SQLITE_OK;
}
