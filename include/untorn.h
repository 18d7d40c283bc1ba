/*
 * Untorn: all-or-nothing updates of application data in files.
 *
 * Open a store (a directory, untorn_store_open()) or a standalone file (untorn_open()), change files by
 * calls or through maps (untorn_map_open()), and commit. After a crash of the process, the kernel or the
 * machine, a file, or a set of files committed together, holds exactly what it held at its last successful
 * commit, or, whole, at the commit that was running. Uncommitted changes never reach the files.
 *
 * untorn_reader_open() opens a store only to read it, also while another process has it open: what a reader
 * is shown is durable, and of one commit.
 *
 * untorn.hpp is for C++; untorn_posix.h is for programs that use open, mmap and msync.
 *
 * Generated from the sources in crates/bindings/c by cbindgen; do not edit.
 *
 * UNITS. Sizes, lengths and offsets are in bytes. The largest offset is INT64_MAX. A larger offset is
 * EINVAL; a range that begins before that offset and ends behind it is EFBIG. Paths are bytes that end in
 * NUL.
 *
 * ERRORS. A call that fails returns -1, or NULL if it returns a pointer, and sets errno.
 * untorn_last_error() tells kinds apart that share an errno, and untorn_error_message() says what happened
 * and what to do. All three belong to the calling thread, and are meaningless after a success. A call that
 * fails has changed nothing, unless its description says otherwise. No call returns EINTR.
 *
 * HANDLES. The handles that this library returns are tokens in the shape of pointers, not addresses: do not
 * dereference or compute with handles. NULL, closed handles, handles of the wrong kind and made-up ones
 * fail with EBADF, also when another thread closes the handle at the same moment. Handles that are still
 * open at the end of the process are closed as if the process were killed: committed changes stay,
 * uncommitted changes are lost.
 *
 * STRINGS. A string that the caller must free is freed with untorn_free(), and its description says so. All
 * other strings belong to the library.
 *
 * WHAT SURVIVES. A commit counts from the moment when the call has returned 0, or a ticket has said that
 * the commit is durable:
 *
 *                            process killed   kernel crash, power cut
 *   UNTORN_CLASS_POWER       kept             kept
 *   UNTORN_CLASS_PROCESS     kept             UNTORN_E_UNKNOWN_STATE at the next opening
 *
 * Uncommitted changes are lost in any crash and when the last handle closes, in both classes. After a
 * crash, a commit that was running is there whole or not at all, and never without all commits before it.
 *
 * THREADS. Every function may be called from any thread, with any handle. Calls on one file take effect one
 * after the other, in some order; calls on one transaction wait for each other. Buffers belong to the call
 * while it runs.
 *
 * SIGNALS. Only untorn_version() may be called from a signal handler. A longjmp out of a signal handler that
 * interrupts a call leaves the call's locks held.
 *
 * FORK. Handles belong to the parent. In a forked child they fail with ECHILD (UNTORN_E_FORKED); the child
 * may open stores of its own. A living child does not keep the parent's store busy. In a program with
 * several threads, call nothing of this library between fork and exec.
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

/** A failure that stays, such as a journal that takes no more commits until the store is reopened. */
#define UNTORN_LOG_ERROR 1

/** Something waits or is out of order: a quarantined file, a failed checkpoint. */
#define UNTORN_LOG_WARN 2

/** The actions of recovery. */
#define UNTORN_LOG_INFO 3

/** Details. */
#define UNTORN_LOG_DEBUG 4

/**
 * Failure class: commits survive process, kernel and power failures. One flush for each commit. The
 * default.
 */
#define UNTORN_CLASS_POWER 0

/**
 * Failure class: commits survive a crash of the process, but not of the machine. No flushes. After a
 * machine crash the store cannot be opened (UNTORN_E_UNKNOWN_STATE).
 */
#define UNTORN_CLASS_PROCESS 1

/**
 * Failure class: commits survive the loss of the machine, too. No class of a store, whose commits are of
 * UNTORN_CLASS_POWER first: untorn_ticket_wait_for(), untorn_gate_output_when() and untorn_store_wait_for() wait until the
 * slot of untorn_options.remote_slot has acknowledged them.
 */
#define UNTORN_CLASS_REMOTE 2

/**
 * Failure class of the memory of a live heap on byte-addressable memory: it survives process, kernel and power failures,
 * without a commit (untorn_heap_options.live_class). No class of a store.
 */
#define UNTORN_CLASS_MEMORY 3

/** untorn_options.remote_on_timeout: all that waits for the slot is held, for as long as it takes. The default. */
#define UNTORN_REMOTE_HOLD 0

/**
 * untorn_options.remote_on_timeout: commits that are durable on this machine count as remote until the slot has caught
 * up. The loss of the machine then loses them, although somebody was told of them.
 */
#define UNTORN_REMOTE_DEGRADE 1

/**
 * Create a missing store, heap or file; without this flag, opening it fails with ENOENT. A flag of untorn_options for
 * untorn_store_open(): the store, and its directory if the parent exists. A flag of untorn_heap_options: the heap. A
 * flag of untorn_open() and untorn_open_at(): the file, empty, at once and durably.
 */
#define UNTORN_CREATE 1

/** Options flag: wait until another owner has closed the store, instead of failing with EBUSY. */
#define UNTORN_WAIT 2

/**
 * Options flag: log the whole 4 KiB page at its first change after the begin of a checkpoint. For disks
 * that, in a power failure, may damage more than the sectors being written. Costs journal space.
 */
#define UNTORN_FULL_PAGE 4

/**
 * Options flag: accept the files of a store of UNTORN_CLASS_PROCESS as they are after a machine crash,
 * instead of failing with ENOTRECOVERABLE. The files may be torn.
 */
#define UNTORN_ACCEPT_UNKNOWN 8

/**
 * Options flag: if this call makes the store, the group of the store directory may read it as well
 * (untorn_reader_open()). The journal holds bytes of all files, also of files that only the owner may read. `untorn
 * readers` changes this setting later.
 */
#define UNTORN_READERS_GROUP 16

/** Options flag: like UNTORN_READERS_GROUP, and everybody may read the store. */
#define UNTORN_READERS_ALL 32

/**
 * Options flag: refused with EINVAL. untorn_reader_open() opens a store for reading only, beside its owner or
 * without one; its handles are of another kind.
 */
#define UNTORN_READ_ONLY 64

/**
 * Options flag: a commit that finds no room, or fails for another reason than a flush, keeps its place before all
 * later commits, which fail with it. It is tried again whenever a commit is waited for. So files that are committed
 * together in different groups stay consistent with each other. Without this flag, the changes of such a commit are
 * uncommitted again.
 */
#define UNTORN_IN_ORDER 128

/**
 * Options flag: commits are written and flushed by calls also where the journal lies in byte-addressable memory.
 * Without it, they are stored there without calls (docs/MEDIA.md).
 */
#define UNTORN_NO_MEMORY_STORES 256

/** untorn_options.readers_space: keep nothing for readers. A snapshot then lasts until the next checkpoint. */
#define UNTORN_READERS_SPACE_NONE UINT64_MAX

/** Bytes of `untorn_status.store_id`, NUL included. */
#define UNTORN_STORE_ID_BYTES 48

/** Open flag: a handle that cannot change the file (EBADF). */
#define UNTORN_RDONLY 2

/** Open flag, with UNTORN_CREATE: fail with EEXIST if the file exists. */
#define UNTORN_EXCL 4

/** Open flag: truncate the file to length 0, which is an uncommitted change like any other. */
#define UNTORN_TRUNC 8

/** Tracker: the best one that works on this system. The default. */
#define UNTORN_TRACKER_ANY 0

/**
 * Tracker: PAGEMAP_SCAN with an asynchronous userfaultfd; Linux 6.7 or newer, where userfaultfd is
 * permitted. The cost of a commit follows the number of pages stored to since the last commit.
 */
#define UNTORN_TRACKER_SCAN 1

/**
 * Tracker: /proc/self/pagemap, on any kernel. A commit compares all pages that were stored to since they
 * were last dropped from memory.
 */
#define UNTORN_TRACKER_PAGEMAP 2

/**
 * Tracker: explicit dirty ranges. The program says which bytes it changes, by untorn_map_mark_dirty() or
 * untorn_heap_mark_dirty(). A commit has exactly these bytes, and costs as much as they do. A store that the program
 * did not mark is in NO commit: it stays in memory, and is gone when the file is opened again.
 */
#define UNTORN_TRACKER_EXPLICIT 3

/**
 * Map flag: the program promises that no thread stores to the file's maps during untorn_map_msync().
 * Commits may then drop pages that are also in the data file, and memory use follows the working set.
 * Only the flag of a file's first map counts.
 */
#define UNTORN_MAP_QUIET 1

/**
 * Map flag, for debugging: untorn_map_msync() looks for stores that were made during the commit, and
 * reports the first one (UNTORN_E_RACING_STORE).
 */
#define UNTORN_MAP_DEBUG_RACES 2

/** Map flag: read the file into memory at once. */
#define UNTORN_MAP_POPULATE 4

/** Map flag: ask for huge pages, where kernel and file system have them. */
#define UNTORN_MAP_HUGE_PAGES 8

/**
 * Map flag: the map may extend behind the end of the file. Memory behind the end can be accessed once the
 * file has grown that far; until then an access is SIGSEGV.
 */
#define UNTORN_MAP_BEYOND_END 16

/**
 * Map flag, for debugging with UNTORN_TRACKER_EXPLICIT: a commit is refused (EINVAL) if the program stored to bytes
 * that it did not mark by untorn_map_mark_dirty(); the message names their addresses. No thread may store while a
 * commit runs. The environment variable UNTORN_DEBUG_UNMARKED=1 has the same effect without the flag;
 * UNTORN_DEBUG_UNMARKED=warn prints the places instead, once each.
 */
#define UNTORN_MAP_DEBUG_UNMARKED 32

/**
 * Heap flag, for debugging: a commit reports a store that another thread made during the commit, with the
 * store's address (UNTORN_E_RACING_STORE).
 */
#define UNTORN_HEAP_DEBUG_RACES 2

/**
 * Heap flag, a promise: no thread stores to the heap during a commit, unless the thread is between
 * untorn_heap_begin() and untorn_heap_end(). Then commits drop memory that the file holds as well, and memory use
 * follows the working set. A store that breaks the promise can be undone in memory.
 */
#define UNTORN_HEAP_QUIET 4

/**
 * Heap flag, for debugging: allocating or freeing outside of untorn_heap_begin() and untorn_heap_end() fails with
 * EINVAL, and so does the next commit.
 */
#define UNTORN_HEAP_DEBUG_GUARDS 8

/**
 * Heap flag, for debugging: a commit is refused (EINVAL) if the heap has a pointer into other memory of this
 * process; the message names the allocation and the offset. The commit reads the whole heap.
 */
#define UNTORN_HEAP_DEBUG_POINTERS 16

/** Heap flag, for debugging with UNTORN_TRACKER_EXPLICIT: like UNTORN_MAP_DEBUG_UNMARKED. */
#define UNTORN_HEAP_DEBUG_UNMARKED 32

/**
 * Heap flag: a live heap. Its working memory outlives the process, however the process ends, until the machine goes
 * down; the next opening with this flag continues with that memory. A commit is a cut: the state to which the heap
 * goes back after a power cut. untorn_heap_live_start() says how the heap began. Not with UNTORN_TRACKER_EXPLICIT. See
 * docs/LIVE_HEAPS.md.
 */
#define UNTORN_HEAP_LIVE 64

/**
 * Heap flag, with UNTORN_HEAP_LIVE: the program calls untorn_section_log() before each store that it makes in a
 * section. For programs that are not built with untorn-cc or untorn-c++, and for languages that these do not
 * compile. Without this flag and without these hooks, sections are refused.
 */
#define UNTORN_HEAP_LOG_BY_HAND 128

/**
 * Heap flag, with UNTORN_HEAP_LIVE: a cut waits until no thread is between untorn_heap_begin() and
 * untorn_heap_end(), between untorn_heap_hold_cuts() and untorn_heap_release_cuts(), or in a section; the program
 * promises to make all stores there. Without the flag, a cut briefly stops all threads of the process, wherever they
 * are, by a real-time signal (UNTORN_STOP_SIGNAL in the environment names another signal). See docs/LIVE_HEAPS.md.
 */
#define UNTORN_HEAP_CUTS_WAIT 256

/** untorn_heap_live_start(): the heap began without working memory of an earlier process. */
#define UNTORN_LIVE_NEW 1

/** untorn_heap_live_start(): the heap has everything that the process before had stored. */
#define UNTORN_LIVE_WENT_ON 2

/** untorn_heap_live_start(): the heap is as of the last cut. */
#define UNTORN_LIVE_LAST_CUT 3

/** Bytes of `untorn_heap_root_info.name`, NUL included. */
#define UNTORN_ROOT_NAME_BYTES 48

/** Bytes of `untorn_heap_root_info.type_name`, NUL included. */
#define UNTORN_ROOT_TYPE_BYTES 112

/** For untorn_heap_check_file(): also look for values that may be pointers out of the heap. */
#define UNTORN_CHECK_POINTERS 1

/**
 * Kinds of failures. Each kind asks for another reaction of the caller. Later versions may add kinds:
 * treat an unknown kind like UNTORN_E_IO.
 */
typedef enum untorn_error {
    /** No call has failed in this thread yet. */
    UNTORN_E_NONE = 0,
    /**
     * errno EBUSY. Another process (the message names its pid, if known), or an earlier opening in this
     * process, owns the store or file. Close the store or file there, or open with UNTORN_WAIT.
     */
    UNTORN_E_BUSY = 1,
    /**
     * errno EUCLEAN. The state on disk is damaged in a way that no crash can cause. Nothing was changed.
     * `untorn check` shows details, `untorn recover --salvage` keeps what is readable.
     */
    UNTORN_E_CORRUPT = 2,
    /** errno EMEDIUMTYPE. The file is not one of Untorn's, or belongs to another store. Nothing was changed. */
    UNTORN_E_FOREIGN = 3,
    /** errno EPROTONOSUPPORT. Written by a newer Untorn. Nothing was changed. */
    UNTORN_E_NEWER_VERSION = 4,
    /**
     * errno EEXIST. Another program replaced, restored or changed a file with pending commits, or a
     * transaction's names collide with existing names. Nothing was overwritten.
     */
    UNTORN_E_CONFLICT = 5,
    /**
     * errno ESTALE. The file has committed changes in a journal that is not here: the file was moved or
     * copied away from its store before the changes were applied. Move the file back to its store.
     */
    UNTORN_E_NEEDS_JOURNAL = 6,
    /**
     * errno ENOTRECOVERABLE. The machine crashed while the store was in use in failure class
     * UNTORN_CLASS_PROCESS, which does not survive machine crashes. UNTORN_ACCEPT_UNKNOWN accepts the
     * files as they are.
     */
    UNTORN_E_UNKNOWN_STATE = 7,
    /**
     * errno EIO. The journal could not be written or flushed. This change is not committed, and will not
     * appear after recovery. The store accepts no more commits until it is reopened.
     */
    UNTORN_E_SYNC_NOT_COMMITTED = 8,
    /**
     * errno EIO. The journal could not be written or flushed, and the outcome is unknown: the change is
     * committed whole or not at all. Reopening the store decides; until then the store accepts no commits.
     */
    UNTORN_E_SYNC_UNKNOWN = 9,
    /** errno ENOSPC. No space, quota or journal room. Nothing was committed; the call can be repeated. */
    UNTORN_E_NO_SPACE = 10,
    /**
     * errno EPERM. Owner or permissions of the files would let another user write with this process's
     * rights.
     */
    UNTORN_E_UNTRUSTED = 11,
    /** errno ECHILD. The parent process made the handle, before a fork. */
    UNTORN_E_FORKED = 12,
    /**
     * errno EBADF. Not an open handle of the kind that the function expects: NULL, closed, closed by
     * another thread during the call, of another kind, or no handle at all.
     */
    UNTORN_E_BAD_HANDLE = 13,
    /** errno EBUSY. The file is in a transaction: only the transaction can commit or roll back its changes. */
    UNTORN_E_IN_TRANSACTION = 14,
    /**
     * errno EINVAL; EFBIG for a range that ends behind the largest offset; EBADF for a change through a
     * read-only handle. An argument is invalid; the message says which.
     */
    UNTORN_E_INVALID = 15,
    /** errno EFAULT. A pointer that must not be NULL is NULL. */
    UNTORN_E_NULL = 16,
    /** errno EOPNOTSUPP. The file system or the kernel lacks a feature; the message suggests what to do. */
    UNTORN_E_UNSUPPORTED = 17,
    /** errno of the failed system call (ENOENT, EACCES, EISDIR, EEXIST, EMFILE …), or EIO if there is none. */
    UNTORN_E_IO = 18,
    /** errno EIO. A bug in Untorn, caught at its boundary. Close all handles and reopen the store. */
    UNTORN_E_PANIC = 19,
    /**
     * errno ENOMEM. A map, a heap or a write needs more memory than the machine has, or than is allowed, or a heap is
     * full. The message names the limit and what to do. A commit that meets it did not happen, and can be tried
     * again.
     */
    UNTORN_E_NO_MEMORY = 20,
    /**
     * errno EBUSY. A thread stored to a map during its commit (found in debug mode only; the message has the
     * address). The commit was made, whole, without that store.
     */
    UNTORN_E_RACING_STORE = 21,
    /**
     * errno EINVAL. A heap's root was set with another type, size, alignment or version than the program
     * asks for; the message names both. Nothing was changed. untorn_heap_get_root_info() describes the root.
     */
    UNTORN_E_LAYOUT_CHANGED = 22,
    /**
     * errno ESTALE. A snapshot for reading was given up for space: the store's owner keeps old data for readers up to a
     * limit (untorn_options.readers_space), and while the disk has room. Take a new one.
     */
    UNTORN_E_SNAPSHOT_EXPIRED = 23,
    /**
     * errno ESTALE. A snapshot for reading has ended: the store was ejected or repaired, was opened in
     * UNTORN_CLASS_PROCESS or by an older version, or an older copy took its place. Open the store again.
     */
    UNTORN_E_SNAPSHOT_ENDED = 24,
    /**
     * errno ESTALE. A file of a snapshot was removed, moved or replaced since, and could not be kept. Other files of the
     * snapshot can be read. Take a new snapshot.
     */
    UNTORN_E_FILE_NOT_KEPT = 25
} untorn_error;

/** The kind of a change that a commit makes to a file or directory. */
typedef enum untorn_change_kind {
    /** Something that this version of the header has no name for. */
    UNTORN_CHANGE_OTHER = 0,
    /** `len` bytes at `offset` were written. */
    UNTORN_CHANGE_WRITTEN = 1,
    /** `len` bytes at `offset` became zeros. */
    UNTORN_CHANGE_ZEROED = 2,
    /** The file has the length `len` now. */
    UNTORN_CHANGE_RESIZED = 3,
    /** A new file. */
    UNTORN_CHANGE_CREATED = 4,
    /** The file has the name `new_path` now. */
    UNTORN_CHANGE_RENAMED = 5,
    /** The file is gone. */
    UNTORN_CHANGE_REMOVED = 6,
    /** The permission bits are `mode` now. */
    UNTORN_CHANGE_MODE = 7,
    /** A new directory. */
    UNTORN_CHANGE_DIRECTORY_MADE = 8,
    /** The directory is gone. */
    UNTORN_CHANGE_DIRECTORY_REMOVED = 9
} untorn_change_kind;

/** A handle of a file. All handles of one file show the same contents, uncommitted changes included. */
typedef struct untorn_file untorn_file;

/**
 * The commits of a store, each once, in order, as they become durable. The owner keeps commits that were not returned
 * yet, up to a limit (untorn_options.readers_space); those beyond it are returned as a range of missed commits.
 */
typedef struct untorn_follow untorn_follow;

/** Output that waits until the commits that it reports are durable: a thread, and any number of outputs. */
typedef struct untorn_gate untorn_gate;

/**
 * A persistent heap: memory in a file that is always mapped at the same address, so that pointers in the
 * heap stay valid after a restart.
 */
typedef struct untorn_heap untorn_heap;

/**
 * A map of a file, or of a part of a file. All maps and handles of one file show the same contents: a
 * store through one map is seen at once through all others.
 */
typedef struct untorn_map untorn_map;

/** A transaction over ordinary files on an Untorn mount. */
typedef struct untorn_mount_txn untorn_mount_txn;

/** One descriptor behind a gate. */
typedef struct untorn_output untorn_output;

/**
 * A copy of another process's heap, for reading: as of one commit, at the heap's own address. Stores to it stay in
 * this process. Nothing can be allocated in it.
 */
typedef struct untorn_read_heap untorn_read_heap;

/** A copy of a file's bytes in memory, all of one commit. It does not change by itself. */
typedef struct untorn_read_map untorn_read_map;

/**
 * A store that is open for reading only, beside the process that owns the store, or without one. Reading creates and
 * changes nothing, needs no right to write, and never makes the owner wait. Everything that is read is durable, and of
 * one commit; see docs/READERS.md.
 */
typedef struct untorn_reader untorn_reader;

/**
 * The files of a store as of one commit. The owner keeps the data of the snapshot until the snapshot and its files are
 * closed, or this process ends: across checkpoints, the end of the owner, and the next owner. A snapshot ends earlier
 * only if too much is kept, or the disk is full: its calls then fail with ESTALE (UNTORN_E_SNAPSHOT_EXPIRED), and
 * untorn_snapshot_refresh() moves it to the last commit. If the store was ejected, repaired or replaced, they fail with
 * ESTALE and UNTORN_E_SNAPSHOT_ENDED: open the store again. No call ever shows another commit.
 */
typedef struct untorn_snapshot untorn_snapshot;

/**
 * A file of a snapshot. The file stays as of the commit that the snapshot had when the file was opened, also after
 * untorn_snapshot_refresh() and untorn_snapshot_close().
 */
typedef struct untorn_snapshot_file untorn_snapshot_file;

/** A store: a directory whose files change all-or-nothing. One process owns an open store. */
typedef struct untorn_store untorn_store;

/** A commit that was started and may not be durable yet. Freeing the ticket does not cancel the commit. */
typedef struct untorn_ticket untorn_ticket;

/** A transaction over files and names of one store. */
typedef struct untorn_txn untorn_txn;

/** Receives a message of the log: its level, a text that is valid during the call, and the caller's pointer. */
typedef void (*untorn_log_callback)(int level, const char *message, void *user_data);

/**
 * How to open a store. Zero is the default of every member but `size`. So both
 * untorn_options_init(&options, sizeof options) and `untorn_options options = {.size = sizeof options};`
 * set the defaults.
 */
typedef struct untorn_options {
    /** sizeof(untorn_options) of the header that the program was compiled with. */
    size_t size;
    /** UNTORN_CLASS_POWER or UNTORN_CLASS_PROCESS. */
    uint32_t failure_class;
    /**
     * UNTORN_CREATE, UNTORN_WAIT, UNTORN_FULL_PAGE, UNTORN_ACCEPT_UNKNOWN, UNTORN_READERS_GROUP,
     * UNTORN_READERS_ALL, UNTORN_IN_ORDER, UNTORN_NO_MEMORY_STORES, or'ed.
     */
    uint32_t flags;
    /**
     * The journal's largest size, in bytes: at this size commits wait for a checkpoint. 0: the default,
     * 64 MiB. The minimum is 64 KiB; smaller numbers mean 64 KiB.
     */
    uint64_t journal_bytes;
    /**
     * Called from time to time during a long recovery, possibly in another thread. NULL: no calls. The
     * function must return (no longjmp, no C++ exception) and must not call untorn_ functions.
     */
    void (*progress)(uint64_t bytes_done, uint64_t bytes_all, void *context);
    /** Passed to `progress`. */
    void *progress_context;
    /**
     * Limit, in bytes, for old data that the store keeps for readers of older commits (untorn_snapshot_take()).
     * Beyond it, or when the disk is full, the oldest reader is given up; nobody ever waits for readers. 0: the default,
     * 1 GiB, or a tenth of the free space if that is less. UNTORN_READERS_SPACE_NONE: nothing is kept. Other numbers
     * mean at least twice `journal_bytes`.
     */
    uint64_t readers_space;
    /**
     * How long to wait, in milliseconds, until another owner has closed the store; then EBUSY. 0, the default: not at
     * all, or for ever with UNTORN_WAIT.
     */
    uint64_t wait_ms;
    /** Name of the slot whose acknowledgements make commits remote (UNTORN_CLASS_REMOTE). NULL, the default: none. */
    const char *remote_slot;
    /** How long the slot may take, in milliseconds, before remote_on_timeout. 0: the default, 5 seconds. */
    uint64_t remote_timeout_ms;
    /** UNTORN_REMOTE_HOLD or UNTORN_REMOTE_DEGRADE. */
    uint64_t remote_on_timeout;
} untorn_options;

/**
 * A store's status. Counters start at 0 when the store is opened. untorn_store_status_json() also has
 * the texts: paths, quarantined files, the reason of a failure.
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
    /** 1 if the journal is written with O_DIRECT, past the page cache. */
    uint32_t journal_direct;
    /** 1 after a failed sync: no more commits until the store is reopened. */
    uint32_t failed;
    /** The journal's largest size: at this size commits wait for a checkpoint. */
    uint64_t journal_bytes_max;
    /** Bytes that the journal uses on the disk. */
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
    /** LSN of the last durable commit. LSNs count from the creation of the store. */
    uint64_t lsn;
    /** Calls of fdatasync, fsync and syncfs. */
    uint64_t syncs;
    /** Bytes written to the journal and to data files. */
    uint64_t bytes_written;
    /** Bytes written to the journal. */
    uint64_t journal_bytes_written;
    /** Files open through the store. */
    uint64_t open_files;
    /** Memory that uncommitted and unapplied changes use, in bytes. */
    uint64_t memory_bytes;
    /** Quarantined files: recovery could not bring them up to date. All other files work as usual. */
    uint64_t quarantined;
    /** Commits that recovery found and applied when the store was opened. */
    uint64_t recovered_commits;
    /** Files that recovery changed. */
    uint64_t recovered_files;
    /** Bytes that recovery wrote. */
    uint64_t recovered_bytes;
    /** 1 if recovery dropped a torn record at the journal's end: a commit that was never acknowledged. */
    uint64_t recovered_torn_tail;
    /** Mapped files. untorn_store_status_json() describes each of them. */
    uint64_t mapped_files;
    /** Bytes of mapped files that can be accessed. */
    uint64_t mapped_bytes;
    /** Bytes of mapped pages that were stored to and not dropped. They use memory or swap. */
    uint64_t mapped_private_bytes;
    /** Memory for copies of mapped pages, in bytes. The next commits compare pages with these copies. */
    uint64_t mapped_copies_bytes;
    /** Mapped files with more changed bytes in memory than their `dirty_max` allows. */
    uint64_t mapped_files_over;
    /** Commits that readers hold; untorn_store_status_json() lists them. */
    uint64_t held;
    /** Bytes that are kept for readers of older commits. */
    uint64_t kept_bytes;
    /** LSN of the last commit that the slot of untorn_options.remote_slot has acknowledged; 0: none, or no slot. */
    uint64_t remote_lsn;
    /** 1 if a commit has waited for the slot for longer than untorn_options.remote_timeout_ms. */
    uint64_t remote_late;
    /** 1 if commits count as remote without an acknowledgement: UNTORN_REMOTE_DEGRADE, and remote_late. */
    uint64_t remote_degraded;
    /** 1 if commits are stored to byte-addressable memory, without calls. Known from the first one on. */
    uint64_t journal_in_memory;
} untorn_status;

/** A file or directory that a snapshot has under a name. */
typedef struct untorn_metadata {
    /** Set it to sizeof(untorn_metadata) before the call; the call fills that many bytes. */
    size_t size;
    /** Length in bytes; 0 for a directory. */
    uint64_t len;
    /** Permission bits. */
    uint32_t mode;
    /** 1 for a directory, 0 for a file. */
    uint32_t is_directory;
} untorn_metadata;

/** A change of one file or directory. */
typedef struct untorn_change {
    /** The kind of the change. */
    enum untorn_change_kind kind;
    /** Permission bits, for UNTORN_CHANGE_MODE. */
    uint32_t mode;
    /** The offset at which bytes were written or became zeros. */
    uint64_t offset;
    /** The number of bytes; for UNTORN_CHANGE_RESIZED, the new length of the file. */
    uint64_t len;
    /** The name before this commit, relative to the store's directory. */
    const char *path;
    /** The new name, for UNTORN_CHANGE_RENAMED; otherwise NULL. */
    const char *new_path;
} untorn_change;

/** A commit, or a range of commits that were missed. */
typedef struct untorn_followed {
    /** The number of the commit, or of the first missed commit. */
    uint64_t first_lsn;
    /** The number of the commit, or of the last missed commit. */
    uint64_t last_lsn;
    /**
     * 0: a commit. 1: commits among these numbers may be missing, because a checkpoint applied them and their place
     * in the journal was reused before they were read. Their changes are in the files.
     */
    uint32_t missed;
    /** The number of changes of the commit. */
    uint32_t changes_len;
    /** The changes; those of one file are in order. */
    const struct untorn_change *const *changes;
} untorn_followed;

/**
 * How to map a file. Zero is the default of every member but `size`. So both
 * untorn_map_options_init(&options, sizeof options) and `untorn_map_options options = {.size = sizeof
 * options};` set the defaults: a map of the whole file, which grows with the file.
 */
typedef struct untorn_map_options {
    /** sizeof(untorn_map_options) of the header that the program was compiled with. */
    size_t size;
    /** Offset in the file at which the map begins, in bytes. */
    uint64_t offset;
    /** Length of the map, in bytes. 0: to the end of the file, also when the file grows. */
    uint64_t len;
    /**
     * Bytes of address space to reserve; a mapped file cannot grow larger. Address space costs no memory.
     * 0: 64 GiB or four times the file's size, whichever is more, or less if the process cannot have as
     * much.
     */
    uint64_t address_space;
    /** The address of the file's offset 0, a multiple of the page size. NULL: any address. */
    void *address;
    /**
     * The most bytes of pages that are changed in memory at any time. Needed for files that are larger
     * than memory. 0: the file's size.
     */
    uint64_t dirty_max;
    /** UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT. */
    uint32_t tracker;
    /**
     * UNTORN_MAP_QUIET, UNTORN_MAP_DEBUG_RACES, UNTORN_MAP_POPULATE, UNTORN_MAP_HUGE_PAGES,
     * UNTORN_MAP_BEYOND_END, UNTORN_MAP_DEBUG_UNMARKED, or'ed.
     */
    uint32_t flags;
} untorn_map_options;

/** How to open a heap. Zero is the default of everything but `size`. */
typedef struct untorn_heap_options {
    /** sizeof(untorn_heap_options) of the header that the program was compiled with. */
    size_t size;
    /**
     * Bytes of address space for the heap: as long as it is open it cannot grow larger. Address space costs no
     * memory. If the heap has less, it gets more, permanently; asking for less than it has is EINVAL. 0: the space
     * that the heap has, or 64 GiB for a new heap.
     */
    uint64_t address_space;
    /**
     * The permanent address of a new heap: a multiple of 4 MiB between 17 and 31 TiB. For an existing heap, any
     * address but its own is EINVAL. For programs that open several heaps at once: the address spaces of these must
     * not overlap. 0: a random address; the probability that two heaps overlap is 1 in 196. Programs built with
     * ThreadSanitizer or MemorySanitizer use other addresses: 0x550000000000 to 0x555500000000 (on aarch64
     * 0xaaaa00000000 to 0xaaaaa0000000). Give a heap an address there if programs with and without these sanitizers
     * are to open it.
     */
    uint64_t address;
    /**
     * The most bytes of pages that are changed in memory at any time, like `dirty_max` of untorn_map_options. Needed
     * for heaps that use more than memory. 0: the number of bytes that the heap uses.
     */
    uint64_t dirty_max;
    /**
     * UNTORN_CREATE, UNTORN_HEAP_DEBUG_RACES, UNTORN_HEAP_QUIET, UNTORN_HEAP_DEBUG_GUARDS,
     * UNTORN_HEAP_DEBUG_POINTERS, UNTORN_HEAP_DEBUG_UNMARKED, UNTORN_HEAP_LIVE, UNTORN_HEAP_LOG_BY_HAND,
     * UNTORN_HEAP_CUTS_WAIT, or'ed.
     */
    uint32_t flags;
    /** UNTORN_TRACKER_ANY, UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT. */
    uint32_t tracker;
    /**
     * With UNTORN_HEAP_LIVE: the interval, in milliseconds, at which a thread commits if the program has stored
     * anything. 0: only the program commits.
     */
    uint64_t cut_every_ms;
    /**
     * With `cut_every_ms`: the longest time that a cut should take, in milliseconds. A cut begins early if, by the
     * speed of earlier cuts, writing the changes so far would otherwise take longer. A program that stores faster
     * than the disk writes is not slowed down. 0: no limit.
     */
    uint64_t cut_within_ms;
    /**
     * With UNTORN_HEAP_LIVE: the class that the heap's working memory must have. UNTORN_CLASS_MEMORY: the memory survives
     * kernel crashes and power cuts, because it is on byte-addressable memory (UNTORN_LIVE_DIR); elsewhere
     * UNTORN_E_UNSUPPORTED. UNTORN_CLASS_PROCESS: it survives the end of the process alone, wherever it is. 0:
     * UNTORN_CLASS_MEMORY where that is possible.
     */
    uint64_t live_class;
} untorn_heap_options;

/** Statistics of a heap. Sizes are in bytes. */
typedef struct untorn_heap_stats {
    /** Set it to sizeof(untorn_heap_stats) before the call; the call fills that many bytes. */
    size_t size;
    /** Length of the heap and of its sparse file. */
    uint64_t heap_bytes;
    /** Bytes in allocations, after rounding of their sizes. */
    uint64_t used_bytes;
    /** Bytes that can be allocated before the heap grows, in blocks of any size. */
    uint64_t free_bytes;
    /** Number of allocations. */
    uint64_t allocations;
    /** Number of named roots. */
    uint64_t roots;
    /** Memory that changed pages use. */
    uint64_t private_bytes;
    /** Address space: the largest size that the heap can grow to. */
    uint64_t address_space_bytes;
} untorn_heap_stats;

/** A root: its name, its address, and the type that was recorded when the root was set. */
typedef struct untorn_heap_root_info {
    /** Set it to sizeof(untorn_heap_root_info) before the call; the call fills that many bytes. */
    size_t size;
    /** The address that the root points to. */
    void *address;
    /** The type's size in bytes. */
    uint64_t bytes;
    /** The type's alignment. */
    uint32_t align;
    /** The program's own number for the type's layout. */
    uint32_t version;
    /** The root's name. */
    char name[UNTORN_ROOT_NAME_BYTES];
    /** The type's name, cut off if it is too long. */
    char type_name[UNTORN_ROOT_TYPE_BYTES];
} untorn_heap_root_info;

/**
 * A mutex whose critical sections are all or nothing. A section of a thread lasts from the first of these mutexes
 * that it locks until it has unlocked all of them. If the process is killed, either all stores of a section to a
 * live heap remain, or none of them. All zeros is an unlocked mutex; it needs no destruction. It may lie anywhere,
 * also in the heap: a process that was killed no longer holds it. It is not recursive. See docs/LIVE_HEAPS.md.
 */
typedef struct untorn_mutex {
    /** For use by the library only. */
    uint64_t state[8];
} untorn_mutex;

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/**
 * Returns the kind of the last failure in the calling thread. As errno, the kind is not reset by a
 * successful call: it is meaningful only after a call has returned -1 or NULL.
 */
enum untorn_error untorn_last_error(void);

/**
 * Returns a message about the last failure in the calling thread: what happened, and what to do. Never
 * NULL; empty if no call has failed yet. The text is valid until the next untorn_ call that fails in this
 * thread, or until the thread ends. Texts may change between versions.
 */
const char *untorn_error_message(void);

/**
 * Returns the version of the running library, such as "0.1.0". The text is static, and the call never
 * fails.
 */
const char *untorn_version(void);

/**
 * Sends messages of the library, up to a level (UNTORN_LOG_ERROR to UNTORN_LOG_DEBUG), to `callback`. NULL ends this;
 * so does level 0. Returns 0, or -1 with EINVAL. A message ends with the id of its event, such as
 * [untorn.checkpoint.waits], which stays the same between versions: docs/LOGS.md lists all ids and what to do.
 *
 * The callback may be called in any thread, also in several at once, while locks of the library are held: it must not
 * call functions of this library, and must not longjmp. When this function returns, the callback that was set before
 * does not run any more, and is not called again.
 *
 * Independently of the callback, the environment variable UNTORN_LOG (`error`, `warn`, `info` or `debug`), read at the
 * first call that opens something, sends messages to standard error: the one that the program was started with. If
 * descriptor 2 is of another file by then, nothing is written to it.
 */
int untorn_set_log(int level,
                   untorn_log_callback callback,
                   void *user_data);

/**
 * Frees memory that a function of this library has returned to be freed: the strings of untorn_path(),
 * untorn_store_path(), untorn_store_status_json(), untorn_heap_check(), untorn_heap_check_file() and
 * untorn_heap_dump_file(), and the results of untorn_reader_read(), untorn_snapshot_list() and untorn_follow_next().
 * NULL does nothing. Memory in a heap is freed by untorn_heap_free(), and handles are closed by the functions for
 * their kind.
 */
void untorn_free(void *memory);

/**
 * Sets all members to their defaults. `size` is sizeof(untorn_options). Returns 0, or -1 with EFAULT or
 * EINVAL.
 */
int untorn_options_init(struct untorn_options *options, size_t size);

/**
 * Opens the directory `path` as a store. The store's own files are in the directory `.untorn` in it.
 * With UNTORN_CREATE in the flags of `options`, a missing store is created, durably, and so is the directory itself
 * (mode 0777 less the umask) if its parent exists; otherwise a missing store is ENOENT. Recovery after a crash
 * happens here: on return every file holds its last committed contents. `options` NULL: defaults, an existing store.
 * To read a store beside its owner there is untorn_reader_open(): UNTORN_READ_ONLY is EINVAL here.
 *
 * Returns a handle, or NULL: EBUSY, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT, ENOTRECOVERABLE, EPERM,
 * ENOSPC, ENOENT, ENOTDIR, EACCES …; see untorn_error.
 */
UNTORN_MUST_USE
struct untorn_store *untorn_store_open(const char *path,
                                       const struct untorn_options *options);

/**
 * Returns another handle of the store of a directory, if this process has the store open. It is for parts of a program
 * that do not know each other. Close it with untorn_store_release(). NULL: ENOENT, the process does not have it open.
 */
UNTORN_MUST_USE
struct untorn_store *untorn_store_find(const char *path);

/**
 * Waits for all commits that were started, also by other threads; their tickets tell their results. Returns 0, or -1
 * with an error.
 */
int untorn_store_wait(struct untorn_store *store);

/**
 * Waits until all commits so far, also of earlier openings, survive the failures of a class. Returns and errors are
 * those of untorn_ticket_wait_for().
 */
UNTORN_MUST_USE
int untorn_store_wait_for(struct untorn_store *store,
                          uint32_t failure_class);

/**
 * Returns a descriptor for event loops, which becomes readable whenever commits have results. It is an eventfd, written
 * to once for each group of commits. Read its 8 bytes, then poll the tickets. The store owns the descriptor: do not close it. -1: EBADF,
 * EMFILE.
 */
int untorn_store_notification_fd(struct untorn_store *store);

/**
 * Closes the store and all its handles: waits for commits that were started, applies and flushes all
 * committed changes, and leaves plain, whole files. Uncommitted changes of open files are DISCARDED.
 * Calls on the store's files fail with EBADF afterwards; the handles of these files still have to be
 * closed.
 *
 * Returns 0, or -1 with an error; the handle is closed in either case. Committed changes stay committed
 * also after an error: they are recovered when the store is opened again.
 */
int untorn_store_close(struct untorn_store *store);

/**
 * Closes a handle without closing the store. The store closes with the last handle of itself and of its
 * files; errors of that closing are not reported. Returns 0, or -1 with EBADF.
 */
int untorn_store_release(struct untorn_store *store);

/**
 * Applies all committed changes to the data files and flushes these. Other programs then read plain,
 * whole files, until the next commit. Commits are durable without a checkpoint. Returns 0, or -1 with an
 * error.
 */
int untorn_store_checkpoint(struct untorn_store *store);

/**
 * Fills `status`, whose member `size` the caller has set. Returns 0, or -1 with EBADF, EFAULT or
 * EINVAL.
 */
int untorn_store_status(const struct untorn_store *store, struct untorn_status *status);

/** Returns the whole status as a JSON text, to be freed with untorn_free(). NULL: EBADF, ENOMEM. */
UNTORN_MUST_USE char *untorn_store_status_json(const struct untorn_store *store);

/** Returns the path of the store's directory, to be freed with untorn_free(). NULL: EBADF, ENOMEM. */
UNTORN_MUST_USE char *untorn_store_path(const struct untorn_store *store);

/**
 * Replaces the contents of the file `path` by `len` bytes, whole or not at all, durably on return. The
 * file keeps its mode, owner, ACL, extended attributes and flags. No store is needed; if the file belongs to
 * a store, the replacement is a commit of that store (EBUSY if the store is open elsewhere). Returns 0, or
 * -1 with an error: the file then still has its old contents, unless the message says that the new ones are
 * in place, or committed.
 */
int untorn_put(const char *path, const void *buf, size_t len);

/**
 * Opens a standalone file: a file with a private store beside it, the directory `<path>.untorn`. A missing
 * private store is created. Several processes can each own different standalone files of one directory;
 * files that are committed together belong in one store (untorn_store_open()). Recovery after a crash
 * happens here.
 *
 * `flags`: UNTORN_RDONLY, UNTORN_CREATE, UNTORN_EXCL, UNTORN_TRUNC, or'ed, or 0 to open an existing
 * file for reading and writing. `mode`: permissions of a created file, less the umask. `options` NULL:
 * defaults; UNTORN_CREATE in their flags has no effect here.
 *
 * Returns a handle, or NULL with an error as untorn_store_open().
 */
UNTORN_MUST_USE
struct untorn_file *untorn_open(const char *path,
                                uint32_t flags,
                                uint32_t mode,
                                const struct untorn_options *options);

/**
 * Opens a file of a store; `path` is relative to the store's directory. Symbolic links are not followed;
 * `..`, absolute paths and other file systems are refused. `flags` and `mode` as in untorn_open().
 * Creating a file is a commit of its own. untorn_txn_create() creates a file in a transaction.
 *
 * Returns a handle, or NULL: EBADF, ENOENT, EEXIST, EISDIR, EINVAL, ESTALE, EMEDIUMTYPE, EBUSY …
 */
UNTORN_MUST_USE
struct untorn_file *untorn_open_at(struct untorn_store *store,
                                   const char *path,
                                   uint32_t flags,
                                   uint32_t mode);

/** Duplicates a handle: both handles are of one file, and each is closed by itself. NULL with EBADF. */
UNTORN_MUST_USE struct untorn_file *untorn_dup(const struct untorn_file *file);

/**
 * Closes the handle. Uncommitted changes are DISCARDED when the file's last handle closes, unless
 * untorn_set_commit_on_close() asked for a commit. The last handle of a standalone file also closes the
 * private store, and leaves a plain, whole file.
 *
 * Waits for calls on this handle that run in other threads. Returns 0, or -1 with an error; the handle
 * is closed in either case.
 */
int untorn_close(struct untorn_file *file);

/**
 * Closes the handle like untorn_close(), and leaves the file plain while its store stays open.
 *
 * The file then has every commit, and other programs may change it, move it or remove it. If the store's log has
 * commits of the file, this takes a checkpoint of the store. Returns 0, or -1: EBUSY (the file has other handles or
 * maps, or is in a transaction), or an error as untorn_file_checkpoint(); the handle is closed in either case.
 */
int untorn_close_plain(struct untorn_file *file);

/**
 * Applies all committed changes of the file to its data file, and flushes that.
 *
 * Waits for commits that were started. Other programs that read the file then see its last commit. Unlike
 * untorn_store_checkpoint(), the call leaves the log and all other files as they are. So the file is still in use:
 * after a crash, recovery writes it again, over changes of other programs. Returns 0, or -1: EEXIST (another program
 * changed or replaced the file), ENOSPC, EIO, EBADF …
 */
int untorn_file_checkpoint(struct untorn_file *file);

/**
 * Sets whether closing this handle commits the file's changes (`on` not 0). With `on` 0, the default, the
 * changes stay uncommitted, and are discarded with the file's last handle. Returns 0, or -1 with EBADF,
 * also for a read-only handle.
 */
int untorn_set_commit_on_close(struct untorn_file *file, int on);

/**
 * Reads up to `len` bytes at `offset`, uncommitted changes included. Returns the number of bytes read:
 * fewer than `len` only at the end of the file, 0 behind the end. -1: EBADF, EFAULT, EINVAL, EIO …
 */
ssize_t untorn_pread(const struct untorn_file *file, void *buf, size_t len, uint64_t offset);

/**
 * Writes `len` bytes at `offset`, all or none. The file grows as needed, with zeros between its old end
 * and `offset`. All handles of the file show the change at once; the disk has it after a commit. Returns
 * `len`, or -1: EBADF, EFAULT, EINVAL, EFBIG, ENOSPC …
 */
ssize_t untorn_pwrite(struct untorn_file *file, const void *buf, size_t len, uint64_t offset);

/**
 * Writes like untorn_pwrite(), but changes only the bytes that differ from the present ones. They are compared in
 * units of 64 bytes, and a commit logs no more than those that differ: for programs that write whole pages of which
 * little has changed. Returns 1 if any byte differed, 0 if none did, or -1 with an error as untorn_pwrite().
 */
int untorn_pwrite_changed(struct untorn_file *file,
                          const void *buf,
                          size_t len,
                          uint64_t offset);

/**
 * Writes `len` bytes at the end of the file, all or none. Appends of several threads do not overlap.
 * Returns the offset of the first byte written, or -1 with an error as untorn_pwrite().
 */
int64_t untorn_append(struct untorn_file *file, const void *buf, size_t len);

/**
 * Sets the file's size, in bytes, as an uncommitted change. A smaller size cuts the end off, a larger one
 * adds zeros. Returns 0, or -1: EBADF, EINVAL …
 */
int untorn_ftruncate(struct untorn_file *file, uint64_t size);

/**
 * Writes `len` zeros at `offset`, without a buffer; the file grows as needed. Returns 0, or -1: EBADF,
 * EINVAL, EFBIG …
 */
int untorn_zero(struct untorn_file *file, uint64_t offset, uint64_t len);

/** Returns the file's size in bytes, uncommitted changes included, or -1 with an error. */
int64_t untorn_size(const struct untorn_file *file);

/** Returns whether the file has uncommitted changes, stores to its map included. 1: it has; 0: it has none; -1: EBADF. */
int untorn_has_changes(const struct untorn_file *file);

/**
 * Tells device and inode of the data file. A program recognises the file by them: for locks of its own, or to see that
 * the name has another file now. Returns 1, or 0: the commit that creates the file is on its way; or -1: EBADF, EFAULT.
 */
int untorn_identity(const struct untorn_file *file,
                    uint64_t *device,
                    uint64_t *inode);

/**
 * Tells whether an open file has every commit of its store, if it belongs to one, so that any program may read it.
 * Returns 1; or 0: its store must be opened or recovered first; or -1 with an error, such as EBADF. Looks at one
 * attribute of the file.
 */
int untorn_is_plain(int fd);

/**
 * Returns the file's path, relative to its store's directory, to be freed with untorn_free(). NULL: EBADF,
 * ENOMEM.
 */
UNTORN_MUST_USE char *untorn_path(const struct untorn_file *file);

/**
 * Another handle of the store that a file belongs to; for a standalone file, of its private store. Close
 * the handle with untorn_store_release(), or the store with untorn_store_close(). NULL with EBADF.
 */
UNTORN_MUST_USE struct untorn_store *untorn_store_of(const struct untorn_file *file);

/**
 * Commits all uncommitted changes of the file, made through any handle, as one. After the call has
 * returned 0 the changes survive the failures of the store's failure class: UNTORN_CLASS_POWER kernel
 * crashes and power cuts, UNTORN_CLASS_PROCESS the end of the process. A crash before or during the call
 * leaves all of the changes or none.
 *
 * Returns 0, or -1: ENOSPC (nothing committed, try again), EIO (untorn_last_error() tells "not
 * committed" from "unknown until reopened"), EBUSY (the file is in a transaction), EBADF …
 */
UNTORN_MUST_USE int untorn_commit(struct untorn_file *file);

/**
 * Starts a commit like untorn_commit(). The changes made before the call belong to the commit, later changes do not.
 * The ticket reports when the commit is durable. Commits become durable in the order in which they were started.
 * NULL with an error.
 */
UNTORN_MUST_USE
struct untorn_ticket *untorn_commit_async(struct untorn_file *file);

/**
 * Discards all uncommitted changes of the file, made through any handle: the file is as of its last
 * commit. Returns 0, or -1: EBUSY (the file is in a transaction), EBADF …
 */
int untorn_rollback(struct untorn_file *file);

/**
 * Waits until the commit is durable (in the store's failure class) or has failed. May be called
 * several times, and from several threads. Returns 0, or -1 with an error as untorn_commit().
 */
UNTORN_MUST_USE int untorn_ticket_wait(const struct untorn_ticket *ticket);

/**
 * Tells whether the commit is durable, without waiting. Returns 1: durable; 0: not yet; -1: the commit
 * failed, with an error as untorn_commit(), or EBADF.
 */
UNTORN_MUST_USE int untorn_ticket_poll(const struct untorn_ticket *ticket);

/**
 * Waits until the commit survives the failures of a class, or has failed. UNTORN_CLASS_REMOTE: until the slot of
 * untorn_options.remote_slot has acknowledged it, for as long as that takes, unless UNTORN_REMOTE_DEGRADE ends the wait.
 * Closing the store ends it with an error. Returns 0, or -1 with an error as untorn_commit(), or EINVAL: the store's
 * commits do not reach the class.
 */
UNTORN_MUST_USE
int untorn_ticket_wait_for(const struct untorn_ticket *ticket,
                           uint32_t failure_class);

/**
 * Tells whether the commit survives the failures of a class, without waiting. Returns 1: it does; 0: not yet; -1: an
 * error as untorn_ticket_wait_for().
 */
UNTORN_MUST_USE
int untorn_ticket_poll_for(const struct untorn_ticket *ticket,
                           uint32_t failure_class);

/**
 * Returns the commit's LSN, its place in the store's log. untorn_reader_wait_for() and untorn_follow_open_from() of other
 * processes take it; that of a commit without changes is the LSN of the last record before. A commit of
 * unknown outcome (UNTORN_E_SYNC_UNKNOWN) has happened if, right after the store was opened again, untorn_status.lsn is
 * not less. -1: the commit is not durable yet, or did not happen (EAGAIN; untorn_ticket_poll() tells which), or EBADF.
 */
int64_t untorn_ticket_lsn(const struct untorn_ticket *ticket);

/**
 * Frees the ticket; the commit goes on. Threads that wait on the ticket are not disturbed. Returns 0,
 * or -1 with EBADF.
 */
int untorn_ticket_free(struct untorn_ticket *ticket);

/** Makes a gate. Each of its outputs holds up to bytes_max bytes; 0: 1 MiB. NULL with an error. */
struct untorn_gate *untorn_gate_open(size_t bytes_max);

/**
 * Puts a descriptor behind the gate: a socket, a pipe, a terminal or a file. The gate works with a copy of the
 * descriptor; nothing else may write to the same socket, pipe, terminal or file. Bytes leave in the order in which
 * they were written. A pipe whose reader has left sends SIGPIPE, as usual. NULL with an error.
 */
struct untorn_output *untorn_gate_output(struct untorn_gate *gate,
                                         int fd);

/**
 * Like untorn_gate_output(); bytes leave when their commits survive the failures of a class, such as
 * UNTORN_CLASS_REMOTE. Outputs of other classes do not wait for it. NULL with an error.
 */
struct untorn_output *untorn_gate_output_when(struct untorn_gate *gate, int fd, uint32_t failure_class);

/**
 * Hands over n bytes, which are copied. They leave when the ticket's commit is durable. If the ticket is NULL, they
 * leave as soon as everything that was written to the gate before them may leave. The call waits while the output is
 * full. The ticket can be freed at once. Returns 0, or -1 with the error of the commit that failed (then nothing
 * that the gate holds ever leaves), or with the error of the descriptor.
 */
UNTORN_MUST_USE
int untorn_output_write(struct untorn_output *output,
                        const void *buf,
                        size_t n,
                        const struct untorn_ticket *ticket);

/** Closes an output; the copy of its descriptor is closed when everything has left. Returns 0, or -1 with EBADF. */
int untorn_output_close(struct untorn_output *output);

/**
 * Waits until everything that was written to the gate has left. Returns 0, or -1 with the error of the commit that
 * failed.
 */
UNTORN_MUST_USE
int untorn_gate_drain(struct untorn_gate *gate);

/**
 * Frees the gate. Bytes that it still holds are discarded; untorn_gate_drain() waits until they have left. Returns
 * 0, or -1 with EBADF.
 */
int untorn_gate_free(struct untorn_gate *gate);

/** Begins a transaction in a store. NULL with EBADF. */
UNTORN_MUST_USE struct untorn_txn *untorn_txn_begin(struct untorn_store *store);

/**
 * Adds a file of the same store. All uncommitted changes of the file, made before and after this call,
 * belong to the transaction until the transaction ends. Returns 0, or -1: EBUSY (the file is in another
 * transaction), EINVAL (the file belongs to another store), EBADF.
 */
int untorn_txn_add(struct untorn_txn *txn, struct untorn_file *file);

/**
 * Creates a file as a part of the transaction; the file's name appears at commit. `mode`: permissions, less
 * the umask. The returned handle writes to the file, and stays open after the commit. NULL: EEXIST,
 * EINVAL, EBADF …
 */
UNTORN_MUST_USE
struct untorn_file *untorn_txn_create(struct untorn_txn *txn,
                                      const char *path,
                                      uint32_t mode);

/** Renames a file at commit; an existing file of the new name is replaced. Returns 0, or -1 with an error. */
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
 * Commits all changes of the transaction as one, durable as by untorn_commit(). Returns 0, or -1 with an error like
 * untorn_commit(); also EEXIST, ENOENT, ENOTEMPTY … if a name is missing, taken or in use, and then nothing is
 * committed. The handle is closed in either case. A failure aborts the transaction, unless the outcome is unknown
 * (UNTORN_E_SYNC_UNKNOWN).
 */
UNTORN_MUST_USE
int untorn_txn_commit(struct untorn_txn *txn);

/**
 * Starts the commit of a transaction; the ticket is like that of untorn_commit_async(). NULL with an error. The
 * handle is closed in either case.
 */
UNTORN_MUST_USE
struct untorn_ticket *untorn_txn_commit_async(struct untorn_txn *txn);

/**
 * Aborts the transaction: uncommitted changes of its files are discarded, and all names stay as they were.
 * Returns 0, or -1 with an error; the handle is closed in either case.
 */
int untorn_txn_abort(struct untorn_txn *txn);

/**
 * Commits the uncommitted changes of `n` files of one store as one: after a crash either all changes are
 * there or none. Otherwise as untorn_commit(). Returns 0, or -1: EINVAL if `n` is 0 or the files belong
 * to several stores, EFAULT if `files` is NULL, EBADF if any handle is bad, EBUSY …
 */
UNTORN_MUST_USE int untorn_syncv(struct untorn_file *const *files, size_t n);

/**
 * Starts a commit of several files; the ticket is like that of untorn_commit_async(). NULL with an error like
 * untorn_syncv().
 */
UNTORN_MUST_USE struct untorn_ticket *untorn_syncv_async(struct untorn_file *const *files, size_t n);

/**
 * Begins a transaction over files on an Untorn mount. The first file is that of `fd`, which is open for writing.
 * Only ordinary files of `untorn mount` can take part. All uncommitted changes of the transaction's files belong to
 * the transaction, those from before and later ones, by any program. Only the transaction commits them: `fsync` of
 * one of the files fails with EBUSY until the transaction ends. Names and modes are not part of it. The end of the
 * process aborts it. NULL: EINVAL (the file is not on such a mount), EBUSY (the file is in a transaction), EBADF
 * (not open for writing).
 */
UNTORN_MUST_USE
struct untorn_mount_txn *untorn_mount_txn_begin(int fd);

/** Adds a file of the same mount, open for writing. Returns 0, or -1 with an error like untorn_mount_txn_begin(). */
int untorn_mount_txn_add(struct untorn_mount_txn *txn,
                         int fd);

/**
 * Commits the transaction: after any crash all of it is there, or nothing. Returns 0, or -1: ENOSPC (there is no
 * room now: the transaction continues, and the handle stays valid; make room and commit again, without writing to
 * the files in between, or abort), EIO (an earlier write to one of the files had failed: nothing is committed, the
 * transaction is aborted), EBADF. After 0, and after any error other than ENOSPC, the handle is closed.
 */
UNTORN_MUST_USE
int untorn_mount_txn_commit(struct untorn_mount_txn *txn);

/**
 * Commits like untorn_mount_txn_commit(), and continues with the same files; no other transaction can take the files
 * in between. The handle stays valid, also after an error. Returns 0, or -1: ENOSPC (the commit may already have its
 * place in the mount's log, and is made when there is room), EIO, EBADF.
 */
UNTORN_MUST_USE
int untorn_mount_txn_commit_and_chain(struct untorn_mount_txn *txn);

/**
 * Discards the uncommitted changes of the files, like untorn_mount_txn_abort(), and continues with the same files.
 * The handle stays valid. Returns 1 if changes were discarded, 0 if there were none, or -1 with an error.
 */
int untorn_mount_txn_abort_and_chain(struct untorn_mount_txn *txn);

/**
 * Aborts the transaction: its files are as of their last commits, for every program. Returns 0, or -1 with an error:
 * EINVAL if a commit of the transaction found no room and still waits for it; that commit is not taken back. The
 * handle is closed in either case.
 */
int untorn_mount_txn_abort(struct untorn_mount_txn *txn);

/**
 * Commits `n` ordinary files of one Untorn mount as one, all or none; each descriptor is open for writing. Returns
 * 0, or -1: EINVAL (`n` is 0, or a file is not on such a mount), EFAULT if `fds` is NULL, otherwise like
 * untorn_mount_txn_begin() and untorn_mount_txn_commit(). After an error the changes stay uncommitted.
 */
UNTORN_MUST_USE
int untorn_mount_syncv(const int *fds,
                       size_t n);

/**
 * Opens the store in the directory `path`, or the standalone file `path`, for reading only. Creates nothing, and
 * makes no other process wait: another process may own the store, before and afterwards.
 *
 * Returns a handle, or NULL: ENOENT if there is no store, EPERM or EACCES if another user owns it, EBUSY if its
 * owner publishes nothing for readers, for example while it is opening the store, EOPNOTSUPP if its owner works in
 * UNTORN_CLASS_PROCESS, EUCLEAN, EMEDIUMTYPE, EPROTONOSUPPORT …; see untorn_error.
 */
UNTORN_MUST_USE
struct untorn_reader *untorn_reader_open(const char *path);

/**
 * Closes the handle. Snapshots that were taken through it, their files, and untorn_follow handles stay open. Returns
 * 0, or -1 with EBADF.
 */
int untorn_reader_close(struct untorn_reader *reader);

/**
 * Waits until the commit with the number `lsn`, or a later one, is durable, at most `timeout_ms` milliseconds; -1:
 * without a limit. The owner finds the number in untorn_status.lsn. Returns 1: it is durable, and snapshots that are
 * taken from now on have it; 0: not yet; -1: EBADF (also when another thread closes the handle), or an error like
 * untorn_reader_open().
 */
UNTORN_MUST_USE
int untorn_reader_wait_for(const struct untorn_reader *reader,
                           uint64_t lsn,
                           int timeout_ms);

/**
 * Returns the whole contents of the file `path` as of the last durable commit.
 *
 * `path` is relative to the store's directory. A NUL follows the contents, which are to be freed with untorn_free().
 * Stores the length, without the NUL, in `*len`; `len` may be NULL. NULL: ENOENT, EISDIR, EINVAL, ENOMEM, ESTALE,
 * EBADF …
 */
UNTORN_MUST_USE
char *untorn_reader_read(const struct untorn_reader *reader,
                         const char *path,
                         size_t *len);

/**
 * Takes a snapshot of all files as of the last durable commit. The commit is never older than one that was seen
 * through this reader before. Returns a handle, or NULL with an error like untorn_reader_open().
 */
UNTORN_MUST_USE
struct untorn_snapshot *untorn_snapshot_take(const struct untorn_reader *reader);

/**
 * Moves the snapshot to the last durable commit. Files that are open stay as they are. Returns 0, or -1 with an
 * error like untorn_reader_open(): the snapshot is then as before.
 */
UNTORN_MUST_USE
int untorn_snapshot_refresh(struct untorn_snapshot *snapshot);

/** Closes the snapshot; its files stay open. Returns 0, or -1 with EBADF. */
int untorn_snapshot_close(struct untorn_snapshot *snapshot);

/** Returns the number of the commit that the snapshot shows, or -1 with EBADF. */
int64_t untorn_snapshot_lsn(const struct untorn_snapshot *snapshot);

/**
 * Checks whether the snapshot is still held. Returns 0: everything that was read so far is of its commit, and more
 * can be read; or -1 with ESTALE or EBADF.
 */
UNTORN_MUST_USE
int untorn_snapshot_check(const struct untorn_snapshot *snapshot);

/**
 * Returns the names in the directory `path`, sorted, as an array that ends in NULL.
 *
 * The array and its names are freed with one call of untorn_free(). "" is the store's directory; the snapshot of a
 * standalone file has only the file's name there. Untorn's own directories are left out. NULL: ESTALE, ENOENT,
 * ENOTDIR, EINVAL, EBADF …
 */
UNTORN_MUST_USE
char **untorn_snapshot_list(const struct untorn_snapshot *snapshot,
                            const char *path);

/**
 * Describes the file or directory `path`; "" is the store's directory. Fills `metadata`, whose member `size` the
 * caller has set. Returns 0, or -1: ESTALE, ENOENT, EINVAL, EFAULT, EBADF …
 */
UNTORN_MUST_USE
int untorn_snapshot_metadata(const struct untorn_snapshot *snapshot,
                             const char *path,
                             struct untorn_metadata *metadata);

/**
 * Opens the file `path` of the snapshot, relative to the store's directory. A standalone file is opened by its own
 * name. Returns a handle, or NULL: ESTALE, ENOENT, EISDIR, EINVAL, EBADF …
 */
UNTORN_MUST_USE
struct untorn_snapshot_file *untorn_snapshot_open(const struct untorn_snapshot *snapshot,
                                                  const char *path);

/**
 * Reads up to `len` bytes at `offset`. Returns the number of bytes read, fewer than `len` only at the end of the
 * file, or -1: ESTALE (the buffer may then hold anything), EBADF, EFAULT, EINVAL, EIO …
 */
UNTORN_MUST_USE
ssize_t untorn_snapshot_pread(const struct untorn_snapshot_file *file,
                              void *buf,
                              size_t len,
                              uint64_t offset);

/**
 * Copies the whole file to the descriptor `fd`, which is open for reading and writing and of an empty regular file.
 * Blocks are shared where the file system supports that; zeros become holes. Nothing is flushed, and the descriptor's
 * own offset is not used. Returns the number of bytes, or -1: ESTALE, ENOSPC, EBADF, EIO … After an error the
 * descriptor's file may hold anything.
 */
int64_t untorn_snapshot_copy(const struct untorn_snapshot_file *file,
                             int fd);

/** Returns the file's size in bytes, or -1: ESTALE, EBADF … */
int64_t untorn_snapshot_size(const struct untorn_snapshot_file *file);

/** Closes the file. Returns 0, or -1 with EBADF. */
int untorn_snapshot_file_close(struct untorn_snapshot_file *file);

/** Follows the commits after the last durable one. Returns a handle, or NULL with an error as untorn_reader_open(). */
UNTORN_MUST_USE
struct untorn_follow *untorn_follow_open(const struct untorn_reader *reader);

/**
 * Follows the commits after the commit `lsn`. If the journal no longer has all of them, the first one that is returned
 * is a range of missed commits. Returns a handle, or NULL: EEXIST (UNTORN_E_CONFLICT) if the store has no commit `lsn`
 * yet, or an error as untorn_reader_open().
 */
UNTORN_MUST_USE
struct untorn_follow *untorn_follow_open_from(const struct untorn_reader *reader,
                                              uint64_t lsn);

/**
 * Returns the number of the commit that untorn_follow_next() returned last; at first, of the commit after which
 * following began. untorn_follow_open_from() goes on after it, also later and in another process. -1: EBADF.
 */
int64_t untorn_follow_lsn(const struct untorn_follow *follow);

/**
 * Waits for the next commit, at most `timeout_ms` milliseconds; -1: without a limit. Returns 1, with the commit in
 * `*followed`, to be freed with untorn_free(), which also frees everything that the commit points to; 0: there was
 * no commit in this time; -1: EFAULT, EBADF (also when another thread closes the handle), or an error like
 * untorn_reader_open(). A failed call can be repeated, and no commit is lost by the failure.
 */
UNTORN_MUST_USE
int untorn_follow_next(struct untorn_follow *follow,
                       int timeout_ms,
                       struct untorn_followed **followed);

/**
 * Reads up to `len` bytes that a commit wrote, from the offset `offset` in the file on, regardless of later commits.
 * `lsn` is the number of the commit, which must be the last one that untorn_follow_next() returned for this handle.
 * `change` is the index of one of its changes, UNTORN_CHANGE_WRITTEN or UNTORN_CHANGE_ZEROED. untorn_free() of the
 * commit does not affect this call.
 *
 * Returns the number of bytes read, fewer than `len` only at the end of the change, or -1: EINVAL (another commit
 * was returned last, there is no such change, it wrote no bytes, or the offset is outside of it), EBADF, EFAULT,
 * EUCLEAN (the bytes of a large commit differ from those that were committed), EIO … The bytes are kept until the
 * next commit is returned or the handle is closed: in memory, or, for a large commit, in a file of the journal.
 */
UNTORN_MUST_USE
ssize_t untorn_follow_pread(const struct untorn_follow *follow,
                            uint64_t lsn,
                            size_t change,
                            void *buf,
                            size_t len,
                            uint64_t offset);

/** Ends following. A call that waits in another thread ends with EBADF. Returns 0, or -1 with EBADF. */
int untorn_follow_close(struct untorn_follow *follow);

/**
 * Sets all members to their defaults. `size` is sizeof(untorn_map_options). Returns 0, or -1 with EFAULT
 * or EINVAL.
 */
int untorn_map_options_init(struct untorn_map_options *options, size_t size);

/**
 * Maps an open file. The program loads from and stores to the memory at untorn_map_address(). No store
 * reaches the file before a commit, and a commit is always of the whole file, all or nothing. The map stays
 * open when the file's handle is closed. No thread should store while a commit runs: such a store belongs
 * to that commit or to the next one.
 *
 * `options` NULL: a map of the whole file, which grows with the file. Close the map with
 * untorn_map_close(). NULL: ENOMEM (memory or address space; the message names the limit), EINVAL (the
 * range is behind the end of the file, or the file is mapped in another way), EFBIG, EOPNOTSUPP (the
 * tracker does not work on this system), EBADF …
 */
UNTORN_MUST_USE
struct untorn_map *untorn_map_open(struct untorn_file *file,
                                   const struct untorn_map_options *options);

/**
 * Returns the address of the map, which does not change until untorn_map_close(). NULL with EBADF. An
 * access behind untorn_map_len() bytes, rounded up to whole pages, is SIGSEGV.
 */
void *untorn_map_address(const struct untorn_map *map);

/**
 * Returns the number of bytes of the map that can be accessed now: its length, but not more than up to the
 * end of the file. -1 with EBADF.
 */
int64_t untorn_map_len(const struct untorn_map *map);

/**
 * Returns how stores are found: UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT. -1 with
 * EBADF.
 */
int untorn_map_tracker(const struct untorn_map *map);

/**
 * Commits all uncommitted changes of the file, stores and writes alike, durable as by untorn_commit().
 * Returns 0, or -1 with an error as untorn_commit(); also EEXIST (another program changed or truncated the
 * file), EBUSY with UNTORN_E_RACING_STORE (see UNTORN_MAP_DEBUG_RACES).
 */
UNTORN_MUST_USE int untorn_map_msync(struct untorn_map *map);

/**
 * Starts a commit like untorn_map_msync(). All stores made before the call belong to the commit. The ticket reports
 * when the commit is durable. NULL with an error.
 */
UNTORN_MUST_USE
struct untorn_ticket *untorn_map_msync_async(struct untorn_map *map);

/**
 * Discards all uncommitted changes of the file, also in memory: the file is as of its last commit.
 * Returns 0, or -1: EBUSY (the file is in a transaction), EBADF …
 */
int untorn_map_rollback(struct untorn_map *map);

/**
 * Sets the file's size, in bytes, like untorn_ftruncate(). The map keeps its address. If the file shrinks, memory
 * behind its new end can no longer be accessed; if it grows, the new bytes are zeros. Returns 0, or -1: ENOMEM
 * (beyond the reserved address space), EINVAL, EBADF …
 */
int untorn_map_resize(struct untorn_map *map,
                      uint64_t size);

/**
 * Marks `len` bytes at `address` in the map as changed: they are in the next commit. With UNTORN_TRACKER_EXPLICIT a
 * commit has exactly the bytes that were marked since the last commit, and a rollback undoes exactly these. The other
 * trackers find stores by themselves, except those of a device that writes to memory, as with registered io_uring
 * buffers, and with O_DIRECT reads that run during a commit. The call may come before or after the store, from any
 * thread; both must be on the same side of a commit: if another thread may commit between them, make the call after
 * the store. Returns 0, or -1: EINVAL (not inside the map, nothing was marked), EBADF.
 */
int untorn_map_mark_dirty(struct untorn_map *map,
                          const void *address,
                          size_t len);

/**
 * Reclaims memory: applies all committed changes to the data file, then drops every page that the data
 * file also holds. NO THREAD may store to the file's maps during this call: a store could be lost.
 * Returns 0, or -1 with an error as untorn_store_checkpoint().
 */
int untorn_map_reclaim(struct untorn_map *map);

/**
 * Closes the map. When the file's last map is closed, the memory can no longer be accessed. Uncommitted
 * stores stay uncommitted changes of the file; they are DISCARDED if the map was the file's last handle.
 * Waits for calls on this map that run in other threads. Returns 0, or -1 with an error; the handle is
 * closed in either case.
 */
int untorn_map_close(struct untorn_map *map);

/**
 * Opens a heap in a standalone file, with a private store beside it. With UNTORN_CREATE in the flags of `options`, a
 * missing heap is created; otherwise it is ENOENT. `options` and `store_options` may be NULL. A heap is always at the
 * same address: EINVAL if that address is in use, if this heap or a copy of the heap is already open in this process,
 * or if `address` or `address_space` conflicts with the heap's own. NULL with an error, also like untorn_open();
 * EMEDIUMTYPE: not a heap.
 */
UNTORN_MUST_USE
struct untorn_heap *untorn_heap_open(const char *path,
                                     const struct untorn_heap_options *options,
                                     const struct untorn_options *store_options);

/**
 * Opens a heap by its name in a store. The heap and other files of the store can be committed together.
 * Otherwise as untorn_heap_open().
 */
UNTORN_MUST_USE
struct untorn_heap *untorn_heap_open_at(struct untorn_store *store,
                                        const char *name,
                                        const struct untorn_heap_options *options);

/**
 * Closes the heap. Uncommitted changes are DISCARDED (a live heap makes its last cut instead, and its working memory is
 * removed), and pointers into the heap become invalid. Returns 0, or -1 with an error; the handle is closed in either case.
 */
int untorn_heap_close(struct untorn_heap *heap);

/**
 * Returns how a live heap began: UNTORN_LIVE_NEW, UNTORN_LIVE_WENT_ON or UNTORN_LIVE_LAST_CUT; 0: the heap was not
 * opened with UNTORN_HEAP_LIVE. -1 with EBADF.
 */
int untorn_heap_live_start(const struct untorn_heap *heap);

/**
 * Returns the class of a live heap's working memory: UNTORN_CLASS_MEMORY or UNTORN_CLASS_PROCESS; 0: the heap was not
 * opened with UNTORN_HEAP_LIVE. -1 with EBADF.
 */
int untorn_heap_live_class(const struct untorn_heap *heap);

/**
 * Makes bytes of a live heap durable that were stored outside of sections. Needed if its memory is of
 * UNTORN_CLASS_MEMORY and its lines need flushes; does nothing otherwise. Bytes that were stored between
 * untorn_heap_begin() and untorn_heap_end() need no call. Returns 0, or -1: EINVAL (the bytes are not in the heap), EBADF.
 */
int untorn_heap_flush(struct untorn_heap *heap,
                      const void *address,
                      size_t len);

/**
 * Holds off commits until untorn_heap_release_cuts() in the same thread: for changes in steps each of which leaves
 * the heap consistent, such as those of lock-free structures. If the process of a live heap ends in between, nothing
 * is lost; after untorn_heap_begin(), by contrast, the heap goes back to its last cut. Calls may be nested. Returns
 * 0, or -1 with EBADF.
 */
int untorn_heap_hold_cuts(struct untorn_heap *heap);

/** Ends the hold that untorn_heap_hold_cuts() began. Returns 0, or -1: EINVAL (this thread has begun none), EBADF. */
int untorn_heap_release_cuts(struct untorn_heap *heap);

/**
 * Returns the heap's address, which is the same after every restart. NULL with EBADF. Objects in a heap
 * may keep this address, to allocate by untorn_heap_allocate_at().
 */
void *untorn_heap_base(const struct untorn_heap *heap);

/**
 * Marks `len` bytes at `address` in the heap as changed. The call may come before or after the store. With
 * UNTORN_TRACKER_EXPLICIT a commit has the bytes that were marked since the last commit, and the heap's own changes.
 * With any other tracker the heap finds stores by itself, and the call does nothing. Where several threads use the
 * heap, make the store and the call between untorn_heap_begin() and untorn_heap_end(). untorn_heap_calloc(),
 * untorn_heap_realloc() and the functions for roots mark their own changes; a block of untorn_heap_allocate_at() is
 * marked as a whole. Returns 0, or -1: EINVAL (not inside the heap, nothing was marked), EBADF.
 */
int untorn_heap_mark_dirty(struct untorn_heap *heap,
                           const void *address,
                           size_t len);

/**
 * Begins changes that belong together: no commit takes place before the same thread calls
 * untorn_heap_end(). Calls may be nested. Needed only where several threads use a heap. Returns 0, or -1
 * with EBADF.
 */
int untorn_heap_begin(struct untorn_heap *heap);

/**
 * Ends the changes that untorn_heap_begin() began. Returns 0, or -1: EINVAL (this thread has begun none),
 * EBADF.
 */
int untorn_heap_end(struct untorn_heap *heap);

/**
 * Commits all changes of the heap, durable as by untorn_commit(). Waits until no thread is between
 * untorn_heap_begin() and untorn_heap_end(). Returns 0, or -1 with an error as untorn_commit(); EINVAL if
 * the calling thread is between these calls.
 */
UNTORN_MUST_USE int untorn_heap_commit(struct untorn_heap *heap);

/** Commits the heap and ordinary files of the same store as one. Returns 0, or -1 with an error like untorn_syncv(). */
UNTORN_MUST_USE
int untorn_heap_syncv(struct untorn_heap *heap,
                      struct untorn_file *const *files,
                      size_t n);

/**
 * Starts a commit of the heap. All changes made before the call belong to the commit. The ticket reports when the
 * commit is durable. Of a live heap, a commit is a cut: the state to which the heap goes back after a power cut. NULL
 * with an error like untorn_heap_commit().
 */
UNTORN_MUST_USE
struct untorn_ticket *untorn_heap_commit_async(struct untorn_heap *heap);

/**
 * Discards all changes since the last commit. Pointers to memory that was allocated since then become
 * invalid. Returns 0, or -1 with an error as untorn_heap_commit().
 */
int untorn_heap_rollback(struct untorn_heap *heap);

/**
 * Fills `stats`, whose member `size` the caller has set. Reads the metadata of the whole heap. Returns 0,
 * or -1: EINVAL (also if this thread is between untorn_heap_begin() and untorn_heap_end()), EFAULT,
 * EUCLEAN, EBADF.
 */
int untorn_heap_get_stats(const struct untorn_heap *heap, struct untorn_heap_stats *stats);

/**
 * Allocates memory in the heap, uninitialised, aligned to 16 bytes. A committed allocation stays allocated
 * after a restart: make the memory reachable from a root. NULL: ENOMEM, ENOSPC, EBADF …
 */
UNTORN_MUST_USE void *untorn_heap_malloc(struct untorn_heap *heap, size_t bytes);

/**
 * Allocates aligned memory in the heap; `align` is a power of two up to 4096. Otherwise as
 * untorn_heap_malloc().
 */
UNTORN_MUST_USE void *untorn_heap_aligned_alloc(struct untorn_heap *heap, size_t align, size_t bytes);

/** Allocates memory for `n` elements of `bytes` bytes each, filled with zeros. NULL as untorn_heap_malloc(). */
UNTORN_MUST_USE void *untorn_heap_calloc(struct untorn_heap *heap, size_t n, size_t bytes);

/**
 * Changes the size of an allocation, which may move: the contents are copied, as far as they fit, and the
 * old memory is freed. `address` NULL: as untorn_heap_malloc(). NULL with an error: the old allocation is
 * unchanged.
 */
UNTORN_MUST_USE void *untorn_heap_realloc(struct untorn_heap *heap, void *address, size_t bytes);

/**
 * Frees an allocation of the heap; NULL does nothing. Returns 0, or -1: EINVAL (not an allocation of this
 * heap, or already freed: nothing was changed), EBADF.
 */
int untorn_heap_free(struct untorn_heap *heap, void *address);

/**
 * Returns the size of an allocation, which is at least the size that was requested. 0 with EINVAL or
 * EBADF.
 */
size_t untorn_heap_malloc_usable_size(struct untorn_heap *heap, void *address);

/**
 * Allocates in the open heap whose address is `base`: for allocators that are stored in heaps. NULL as
 * untorn_heap_aligned_alloc(); EBADF: no heap is open at that address.
 */
UNTORN_MUST_USE void *untorn_heap_allocate_at(const void *base, size_t align, size_t bytes);

/** Frees an allocation in the open heap whose address is `base`. Returns 0, or -1 as untorn_heap_free(). */
int untorn_heap_free_at(const void *base, void *address);

/**
 * Finds a root by its name: `*found` is the address that the root points to, or NULL. The type's name, size,
 * alignment and version must be those that the root was set with. Otherwise the call fails with
 * UNTORN_E_LAYOUT_CHANGED, and untorn_heap_get_root_info() tells the old type. A program then migrates in
 * one commit: build the new object from the old one, set the root, commit. Returns 1: found; 0: there is no
 * such root; -1: EINVAL, EUCLEAN, EFAULT, EBADF.
 */
int untorn_heap_root(const struct untorn_heap *heap,
                     const char *name,
                     const char *type_,
                     size_t bytes,
                     size_t align,
                     uint32_t version,
                     void **found);

/**
 * Sets the root of a name (1 to 47 bytes) to an address; `address` NULL removes the root. The object that
 * the root pointed to before is not freed. Returns 0, or -1: EINVAL (address outside of the heap, too many
 * roots, no name), EBADF.
 */
int untorn_heap_set_root(struct untorn_heap *heap,
                         const char *name,
                         void *address,
                         const char *type_,
                         size_t bytes,
                         size_t align,
                         uint32_t version);

/**
 * Calls `function` with `context` while other threads that find or set roots of the heap wait, and commits wait,
 * too. So finding a root and acting on the result are one step, such as making the root if there is none. The
 * function may make any call except commits, rollbacks and closing the heap. It must return, and must not wait for a
 * thread that may use the heap's roots. Returns the result of the function, or -1: EFAULT (no function), EBADF.
 */
int untorn_heap_with_roots(struct untorn_heap *heap,
                           int (*function)(void *context),
                           void *context);

/**
 * Describes a root of any type, for programs whose layout has changed. The caller has set the member `size`
 * of `info`. Returns 1: `info` is filled; 0: there is no such root; -1: EINVAL, EUCLEAN (the root points
 * out of the heap), EFAULT, EBADF.
 */
int untorn_heap_get_root_info(const struct untorn_heap *heap,
                              const char *name,
                              struct untorn_heap_root_info *info);

/**
 * Describes the root number `n`. To list all roots, call with 0, 1, 2 … while no root is set
 * (untorn_heap_with_roots()). The order is unspecified. Returns 1: `info` is filled; 0: `n` is not less than the
 * number of roots; -1: EINVAL, EFAULT, EBADF.
 */
int untorn_heap_nth_root_info(const struct untorn_heap *heap,
                              size_t n,
                              struct untorn_heap_root_info *info);

/**
 * Checks an open heap: every chunk, block and root, and all memory that the roots reach, uncommitted changes
 * included. No thread may change the heap during the call. If `report` is not NULL, `*report` is a description in
 * JSON, with damage (`problems`) and allocations that no root reaches (`leaks`); free it with untorn_free(). Returns
 * 1: sound; 0: damaged; -1: EINVAL (this thread is between untorn_heap_begin() and untorn_heap_end()), EBADF, EIO.
 */
int untorn_heap_check(struct untorn_heap *heap,
                      char **report);

/**
 * Checks a heap that no program has open, in the state that recovery would give it, without changing a byte. `flags`
 * is 0 or UNTORN_CHECK_POINTERS. Otherwise like untorn_heap_check(), with the members `pointers` of the report.
 * Returns 1: sound; 0: damaged; -1: EBUSY, EMEDIUMTYPE (not a heap), ENOENT, EINVAL, EIO.
 */
int untorn_heap_check_file(const char *path,
                           uint32_t flags,
                           char **report);

/**
 * Describes a heap that no program has open, in JSON: sizes, blocks, roots with their types. Reads only the
 * heap's metadata, and changes nothing. Free the result with untorn_free(). NULL with an error as
 * untorn_heap_check_file().
 */
UNTORN_MUST_USE char *untorn_heap_dump_file(const char *path);

/**
 * Makes an unlocked mutex for a heap. Needed only if several live heaps are open: without this call a mutex of zeros
 * belongs to the heap that it lies in, or to the only live heap. Returns 0, or -1: EINVAL (the heap is not live),
 * EBADF.
 */
int untorn_mutex_init(struct untorn_mutex *mutex,
                      const struct untorn_heap *heap);

/**
 * Locks a mutex: a section begins, or the current section continues. Returns 0, or -1: EOPNOTSUPP (the program was
 * not built with untorn-cc or untorn-c++), EINVAL (no live heap is open, or several are open and the mutex belongs
 * to none of them; or this thread is in a section of another heap), EFAULT, ECHILD. After an error nothing was
 * locked.
 */
UNTORN_MUST_USE
int untorn_mutex_lock(struct untorn_mutex *mutex);

/**
 * Locks a mutex if it is not locked. Returns 1: locked; 0: another thread holds it; -1 with an error like
 * untorn_mutex_lock().
 */
UNTORN_MUST_USE int untorn_mutex_trylock(struct untorn_mutex *mutex);

/**
 * Unlocks a mutex. If it was the thread's last one, its section is complete. Otherwise the section continues. If the
 * process is killed before the section ends, the sections of threads that locked this mutex in the meantime are
 * undone together with it. Returns 0, or -1: EINVAL (no thread holds the mutex), EFAULT.
 */
int untorn_mutex_unlock(struct untorn_mutex *mutex);

/** Locks a mutex for reading, shared with other readers. Returns 0, or -1 with an error like untorn_mutex_lock(). */
UNTORN_MUST_USE
int untorn_mutex_lock_shared(struct untorn_mutex *mutex);

/**
 * Locks a mutex for reading, shared with other readers, if no thread holds it exclusively. Returns 1: locked; 0: a
 * thread holds it exclusively; -1 with an error like untorn_mutex_lock().
 */
UNTORN_MUST_USE
int untorn_mutex_trylock_shared(struct untorn_mutex *mutex);

/** Unlocks a mutex after untorn_mutex_lock_shared(). Returns 0, or -1 with an error like untorn_mutex_unlock(). */
int untorn_mutex_unlock_shared(struct untorn_mutex *mutex);

/**
 * Begins a section without a mutex, up to untorn_section_end() in the same thread; within a section it is a part of
 * that section. Returns 0, or -1 with an error like untorn_mutex_lock(); EBADF.
 */
UNTORN_MUST_USE
int untorn_section_begin(struct untorn_heap *heap);

/**
 * Ends the section that untorn_section_begin() began. Returns 0, or -1: EINVAL (this thread is in no section of the
 * heap), EBADF.
 */
int untorn_section_end(struct untorn_heap *heap);

/**
 * Takes back all stores, allocations and frees that this thread's section has made in the heap so far. The section
 * continues, and its mutexes stay locked. Returns 0, or -1: EINVAL (this thread is in no section; or the section has
 * already unlocked a mutex, so that other threads may have seen its changes; or it has changed more than its log
 * holds; in each case nothing was taken back), EBADF.
 */
UNTORN_MUST_USE
int untorn_section_abort(struct untorn_heap *heap);

/**
 * Says that this thread's section is about to store to `len` bytes at `address`. For stores that the hooks of untorn-cc do
 * not see: those of assembly, and of code that was compiled without it. Bytes outside of the heap, and calls outside of a
 * section, are ignored.
 */
void untorn_section_log(const void *address,
                        size_t len);

/**
 * Calls a function once the end of the process can no longer undo this thread's sections of a live heap. That is the
 * case when its current section ends, or later, if the section has read changes of other sections that have not
 * ended: until they end, the end of the process may undo it. Output that reports a section waits for this call. The
 * function is called at once if there is nothing to wait for; otherwise by the thread that completes the last of
 * these sections. Even then the heap goes back to its last cut if the process ends while any thread is between
 * untorn_heap_begin() and untorn_heap_end(), or in a section that has changed more than its log holds; for that, and
 * for power cuts, wait for untorn_heap_commit(). Returns 0, or -1: EINVAL (the heap is not live), EFAULT, EBADF.
 */
int untorn_on_stable(struct untorn_heap *heap,
                     void (*function)(void*),
                     void *argument);

/**
 * Only for the hooks that untorn-cc links into programs. `writer` returns the log of the calling thread, to which
 * the hooks write. `marks` is the table in which they mark stores to mappings with UNTORN_TRACKER_EXPLICIT. `version`
 * is the version of both layouts. Returns 0, or -1 with EINVAL: libuntorn has another version.
 */
int untorn_live_hooks(uint32_t version,
                      void *(*writer)(void),
                      void *marks);

/**
 * Only for the hooks that untorn-cc links into programs: untorn_mutex_lock() in the thread that has this log, so
 * that the log need not be looked up.
 */
UNTORN_MUST_USE
int untorn_live_lock(void *writer,
                     struct untorn_mutex *mutex);

/**
 * Only for the hooks that untorn-cc links into programs: untorn_mutex_lock() in the thread that has this log, if the
 * mutex begins a section that need not wait for anything. Returns 1: locked; 0: nothing was done.
 */
UNTORN_MUST_USE
int untorn_live_lock_at_once(void *writer,
                             struct untorn_mutex *mutex);

/** Only for the hooks that untorn-cc links into programs: untorn_mutex_unlock() in the thread that has this log. */
int untorn_live_unlock(void *writer,
                       struct untorn_mutex *mutex);

/**
 * Maps the file `path` as of the last durable commit. The map is a copy, made while that commit is held. Blocks are
 * shared with the file if the file system supports that and this user may write; otherwise the copy takes memory.
 * Returns a handle, or NULL: ENOENT, EISDIR, EINVAL, ENOMEM, EBADF …
 */
UNTORN_MUST_USE
struct untorn_read_map *untorn_read_map_open(const struct untorn_reader *reader,
                                             const char *path);

/**
 * Returns the address of the bytes, and stores their number in `*len`, which may be NULL. They are valid until the
 * map is refreshed or closed. NULL: EBADF.
 */
UNTORN_MUST_USE
const void *untorn_read_map_bytes(const struct untorn_read_map *map,
                                  size_t *len);

/** Returns the number of the commit that the map shows, or -1 with EBADF. */
int64_t untorn_read_map_lsn(const struct untorn_read_map *map);

/**
 * Moves the map to the last durable commit: address and length may change. No thread may use the bytes during the
 * call, nor the old bytes after it. Returns 1: a later commit; 0: it is the same commit; -1 with an error like
 * untorn_read_map_open(): the map is then as before.
 */
UNTORN_MUST_USE
int untorn_read_map_refresh(struct untorn_read_map *map);

/** Closes the map; its bytes are no longer valid. Returns 0, or -1 with EBADF. */
int untorn_read_map_close(struct untorn_read_map *map);

/**
 * Opens the heap `path` as of the last durable commit, at the heap's own address; of a live heap that is the last
 * cut. It is a copy, made while that commit is held. Returns a handle, or NULL: EINVAL (that address is in use in
 * this process, for example by the heap itself), EMEDIUMTYPE (not a heap), EUCLEAN, ENOENT, ENOMEM, EBADF …
 */
UNTORN_MUST_USE
struct untorn_read_heap *untorn_read_heap_open(const struct untorn_reader *reader,
                                               const char *path);

/**
 * Finds a root of a heap that is open for reading only, like untorn_heap_root(): `*found` is the address that the
 * root points to, or NULL, valid until the heap is refreshed or closed. Returns 1: found; 0: there is no such root;
 * -1: EINVAL (also UNTORN_E_LAYOUT_CHANGED), EUCLEAN, EFAULT, EBADF.
 */
int untorn_read_heap_root(const struct untorn_read_heap *heap,
                          const char *name,
                          const char *type_,
                          size_t bytes,
                          size_t align,
                          uint32_t version,
                          const void **found);

/** Returns the number of the commit that the heap shows, or -1 with EBADF. */
int64_t untorn_read_heap_lsn(const struct untorn_read_heap *heap);

/**
 * Moves the heap to the last durable commit, at the same address; look roots up again. No thread may use the heap
 * during the call. Returns 1: a later commit; 0: it is the same commit; -1: EEXIST (another heap has its name now),
 * or an error like untorn_read_heap_open(): the heap is then as before.
 */
UNTORN_MUST_USE
int untorn_read_heap_refresh(struct untorn_read_heap *heap);

/** Closes the heap; addresses in it are no longer valid. Returns 0, or -1 with EBADF. */
int untorn_read_heap_close(struct untorn_read_heap *heap);

#ifdef __cplusplus
}  // extern "C"
#endif /* __cplusplus */

#endif  /* UNTORN_H */
