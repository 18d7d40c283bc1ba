/* The VFS `untorn` as the default of SQLite's own tests; scripts/sqlite-tests.sh compiles it with the extension's sources.
 *
 * Those tests read, copy and replace the files of databases, also of open ones. So here each commit is in its file at once,
 * and the last connection to a database closes its store. With UNTORN_SUITE=shared, the last lock closes it, so that other
 * processes get their turn; with UNTORN_SUITE=unix, SQLite's own VFS stays the default. The VFS itself is as it is. */
#include "untorn_sqlite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sqlite3_untornsqlite_init(sqlite3 *connection, char **error, const sqlite3_api_routines *api);

static sqlite3_vfs suite;
static sqlite3_vfs *untorn;
static const sqlite3_io_methods *methods;
static sqlite3_io_methods suite_methods;
static int is_shared;

static struct database *database_of(sqlite3_file *file) {
    return ((struct handle *)file)->database;
}

/* A test that has written into the file of an open database is in conflict with the store, which begins anew. */
static void release(struct store *store) {
    if (store_release(store) != SQLITE_IOERR_CLOSE)
        return;
    char *command = sqlite3_mprintf("rm -rf '%s/.untorn' && mkdir '%s/.untorn'", store->path, store->path);
    if (command && system(command) != 0)
        fprintf(stderr, "failed: %s\n", command);
    sqlite3_free(command);
}

static int suite_close(sqlite3_file *file) {
    struct database *database = database_of(file);
    int rc = methods->xClose(file);
    pthread_mutex_lock(&registry);
    int is_last = database->handles == 0;
    pthread_mutex_unlock(&registry);
    if (is_last)
        release(database->store);
    return rc;
}

static int suite_unlock(sqlite3_file *file, int level) {
    int rc = methods->xUnlock(file, level);
    if (is_shared && level == SQLITE_LOCK_NONE)
        release(database_of(file)->store);
    return rc;
}

static int suite_control(sqlite3_file *file, int op, void *argument) {
    int rc = methods->xFileControl(file, op, argument);
    untorn_store *store = database_of(file)->store->open;
    if (op == SQLITE_FCNTL_COMMIT_PHASETWO && rc == SQLITE_OK && store && untorn_store_wait(store) == 0)
        (void)untorn_store_checkpoint(store);
    return rc;
}

/* By its version, as no memory must be needed where tests count allocations: that of SQLite's own VFS has more calls. */
static int is_untorn(sqlite3_file *file) {
    return file->pMethods->iVersion == 1;
}

static int suite_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *flags_out) {
    (void)vfs;
    int rc = untorn->xOpen(untorn, name, file, flags, flags_out);
    if (rc == SQLITE_OK && (flags & SQLITE_OPEN_MAIN_DB) && is_untorn(file)) {
        methods = file->pMethods;
        suite_methods = *methods;
        suite_methods.xClose = suite_close;
        suite_methods.xUnlock = suite_unlock;
        suite_methods.xFileControl = suite_control;
        file->pMethods = &suite_methods;
    }
    return rc;
}

/* SQLITE_EXTRA_INIT: also after each sqlite3_shutdown(). */
int untorn_suite_init(const char *unused) {
    const char *kind = getenv("UNTORN_SUITE");
    char *error = NULL;
    (void)unused;
    if (kind && strcmp(kind, "unix") == 0)
        return SQLITE_OK;
    is_shared = kind && strcmp(kind, "shared") == 0;
    int rc = sqlite3_untornsqlite_init(NULL, &error, NULL);
    if (rc != SQLITE_OK && rc != SQLITE_OK_LOAD_PERMANENTLY)
        return rc;
    untorn = sqlite3_vfs_find("untorn");
    suite = *untorn;
    suite.zName = "suite";
    suite.pNext = NULL;
    suite.xOpen = suite_open;
    return sqlite3_vfs_register(&suite, 1);
}
