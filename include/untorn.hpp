/*
 * Untorn for C++17: classes that own the handles of untorn.h, and exceptions. Header-only; link with
 * libuntorn.
 *
 *     auto store = untorn::store::open_or_create("accounts");
 *     auto a = store.open_or_create_file("a"), b = store.open_or_create_file("b");
 *     a.write("70 coins", 0);
 *     b.write("30 coins", 0);
 *     untorn::syncv({a, b});                       // both, or neither, also after a crash
 *
 *     untorn::map map = a.map();                   // ordinary stores to memory, then msync
 *     map.as<char>()[0] = '8';
 *     map.msync();
 *
 *     auto heap = untorn::heap::open_or_create("words");   // the standard containers in a file: untorn_heap.hpp
 *     auto &words = *heap.root_or<untorn::in_heap::map<untorn::string, long>>("words");
 *     words.emplace("one", 1);
 *     heap.commit();
 *
 * Every object owns one handle: the object can be moved but not copied, and its destructor closes the
 * handle. A destructor reports no errors, and uncommitted changes are DISCARDED with the last handle of a
 * file: call commit(), and close() where errors matter. Calls that fail throw untorn::error. untorn.h
 * describes what the calls guarantee, and the units. Calls on an object that was closed or moved from throw
 * with kind UNTORN_E_BAD_HANDLE.
 */

#ifndef UNTORN_HPP
#define UNTORN_HPP

/* Without C++17 or exceptions the compiler says this, and nothing else about this header. */
#if __cplusplus < 201703L
#error "untorn.hpp needs C++17: compile with -std=c++17 or newer. untorn.h is for older C++ and for C."
#elif !defined(__cpp_exceptions)
#error "untorn.hpp reports errors by exceptions: compile without -fno-exceptions, or use untorn.h."
#else
#define UNTORN_HAS_CPP17 1

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "untorn.h"

namespace untorn {

/** A failed call: a kind, an errno, and a message that says what happened and what to do. */
class error : public std::runtime_error {
public:
    /** Describes the last failure of this thread. */
    error() : error(errno) {}

    untorn_error kind() const noexcept { return kind_; }
    int code() const noexcept { return errno_; }

private:
    explicit error(int code) : std::runtime_error(untorn_error_message()), kind_(untorn_last_error()), errno_(code) {}

    untorn_error kind_;
    int errno_;
};

namespace detail {

template <class Number> Number check(Number result) {
    if (result < 0) throw error();
    return result;
}

template <class Handle> Handle *check(Handle *handle) {
    if (!handle) throw error();
    return handle;
}

/** Owns one handle, and closes the handle with `Close`. */
template <class Handle, int (*Close)(Handle *)> class owner {
public:
    owner(owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            discard();
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    ~owner() { discard(); }

    /** The handle, for calls of untorn.h; the object stays its owner. */
    Handle *handle() const noexcept { return handle_; }

    /** Gives up ownership: the caller closes the returned handle. */
    [[nodiscard]] Handle *release() noexcept { return std::exchange(handle_, nullptr); }

protected:
    explicit owner(Handle *handle) : handle_(check(handle)) {}

    /** For calls that close the handle. */
    void close_by(int (*close)(Handle *)) { check(close(release())); }

private:
    void discard() noexcept {
        if (handle_) Close(release());
    }

    Handle *handle_;
};

/** Frees memory that the library returned to be freed. */
struct freed {
    void operator()(void *memory) const noexcept { untorn_free(memory); }
};

/** Copies a string that the library returned, and frees it. */
inline std::string text(char *returned) {
    const std::unique_ptr<char, freed> owned(check(returned));
    return owned.get();
}

} // namespace detail

/** How to open a store, with defaults: untorn_options. */
struct options : untorn_options {
    options() : untorn_options() { size = sizeof(untorn_options); }
};

/** How to map a file, with defaults: untorn_map_options. */
struct map_options : untorn_map_options {
    map_options() : untorn_map_options() { size = sizeof(untorn_map_options); }
};

/** A commit that was started and may not be durable yet. Destroying the ticket does not cancel the commit. */
class ticket : public detail::owner<untorn_ticket, untorn_ticket_free> {
public:
    explicit ticket(untorn_ticket *handle) : owner(handle) {}

    /** Waits until the commit is durable. */
    void wait() const { detail::check(untorn_ticket_wait(handle())); }
    /** Waits until the commit survives the failures of a class, such as UNTORN_CLASS_REMOTE. */
    void wait_for(std::uint32_t failure_class) const { detail::check(untorn_ticket_wait_for(handle(), failure_class)); }
    /** Returns whether the commit survives the failures of a class, without waiting. */
    bool poll_for(std::uint32_t failure_class) const {
        return detail::check(untorn_ticket_poll_for(handle(), failure_class)) == 1;
    }
    /** Returns whether the commit is durable, without waiting. */
    bool poll() const { return detail::check(untorn_ticket_poll(handle())) == 1; }
    /** The commit's LSN, for readers in other processes. Throws until the commit is durable. */
    std::int64_t lsn() const { return detail::check(untorn_ticket_lsn(handle())); }
};

/** One descriptor behind a gate. Destroying it closes the gate's copy of the descriptor when everything has left. */
class output : public detail::owner<untorn_output, untorn_output_close> {
public:
    explicit output(untorn_output *handle) : owner(handle) {}

    /** Hands over bytes, which leave when the ticket's commit is durable. */
    void write(const void *bytes, std::size_t n, const ticket &when) {
        detail::check(untorn_output_write(handle(), bytes, n, when.handle()));
    }
    /** Hands over bytes, which leave as soon as everything that was written to the gate before them may leave. */
    void write(const void *bytes, std::size_t n) { detail::check(untorn_output_write(handle(), bytes, n, nullptr)); }
};

/** Holds back output until the commits that it reports are durable. Destroying the gate discards held output. */
class gate : public detail::owner<untorn_gate, untorn_gate_free> {
public:
    /** A gate whose outputs hold up to bytes_max bytes each. */
    explicit gate(std::size_t bytes_max = 0) : owner(untorn_gate_open(bytes_max)) {}

    /** Puts a descriptor behind the gate, which works with a copy of it. */
    output add(int fd) { return output(untorn_gate_output(handle(), fd)); }
    /** Puts a descriptor behind the gate, whose bytes leave when their commits survive the failures of a class. */
    output add(int fd, std::uint32_t failure_class) {
        return output(untorn_gate_output_when(handle(), fd, failure_class));
    }
    /** Waits until everything that was written has left. */
    void drain() { detail::check(untorn_gate_drain(handle())); }
};

/** A map of a file, or of a part of a file: untorn_map_open(). */
class map : public detail::owner<untorn_map, untorn_map_close> {
public:
    explicit map(untorn_map *handle) : owner(handle), address_(detail::check(untorn_map_address(handle))) {}

    /** The map's address: size() bytes of memory to load from and store to. */
    void *data() const noexcept { return address_; }
    /** The number of bytes that can be accessed now. */
    std::size_t size() const { return static_cast<std::size_t>(detail::check(untorn_map_len(handle()))); }
    /** The map as an array of a trivially copyable type. The caller checks bounds. */
    template <class T> T *as() const noexcept { return static_cast<T *>(address_); }
    /** How stores are found: UNTORN_TRACKER_SCAN, UNTORN_TRACKER_PAGEMAP or UNTORN_TRACKER_EXPLICIT. */
    int tracker() const { return detail::check(untorn_map_tracker(handle())); }

    /** Commits all changes of the file, durable on return. */
    void msync() { detail::check(untorn_map_msync(handle())); }
    /** Starts a commit of all stores made so far. */
    ticket msync_async() { return ticket(untorn_map_msync_async(handle())); }
    /** Discards all changes since the last commit. */
    void rollback() { detail::check(untorn_map_rollback(handle())); }
    /** Sets the file's size. The map keeps its address. */
    void resize(std::uint64_t bytes) { detail::check(untorn_map_resize(handle(), bytes)); }
    /** Marks bytes as changed: untorn_map_mark_dirty(). */
    void mark_dirty(const void *address, std::size_t len) { detail::check(untorn_map_mark_dirty(handle(), address, len)); }
    /** Marks an object as changed. */
    template <class T> void mark_dirty(const T &object) { mark_dirty(std::addressof(object), sizeof object); }
    /** Reclaims memory. No thread may store to the file's maps during the call. */
    void reclaim() { detail::check(untorn_map_reclaim(handle())); }
    /** Closes the map and reports errors. */
    void close() { close_by(untorn_map_close); }

private:
    void *address_;
};

/** A handle of a file: a standalone file with a private store beside it, or a file of a store. */
class file : public detail::owner<untorn_file, untorn_close> {
public:
    /** Takes over a handle of untorn.h. */
    explicit file(untorn_file *handle) : owner(handle) {}
    /** Opens a standalone file: untorn_open(). */
    explicit file(const std::string &path, std::uint32_t flags = 0, std::uint32_t mode = 0666,
                  const options &options = {})
        : owner(untorn_open(path.c_str(), flags, mode, &options)) {}
    /** Opens a standalone file; a missing file is created. */
    static file open_or_create(const std::string &path, std::uint32_t mode = 0666, const options &options = {}) {
        return file(path, UNTORN_CREATE, mode, options);
    }

    /** Another handle of the same file. */
    file duplicate() const { return file(untorn_dup(handle())); }

    /** Reads up to `len` bytes; fewer only at the end of the file. */
    std::size_t read(void *buf, std::size_t len, std::uint64_t offset) const {
        return static_cast<std::size_t>(detail::check(untorn_pread(handle(), buf, len, offset)));
    }
    /** Reads up to `len` bytes into a string. */
    std::string read(std::size_t len, std::uint64_t offset) const {
        std::string bytes(len, '\0');
        bytes.resize(read(bytes.data(), len, offset));
        return bytes;
    }
    /** Writes bytes, as an uncommitted change. */
    void write(const void *bytes, std::size_t len, std::uint64_t offset) {
        detail::check(untorn_pwrite(handle(), bytes, len, offset));
    }
    void write(std::string_view bytes, std::uint64_t offset) { write(bytes.data(), bytes.size(), offset); }
    /** Writes bytes at the end; returns their offset. */
    std::uint64_t append(std::string_view bytes) {
        return static_cast<std::uint64_t>(detail::check(untorn_append(handle(), bytes.data(), bytes.size())));
    }
    /** Sets the file's size. */
    void truncate(std::uint64_t bytes) { detail::check(untorn_ftruncate(handle(), bytes)); }
    /** Writes zeros. */
    void zero(std::uint64_t offset, std::uint64_t len) { detail::check(untorn_zero(handle(), offset, len)); }
    /** Size in bytes, uncommitted changes included. */
    std::uint64_t size() const { return static_cast<std::uint64_t>(detail::check(untorn_size(handle()))); }
    /** The file's path in its store. */
    std::string path() const { return detail::text(untorn_path(handle())); }

    /** Commits all changes of the file, durable on return. */
    void commit() { detail::check(untorn_commit(handle())); }
    /** Starts a commit of the changes made so far. */
    ticket commit_async() { return ticket(untorn_commit_async(handle())); }
    /** Discards all changes since the last commit. */
    void rollback() { detail::check(untorn_rollback(handle())); }
    /** Brings the data file up to its last commit, durably: untorn_file_checkpoint(). */
    void checkpoint() { detail::check(untorn_file_checkpoint(handle())); }
    /** Sets whether closing this handle commits the file's changes instead of discarding them. */
    void set_commit_on_close(bool on) { detail::check(untorn_set_commit_on_close(handle(), on)); }

    /** Maps the file. The map stays open when the file is closed. */
    untorn::map map(const map_options &options = {}) { return untorn::map(untorn_map_open(handle(), &options)); }

    /** Closes the handle and reports errors. */
    void close() { close_by(untorn_close); }
    /** Closes the handle, and leaves the file plain while its store stays open: untorn_close_plain(). */
    void close_plain() { close_by(untorn_close_plain); }
};

/** A transaction over files and names of one store, to be committed by commit(). The destructor aborts. */
class txn : public detail::owner<untorn_txn, untorn_txn_abort> {
public:
    explicit txn(untorn_txn *handle) : owner(handle) {}

    /** Adds a file: all its uncommitted changes, made before and after this call, belong to the transaction. */
    void add(file &file) { detail::check(untorn_txn_add(handle(), file.handle())); }
    /** Creates a file, whose name appears at commit. */
    file create(const std::string &path, std::uint32_t mode = 0666) {
        return file(untorn_txn_create(handle(), path.c_str(), mode));
    }
    void rename(const std::string &from, const std::string &to) {
        detail::check(untorn_txn_rename(handle(), from.c_str(), to.c_str()));
    }
    void unlink(const std::string &path) { detail::check(untorn_txn_unlink(handle(), path.c_str())); }
    void mkdir(const std::string &path, std::uint32_t mode = 0777) {
        detail::check(untorn_txn_mkdir(handle(), path.c_str(), mode));
    }
    void rmdir(const std::string &path) { detail::check(untorn_txn_rmdir(handle(), path.c_str())); }
    void chmod(const std::string &path, std::uint32_t mode) {
        detail::check(untorn_txn_chmod(handle(), path.c_str(), mode));
    }

    /** Commits all changes as one, durable on return. The object is closed in any case. */
    void commit() { close_by(untorn_txn_commit); }
    /** Starts a commit of all changes as one. The object is closed in any case. */
    ticket commit_async() { return ticket(untorn_txn_commit_async(release())); }
    /** Aborts the transaction: all its changes are discarded. */
    void abort() { close_by(untorn_txn_abort); }
};

/** A store: a directory whose files change all or nothing. The store closes with its last handle and file. */
class store : public detail::owner<untorn_store, untorn_store_release> {
public:
    /** Takes over a handle of untorn.h. */
    explicit store(untorn_store *handle) : owner(handle) {}
    /** Opens an existing store, with recovery if needed: untorn_store_open(). */
    explicit store(const std::string &path, const options &options = {})
        : owner(untorn_store_open(path.c_str(), &options)) {}
    /** Opens a directory as a store; a missing store is created, and so is its directory if the parent exists. */
    static store open_or_create(const std::string &path, options options = {}) {
        options.flags |= UNTORN_CREATE;
        return store(path, options);
    }

    /** Opens an existing file; `flags` are UNTORN_RDONLY and others, or'ed. */
    file open_file(const std::string &path, std::uint32_t flags = 0, std::uint32_t mode = 0666) {
        return file(untorn_open_at(handle(), path.c_str(), flags, mode));
    }
    /** Opens a file for reading and writing; a missing file is created. */
    file open_or_create_file(const std::string &path, std::uint32_t mode = 0666) {
        return open_file(path, UNTORN_CREATE, mode);
    }
    /** Begins a transaction. */
    txn begin() { return txn(untorn_txn_begin(handle())); }
    /** Applies all committed changes to the data files. */
    void checkpoint() { detail::check(untorn_store_checkpoint(handle())); }
    /** Waits for all commits that were started. */
    void wait() { detail::check(untorn_store_wait(handle())); }
    /** Waits until all commits so far survive the failures of a class, such as UNTORN_CLASS_REMOTE. */
    void wait_for(std::uint32_t failure_class) { detail::check(untorn_store_wait_for(handle(), failure_class)); }
    /** An eventfd that becomes readable whenever commits have results. The store owns it. */
    int notification_fd() const { return detail::check(untorn_store_notification_fd(handle())); }

    untorn_status status() const {
        untorn_status status = {};
        status.size = sizeof status;
        detail::check(untorn_store_status(handle(), &status));
        return status;
    }
    std::string status_json() const { return detail::text(untorn_store_status_json(handle())); }
    std::string path() const { return detail::text(untorn_store_path(handle())); }

    /** Closes the store and all its files, and reports errors. DISCARDS uncommitted changes. */
    void close() { close_by(untorn_store_close); }
};

/** A file of a snapshot, as of the snapshot's commit: untorn_snapshot_file. */
class snapshot_file : public detail::owner<untorn_snapshot_file, untorn_snapshot_file_close> {
public:
    explicit snapshot_file(untorn_snapshot_file *handle) : owner(handle) {}

    /** Reads up to `len` bytes; fewer only at the end of the file. */
    std::size_t read(void *buf, std::size_t len, std::uint64_t offset) const {
        return static_cast<std::size_t>(detail::check(untorn_snapshot_pread(handle(), buf, len, offset)));
    }
    /** Reads up to `len` bytes into a string. */
    std::string read(std::size_t len, std::uint64_t offset) const {
        std::string bytes(len, '\0');
        bytes.resize(read(bytes.data(), len, offset));
        return bytes;
    }
    /** Copies the file to a descriptor of an empty file, open for reading and writing: untorn_snapshot_copy(). */
    std::uint64_t copy(int fd) const {
        return static_cast<std::uint64_t>(detail::check(untorn_snapshot_copy(handle(), fd)));
    }
    /** Size in bytes. */
    std::uint64_t size() const { return static_cast<std::uint64_t>(detail::check(untorn_snapshot_size(handle()))); }
};

/**
 * The files of a store as of one commit, which are kept until the object and its files end: untorn_snapshot. A snapshot
 * that was given up for space throws error with ESTALE, and is valid again after refresh().
 */
class snapshot : public detail::owner<untorn_snapshot, untorn_snapshot_close> {
public:
    explicit snapshot(untorn_snapshot *handle) : owner(handle) {}

    /** Moves the snapshot to the last durable commit. Files that are open stay as they are. */
    void refresh() { detail::check(untorn_snapshot_refresh(handle())); }
    /** The number of the commit. */
    std::uint64_t lsn() const { return static_cast<std::uint64_t>(detail::check(untorn_snapshot_lsn(handle()))); }
    /** Throws if the snapshot is no longer held. */
    void check() const { detail::check(untorn_snapshot_check(handle())); }
    /** The names in a directory, sorted; "" is the store's directory. */
    std::vector<std::string> list(const std::string &path = std::string()) const {
        const std::unique_ptr<char *, detail::freed> names(detail::check(untorn_snapshot_list(handle(), path.c_str())));
        std::vector<std::string> all;
        for (char **name = names.get(); *name; name++) all.emplace_back(*name);
        return all;
    }
    /** Describes the file or directory of a name; "" is the store's directory. */
    untorn_metadata metadata(const std::string &path) const {
        untorn_metadata metadata = {};
        metadata.size = sizeof metadata;
        detail::check(untorn_snapshot_metadata(handle(), path.c_str(), &metadata));
        return metadata;
    }
    /** Opens a file. */
    snapshot_file open(const std::string &path) const {
        return snapshot_file(untorn_snapshot_open(handle(), path.c_str()));
    }
};

/** A commit, or a range of missed commits: untorn_followed. Null: there was no commit in the time. */
using followed = std::unique_ptr<untorn_followed, detail::freed>;

/** The commits of a store, each once, in order, as they become durable. */
class follow : public detail::owner<untorn_follow, untorn_follow_close> {
public:
    explicit follow(untorn_follow *handle) : owner(handle) {}

    /** The number of the commit that next() returned last; at first, of the one before the first. */
    std::uint64_t lsn() const { return static_cast<std::uint64_t>(detail::check(untorn_follow_lsn(handle()))); }

    /** Waits for the next commit, at most this many milliseconds; -1: without a limit. */
    followed next(int timeout_ms = -1) {
        untorn_followed *next = nullptr;
        detail::check(untorn_follow_next(handle(), timeout_ms, &next));
        return followed(next);
    }
    /**
     * Reads up to `len` bytes that a change of a commit wrote, fewer only at the end of the change, regardless of
     * later commits. The commit must be the last one that next() returned: untorn_follow_pread().
     */
    std::size_t read(const untorn_followed &commit, std::size_t change, void *buf, std::size_t len,
                     std::uint64_t offset) const {
        return static_cast<std::size_t>(
            detail::check(untorn_follow_pread(handle(), commit.last_lsn, change, buf, len, offset)));
    }
    /** All bytes that a change of that commit wrote. */
    std::string read(const untorn_followed &commit, std::size_t change) const {
        const untorn_change *of = change < commit.changes_len ? commit.changes[change] : nullptr;
        const bool has_bytes = of && (of->kind == UNTORN_CHANGE_WRITTEN || of->kind == UNTORN_CHANGE_ZEROED);
        std::string bytes(has_bytes ? of->len : 0, '\0');
        bytes.resize(read(commit, change, bytes.data(), bytes.size(), has_bytes ? of->offset : 0));
        return bytes;
    }
};

/** A file's bytes in memory, all of one commit: untorn_read_map. Valid until refresh(), or until the object ends. */
class read_map : public detail::owner<untorn_read_map, untorn_read_map_close> {
public:
    explicit read_map(untorn_read_map *handle) : owner(handle) {}

    std::string_view bytes() const {
        std::size_t len = 0;
        const void *at = detail::check(untorn_read_map_bytes(handle(), &len));
        return std::string_view(static_cast<const char *>(at), len);
    }
    /** The number of the commit. */
    std::uint64_t lsn() const { return static_cast<std::uint64_t>(detail::check(untorn_read_map_lsn(handle()))); }
    /** Moves the map to the last durable commit. False: it is the same commit. */
    bool refresh() { return detail::check(untorn_read_map_refresh(handle())) == 1; }
};

/** A store or standalone file open for reading only, even if another process owns it: untorn_reader_open(). */
class reader : public detail::owner<untorn_reader, untorn_reader_close> {
public:
    /** Takes over a handle of untorn.h. */
    explicit reader(untorn_reader *handle) : owner(handle) {}
    explicit reader(const std::string &path) : owner(untorn_reader_open(path.c_str())) {}

    /** The whole contents of a file, as of the last durable commit. */
    std::string read(const std::string &path) const {
        std::size_t len = 0;
        const std::unique_ptr<char, detail::freed> bytes(
            detail::check(untorn_reader_read(handle(), path.c_str(), &len)));
        return std::string(bytes.get(), len);
    }
    /** Maps a file as of the last durable commit. */
    read_map map(const std::string &path) const { return read_map(untorn_read_map_open(handle(), path.c_str())); }
    /** All files as of the last durable commit. */
    untorn::snapshot snapshot() const { return untorn::snapshot(untorn_snapshot_take(handle())); }
    /** Follows the commits after the last durable one. */
    untorn::follow follow() const { return untorn::follow(untorn_follow_open(handle())); }
    /** Follows the commits after this one: untorn_follow_open_from(). */
    untorn::follow follow_from(std::uint64_t lsn) const {
        return untorn::follow(untorn_follow_open_from(handle(), lsn));
    }
    /** Waits until a commit is durable, at most this many milliseconds; -1: without a limit. False: it is not yet. */
    bool wait_for(std::uint64_t lsn, int timeout_ms = -1) const {
        return detail::check(untorn_reader_wait_for(handle(), lsn, timeout_ms)) == 1;
    }
};

namespace detail {

inline untorn_file *handle_of(const file &file) { return file.handle(); }
inline untorn_file *handle_of(const std::reference_wrapper<file> &file) { return file.get().handle(); }
template <class Pointer> auto handle_of(const Pointer &file) -> decltype((*file).handle()) {
    return file ? (*file).handle() : nullptr;
}

/** The handles of a container of files, of references or of pointers to files. */
template <class Files> std::vector<untorn_file *> handles(const Files &files) {
    std::vector<untorn_file *> handles;
    for (const auto &file : files) handles.push_back(handle_of(file));
    return handles;
}

} // namespace detail

/** Commits the changes of several files of one store as one, durable on return. */
inline void syncv(std::initializer_list<std::reference_wrapper<file>> files) {
    const auto handles = detail::handles(files);
    detail::check(untorn_syncv(handles.data(), handles.size()));
}

/** Commits the files of a container as one: std::vector<untorn::file>, or one of pointers or std::reference_wrapper. */
template <class Files, class = decltype(std::begin(std::declval<const Files &>()))> void syncv(const Files &files) {
    const auto handles = detail::handles(files);
    detail::check(untorn_syncv(handles.data(), handles.size()));
}

/** Starts a commit of the changes of several files of one store as one. */
inline ticket syncv_async(std::initializer_list<std::reference_wrapper<file>> files) {
    const auto handles = detail::handles(files);
    return ticket(untorn_syncv_async(handles.data(), handles.size()));
}

/** Starts a commit of the files of a container, as syncv() takes it. */
template <class Files, class = decltype(std::begin(std::declval<const Files &>()))>
ticket syncv_async(const Files &files) {
    const auto handles = detail::handles(files);
    return ticket(untorn_syncv_async(handles.data(), handles.size()));
}

/** Replaces a file's contents by these bytes, whole or not at all: untorn_put(). */
inline void put(const std::string &path, std::string_view bytes) {
    detail::check(untorn_put(path.c_str(), bytes.data(), bytes.size()));
}

} // namespace untorn

#include "untorn_heap.hpp"

#endif // UNTORN_HAS_CPP17

#endif
