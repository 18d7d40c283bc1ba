/* A database that a connection opened for reading only, with mode=ro, in a store of another process.
 *
 * Beside an owner a read transaction is a snapshot of one commit, and nobody waits for anybody. Without an owner it also
 * holds SQLite's own SHARED lock, so that neither an owner nor a plain SQLite changes the file meanwhile. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

struct reading {
    sqlite3_file base;
    struct reading *next;
    char *path;
    char *store;      /* as untorn_reader_open() takes it */
    const char *name; /* of the database in the store */
    int fd;           /* holds SQLite's lock, if it `shares` the file with plain programs */
    int shares;
    char version[16]; /* of the header: SQLite changes it with each transaction */
    sqlite3 **connection;
    int lock;
    int forgets;      /* a read has failed: the page cache may lack pages of its commit */
    untorn_reader *reader;
    untorn_snapshot *snapshot;
    untorn_snapshot_file *file;
};

static struct reading *readings;

int reading_file_size(void) {
    return sizeof(struct reading);
}

static struct reading *of(sqlite3_file *file) {
    return (struct reading *)file;
}

/* Ends the read transaction. */
static void end(struct reading *reading) {
    if (reading->file)
        (void)untorn_snapshot_file_close(reading->file);
    if (reading->snapshot)
        (void)untorn_snapshot_close(reading->snapshot);
    reading->file = NULL;
    reading->snapshot = NULL;
    reading->shares = 0;
    lock_bytes_unshare(reading->fd);
}

static void drop_reader(struct reading *reading) {
    if (reading->reader)
        (void)untorn_reader_close(reading->reader);
    reading->reader = NULL;
}

static int not_read(struct reading *reading, int code) {
    return sorry(untorn_last_error() == UNTORN_E_BUSY ? SQLITE_BUSY : code, "%s: %s", reading->path, untorn_error_message());
}

/* The snapshot that another database of this connection and store has: a transaction sees one commit of both. */
static untorn_snapshot *of_transaction(const struct reading *reading) {
    untorn_snapshot *found = NULL;
    pthread_mutex_lock(&registry);
    for (struct reading *at = readings; at && reading->connection; at = at->next)
        if (at != reading && at->connection && *at->connection == *reading->connection && at->snapshot &&
            strcmp(at->store, reading->store) == 0)
            found = at->snapshot;
    pthread_mutex_unlock(&registry);
    return found;
}

static int begin(struct reading *reading) {
    untorn_snapshot *shared = of_transaction(reading);
    if (!shared) {
        if (!reading->reader && !(reading->reader = untorn_reader_open(reading->store)))
            return not_read(reading, SQLITE_CANTOPEN);
        if (!(reading->snapshot = untorn_snapshot_take(reading->reader)))
            return not_read(reading, SQLITE_IOERR_LOCK);
    }
    if (!(reading->file = untorn_snapshot_open(shared ? shared : reading->snapshot, reading->name)))
        return not_read(reading, SQLITE_IOERR_LOCK);
    memset(reading->version, 0, sizeof reading->version);
    if (untorn_snapshot_pread(reading->file, reading->version, sizeof reading->version, 24) < 0)
        return not_read(reading, SQLITE_IOERR_LOCK);
    return SQLITE_OK;
}

/* Whether the snapshot's file is still safe from plain programs: by an owner, by the marker of a killed one, or by the lock
 * that is taken here if the owner has released it and nobody has written since. */
static int is_kept(struct reading *reading) {
    char now[16] = {0};
    if (reading->shares || lock_bytes_have_owner(reading->fd) || marker_is_there(reading->path))
        return 1;
    reading->shares = lock_bytes_share(reading->fd) == SQLITE_OK;
    return reading->shares && pread(reading->fd, now, sizeof now, 24) >= 0 &&
           memcmp(now, reading->version, sizeof now) == 0;
}

static int ro_lock(sqlite3_file *file, int level) {
    struct reading *reading = of(file);
    if (reading->lock >= level)
        return SQLITE_OK;
    if (level > SQLITE_LOCK_SHARED)
        return sorry(SQLITE_READONLY, "%s: it is open for reading only", reading->path);
    int rc = SQLITE_OK;
    reading->shares = lock_bytes_share(reading->fd) == SQLITE_OK;
    if (!reading->shares && !lock_bytes_have_owner(reading->fd))
        return SQLITE_BUSY;
    if ((rc = begin(reading)) != SQLITE_OK) {
        end(reading);
        /* The next try looks for the store anew. */
        drop_reader(reading);
    }
    if (rc == SQLITE_OK)
        reading->lock = level;
    return rc;
}

static int ro_unlock(sqlite3_file *file, int level) {
    if (level == SQLITE_LOCK_NONE && of(file)->lock != SQLITE_LOCK_NONE) {
        end(of(file));
        of(file)->lock = level;
    }
    return SQLITE_OK;
}

static int ro_close(sqlite3_file *file) {
    struct reading *reading = of(file);
    end(reading);
    drop_reader(reading);
    close(reading->fd);
    pthread_mutex_lock(&registry);
    struct reading **at = &readings;
    while (*at && *at != reading)
        at = &(*at)->next;
    if (*at)
        *at = reading->next;
    pthread_mutex_unlock(&registry);
    sqlite3_free(reading->path);
    return SQLITE_OK;
}

/* Without a lock, and to empty the page cache, the answer is too short. */
static int ro_read(sqlite3_file *file, void *to, int len, sqlite3_int64 offset) {
    struct reading *reading = of(file);
    int forgets = reading->forgets && len == 16 && offset == 24;
    ssize_t n = 0;
    if (reading->file && !forgets)
        n = untorn_snapshot_pread(reading->file, to, len, offset);
    if (forgets)
        reading->forgets = 0;
    if (n < 0) {
        reading->forgets = 1;
        return sorry(SQLITE_IOERR_READ, "%s: %s", reading->path, untorn_error_message());
    }
    if (reading->file && !is_kept(reading)) {
        reading->forgets = 1;
        return sorry(SQLITE_IOERR_READ, "%s: its owner has released it, and it has changed since: begin a new transaction",
                     reading->path);
    }
    if (n == len)
        return SQLITE_OK;
    memset((char *)to + n, 0, len - n);
    return SQLITE_IOERR_SHORT_READ;
}

static int ro_size(sqlite3_file *file, sqlite3_int64 *size) {
    struct reading *reading = of(file);
    struct stat is;
    if (reading->file)
        *size = untorn_snapshot_size(reading->file);
    else
        *size = fstat(reading->fd, &is) == 0 ? is.st_size : -1;
    return *size >= 0 ? SQLITE_OK : not_read(reading, SQLITE_IOERR_FSTAT);
}

static int ro_write(sqlite3_file *file, const void *from, int len, sqlite3_int64 offset) {
    (void)file, (void)from, (void)len, (void)offset;
    return SQLITE_READONLY;
}

static int ro_truncate(sqlite3_file *file, sqlite3_int64 size) {
    (void)file, (void)size;
    return SQLITE_READONLY;
}

static int ro_sync(sqlite3_file *file, int flags) {
    (void)file, (void)flags;
    return SQLITE_OK;
}

static int ro_check_reserved(sqlite3_file *file, int *reserved) {
    (void)file;
    *reserved = 0;
    return SQLITE_OK;
}

static int ro_has_moved(const struct reading *reading) {
    struct stat now, held;
    return stat(reading->path, &now) != 0 || fstat(reading->fd, &held) != 0 || now.st_dev != held.st_dev ||
           now.st_ino != held.st_ino;
}

static int ro_control(sqlite3_file *file, int op, void *argument) {
    struct reading *reading = of(file);
    switch (op) {
    case SQLITE_FCNTL_PDB:
        pthread_mutex_lock(&registry);
        reading->connection = argument;
        pthread_mutex_unlock(&registry);
        return SQLITE_OK;
    case SQLITE_FCNTL_PRAGMA:
        if (sqlite3_stricmp(((char **)argument)[1], "untorn_error") != 0)
            return SQLITE_NOTFOUND;
        ((char **)argument)[0] = last_sentence();
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)argument = ro_has_moved(reading);
        return SQLITE_OK;
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)argument = reading->lock;
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)argument = sqlite3_mprintf("untorn");
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int ro_sector_size(sqlite3_file *file) {
    (void)file;
    return 512;
}

static int ro_characteristics(sqlite3_file *file) {
    (void)file;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods ro_methods = {
    .iVersion = 1, .xClose = ro_close, .xRead = ro_read, .xWrite = ro_write, .xTruncate = ro_truncate, .xSync = ro_sync,
    .xFileSize = ro_size, .xLock = ro_lock, .xUnlock = ro_unlock, .xCheckReservedLock = ro_check_reserved,
    .xFileControl = ro_control, .xSectorSize = ro_sector_size, .xDeviceCharacteristics = ro_characteristics,
};

/* Whether a store is there that this user may read. */
static int store_is_there(const char *store, int standalone) {
    char dir[PATH_MAX + 16];
    sqlite3_snprintf(sizeof dir, dir, standalone ? "%s.untorn" : "%s/.untorn", store);
    return faccessat(AT_FDCWD, dir, R_OK | X_OK, AT_EACCESS) == 0;
}

/* Opens a database for reading beside its owner. SQLITE_NOTFOUND: it has no store, and is an ordinary file. */
int reading_open(const char *name, sqlite3_file *file, int *flags_out) {
    char store[PATH_MAX + 1];
    int standalone, rc = store_choose(name, sqlite3_uri_parameter(name, "store"), store, &standalone);
    if (rc != SQLITE_OK)
        return rc;
    if (!store_is_there(store, standalone))
        return SQLITE_NOTFOUND;
    if ((rc = refuse_unlocked(name)) != SQLITE_OK)
        return rc;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return sorry(SQLITE_CANTOPEN, "%s: %m", name);
    size_t len = strlen(name) + 1;
    char *path = sqlite3_malloc64(len + strlen(store) + 1);
    if (!path) {
        close(fd);
        return SQLITE_NOMEM;
    }
    memcpy(path, name, len);
    strcpy(path + len, store);
    struct reading *reading = of(file);
    *reading = (struct reading){.base.pMethods = &ro_methods, .path = path, .store = path + len, .fd = fd};
    reading->name = standalone ? strrchr(path, '/') + 1 : path + strlen(store) + 1;
    pthread_mutex_lock(&registry);
    reading->next = readings;
    readings = reading;
    pthread_mutex_unlock(&registry);
    if (flags_out)
        *flags_out = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
    return SQLITE_OK;
}

/* Whether this is the name of the marker, or of a log, of a database that is read here. To SQLite they are not there. A
 * journal of a plain SQLite is. */
int reading_hides(const char *name) {
    static const char *const ends[] = {"-journal", "-wal"};
    struct stat found;
    size_t len = strlen(name);
    int hides = 0;
    pthread_mutex_lock(&registry);
    for (struct reading *at = readings; at && !hides; at = at->next)
        for (size_t i = 0; i < 2; i++) {
            size_t base = strlen(at->path);
            hides |= len > base && strncmp(name, at->path, base) == 0 && strcmp(name + base, ends[i]) == 0;
        }
    pthread_mutex_unlock(&registry);
    return hides && (stat(name, &found) != 0 || S_ISDIR(found.st_mode));
}
