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

static void beside(const struct database *database, char *name, size_t room) {
    sqlite3_snprintf((int)room, name, "%s-journal", database->path);
}

/* Whether the marker of a database is there. */
int marker_is_there(const char *path) {
    char name[PATH_MAX + 16];
    struct stat found;
    sqlite3_snprintf(sizeof name, name, "%s-journal", path);
    return stat(name, &found) == 0 && S_ISDIR(found.st_mode);
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
