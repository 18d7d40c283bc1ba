/* SQLite's lock bytes, by which it and other processes wait for each other.
 *
 * The locks are those of an open file description: POSIX locks would go with any descriptor of the file that Untorn closes,
 * and would not keep SQLite's own VFS in this process away. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

#define PENDING 0x40000000
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_LEN 510
#define ALL_LEN (2 + SHARED_LEN)

/* How often, with a pause of 1 ms, a writer looks whether the readers of other processes have ended. */
#define TRIES 20

static int try_to_set(int fd, short type, off_t start, off_t len) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return SQLITE_OK;
    return errno == EAGAIN || errno == EACCES ? SQLITE_BUSY : SQLITE_IOERR_LOCK;
}

static int set(struct database *database, short type, off_t start, off_t len) {
    int rc = try_to_set(database->lock_bytes, type, start, len);
    return rc == SQLITE_IOERR_LOCK ? sorry(rc, "%s: %m", database->path) : rc;
}

/* The process that has a database: of a plain SQLite by its lock, of an owner by its store's lock file. 0: not known. */
static int holder(const struct database *database, const struct flock *lock, char *text, size_t room) {
    char name[PATH_MAX + 32], pid[16] = {0};
    if (lock->l_pid > 0)
        return sqlite3_snprintf((int)room, text, "process %d without the extension", (int)lock->l_pid) != NULL;
    const struct store *store = database->store;
    sqlite3_snprintf(sizeof name, name, store->standalone ? "%s.untorn/lock" : "%s/.untorn/lock", store->path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, pid, sizeof pid - 1, 0);
    if (fd >= 0)
        close(fd);
    if (n <= 0 || pid[0] < '1' || pid[0] > '9')
        return 0;
    pid[strspn(pid, "0123456789")] = '\0';
    return sqlite3_snprintf((int)room, text, "process %s", pid) != NULL;
}

/* Somebody else has the database. Without SQLite's log, for which a busy handler would ask too often. */
static int busy(const struct database *database) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PENDING, .l_len = ALL_LEN};
    char who[64];
    int known = fcntl(database->lock_bytes, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK &&
                holder(database, &lock, who, sizeof who);
    tell("%s is open in %s; mode=ro reads it meanwhile", database->path, known ? who : "another process");
    return SQLITE_BUSY;
}

/* Whether an owner has all the bytes, for its open file description. */
int lock_bytes_have_owner(int fd) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = PENDING, .l_len = ALL_LEN};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid < 0;
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

/* Takes the lock of a reader, by a descriptor. */
int lock_bytes_share(int fd) {
    int rc = try_to_set(fd, F_RDLCK, PENDING, 1);
    if (rc != SQLITE_OK)
        return rc;
    rc = try_to_set(fd, F_RDLCK, SHARED, SHARED_LEN);
    (void)try_to_set(fd, F_UNLCK, PENDING, 1);
    return rc;
}

void lock_bytes_unshare(int fd) {
    (void)try_to_set(fd, F_UNLCK, PENDING, ALL_LEN);
}

int lock_bytes_read(struct database *database) {
    int rc = lock_bytes_open(database);
    if (rc != SQLITE_OK || (rc = lock_bytes_share(database->lock_bytes)) == SQLITE_OK)
        return rc;
    return rc == SQLITE_BUSY ? busy(database) : sorry(rc, "%s: %m", database->path);
}

void lock_bytes_unread(struct database *database) {
    lock_bytes_unshare(database->lock_bytes);
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
        lock_bytes_unread(database);
    }
}

/* Takes all lock bytes, at once or step by step as SQLite does: with PENDING, no new readers come. The caller may have
 * SHARED, and has it all the time. */
int lock_bytes_take(struct database *database) {
    int rc = lock_bytes_open(database);
    if (rc != SQLITE_OK)
        return rc;
    if ((rc = set(database, F_WRLCK, RESERVED, 1)) != SQLITE_OK)
        return rc == SQLITE_BUSY ? busy(database) : rc;
    rc = set(database, F_WRLCK, PENDING, 1);
    if (rc == SQLITE_OK)
        rc = set(database, F_WRLCK, SHARED, SHARED_LEN);
    for (int tries = 0; rc == SQLITE_BUSY && tries < TRIES; tries++) {
        sqlite3_sleep(1);
        if (set(database, F_WRLCK, PENDING, 1) == SQLITE_OK)
            rc = set(database, F_WRLCK, SHARED, SHARED_LEN);
    }
    if (rc == SQLITE_BUSY)
        busy(database);
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
