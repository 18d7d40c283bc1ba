/* The VFS `untorn` of SQLite: shared types.
 *
 * SQLite keeps its rollback protocol, and the protocol does not touch the disk: journals live in memory, and writes to a
 * database are uncommitted changes of an Untorn file. The one thing that makes a transaction durable is a commit of
 * Untorn, at SQLite's last step before it gives up its lock (commit.c).
 *
 *   vfs.c       entry point, names        databases.c  stores and files of this process    connection.c  a connection's file
 *   locks.c     locks within the process  marker.c     keeps other programs away           commit.c      the commit point
 *   journals.c  journals in memory        pragmas.c    the pragmas `untorn_*`              tickets.c       numbers of commits
 *   plain.c     reading without owning    lock_bytes.c SQLite's locks, for other processes
 *   early.c     commits that are waited for without the lock                               readers.c       reading beside an owner
 *
 * `registry` guards the lists, the locks and the marks of handles. It is held for some instructions only: never while
 * something is opened, committed, rolled back or closed. `store.opening` is held while a store or its files open or close,
 * and is taken before `registry`; `journal.guard` is taken last. */
#ifndef UNTORN_SQLITE_H
#define UNTORN_SQLITE_H

#include "untorn.h"
#include <pthread.h>
#include <sqlite3ext.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Builds for tests print the calls of SQLite. */
#ifdef UNTORN_SQLITE_TRACE
#include <stdio.h>
#define TRACE(...) dprintf(2, "trace " __VA_ARGS__)
#else
#define TRACE(...) ((void)0)
#endif

/* Builds for tests fail calls of a kind, from the Nth on: UNTORN_SQLITE_FAULT="KIND N TIMES". */
#ifdef UNTORN_SQLITE_FAULTS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static inline int is_fault(const char *kind) {
    static int calls;
    const char *wanted = getenv("UNTORN_SQLITE_FAULT");
    size_t len = strlen(kind);
    int n, times;
    if (!wanted || strncmp(wanted, kind, len) != 0 || sscanf(wanted + len, " %d %d", &n, &times) != 2)
        return 0;
    calls++;
    return calls >= n && calls < n + times;
}
#else
#define is_fault(kind) 0
#endif
#define FAULT(kind, code) do { if (is_fault(kind)) return code; } while (0)

/* A journal in memory; all but its beginning lies in a file without a name. One connection writes it, and others look at
 * its first byte meanwhile, to see whether a transaction was left. */
struct journal {
    pthread_mutex_t guard;
    int exists;
    char *bytes;
    size_t room;
    sqlite3_int64 size;
    int spill;
};

struct store {
    struct store *next;
    char *path;     /* the directory; of a standalone database, the database */
    int standalone;
    int found;      /* another part of the program has opened it */
    untorn_store *open;
    int failed;     /* a commit's outcome is unknown: closed and opened again once nobody has a lock */
    int closing;
    int locked;     /* handles with any lock */
    uint32_t failure_class;
    sqlite3_int64 started, durable, lost_from, lost_to; /* commits by their numbers: tickets.c */
    pthread_mutex_t opening;
};

struct database {
    struct database *next;
    char *path;
    struct store *store;
    dev_t device;
    ino_t inode;
    int handles;
    untorn_file *file;   /* NULL until the first lock */
    int lock_bytes;      /* descriptor that holds SQLite's lock bytes, or -1 */
    int readers;         /* handles that read the file as it is: plain.c */
    int replaced;        /* the name has another file now: `file` is that of the old one */
    int marked;
    int was_empty;       /* the data file has had no page on disk yet */
    untorn_ticket *last; /* the last commit that nobody waited for */
    struct journal journal;
    /* Locks: readers, the writer (RESERVED or more), and whether it has announced that it waits for readers. */
    int shared;
    struct handle *writer;
    int pending;
    unsigned grants;       /* of SHARED, and of EXCLUSIVE, so far */
    unsigned writes;
    struct flight *newest; /* the last commit whose lock was given back before its flush */
};

struct super {
    struct super *next;
    char *name;
    struct store *store; /* of the journals that it names; NULL: none yet */
    struct journal journal;
};

/* A database as one connection, or one shared cache, has it open. */
struct handle {
    sqlite3_file base;
    struct handle *next;
    struct database *database;
    unsigned generation;
    int lock;
    int plain;   /* counts in `database.readers` */
    sqlite3 **connection;
    struct super *super;
    int changed;
    int synced;  /* SQLite has written everything and is about to commit (or has rolled back) */
    int durable; /* synchronous is not OFF */
    sqlite3_int64 ticket; /* its last commit, or 0 */
    /* early.c */
    int sharers; /* connections with this page cache */
    int deleted; /* SQLite has deleted its journal: it will unlock */
    struct flight *own, *seen; /* commits to wait for: its own, and the one on which it began */
    unsigned cookie;   /* the schema's, when it began */
    unsigned granted;  /* the database's `grants` and `writes` when it gave its locks back */
    unsigned written;
    int absent;   /* it has SHARED for SQLite, and keeps nobody from writing: it waits and will not read */
    int tainted;  /* it has read a commit that failed */
    int forgets;  /* its page cache is not right */
    int is_void;  /* its schema is not right */
};

/* databases.c */
extern pthread_mutex_t registry;
extern struct handle *handles;
extern unsigned generation; /* changes in a forked child: handles of the parent have another one */
void registry_start(void);
int database_find_or_add(const char *path, const char *store, struct database **found);
struct database *database_of_journal(const char *name);
int database_use(struct database *database);
void database_unuse(struct database *database);
ssize_t database_peek(struct database *database, void *to, int len, sqlite3_int64 offset);
int store_release(struct store *store);
int store_has_failed(struct store *store);
int sorry(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *last_sentence(void);

int store_choose(const char *path, const char *asked, char *dir, int *standalone);
int database_is_here(const char *path);

/* locks.c */
int lock_take(struct handle *handle, int level);
void lock_give(struct handle *handle, int level);
void lock_leave(struct handle *handle);
void lock_return(struct handle *handle);

/* early.c */
void early_note_deleted(struct database *database);
int early_may_start(struct handle *handle);
int early_start(struct handle *handle);
int early_has_failed(struct database *database);
int early_begin(struct handle *handle);
int early_unlock(struct handle *handle, int level);
int early_forgets(struct handle *handle, int len, sqlite3_int64 offset);
void early_reopened(struct database *database);
void early_forget(struct database *database);

/* plain.c */
int plain_use(struct handle *handle);
void plain_unuse(struct handle *handle);
int plain_own(struct handle *handle);
int plain_has_readers(struct database *database);
int plain_read(struct handle *handle, void *to, int len, sqlite3_int64 offset);
int plain_size(struct handle *handle, sqlite3_int64 *size);

/* lock_bytes.c */
int lock_bytes_open(struct database *database);
int lock_bytes_read(struct database *database);
void lock_bytes_unread(struct database *database);
int lock_bytes_is_reserved(struct database *database);
int lock_bytes_take(struct database *database);
void lock_bytes_give(struct database *database);
int lock_bytes_have_owner(int fd);
int lock_bytes_share(int fd);
void lock_bytes_unshare(int fd);

/* marker.c */
int plain_journal_roll_back(struct database *database);
int plain_journal_remove(struct database *database);
int marker_make(struct database *database);
void marker_remove(struct database *database);
int marker_is_there(const char *path);

/* commit.c */
int commit_phase_two(struct handle *handle);
int commit_super(struct super *super);
int commit_failed(struct database *database);
int roll_back(struct handle *handle);
int refuse_two_stores(struct handle *handle);

/* journals.c */
int journal_open(struct journal *journal, struct super *super, sqlite3_file *file, int flags);
int journal_is_there(struct journal *journal);
void journal_empty(struct journal *journal);
void journal_remove(struct journal *journal);
int journal_file_size(void);
struct super *super_find(const char *name);
int super_open(const char *name, sqlite3_file *file, int flags);
int super_delete(struct super *super, int commit);

/* tickets.c */
sqlite3_int64 tickets_started(struct store *store);
void tickets_note(struct handle **group, size_t n, int durable, sqlite3_int64 before);
void tickets_close(struct store *store, int plain);
sqlite3_int64 tickets_durable(struct store *store);
int tickets_wait(struct store *store, sqlite3_int64 ticket, sqlite3_int64 *lsn);
const char *class_name(struct store *store);
int class_set(struct store *store, uint32_t failure_class);

/* pragmas.c */
int pragma(struct handle *handle, char **argument);
/* readers.c */
int reading_file_size(void);
int reading_open(const char *name, sqlite3_file *file, int *flags_out);
int reading_hides(const char *name);

/* connection.c */
int refuse_unlocked(const char *name);
int handle_open(const char *name, sqlite3_file *file, int flags, int *flags_out);

#endif
