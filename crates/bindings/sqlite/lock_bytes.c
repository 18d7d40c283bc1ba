/* SQLite's lock bytes, by which it and other processes wait for each other.
 *
 * The locks are those of an open file description: POSIX locks would go with any descriptor of the file that Untorn closes,
 * and would not keep SQLite's own VFS in this process away. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

#define PENDING 0x40000000
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_LEN 510
#define ALL_LEN (2 + SHARED_LEN)

/* How often, with a pause of 1 ms, a writer looks whether the readers of other processes have ended. */
#define TRIES 20

static int set(struct database *database, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    if (fcntl(database->lock_bytes, F_OFD_SETLK, &lock) == 0)
        return SQLITE_OK;
    if (errno == EAGAIN || errno == EACCES)
        return SQLITE_BUSY;
    return sorry(SQLITE_IOERR_LOCK, "%s: %m", database->path);
}

/* Connections may have pages of the file that they opened, and a counter in another file that fits them by chance. */
static int is_another(struct database *database, const struct stat *now) {
    pthread_mutex_lock(&registry);
    int another = database->inode != now->st_ino || database->device != now->st_dev;
    pthread_mutex_unlock(&registry);
    return another;
}

/* Opens the file whose bytes are locked, unless it is open. The descriptor stays open when the locks are given back: closing
 * it would drop locks that SQLite's own VFS has in this process. */
int lock_bytes_open(struct database *database) {
    struct stat now, held;
    if (stat(database->path, &now) != 0)
        return sorry(SQLITE_CANTOPEN, "%s: %m", database->path);
    if (is_another(database, &now))
        return sorry(SQLITE_CANTOPEN, "%s: another file has this name now: close the connections that were opened before",
                     database->path);
    if (database->lock_bytes >= 0 &&
        (fstat(database->lock_bytes, &held) != 0 || held.st_ino != now.st_ino || held.st_dev != now.st_dev)) {
        close(database->lock_bytes);
        database->lock_bytes = -1;
    }
    if (database->lock_bytes < 0)
        database->lock_bytes = open(database->path, O_RDWR | O_CLOEXEC | O_NOCTTY);
    return database->lock_bytes >= 0 ? SQLITE_OK : sorry(SQLITE_CANTOPEN, "%s: %m", database->path);
}

/* Takes the lock of a reader. */
int lock_bytes_share(struct database *database) {
    int rc = lock_bytes_open(database);
    if (rc != SQLITE_OK || (rc = set(database, F_RDLCK, PENDING, 1)) != SQLITE_OK)
        return rc;
    rc = set(database, F_RDLCK, SHARED, SHARED_LEN);
    (void)set(database, F_UNLCK, PENDING, 1);
    return rc;
}

void lock_bytes_unshare(struct database *database) {
    (void)set(database, F_UNLCK, PENDING, ALL_LEN);
}

/* Whether another process is in a transaction that writes. */
int lock_bytes_is_reserved(struct database *database) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = RESERVED, .l_len = 1};
    return fcntl(database->lock_bytes, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Back to the lock of the readers of this process, or to none. */
static void back(struct database *database) {
    if (plain_has_readers(database)) {
        (void)set(database, F_RDLCK, SHARED, SHARED_LEN);
        (void)set(database, F_UNLCK, PENDING, 2);
    } else {
        lock_bytes_unshare(database);
    }
}

/* Takes all lock bytes, at once or step by step as SQLite does: with PENDING, no new readers come. The caller may have
 * SHARED, and has it all the time. */
int lock_bytes_take(struct database *database) {
    int rc = lock_bytes_open(database);
    if (rc != SQLITE_OK)
        return rc;
    if ((rc = set(database, F_WRLCK, RESERVED, 1)) != SQLITE_OK)
        return rc;
    rc = set(database, F_WRLCK, PENDING, 1);
    if (rc == SQLITE_OK)
        rc = set(database, F_WRLCK, SHARED, SHARED_LEN);
    for (int tries = 0; rc == SQLITE_BUSY && tries < TRIES; tries++) {
        sqlite3_sleep(1);
        if (set(database, F_WRLCK, PENDING, 1) == SQLITE_OK)
            rc = set(database, F_WRLCK, SHARED, SHARED_LEN);
    }
    if (rc != SQLITE_OK)
        back(database);
    return rc;
}

/* Gives ownership back. Readers of this process keep their lock. */
void lock_bytes_give(struct database *database) {
    if (database->lock_bytes < 0)
        return;
    /* By name: a child may still have the description. */
    back(database);
    if (plain_has_readers(database))
        return;
    close(database->lock_bytes);
    database->lock_bytes = -1;
}
