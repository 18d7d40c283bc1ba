/* Keeps programs that do not know Untorn from reading or writing a database whose newest pages are in Untorn's journal.
 *
 * While this process owns the database, it holds SQLite's lock bytes: others get "database is locked". After a kill there
 * is nobody to hold them. So from before the first commit until the data file has all of them, a directory stands where
 * SQLite's journal would be: others get "disk I/O error". */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

/* SQLite's lock bytes: PENDING, RESERVED and 510 of SHARED. */
#define LOCK_BYTES_START 0x40000000
#define LOCK_BYTES_LEN 512

static void beside(const struct database *database, char *name, size_t room) {
    sqlite3_snprintf((int)room, name, "%s-journal", database->path);
}

/* Takes all lock bytes, for the open file description: POSIX locks would go with any descriptor that Untorn closes.
 * The descriptor of an attempt that failed stays open: closing it would drop locks that SQLite's own VFS has here. */
int lock_bytes_take(struct database *database) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BYTES_START, .l_len = LOCK_BYTES_LEN};
    struct stat now, held;
    if (stat(database->path, &now) != 0)
        return sorry(SQLITE_CANTOPEN, "%s: %m", database->path);
    if (database->lock_bytes >= 0 && (fstat(database->lock_bytes, &held) != 0 || held.st_ino != now.st_ino)) {
        close(database->lock_bytes);
        database->lock_bytes = -1;
    }
    if (database->lock_bytes < 0)
        database->lock_bytes = open(database->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (database->lock_bytes < 0)
        return sorry(SQLITE_CANTOPEN, "%s: %m", database->path);
    if (fcntl(database->lock_bytes, F_OFD_SETLK, &lock) == 0)
        return SQLITE_OK;
    if (errno == EAGAIN || errno == EACCES)
        return SQLITE_BUSY;
    return sorry(SQLITE_IOERR_LOCK, "%s: %m", database->path);
}

void lock_bytes_give(struct database *database) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = LOCK_BYTES_START, .l_len = LOCK_BYTES_LEN};
    if (database->lock_bytes < 0)
        return;
    /* By name: a child may still have the description. */
    fcntl(database->lock_bytes, F_OFD_SETLK, &lock);
    close(database->lock_bytes);
    database->lock_bytes = -1;
}

/* A journal that SQLite's own VFS left, perhaps killed in a transaction: its VFS rolls it back. */
int plain_journal_roll_back(struct database *database) {
    char name[PATH_MAX + 16];
    struct stat found;
    sqlite3 *plain = NULL;
    beside(database, name, sizeof name);
    if (lstat(name, &found) != 0 || !S_ISREG(found.st_mode))
        return SQLITE_OK;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_PRIVATECACHE;
    int rc = sqlite3_open_v2(database->path, &plain, flags, "unix");
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(plain, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL);
    sqlite3_close(plain);
    return rc;
}

/* Removes a journal that has ended but was kept (journal_mode=PERSIST or TRUNCATE): the marker needs its name. The lock
 * bytes are held, so that nobody begins one. */
int plain_journal_remove(struct database *database) {
    static const char ended[8];
    char name[PATH_MAX + 16], begin[8] = {0};
    struct stat found;
    beside(database, name, sizeof name);
    if (lstat(name, &found) != 0)
        return errno == ENOENT ? SQLITE_OK : sorry(SQLITE_IOERR_ACCESS, "%s: %m", name);
    if (S_ISDIR(found.st_mode)) {
        database->marked = 1;
        return SQLITE_OK;
    }
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return sorry(SQLITE_CANTOPEN, "%s: %m", name);
    ssize_t n = pread(fd, begin, sizeof begin, 0);
    close(fd);
    /* Another program has begun a transaction and was killed since plain_journal_roll_back(). */
    if (n < 0 || memcmp(begin, ended, sizeof begin) != 0)
        return SQLITE_BUSY;
    return unlink(name) == 0 ? SQLITE_OK : sorry(SQLITE_IOERR_DELETE, "%s: %m", name);
}

/* Makes the marker, durably, before the first commit. */
int marker_make(struct database *database) {
#ifndef UNTORN_SQLITE_NO_MARKER
    char name[PATH_MAX + 16];
    if (database->marked)
        return SQLITE_OK;
    beside(database, name, sizeof name);
    struct stat found;
    if (mkdir(name, 0700) != 0 && (errno != EEXIST || lstat(name, &found) != 0 || !S_ISDIR(found.st_mode)))
        return sorry(errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR, "%s: %m", name);
    *strrchr(name, '/') = '\0';
    int dir = open(*name ? name : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = dir < 0 || fsync(dir) != 0;
    if (dir >= 0)
        close(dir);
    if (failed)
        return sorry(SQLITE_IOERR_DIR_FSYNC, "%s: %m", name);
    database->marked = 1;
#else
    (void)database;
#endif
    return SQLITE_OK;
}

/* Removes the marker. The data file has every commit. */
void marker_remove(struct database *database) {
    char name[PATH_MAX + 16];
    if (!database->marked)
        return;
    beside(database, name, sizeof name);
    rmdir(name);
    database->marked = 0;
}
