/* The VFS `untorn`: its entry point, and the names that SQLite opens, looks for and deletes. Temporary files, and databases
 * that this process may not write, go to SQLite's own VFS. */
#define _GNU_SOURCE
#include "untorn_sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
SQLITE_EXTENSION_INIT1

static sqlite3_vfs *below(sqlite3_vfs *vfs) {
    return vfs->pAppData;
}

/* Whether a file is there and cannot be written. Without its marker such a file is whole and plain. */
static int is_read_only(const char *name) {
    return faccessat(AT_FDCWD, name, W_OK, AT_EACCESS) != 0 && (errno == EACCES || errno == EROFS || errno == EPERM);
}

static struct database *database_by_journal(const char *name) {
    pthread_mutex_lock(&registry);
    struct database *database = database_of_journal(name);
    pthread_mutex_unlock(&registry);
    return database;
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *flags_out) {
    struct database *database;
    file->pMethods = NULL;
    /* To see whether a super-journal is still needed, SQLite opens the journals that it names as if they were one. */
    if ((flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL)) && (database = database_by_journal(name)))
        return journal_open(&database->journal, NULL, file, flags);
    if (flags & SQLITE_OPEN_SUPER_JOURNAL) {
        TRACE("xOpen super\n");
        return super_open(name, file, flags);
    }
    if ((flags & SQLITE_OPEN_MAIN_DB) && name && *name) {
        int only_reads = flags & SQLITE_OPEN_READONLY || is_read_only(name);
        int rc = only_reads && !database_is_here(name) ? reading_open(name, file, flags_out) : SQLITE_NOTFOUND;
        if (rc != SQLITE_NOTFOUND)
            return rc;
        if (!is_read_only(name) && (!only_reads || database_is_here(name)))
            return handle_open(name, file, flags, flags_out);
    }
    return below(vfs)->xOpen(below(vfs), name, file, flags, flags_out);
}

static struct super *super_by_name(const char *name) {
    pthread_mutex_lock(&registry);
    struct super *super = super_find(name);
    pthread_mutex_unlock(&registry);
    return super;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync_directory) {
    struct super *super = super_by_name(name);
    struct database *database = super ? NULL : database_by_journal(name);
    if (super) {
        TRACE("xDelete super %d\n", sync_directory);
        return super_delete(super, sync_directory);
    }
    if (!database)
        return below(vfs)->xDelete(below(vfs), name, sync_directory);
    TRACE("xDelete journal\n");
    journal_remove(&database->journal);
    early_note_deleted(database);
    return SQLITE_OK;
}

/* Whether this is the name of the write-ahead log of an open database, which is never used. */
static int is_unused_log(const char *name) {
    char journal[4096];
    size_t len = strlen(name);
    if (len < 4 || len + 8 > sizeof journal || strcmp(name + len - 4, "-wal") != 0)
        return 0;
    sqlite3_snprintf(sizeof journal, journal, "%.*s-journal", (int)len - 4, name);
    return database_by_journal(journal) != NULL;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *answer) {
    struct database *database = database_by_journal(name);
    *answer = super_by_name(name) != NULL || (database && journal_is_there(&database->journal));
    if (*answer || database || is_unused_log(name) || reading_hides(name))
        return SQLITE_OK;
    return below(vfs)->xAccess(below(vfs), name, flags, answer);
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int room, char *to) {
    return below(vfs)->xFullPathname(below(vfs), name, room, to);
}

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *name) {
    return below(vfs)->xDlOpen(below(vfs), name);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int room, char *to) {
    below(vfs)->xDlError(below(vfs), room, to);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *name))(void) {
    return below(vfs)->xDlSym(below(vfs), library, name);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library) {
    below(vfs)->xDlClose(below(vfs), library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int len, char *to) {
    return below(vfs)->xRandomness(below(vfs), len, to);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds) {
    return below(vfs)->xSleep(below(vfs), microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *to) {
    return below(vfs)->xCurrentTime(below(vfs), to);
}

static int vfs_last_error(sqlite3_vfs *vfs, int room, char *to) {
    return below(vfs)->xGetLastError(below(vfs), room, to);
}

static int vfs_current_time64(sqlite3_vfs *vfs, sqlite3_int64 *to) {
    return below(vfs)->xCurrentTimeInt64(below(vfs), to);
}

static sqlite3_vfs untorn_vfs = {
    .iVersion = 2, .zName = "untorn", .xOpen = vfs_open, .xDelete = vfs_delete, .xAccess = vfs_access,
    .xFullPathname = vfs_full_path, .xDlOpen = vfs_dl_open, .xDlError = vfs_dl_error, .xDlSym = vfs_dl_sym,
    .xDlClose = vfs_dl_close, .xRandomness = vfs_randomness, .xSleep = vfs_sleep, .xCurrentTime = vfs_current_time,
    .xGetLastError = vfs_last_error, .xCurrentTimeInt64 = vfs_current_time64,
};

/* Not only once: sqlite3_shutdown() forgets all VFSs. */
static int start(void) {
    if (sqlite3_vfs_find("untorn") == &untorn_vfs)
        return SQLITE_OK;
    sqlite3_vfs *plain = sqlite3_vfs_find("unix");
    if (!plain || plain->iVersion < 2)
        return SQLITE_ERROR;
    const int sizes[] = {plain->szOsFile, sizeof(struct handle), journal_file_size(), reading_file_size()};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        untorn_vfs.szOsFile = sizes[i] > untorn_vfs.szOsFile ? sizes[i] : untorn_vfs.szOsFile;
    untorn_vfs.mxPathname = plain->mxPathname;
    untorn_vfs.pAppData = plain;
    registry_start();
    return sqlite3_vfs_register(&untorn_vfs, 0);
}

#ifdef SQLITE_CORE
/* For an application that compiles SQLite itself, with SQLITE_EXTRA_INIT=untorn_sqlite_init: sqlite3_initialize() calls it. */
int untorn_sqlite_init(const char *unused) {
    (void)unused;
    if (sqlite3_libversion_number() < 3037000)
        return sorry(SQLITE_ERROR, "the VFS untorn needs SQLite 3.37 or newer, and this is %s", sqlite3_libversion());
    return start();
}
#else
/* SQLite makes this name of the file's. The library stays loaded: it has databases open. */
__attribute__((visibility("default"))) int sqlite3_untornsqlite_init(sqlite3 *connection, char **error,
                                                                     const sqlite3_api_routines *api) {
    (void)connection;
    SQLITE_EXTENSION_INIT2(api);
    if (sqlite3_libversion_number() < 3037000) {
        *error = sqlite3_mprintf("the VFS untorn needs SQLite 3.37 or newer, and this is %s", sqlite3_libversion());
        return SQLITE_ERROR;
    }
    int rc = start();
    return rc == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : rc;
}
#endif
