/*
 * Untorn: all-or-nothing updates of application data in files.
 *
 * Open a store (a directory, untorn_store_open) or a lone file (untorn_open), change files freely, by
 * calls or through maps (untorn_map_open), commit. After a crash of the process, the kernel or the
 * machine a file, or a set of files committed together, holds exactly what it held at its last
 * successful commit, or, whole, at the one that was in flight. Nothing uncommitted ever reaches the
 * files.
 *
 * For C++ there is untorn.hpp; for programs that use open, mmap and msync, untorn_posix.h.
 *
 * Generated from the sources in crates/capi by cbindgen; do not edit.
 *
 * UNITS. Sizes, lengths and offsets are bytes. The largest offset is INT64_MAX: beyond it EINVAL, or
 * EFBIG for a range that only ends beyond it. Paths are bytes that end in NUL.
 *
 * ERRORS. A call that fails returns -1, or NULL where it returns a pointer, and sets errno;
 * untorn_last_error() tells kinds apart that share an errno, and untorn_error_message() says what
 * happened and what to do. All three belong to the calling thread, and are meaningless after a
 * success. A call that fails has changed nothing, unless its description says otherwise. No call
 * returns EINTR.
 *
 * HANDLES. The pointers that this library returns are tokens, not addresses: do not dereference or
 * compute with them. NULL, closed handles, handles of the wrong kind and made-up ones are answered
 * with EBADF, also when another thread closes the handle at the same moment. Handles that are not
 * closed are like those of a process that is killed: what was committed stays, the rest is gone.
 *
 * WHAT SURVIVES. A call that commits has returned 0, or a ticket has said that it is durable:
 *
 *                            process killed   kernel crash, power cut
 *   UNTORN_CLASS_POWER       kept             kept
 *   UNTORN_CLASS_PROCESS     kept             UNTORN_E_UNKNOWN_STATE at the next opening
 *
 * Not committed: gone, in both classes, after any crash and after the last close. A commit in flight
 * at a crash is there whole or not at all, and never without every commit before it.
 *
 * THREADS. Every function may be called from any thread, with any handle. Calls on one file see each
 * other in some order; a transaction's calls wait for each other. Buffers belong to the call while it
 * runs.
 *
 * SIGNALS. Only untorn_version() may be called from a signal handler. Leaving a call by longjmp out
 * of a signal handler leaves its locks held.
 *
 * FORK. Handles stay with the parent: in a forked child they fail with ECHILD (UNTORN_E_FORKED), and
 * the child may open stores of its own. A child that lives on does not keep the parent's store busy.
 * Between fork and exec in a program with several threads, call nothing of this library.
 */

#ifndef UNTORN_H
#define UNTORN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Marks calls whose result decides whether data are safe. */
#if defined(__GNUC__)
#define UNTORN_MUST_USE __attribute__((warn_unused_result))
#else
#define UNTORN_MUST_USE
#endif

/** Major version of this header. */
#define UNTORN_VERSION_MAJOR 0

/** Minor version of this header. */
#define UNTORN_VERSION_MINOR 1

/** Patch version of this header. */
#define UNTORN_VERSION_PATCH 0

/** Failure class: commits survive also kernel crashes and power cuts; one flush each. The default. */
#define UNTORN_CLASS_POWER 0

/**
 * Failure class: commits survive the end of the process, however sudden, but not of the machine;
 * no flushes. After a machine crash such a store says UNTORN_E_UNKNOWN_STATE.
 */
#define UNTORN_CLASS_PROCESS 1

/** Options flag: the store must exist; otherwise fail with ENOENT. */
#define UNTORN_MUST_EXIST 1

/** Options flag: wait until another owner has closed, instead of failing with EBUSY. */
#define UNTORN_WAIT 2

/**
 * Options flag: log the whole 4 KiB page at its first change after a checkpoint began, for disks that
 * may damage more than the sectors being written when the power fails. Costs journal space.
 */
#define UNTORN_FULL_PAGE 4

/**
 * Options flag: take the files of a store of UNTORN_CLASS_PROCESS as they are after a machine
 * crash, instead of failing with ENOTRECOVERABLE. They may be torn.
 */
#define UNTORN_ACCEPT_UNKNOWN 8

/** Bytes of `untorn_status.store_id`, NUL included. */
#define UNTORN_STORE_ID_BYTES 48

/** Open flag: a handle that cannot change the file (EBADF). */
#define UNTORN_RDONLY 1

/** Open flag: create the file if it is missing, empty, at once and durably. */
#define UNTORN_CREATE 2

/** Open flag, with UNTORN_CREATE: fail with EEXIST if the file exists. */
#define UNTORN_EXCL 4

/** Open flag: start at length 0; like every change, uncommitted until commit. */
#define UNTORN_TRUNC 8

/** Tracker: the best that works here. The default. */
#define UNTORN_TRACKER_ANY 0

/**
 * Tracker: PAGEMAP_SCAN with an asynchronous userfaultfd; Linux 6.7 or newer, where userfaultfd is
 * permitted. A commit costs what was stored to.
 */
#define UNTORN_TRACKER_SCAN 1

/**
 * Tracker: /proc/self/pagemap, on any kernel. A commit looks at all pages that were stored to since
 * they were last dropped.
 */
#define UNTORN_TRACKER_PAGEMAP 2

/**
 * Map flag: a promise that no thread stores to the file's maps during untorn_map_sync(). Commits may
 * then drop pages that the data file holds as well, and memory follows what is in use. The first map of
 * a file decides.
 */
#define UNTORN_MAP_QUIET 1

/**
 * Map flag, for finding bugs: untorn_map_sync() looks for stores that came while it committed, and
 * reports the first (UNTORN_E_RACING_STORE).
 */
#define UNTORN_MAP_DEBUG_RACES 2

/** Map flag: read the file into memory now. */
#define UNTORN_MAP_POPULATE 4

/** Map flag: ask for huge pages, where kernel and file system have them. */
#define UNTORN_MAP_HUGE_PAGES 8

/**
 * Map flag: the map may reach behind the end of the file. What is behind the end can be accessed when
 * the file has grown over it (until then: SIGSEGV).
 */
#define UNTORN_MAP_BEYOND_END 16

/** Heap flag: the heap must exist; otherwise fail with ENOENT. */
#define UNTORN_HEAP_MUST_EXIST 1

/**
 * Heap flag, for finding bugs: a store to the heap during a commit is reported with its address
 * (UNTORN_E_RACING_STORE).
 */
#define UNTORN_HEAP_DEBUG_RACES 2

/** Bytes of `untorn_heap_root_info.name`, NUL included. */
#define UNTORN_ROOT_NAME_BYTES 48

/** Bytes of `untorn_heap_root_info.type_name`, NUL included. */
#define UNTORN_ROOT_TYPE_BYTES 112

/**
 * What went wrong, told apart by what the caller should do. New kinds may be added: treat one that
 * you do not know like UNTORN_E_IO.
 */
typedef enum untorn_error {
    /** No call has failed in this thread yet. */
    UNTORN_E_NONE = 0,
    /**
     * errno EBUSY. Another process (the message names its pid, if known), or an earlier opening in
     * this process, owns the store or file. Close it there, or open with UNTORN_WAIT.
     */
    UNTORN_E_BUSY = 1,
    /**
     * errno EUCLEAN. On-disk state that no crash can explain. Nothing was changed. `untorn check`
     * shows more, `untorn recover --salvage` keeps what is readable.
     */
    UNTORN_E_CORRUPT = 2,
    /** errno EMEDIUMTYPE. Not Untorn's, or another store's. Nothing was changed. */
    UNTORN_E_FOREIGN = 3,
    /** errno EPROTONOSUPPORT. Written by a newer Untorn. Nothing was changed. */
    UNTORN_E_NEWER_VERSION = 4,
    /**
     * errno EEXIST. A file with pending commits was replaced, restored or changed by somebody else,
     * or a transaction's names collide with what is there. Nothing was overwritten.
     */
    UNTORN_E_CONFLICT = 5,
    /**
     * errno ESTALE. The file has committed changes in a journal that is not here (it was moved or
     * copied away from its store before they were applied). Bring it back to its store.
     */
    UNTORN_E_NEEDS_JOURNAL = 6,
    /**
     * errno ENOTRECOVERABLE. The machine went down while the store was in use in failure class
     * UNTORN_CLASS_PROCESS, which does not survive that. UNTORN_ACCEPT_UNKNOWN takes the files as
     * they are.
     */
    UNTORN_E_UNKNOWN_STATE = 7,
    /**
     * errno EIO. The journal could not be written or flushed. This change is not committed and will
     * not come back. The store takes no more commits until it is reopened.
     */
    UNTORN_E_SYNC_NOT_COMMITTED = 8,
    /**
     * errno EIO. The journal could not be written or flushed. This change is committed whole or not
     * at all; which, is known only after the store is reopened, and until then it takes no commits.
     */
    UNTORN_E_SYNC_UNKNOWN = 9,
    /** errno ENOSPC. No space, quota or journal room. Nothing was committed; it can be tried again. */
    UNTORN_E_NO_SPACE = 10,
    /** errno EPERM. Ownership or permissions that would let somebody else write with our rights. */
    UNTORN_E_UNTRUSTED = 11,
    /** errno ECHILD. The handle was made by the parent, before a fork. */
    UNTORN_E_FORKED = 12,
    /**
     * errno EBADF. Not an open handle of the kind that the function takes: NULL, closed, closed by
     * another thread just now, of another kind, or never a handle at all.
     */
    UNTORN_E_BAD_HANDLE = 13,
    /** errno EBUSY. The file takes part in a transaction, which alone can commit or roll it back. */
    UNTORN_E_IN_TRANSACTION = 14,
    /**
     * errno EINVAL; EFBIG for a range that ends past the largest file; EBADF for a change through a
     * read-only handle. An argument makes no sense; the message says which.
     */
    UNTORN_E_INVALID = 15,
    /** errno EFAULT. A pointer that must not be NULL is NULL. */
    UNTORN_E_NULL = 16,
    /** errno EOPNOTSUPP. The file system or the kernel here cannot do it; the message says what else. */
    UNTORN_E_UNSUPPORTED = 17,
    /**
     * errno as the operating system gave it (ENOENT, EACCES, EISDIR, EEXIST, EMFILE …), EIO if it
     * gave none.
     */
    UNTORN_E_IO = 18,
    /** errno EIO. A bug in Untorn, caught at its boundary. Close what you can and reopen. */
    UNTORN_E_PANIC = 19,
    /**
     * errno ENOMEM. A mapping would need more memory than there is, or than was allowed; the message
     * names the limit and what to do.
     */
    UNTORN_E_NO_MEMORY = 20,
    /**
     * errno EBUSY. A thread stored to a mapping while it was being committed (found in debug mode only;
     * the message has the address). The commit happened, whole, without that store.
     */
    UNTORN_E_RACING_STORE = 21,
    /**
     * errno EINVAL. A heap's root was set with another type, size, alignment or version than the program
     * has now; the message tells both. Nothing was changed. untorn_heap_get_root_info() tells what is there.
     */
    UNTORN_E_LAYOUT_CHANGED = 22,
} untorn_error;

/** One handle of a file. All handles of one file share one view, uncommitted changes included. */
typedef struct untorn_file untorn_file;

/**
 * A persistent heap: memory in a file that is always mapped at the same address, so that pointers in
 * it stay good after a restart.
 */
typedef struct untorn_heap untorn_heap;

/**
 * A mapped file, or a part of it. All maps of one file, and its handles, share one view: what one
 * stores the others see at once.
 */
typedef struct untorn_map untorn_map;

/** A store: a directory whose files change all-or-nothing. One process owns it while it is open. */
typedef struct untorn_store untorn_store;

/** A commit on its way. Freeing the ticket does not cancel the commit. */
typedef struct untorn_ticket untorn_ticket;

/** A transaction over files and names of one store. */
typedef struct untorn_txn untorn_txn;

/**
 * How to open a store. Zero is the default of everything but `size`, so both
 * untorn_options_init(&options, sizeof options) and `untorn_options options = {.size = sizeof
 * options};` give defaults.
 */
typedef struct untorn_options {
    /** sizeof(untorn_options), as your compiler saw it: newer libraries may know more members. */
    size_t size;
    /** UNTORN_CLASS_POWER or UNTORN_CLASS_PROCESS. */
    uint32_t failure_class;
    /** UNTORN_MUST_EXIST, UNTORN_WAIT, UNTORN_FULL_PAGE, UNTORN_ACCEPT_UNKNOWN, or'ed. */
    uint32_t flags;
    /**
     * Most bytes of journal before commits wait for a checkpoint. 0: the default, 64 MiB. Less than
     * 64 KiB counts as 64 KiB.
     */
    uint64_t journal_bytes;
    /**
     * Called now and then during a long recovery, perhaps in another thread; NULL: not wanted. It
     * must return (no longjmp, no C++ exception) and must not call untorn_ functions.
     */
    void (*progress)(uint64_t bytes_done, uint64_t bytes_all, void *context);
    /** Handed to `progress`. */
    void *progress_context;
} untorn_options;

/**
 * A store's condition. Counters count from when the store was opened. What has a name or a reason
 * (paths, quarantined files, the sticky failure) is in untorn_store_status_json().
 */
typedef struct untorn_status {
    /** Set it to sizeof(untorn_status) before the call; the call fills that many bytes. */
    size_t size;
    /** The store's identity, hexadecimal, ended by NUL. */
    char store_id[UNTORN_STORE_ID_BYTES];
    /** UNTORN_CLASS_POWER or UNTORN_CLASS_PROCESS. */
    uint32_t failure_class;
    /** 1 if whole pages are logged (UNTORN_FULL_PAGE). */
    uint32_t full_page;
    /** 1 if the journal is written past the page cache. */
    uint32_t journal_direct;
    /** 1 after a failed sync: no more commits until the store is reopened. */
    uint32_t failed;
    /** Most bytes of journal before commits wait for a checkpoint. */
    uint64_t journal_bytes_max;
    /** Bytes that the journal takes up on the disk. */
    uint64_t journal_bytes_allocated;
    /** Journal bytes that the next checkpoint will free. */
    uint64_t journal_bytes_pending;
    /** Commits. */
    uint64_t commits;
    /** Flushes of the journal, each for one or more commits. */
    uint64_t commit_groups;
    /** Commits that had to wait for a checkpoint. */
    uint64_t commits_waited;
    /** Checkpoints. */
    uint64_t checkpoints;
    /** Number of the last commit, since the store was created. */
    uint64_t sequence;
    /** Calls of fdatasync, fsync and syncfs. */
    uint64_t syncs;
    /** Bytes written to the journal and to data files. */
    uint64_t bytes_written;
    /** Bytes written to the journal. */
    uint64_t journal_bytes_written;
    /** Files open through the store. */
    uint64_t open_files;
    /** Memory that uncommitted and unapplied changes take, in bytes. */
    uint64_t memory_bytes;
    /** Files set aside because they could not be brought up to date; everything else goes on. */
    uint64_t quarantined;
    /** Commits that recovery found and applied when the store was opened. */
    uint64_t recovered_commits;
    /** Files that recovery changed. */
    uint64_t recovered_files;
    /** Bytes that recovery wrote. */
    uint64_t recovered_bytes;
    /** 1 if recovery dropped a torn record, an unacknowledged commit, at the journal's end. */
    uint64_t recovered_torn_tail;
    /** Files that are mapped. How each of them is, the JSON says. */
    uint64_t mapped_files;
    /** Bytes of mapped files that can be accessed. */
    uint64_t mapped_bytes;
    /** Bytes of mapped pages that were stored to and not dropped: memory or swap. */
    uint64_t mapped_private_bytes;
    /** Memory for copies of mapped pages that the next commits compare with, in bytes. */
    uint64_t mapped_copies_bytes;
    /** Mapped files of which more is private than their `dirty_max` allows. */
    uint64_t mapped_files_over;
} untorn_status;

/**
 * How to map a file. Zero is the default of everything but `size`, so both
 * untorn_map_options_init(&options, sizeof options) and `untorn_map_options options = {.size = sizeof
 * options};` give defaults: the whole file, as it grows.
 */
typedef struct untorn_map_options {
    /** sizeof(untorn_map_options), as your compiler saw it: newer libraries may know more members. */
    size_t size;
    /** Where in the file the map begins, in bytes. */
    uint64_t offset;
    /** Bytes that the map covers. 0: to the end of the file, as it grows. */
    uint64_t len;
    /**
     * Bytes of address space to reserve; the file cannot outgrow them while it is mapped. They cost no
     * memory. 0: 64 GiB or four times the file's size, whichever is more, or as much as is to be had.
     */
    uint64_t address_space;
    /** Where in memory offset 0 of the file is to be, a multiple of the page size. NULL: anywhere. */
    void *address;
    /**
     * The most bytes of pages that the program will have stored to and not dropped; needed for files
     * that are larger than memory. 0: the file's size.
     */
    uint64_t dirty_max;
    /** UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN or UNTORN_TRACKER_PAGEMAP. */
    uint32_t tracker;
    /**
     * UNTORN_MAP_QUIET, UNTORN_MAP_DEBUG_RACES, UNTORN_MAP_POPULATE, UNTORN_MAP_HUGE_PAGES,
     * UNTORN_MAP_BEYOND_END, or'ed.
     */
    uint32_t flags;
} untorn_map_options;

/** How to open a heap. Zero is the default of everything but `size`. */
typedef struct untorn_heap_options {
    /** sizeof(untorn_heap_options), as your compiler saw it: newer libraries may know more members. */
    size_t size;
    /**
     * Bytes of address space that a new heap gets: it can never outgrow them, and they cost nothing. 0:
     * 64 GiB.
     */
    uint64_t address_space;
    /**
     * Where a new heap will lie, always: a multiple of 4 MiB between 17 and 31 TiB, for programs that have
     * several heaps open at once, whose address spaces must not overlap. 0: a random one, at which two
     * heaps meet once in 224 times.
     */
    uint64_t address;
    /**
     * As in untorn_map_options: the most bytes of pages that will have been stored to and not dropped;
     * for heaps that are larger than memory. 0: the heap's size.
     */
    uint64_t dirty_max;
    /** UNTORN_HEAP_MUST_EXIST, UNTORN_HEAP_DEBUG_RACES, or'ed. */
    uint32_t flags;
    /** Must be 0. */
    uint32_t reserved;
} untorn_heap_options;

/** Numbers of a heap, in bytes unless they say otherwise. */
typedef struct untorn_heap_stats {
    /** Set it to sizeof(untorn_heap_stats) before the call; the call fills that many bytes. */
    size_t size;
    /** Length of the heap and of its file, which is sparse. */
    uint64_t heap_bytes;
    /** What allocations take, with what they were rounded up to. */
    uint64_t used_bytes;
    /** What can be allocated before the heap grows, in blocks of any size. */
    uint64_t free_bytes;
    /** Number of allocations. */
    uint64_t allocations;
    /** Number of named roots. */
    uint64_t roots;
    /** Memory that changed pages take. */
    uint64_t private_bytes;
    /** Address space: what the heap can grow to. */
    uint64_t address_space_bytes;
} untorn_heap_stats;

/** What a root points to, as it was when it was set. */
typedef struct untorn_heap_root_info {
    /** Set it to sizeof(untorn_heap_root_info) before the call; the call fills that many bytes. */
    size_t size;
    /** Where it is. */
    void *address;
    /** The type's size in bytes. */
    uint64_t bytes;
    /** The type's alignment. */
    uint32_t align;
    /** The program's own number of its layout. */
    uint32_t version;
    /** The root's name. */
    char name[UNTORN_ROOT_NAME_BYTES];
    /** The type's name, as much as fits. */
    char type_name[UNTORN_ROOT_TYPE_BYTES];
} untorn_heap_root_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The kind of the last failure in the calling thread. Like errno, it is not reset by success: look
 * at it only after a call has returned -1 or NULL.
 */
enum untorn_error untorn_last_error(void);

/**
 * The last failure in the calling thread in words: what happened, what is still true, what to do.
 * Never NULL; empty if nothing has failed yet. Valid until the next untorn_ call that fails in this
 * thread, or until the thread ends. The text is for people and may change between versions.
 */
const char *untorn_error_message(void);

/** The version of the library that is running, such as "0.1.0". Static; never fails. */
const char *untorn_version(void);

/**
 * Sets all members to their defaults. `size` is sizeof(untorn_options). 0, or -1 with EFAULT or
 * EINVAL.
 */
int untorn_options_init(struct untorn_options *options, size_t size);

/**
 * Opens the directory `path` as a store, which lives in `.untorn` in it. What is missing is made,
 * durably (not with UNTORN_MUST_EXIST): the store, and the directory itself (mode 0777 less the umask)
 * if its parent exists. After a crash this is where recovery happens: on return every file holds its
 * last committed contents. `options` NULL: defaults.
 *
 * Returns a handle, or NULL: EBUSY, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT, ENOTRECOVERABLE, EPERM,
 * ENOSPC, ENOENT, ENOTDIR, EACCES …; see untorn_error.
 */
UNTORN_MUST_USE
struct untorn_store *untorn_store_open(const char *path,
                                       const struct untorn_options *options);

/**
 * Another handle of the store that a file lives in; for a lone file, of its private store. Give it
 * back with untorn_store_release(), or close the store through it. NULL with EBADF.
 */
UNTORN_MUST_USE struct untorn_store *untorn_store_of(const struct untorn_file *file);

/**
 * Closes the store and all its handles: waits for commits on their way, applies and flushes
 * everything committed, and leaves plain, whole files. Uncommitted changes of open files are
 * DISCARDED; handles of its files answer EBADF afterwards, and still have to be closed.
 *
 * Returns 0, or -1 with an error; the handle is closed in either case. What was committed stays
 * committed, and is recovered when the store is opened again.
 */
int untorn_store_close(struct untorn_store *store);

/**
 * Gives a handle back without closing the store, which closes by itself after the last handle of
 * it and of its files; errors are lost then. Returns 0, or -1 with EBADF.
 */
int untorn_store_release(struct untorn_store *store);

/**
 * Applies and flushes everything committed so far to the data files, which are then plain and whole
 * for other programs, if nobody commits meanwhile. Commits do not need this to be durable. Returns
 * 0, or -1 with an error.
 */
int untorn_store_checkpoint(struct untorn_store *store);

/**
 * Fills `status`, whose member `size` the caller has set. Returns 0, or -1 with EBADF, EFAULT or
 * EINVAL.
 */
int untorn_store_status(const struct untorn_store *store, struct untorn_status *status);

/**
 * Writes the whole status as JSON. Like snprintf: at most `len` bytes go to `buf`, the last one a
 * NUL, and the length of the whole text, without NUL, is returned; `len` 0 only asks for it. -1
 * with EBADF or EFAULT.
 */
ssize_t untorn_store_status_json(const struct untorn_store *store, char *buf, size_t len);

/**
 * Writes the store's directory, as untorn_store_status_json() writes the status. -1 with EBADF or
 * EFAULT.
 */
ssize_t untorn_store_path(const struct untorn_store *store, char *buf, size_t len);

/**
 * Replaces the file `path` by `len` bytes, whole or not at all, durably on return, and keeps its
 * mode, owner, ACL and extended attributes. Needs no store; if the file is in one, the replacement
 * is a commit there (EBUSY if the store is open elsewhere). Returns 0, or -1 with an error: the old
 * contents are then still there.
 */
int untorn_put(const char *path, const void *buf, size_t len);

/**
 * Opens one file with a private store beside it, the directory `<path>.untorn`, made when missing.
 * So several processes can each hold different files; files that must commit together belong in
 * one store (untorn_store_open). After a crash, recovery happens here.
 *
 * `flags`: UNTORN_RDONLY, UNTORN_CREATE, UNTORN_EXCL, UNTORN_TRUNC, or'ed, or 0 to open an existing
 * file for reading and writing. `mode`: permissions of a created file, less the umask. `options` NULL:
 * defaults; UNTORN_MUST_EXIST asks for the private store to exist already.
 *
 * Returns a handle, or NULL with an error as untorn_store_open().
 */
UNTORN_MUST_USE
struct untorn_file *untorn_open(const char *path,
                                uint32_t flags,
                                uint32_t mode,
                                const struct untorn_options *options);

/**
 * Opens a file of a store; `path` is relative to the store's directory. Links are not followed, and
 * `..`, absolute paths and other file systems are refused. `flags` and `mode` as in untorn_open().
 * Creating a file is a commit of its own (within a transaction: untorn_txn_create).
 *
 * Returns a handle, or NULL: EBADF, ENOENT, EEXIST, EISDIR, EINVAL, ESTALE, EMEDIUMTYPE, EBUSY …
 */
UNTORN_MUST_USE
struct untorn_file *untorn_open_at(struct untorn_store *store,
                                   const char *path,
                                   uint32_t flags,
                                   uint32_t mode);

/** Another handle of the same file, closed on its own. NULL with EBADF. */
UNTORN_MUST_USE struct untorn_file *untorn_dup(const struct untorn_file *file);

/**
 * Closes the handle. Changes that were not committed are DISCARDED when the file's last handle
 * closes, unless untorn_set_commit_on_close() asked for a commit. The last handle of a lone file closes
 * its private store, which leaves a plain, whole file.
 *
 * Waits for calls on this handle that run in other threads. Returns 0, or -1 with an error; the
 * handle is closed in either case.
 */
int untorn_close(struct untorn_file *file);

/**
 * Whether closing this handle commits the file's changes (`on` not 0), or leaves them to its other
 * handles, or to be discarded with the last one (0, the default). Returns 0, or -1 with EBADF, also
 * for a read-only handle.
 */
int untorn_set_commit_on_close(struct untorn_file *file, int on);

/**
 * Reads up to `len` bytes at `offset`, uncommitted changes included. Returns the bytes read, fewer
 * than `len` only at the end of the file, 0 behind it; or -1: EBADF, EFAULT, EINVAL, EIO …
 */
ssize_t untorn_pread(const struct untorn_file *file, void *buf, size_t len, uint64_t offset);

/**
 * Writes `len` bytes at `offset`, all or none; the file grows as needed, with zeros in between. The
 * change is seen by all handles at once, and by the disk at commit. Returns `len`, or -1: EBADF,
 * EFAULT, EINVAL, EFBIG, ENOSPC …
 */
ssize_t untorn_pwrite(struct untorn_file *file, const void *buf, size_t len, uint64_t offset);

/**
 * Writes `len` bytes at the end of the file, all or none; several threads' appends do not overlap.
 * Returns the offset at which they went, or -1 with an error as untorn_pwrite().
 */
int64_t untorn_append(struct untorn_file *file, const void *buf, size_t len);

/**
 * Sets the file's size, in bytes: cut off, or extended with zeros; uncommitted until commit. Returns
 * 0, or -1: EBADF, EINVAL …
 */
int untorn_ftruncate(struct untorn_file *file, uint64_t size);

/**
 * Like writing `len` zeros at `offset`, without the bytes; extends the file as needed. Returns 0, or
 * -1: EBADF, EINVAL, EFBIG …
 */
int untorn_zero(struct untorn_file *file, uint64_t offset, uint64_t len);

/** The file's size in bytes, uncommitted changes included; or -1 with an error. */
int64_t untorn_size(const struct untorn_file *file);

/** Writes the file's path, relative to its store's directory, as untorn_store_path() does. */
ssize_t untorn_path(const struct untorn_file *file, char *buf, size_t len);

/**
 * Commits all uncommitted changes of the file, made through whichever handle, as one. On return 0
 * they survive whatever the store's failure class names: UNTORN_CLASS_POWER kernel crashes and power
 * cuts, UNTORN_CLASS_PROCESS the end of the process. A crash before or during the call leaves all of
 * them or none.
 *
 * Returns 0, or -1: ENOSPC (nothing committed, try again), EIO (untorn_last_error() tells "not
 * committed" from "unknown until reopened"), EBUSY (the file is in a transaction), EBADF …
 */
UNTORN_MUST_USE int untorn_commit(struct untorn_file *file);

/**
 * Starts a commit as untorn_commit(): what belongs to it is settled on return; the ticket tells when
 * it is durable. Commits become durable in the order in which they were started. NULL with an error.
 */
UNTORN_MUST_USE struct untorn_ticket *untorn_commit_async(struct untorn_file *file);

/**
 * Forgets all uncommitted changes of the file, made through whichever handle: it reads as at its last
 * commit. Returns 0, or -1: EBUSY (the file is in a transaction), EBADF …
 */
int untorn_rollback(struct untorn_file *file);

/**
 * Waits until the commit is durable (in the store's failure class) or has failed. May be called
 * several times, and from several threads. Returns 0, or -1 with an error as untorn_commit().
 */
UNTORN_MUST_USE int untorn_ticket_wait(const struct untorn_ticket *ticket);

/**
 * Asks without waiting. Returns 1: durable; 0: still on its way; -1: failed, as untorn_commit(), or
 * EBADF.
 */
UNTORN_MUST_USE int untorn_ticket_poll(const struct untorn_ticket *ticket);

/**
 * Frees the ticket; the commit goes on. Threads that wait on it are not disturbed. Returns 0, or -1
 * with EBADF.
 */
int untorn_ticket_free(struct untorn_ticket *ticket);

/** Begins a transaction in a store. NULL with EBADF. */
UNTORN_MUST_USE struct untorn_txn *untorn_txn_begin(struct untorn_store *store);

/**
 * Adds a file of the same store: its uncommitted changes, past and future, belong to the transaction
 * until that ends. Returns 0, or -1: EBUSY (in another transaction), EINVAL (of another store), EBADF.
 */
int untorn_txn_add(struct untorn_txn *txn, struct untorn_file *file);

/**
 * Creates a file as part of the transaction; its name appears at commit. `mode`: permissions, less
 * the umask. Write to it through the returned handle, which is good after the commit too. NULL:
 * EEXIST, EINVAL, EBADF …
 */
UNTORN_MUST_USE
struct untorn_file *untorn_txn_create(struct untorn_txn *txn,
                                      const char *path,
                                      uint32_t mode);

/** Renames a file at commit; a file of the new name is replaced. Returns 0, or -1 with an error. */
int untorn_txn_rename(struct untorn_txn *txn, const char *from, const char *to);

/** Removes a file's name at commit. Returns 0, or -1 with an error. */
int untorn_txn_unlink(struct untorn_txn *txn, const char *path);

/** Makes a directory at commit. `mode`: permissions, less the umask. Returns 0, or -1 with an error. */
int untorn_txn_mkdir(struct untorn_txn *txn, const char *path, uint32_t mode);

/** Removes an empty directory at commit. Returns 0, or -1 with an error. */
int untorn_txn_rmdir(struct untorn_txn *txn, const char *path);

/**
 * Sets the permissions of a file or directory, exactly as given, at commit. Returns 0, or -1 with an
 * error.
 */
int untorn_txn_chmod(struct untorn_txn *txn, const char *path, uint32_t mode);

/**
 * Commits everything in the transaction as one, with the promise of untorn_commit(). Returns 0, or -1
 * with an error as untorn_commit(); also EEXIST, ENOENT, ENOTEMPTY … if a name is not as it must be,
 * and then nothing is committed. The handle is closed in either case, and a failure aborts the
 * transaction, unless its outcome is unknown (UNTORN_E_SYNC_UNKNOWN).
 */
UNTORN_MUST_USE int untorn_txn_commit(struct untorn_txn *txn);

/**
 * Starts the commit of a transaction, as untorn_commit_async(). NULL with an error. The handle is
 * closed in either case.
 */
UNTORN_MUST_USE struct untorn_ticket *untorn_txn_commit_async(struct untorn_txn *txn);

/**
 * Ends the transaction without a trace: uncommitted changes of its files are forgotten, its names stay
 * as they were. Returns 0, or -1 with an error; the handle is closed in either case.
 */
int untorn_txn_abort(struct untorn_txn *txn);

/**
 * Commits the uncommitted changes of `n` files of one store as one: after a crash all of them are
 * there or none. Otherwise like untorn_commit(). Returns 0, or -1: EINVAL if `n` is 0 or the files are
 * of several stores, EFAULT if `files` is NULL, EBADF if any handle is bad, EBUSY …
 */
UNTORN_MUST_USE int untorn_syncv(struct untorn_file *const *files, size_t n);

/** Starts a commit of several files, as untorn_commit_async(). NULL with an error as untorn_syncv(). */
UNTORN_MUST_USE struct untorn_ticket *untorn_syncv_async(struct untorn_file *const *files, size_t n);

/**
 * Sets all members to their defaults. `size` is sizeof(untorn_map_options). 0, or -1 with EFAULT or
 * EINVAL.
 */
int untorn_map_options_init(struct untorn_map_options *options, size_t size);

/**
 * Maps an open file: load from and store to untorn_map_address() as you like; nothing reaches the file
 * before a commit, and a commit is always of the whole file, all or nothing. The map stays when the
 * file's handle is closed. No thread should store while a commit runs: a store that does is in it or
 * in the next one.
 *
 * `options` NULL: the whole file, as it grows. Give the map back with untorn_map_close(). NULL: ENOMEM
 * (memory or address space; the message names the limit), EINVAL (the range is behind the end of the
 * file, or the file is mapped in another way), EFBIG, EOPNOTSUPP (the tracker does not work here), EBADF …
 */
UNTORN_MUST_USE
struct untorn_map *untorn_map_open(struct untorn_file *file,
                                   const struct untorn_map_options *options);

/**
 * Where the map begins in memory; the same until untorn_map_close(). NULL with EBADF. Behind
 * untorn_map_len() bytes, rounded up to whole pages, memory cannot be accessed (SIGSEGV).
 */
void *untorn_map_address(const struct untorn_map *map);

/**
 * Bytes of the map that can be accessed now: those asked for, or up to the end of the file. -1 with
 * EBADF.
 */
int64_t untorn_map_len(const struct untorn_map *map);

/** How stores are found: UNTORN_TRACKER_SCAN or UNTORN_TRACKER_PAGEMAP. -1 with EBADF. */
int untorn_map_tracker(const struct untorn_map *map);

/**
 * Commits all uncommitted changes of the file, stores and writes alike, with the promise of
 * untorn_commit(). Returns 0, or -1 with an error as untorn_commit(); also EEXIST (another program
 * changed or truncated the file), EBUSY with UNTORN_E_RACING_STORE (see UNTORN_MAP_DEBUG_RACES).
 */
UNTORN_MUST_USE int untorn_map_sync(struct untorn_map *map);

/**
 * Starts a commit as untorn_map_sync(): what is stored by now belongs to it; the ticket tells when it
 * is durable. NULL with an error.
 */
UNTORN_MUST_USE struct untorn_ticket *untorn_map_sync_async(struct untorn_map *map);

/**
 * Forgets all uncommitted changes of the file, in memory, too: it is as at its last commit. Returns
 * 0, or -1: EBUSY (the file is in a transaction), EBADF …
 */
int untorn_map_rollback(struct untorn_map *map);

/**
 * Sets the file's size, in bytes, as untorn_ftruncate(). Addresses stay. Memory behind a smaller end
 * cannot be accessed any more; behind the old end of a larger one there are zeros. Returns 0, or -1:
 * ENOMEM (beyond the address space reserved), EINVAL, EBADF …
 */
int untorn_map_resize(struct untorn_map *map, uint64_t size);

/**
 * Says that `len` bytes at `offset` of the map may have changed in a way that no tracker sees: by a
 * device that writes to memory itself, as with registered io_uring buffers and O_DIRECT reads that
 * are on their way during a commit. Returns 0, or -1: EINVAL (not inside the map), EBADF.
 */
int untorn_map_mark_dirty(struct untorn_map *map, uint64_t offset, uint64_t len);

/**
 * Gives memory back: brings the data file up to what is committed, then drops all pages that it holds
 * as well. NO THREAD may store to the file's maps during this call: a store could be lost. Returns
 * 0, or -1 with an error as untorn_store_checkpoint().
 */
int untorn_map_reclaim(struct untorn_map *map);

/**
 * Ends the map; with the last map of a file its memory cannot be accessed any more. What was stored
 * and not committed stays an uncommitted change of the file; it is DISCARDED if the map was the file's
 * last handle. Waits for calls on this map that run in other threads. Returns 0, or -1 with an error;
 * the handle is closed in either case.
 */
int untorn_map_close(struct untorn_map *map);

/**
 * Opens a heap in a file that has a store of its own beside it; makes it if there is none. `options`
 * and `store_options` may be NULL. A heap is always at the same address: EINVAL if something else is
 * there, or if this heap or a copy of it is open in this process. NULL with an error, also as
 * untorn_open(); EMEDIUMTYPE: not a heap.
 */
UNTORN_MUST_USE
struct untorn_heap *untorn_heap_open(const char *path,
                                     const struct untorn_heap_options *options,
                                     const struct untorn_options *store_options);

/**
 * Opens a heap by its name in a store: it can commit together with the store's other files. Otherwise
 * as untorn_heap_open().
 */
UNTORN_MUST_USE
struct untorn_heap *untorn_heap_open_at(struct untorn_store *store,
                                        const char *name,
                                        const struct untorn_heap_options *options);

/**
 * Closes the heap. What is not committed is DISCARDED, and pointers into it are good no more. Returns
 * 0, or -1 with an error; the handle is closed in either case.
 */
int untorn_heap_close(struct untorn_heap *heap);

/**
 * Memory in the heap, of any contents, aligned to 16 bytes. It stays allocated after a restart, if it
 * was committed: hang it on a root, or on something that is. NULL: ENOMEM, ENOSPC, EBADF …
 */
UNTORN_MUST_USE void *untorn_heap_malloc(struct untorn_heap *heap, size_t bytes);

/** The same with an alignment: a power of two up to 4096. */
UNTORN_MUST_USE void *untorn_heap_aligned_alloc(struct untorn_heap *heap, size_t align, size_t bytes);

/** Memory for `n` elements, all zeros. NULL as untorn_heap_malloc(). */
UNTORN_MUST_USE void *untorn_heap_calloc(struct untorn_heap *heap, size_t n, size_t bytes);

/**
 * Memory of another size with the same contents, as far as they fit; the old one is freed. `address`
 * NULL: as untorn_heap_malloc(). NULL with an error: the old one is untouched.
 */
UNTORN_MUST_USE void *untorn_heap_realloc(struct untorn_heap *heap, void *address, size_t bytes);

/**
 * Ends an allocation; NULL does nothing. Returns 0, or -1: EINVAL (not an allocation of this heap, or
 * freed already: nothing has changed), EBADF.
 */
int untorn_heap_free(struct untorn_heap *heap, void *address);

/** Bytes that an allocation has, at least as many as were asked for. 0 with EINVAL or EBADF. */
size_t untorn_heap_malloc_usable_size(struct untorn_heap *heap, void *address);

/**
 * Where the heap begins in memory: the same after every restart. NULL with EBADF. What lies in a heap
 * may keep this address to allocate through untorn_heap_allocate_at().
 */
void *untorn_heap_base(const struct untorn_heap *heap);

/**
 * Allocates in the open heap that begins at `base`: for allocators that lie in heaps themselves.
 * NULL as untorn_heap_aligned_alloc(); EBADF: no heap is open there.
 */
UNTORN_MUST_USE void *untorn_heap_allocate_at(const void *base, size_t align, size_t bytes);

/** Frees what untorn_heap_allocate_at() gave. Returns 0, or -1 as untorn_heap_free(). */
int untorn_heap_free_at(const void *base, void *address);

/**
 * Finds a root: `*found` is what was hung on this name, or NULL. The type's name, size, alignment and
 * version must be those that it was set with: otherwise UNTORN_E_LAYOUT_CHANGED, and
 * untorn_heap_get_root_info() tells what it was. Build the new one of it, set the root, commit: that is one
 * change. Returns 1: found; 0: there is no such root; -1: EINVAL, EUCLEAN, EFAULT, EBADF.
 */
int untorn_heap_root(const struct untorn_heap *heap,
                     const char *name,
                     const char *type_,
                     size_t bytes,
                     size_t align,
                     uint32_t version,
                     void **found);

/**
 * Hangs something on a name (1 to 47 bytes); `address` NULL removes the root. What it was before is
 * not freed. Returns 0, or -1: EINVAL (outside of the heap, too many roots, no name), EBADF.
 */
int untorn_heap_set_root(struct untorn_heap *heap,
                         const char *name,
                         void *address,
                         const char *type_,
                         size_t bytes,
                         size_t align,
                         uint32_t version);

/**
 * Begins changes that belong together: no commit takes place before untorn_heap_end() in the same
 * thread. May be nested. Needed only where several threads use a heap. Returns 0, or -1 with EBADF.
 */
int untorn_heap_begin(struct untorn_heap *heap);

/** Ends what untorn_heap_begin() began. Returns 0, or -1: EINVAL (this thread has begun nothing), EBADF. */
int untorn_heap_end(struct untorn_heap *heap);

/**
 * Commits all changes of the heap, with the promise of untorn_commit(). Waits until no thread is
 * between untorn_heap_begin() and untorn_heap_end(). Returns 0, or -1 with an error as
 * untorn_commit(); EINVAL if this thread is between them itself.
 */
UNTORN_MUST_USE int untorn_heap_commit(struct untorn_heap *heap);

/** Commits the heap and ordinary files of the same store as one. Returns 0, or -1 as untorn_syncv(). */
UNTORN_MUST_USE
int untorn_heap_commit_with(struct untorn_heap *heap,
                            struct untorn_file *const *files,
                            size_t n);

/**
 * Starts a commit: what was changed by now belongs to it; the ticket tells when it is durable. NULL
 * with an error as untorn_heap_commit().
 */
UNTORN_MUST_USE struct untorn_ticket *untorn_heap_commit_async(struct untorn_heap *heap);

/**
 * Back to the last commit. Pointers to what was allocated since are good no more. Returns 0, or -1
 * with an error as untorn_heap_commit().
 */
int untorn_heap_rollback(struct untorn_heap *heap);

/**
 * Fills `stats`, whose `size` the caller has set; reads the metadata of the whole heap. Returns 0, or
 * -1: EINVAL (also if this thread is in a change of the heap), EFAULT, EUCLEAN, EBADF.
 */
int untorn_heap_get_stats(const struct untorn_heap *heap, struct untorn_heap_stats *stats);

/**
 * Tells what a root points to, whatever its type: for programs whose layout has changed. The member `size`
 * of `info` is set by the caller. Returns 1: told; 0: there is no such root; -1: EINVAL, EUCLEAN (it
 * points out of the heap), EFAULT, EBADF.
 */
int untorn_heap_get_root_info(const struct untorn_heap *heap,
                              const char *name,
                              struct untorn_heap_root_info *info);

/**
 * The same for the root number `n`, in no certain order: for going through all of them, from 0 on, while
 * none is set. Returns 1: told; 0: there are not so many; -1: EINVAL, EFAULT, EBADF.
 */
int untorn_heap_nth_root_info(const struct untorn_heap *heap, size_t n, struct untorn_heap_root_info *info);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNTORN_H */
