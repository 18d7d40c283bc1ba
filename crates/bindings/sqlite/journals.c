/* Journals and super-journals in memory. Steps that end a journal cannot fail: the commit may have been made already. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT3

/* Bytes of a journal that stay in memory. */
#ifndef JOURNAL_MEMORY
#define JOURNAL_MEMORY (8 << 20)
#endif

struct journal_file {
    sqlite3_file base;
    struct journal *journal;
    struct super *super;
};

static struct super *supers;

int journal_file_size(void) {
    return sizeof(struct journal_file);
}

/* A file without a name. Without a file system that can have one, its bytes stay in memory. */
static int spill_open(void) {
    const char *dirs[] = {getenv("SQLITE_TMPDIR"), getenv("TMPDIR"), "/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        int fd = dirs[i] ? open(dirs[i], O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600) : -1;
        if (fd >= 0)
            return fd;
    }
    return memfd_create("untorn-sqlite-journal", MFD_CLOEXEC);
}

static int grow(struct journal *journal, size_t wanted) {
    if (wanted <= journal->room)
        return SQLITE_OK;
    size_t room = journal->room ? journal->room : 4096;
    while (room < wanted)
        room *= 2;
    char *bytes = sqlite3_realloc64(journal->bytes, room);
    if (!bytes)
        return SQLITE_IOERR_NOMEM;
    memset(bytes + journal->room, 0, room - journal->room);
    journal->bytes = bytes;
    journal->room = room;
    return SQLITE_OK;
}

/* How many of the bytes of a range lie in memory. */
static int in_memory(sqlite3_int64 offset, int len) {
    if (offset >= JOURNAL_MEMORY)
        return 0;
    return offset + len > JOURNAL_MEMORY ? (int)(JOURNAL_MEMORY - offset) : len;
}

static int read_bytes(struct journal *journal, void *to, int len, sqlite3_int64 offset) {
    int there = offset >= journal->size ? 0 : journal->size - offset < len ? (int)(journal->size - offset) : len;
    int first = in_memory(offset, there);
    if (first > 0)
        memcpy(to, journal->bytes + offset, first);
    for (int done = first; done < there;) {
        ssize_t n = pread(journal->spill, (char *)to + done, there - done, offset + done - JOURNAL_MEMORY);
        if (n <= 0)
            return SQLITE_IOERR_READ;
        done += n;
    }
    memset((char *)to + there, 0, len - there);
    return there < len ? SQLITE_IOERR_SHORT_READ : SQLITE_OK;
}

static int journal_read(sqlite3_file *file, void *to, int len, sqlite3_int64 offset) {
    struct journal *journal = ((struct journal_file *)file)->journal;
    pthread_mutex_lock(&journal->guard);
    int rc = read_bytes(journal, to, len, offset);
    pthread_mutex_unlock(&journal->guard);
    return rc;
}

/* A super-journal names journals. One that is not in this VFS, or of another store, would not be part of the commit. */
static int super_names(struct super *super, const char *name) {
    pthread_mutex_lock(&registry);
    struct database *database = database_of_journal(name);
    int fits = database && (!super->store || super->store == database->store);
    if (fits)
        super->store = database->store;
    pthread_mutex_unlock(&registry);
    if (fits)
        return SQLITE_OK;
    return sorry(SQLITE_IOERR_WRITE,
                 "databases of one transaction must belong to one store: open each with vfs=untorn&store=DIR (%s)", name);
}

static int write_bytes(struct journal *journal, const void *from, int len, sqlite3_int64 offset) {
    int rc = SQLITE_OK, first = in_memory(offset, len);
    if (offset > journal->size && offset <= JOURNAL_MEMORY && (rc = grow(journal, offset)) != SQLITE_OK)
        return rc;
    if (first > 0) {
        if ((rc = grow(journal, offset + first)) != SQLITE_OK)
            return rc;
        if (offset > journal->size)
            memset(journal->bytes + journal->size, 0, offset - journal->size);
        memcpy(journal->bytes + offset, from, first);
    }
    if (first < len && journal->spill < 0 && (journal->spill = spill_open()) < 0)
        return sorry(SQLITE_IOERR_WRITE, "there is no place for a large journal: %m (set SQLITE_TMPDIR)");
    for (int done = first; done < len;) {
        ssize_t n = pwrite(journal->spill, (const char *)from + done, len - done, offset + done - JOURNAL_MEMORY);
        if (n <= 0)
            return SQLITE_FULL;
        done += n;
    }
    if (offset + len > journal->size)
        journal->size = offset + len;
    return SQLITE_OK;
}

static int journal_write(sqlite3_file *file, const void *from, int len, sqlite3_int64 offset) {
    struct journal_file *self = (struct journal_file *)file;
    struct journal *journal = self->journal;
    int rc = self->super ? super_names(self->super, from) : SQLITE_OK;
    if (rc != SQLITE_OK)
        return rc;
    /* The zeros that end a journal lie within its length. */
    if (offset >= journal->size)
        FAULT(self->super ? "super" : "journal", SQLITE_FULL);
    pthread_mutex_lock(&journal->guard);
    rc = write_bytes(journal, from, len, offset);
    pthread_mutex_unlock(&journal->guard);
    return rc;
}

static void drop_bytes(struct journal *journal) {
    if (journal->spill >= 0)
        close(journal->spill);
    journal->spill = -1;
    journal->size = 0;
    /* A usual transaction's memory is used again. */
    if (journal->room > 256 << 10) {
        sqlite3_free(journal->bytes);
        journal->bytes = NULL;
        journal->room = 0;
    }
}

static int journal_truncate(sqlite3_file *file, sqlite3_int64 size) {
    struct journal *journal = ((struct journal_file *)file)->journal;
    pthread_mutex_lock(&journal->guard);
    if (size == 0)
        drop_bytes(journal);
    else if (size < journal->size)
        journal->size = size;
    pthread_mutex_unlock(&journal->guard);
    return SQLITE_OK;
}

void journal_empty(struct journal *journal) {
    pthread_mutex_lock(&journal->guard);
    drop_bytes(journal);
    pthread_mutex_unlock(&journal->guard);
}

void journal_remove(struct journal *journal) {
    pthread_mutex_lock(&journal->guard);
    journal->exists = 0;
    drop_bytes(journal);
    pthread_mutex_unlock(&journal->guard);
}

int journal_is_there(struct journal *journal) {
    pthread_mutex_lock(&journal->guard);
    int exists = journal->exists;
    pthread_mutex_unlock(&journal->guard);
    return exists;
}

static int journal_size(sqlite3_file *file, sqlite3_int64 *size) {
    struct journal *journal = ((struct journal_file *)file)->journal;
    pthread_mutex_lock(&journal->guard);
    *size = journal->size;
    pthread_mutex_unlock(&journal->guard);
    return SQLITE_OK;
}

static int nothing(sqlite3_file *file) {
    (void)file;
    return SQLITE_OK;
}

static int nothing_of(sqlite3_file *file, int flags) {
    (void)file, (void)flags;
    return SQLITE_OK;
}

static int not_locked(sqlite3_file *file, int *locked) {
    (void)file;
    *locked = 0;
    return SQLITE_OK;
}

static int no_control(sqlite3_file *file, int op, void *argument) {
    (void)file, (void)op, (void)argument;
    return SQLITE_NOTFOUND;
}

static int sector_size(sqlite3_file *file) {
    (void)file;
    return 512;
}

static int characteristics(sqlite3_file *file) {
    (void)file;
    return SQLITE_IOCAP_SAFE_APPEND | SQLITE_IOCAP_SEQUENTIAL | SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods journal_methods = {
    .iVersion = 1, .xClose = nothing, .xRead = journal_read, .xWrite = journal_write, .xTruncate = journal_truncate,
    .xSync = nothing_of, .xFileSize = journal_size, .xLock = nothing_of, .xUnlock = nothing_of,
    .xCheckReservedLock = not_locked, .xFileControl = no_control, .xSectorSize = sector_size,
    .xDeviceCharacteristics = characteristics,
};

int journal_open(struct journal *journal, struct super *super, sqlite3_file *file, int flags) {
    struct journal_file *self = (struct journal_file *)file;
    pthread_mutex_lock(&journal->guard);
    if (flags & SQLITE_OPEN_CREATE)
        journal->exists = 1;
    int exists = journal->exists;
    pthread_mutex_unlock(&journal->guard);
    if (!exists)
        return SQLITE_CANTOPEN;
    *self = (struct journal_file){.base.pMethods = &journal_methods, .journal = journal, .super = super};
    return SQLITE_OK;
}

/* The caller holds `registry`. */
struct super *super_find(const char *name) {
    struct super *super = supers;
    while (super && strcmp(super->name, name) != 0)
        super = super->next;
    return super;
}

int super_open(const char *name, sqlite3_file *file, int flags) {
    pthread_mutex_lock(&registry);
    struct super *super = super_find(name);
    int wrong = super ? flags & SQLITE_OPEN_EXCLUSIVE : !(flags & SQLITE_OPEN_CREATE);
    if (!super && !wrong && (super = sqlite3_malloc64(sizeof *super + strlen(name) + 1))) {
        *super = (struct super){.next = supers, .name = (char *)(super + 1), .journal.spill = -1};
        strcpy(super->name, name);
        pthread_mutex_init(&super->journal.guard, NULL);
        supers = super;
    }
    pthread_mutex_unlock(&registry);
    if (wrong)
        return SQLITE_CANTOPEN;
    return super ? journal_open(&super->journal, super, file, flags) : SQLITE_NOMEM;
}

/* Forgets a super-journal, or commits its databases. If the commit fails, the super-journal stays: SQLite rolls the
 * databases back only while it is there. */
int super_delete(struct super *super, int commit) {
    int rc = commit ? commit_super(super) : SQLITE_OK;
    if (rc != SQLITE_OK)
        return rc;
    pthread_mutex_lock(&registry);
    for (struct handle *handle = handles; handle; handle = handle->next)
        if (handle->super == super)
            handle->super = NULL;
    struct super **at = &supers;
    while (*at != super)
        at = &(*at)->next;
    *at = super->next;
    pthread_mutex_unlock(&registry);
    journal_remove(&super->journal);
    pthread_mutex_destroy(&super->journal.guard);
    sqlite3_free(super->journal.bytes);
    sqlite3_free(super);
    return SQLITE_OK;
}
