/*
 * Persistent heaps for C++17: the standard containers in a file. untorn.hpp includes this header.
 *
 *     auto heap = untorn::heap::open_or_create("words");
 *     using words = untorn::in_heap::unordered_map<untorn::string, long>;
 *     words &all = *heap.root_or<words>("words");      // found again after a restart
 *     all["one"] = 1;
 *     heap.commit();                                   // all changes or none, also after a crash
 *
 * A heap is always mapped at the same address, so that pointers in the heap stay valid. Types that point out
 * of the heap cannot be stored in it; the compiler refuses these types as elements, as roots and in make().
 * untorn_types.hpp says which types it refuses, and how far it looks into your classes.
 *
 * Objects that a container, make() or root_or() makes are in the heap with all their strings and containers.
 * An object that the program itself makes, to copy or move it into a container, needs a heap for its strings
 * and containers: hold a guard meanwhile (auto guard = heap.mutate()). Without a guard it throws.
 *
 * A container always stays in the heap that it was made in, also when it is assigned to. Swap, splice and merge
 * containers of one heap only.
 */

#ifndef UNTORN_HEAP_HPP
#define UNTORN_HEAP_HPP

#include "untorn.hpp"

#if UNTORN_HAS_CPP17

#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "untorn_containers.hpp"

namespace untorn {

/** The program's own number for a type's layout: specialise it, and raise it whenever a member changes its meaning. */
template <class T> inline constexpr std::uint32_t layout_version = 0;

/** How to open a heap, with defaults: untorn_heap_options. */
struct heap_options : untorn_heap_options {
    heap_options() : untorn_heap_options() { size = sizeof(untorn_heap_options); }
};

/** A root's address, and the type recorded when the root was set: untorn_heap_root_info. */
struct root_info : untorn_heap_root_info {
    root_info() : untorn_heap_root_info() { size = sizeof(untorn_heap_root_info); }

    /** The object that the root points to. Throws if `T` has another size or alignment. */
    template <class T> T &as() const {
        if (bytes != sizeof(T) || align != alignof(T)) {
            throw std::logic_error(std::string("the root ") + name + " is not of the type that it is read as");
        }
        return *static_cast<T *>(address);
    }
};

/** A persistent heap: untorn_heap_open(). */
class heap : public detail::owner<untorn_heap, untorn_heap_close> {
public:
    /** Opens an existing heap in a standalone file, with a private store beside it. */
    explicit heap(const std::string &path, const heap_options &how = {}, const options &store_options = {})
        : owner(untorn_heap_open(path.c_str(), &how, &store_options)), base_(untorn_heap_base(handle())) {}
    /** Opens an existing heap in a store, by its name. */
    heap(const store &in, const std::string &name, const heap_options &how = {})
        : owner(untorn_heap_open_at(in.handle(), name.c_str(), &how)), base_(untorn_heap_base(handle())) {}
    /** Opens a heap in a standalone file; a missing heap is created. */
    static heap open_or_create(const std::string &path, heap_options how = {}, const options &store_options = {}) {
        how.flags |= UNTORN_CREATE;
        return heap(path, how, store_options);
    }
    /** Opens a heap in a store, by its name; a missing heap is created. */
    static heap open_or_create(const store &in, const std::string &name, heap_options how = {}) {
        how.flags |= UNTORN_CREATE;
        return heap(in, name, how);
    }

    template <class T> untorn::allocator<T> allocator() const { return untorn::allocator<T>(*this); }

    /**
     * Marks bytes as changed, for UNTORN_TRACKER_EXPLICIT: untorn_heap_mark_dirty(). Blocks from an allocator of this
     * heap are marked as a whole.
     */
    void mark_dirty(const void *address, std::size_t len) { detail::check(untorn_heap_mark_dirty(handle(), address, len)); }
    /** Marks an object as changed. */
    template <class T> void mark_dirty(const T &object) { mark_dirty(std::addressof(object), sizeof object); }

    /** Makes an object in the heap. Containers, and other types that take an allocator, get the heap's. */
    template <class T, class... Arguments> T *make(Arguments &&...arguments) {
        untorn::allocator<T> memory(*this);
        T *place = memory.allocate(1);
        try {
            construct(place, scoped_allocator<T>(memory), std::forward<Arguments>(arguments)...);
        } catch (...) {
            memory.deallocate(place, 1);
            throw;
        }
        return place;
    }
    /** Destroys an object that make() made. */
    template <class T> void destroy(T *object) {
        if (object) deleter<T>{*this}(object);
    }
    /** Makes an object in the heap, with an owner that may be stored in the heap. */
    template <class T, class... Arguments> untorn::unique_ptr<T> make_unique(Arguments &&...arguments) {
        deleter<T> end(*this);
        return untorn::unique_ptr<T>(make<T>(std::forward<Arguments>(arguments)...), end);
    }

    /**
     * Finds a root by its name; nullptr: no such root. Throws with UNTORN_E_LAYOUT_CHANGED if the root was set
     * with another type or version.
     */
    template <class T> T *root(const char *name, std::uint32_t version = layout_version<T>) const {
        void *found;
        detail::check(untorn_heap_root(handle(), name, detail::recorded<T>(), sizeof(T), alignof(T), version, &found));
        return static_cast<T *>(found);
    }
    /**
     * Finds a root that an older program may have set with another layout. In that case `migrate` gets the
     * root_info, makes the new object in this heap, destroys the old one, and returns the new one. All of this
     * is one commit, together with changes that were not committed before the call. If `migrate` throws, the
     * heap is rolled back, and these changes are lost, too.
     */
    template <class T, class Migrate> T *root(const char *name, std::uint32_t version, Migrate &&migrate) {
        T *found = nullptr;
        bool migrates = false;
        try {
            with_roots([&] {
                try {
                    found = root<T>(name, version);
                    return;
                } catch (const error &e) {
                    if (e.kind() != UNTORN_E_LAYOUT_CHANGED) throw;
                }
                migrates = true;
                const mutation guard(*this);
                found = std::forward<Migrate>(migrate)(info(name).value());
                set_root(name, found, version);
            });
        } catch (...) {
            if (migrates) rollback();
            throw;
        }
        if (migrates) commit();
        return found;
    }
    /** Sets the root of a name to an object; nullptr removes the root. */
    template <class T> void set_root(const char *name, T *object, std::uint32_t version = layout_version<T>) {
        detail::check_storable<T>();
        detail::check(untorn_heap_set_root(handle(), name, object, detail::recorded<T>(), sizeof(T), alignof(T), version));
    }
    /** Finds a root; if there is none, makes the object and sets the root. If several threads try, one makes it. */
    template <class T, class... Arguments> T *root_or(const char *name, Arguments &&...arguments) {
        T *found = nullptr;
        // No other code has the object before the root is set, so a process that is killed here has lost nothing.
        with_roots([&] {
            if ((found = root<T>(name))) return;
            const detail::current_heap current(base_);
            untorn::unique_ptr<T> made = make_unique<T>(std::forward<Arguments>(arguments)...);
            set_root(name, made.get());
            found = made.release();
        });
        return found;
    }
    /**
     * Calls a function while other threads that find or set roots wait, and commits wait, too, so that finding a root
     * and acting on the result are one step. Must not wait for such a thread. Passes on the function's exceptions.
     */
    template <class Function> void with_roots(Function &&function) const {
        struct call {
            std::remove_reference_t<Function> *function;
            std::exception_ptr thrown;
        } call{std::addressof(function), nullptr};
        const auto catching = [](void *context) {
            auto *call = static_cast<struct call *>(context);
            try {
                (*call->function)();
            } catch (...) {
                call->thrown = std::current_exception();
            }
            return 0;
        };
        detail::check(untorn_heap_with_roots(handle(), catching, &call));
        if (call.thrown) std::rethrow_exception(call.thrown);
    }
    /** Describes a root of any type; nullopt: no such root. */
    std::optional<root_info> info(const char *name) const {
        root_info info;
        if (detail::check(untorn_heap_get_root_info(handle(), name, &info)) == 0) return std::nullopt;
        return info;
    }
    /** Describes all roots. */
    std::vector<root_info> roots() const {
        std::vector<root_info> all;
        with_roots([&] {
            for (root_info info; detail::check(untorn_heap_nth_root_info(handle(), all.size(), &info)) == 1;) {
                all.push_back(info);
            }
        });
        return all;
    }
    untorn_heap_stats stats() const {
        untorn_heap_stats stats = {};
        stats.size = sizeof stats;
        detail::check(untorn_heap_get_stats(handle(), &stats));
        return stats;
    }

    /** Commits all changes, durable on return. */
    void commit() { detail::check(untorn_heap_commit(handle())); }
    /** Commits the heap and files of its store as one. */
    void syncv(std::initializer_list<std::reference_wrapper<file>> files) {
        const auto handles = detail::handles(files);
        detail::check(untorn_heap_syncv(handle(), handles.data(), handles.size()));
    }
    /** Starts a commit of all changes made so far. */
    ticket commit_async() { return ticket(untorn_heap_commit_async(handle())); }
    /** Discards all changes since the last commit. Pointers to objects made since then become invalid. */
    void rollback() { detail::check(untorn_heap_rollback(handle())); }

    /**
     * A guard: while it exists, no commit takes place, and strings and containers that this thread makes without an
     * allocator are in this heap. For heaps that several threads change, and for objects that are made outside of
     * containers.
     */
    class mutation {
    public:
        explicit mutation(heap &of) : heap_(of.handle()), current_(of.base_) { detail::check(untorn_heap_begin(heap_)); }
        ~mutation() { untorn_heap_end(heap_); }
        mutation(const mutation &) = delete;
        mutation &operator=(const mutation &) = delete;

    private:
        untorn_heap *heap_;
        detail::current_heap current_;
    };
    [[nodiscard]] mutation mutate() { return mutation(*this); }

    /** Closes the heap and reports errors. Uncommitted changes are DISCARDED. */
    void close() { close_by(untorn_heap_close); }

private:
    template <class A, class B, class... Arguments>
    static void construct(std::pair<A, B> *place, scoped_allocator<std::pair<A, B>> memory, Arguments &&...arguments) {
        memory.construct(place, std::forward<Arguments>(arguments)...);
    }
    template <class T, class... Arguments>
    static void construct(T *place, const scoped_allocator<T> &memory, Arguments &&...arguments) {
        using memory_type = const scoped_allocator<T> &;
        const detail::current_heap current(memory.outer_allocator().base());
        if constexpr (std::uses_allocator_v<T, scoped_allocator<T>> &&
                      std::is_constructible_v<T, Arguments..., memory_type>) {
            new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)..., memory);
        } else if constexpr (std::is_constructible_v<T, Arguments...>) {
            new (static_cast<void *>(place)) T(std::forward<Arguments>(arguments)...);
        } else {
            new (static_cast<void *>(place)) T{std::forward<Arguments>(arguments)...};
        }
    }

    const void *base_;
};

/** A copy of another process's heap as of one commit, for reading, at its own address: untorn_read_heap_open(). */
class read_heap : public detail::owner<untorn_read_heap, untorn_read_heap_close> {
public:
    read_heap(const reader &of, const std::string &path) : owner(untorn_read_heap_open(of.handle(), path.c_str())) {}

    /** Finds a root by its name, like heap::root(); valid until refresh() or the end. nullptr: no such root. */
    template <class T> const T *root(const char *name, std::uint32_t version = layout_version<T>) const {
        const void *found;
        detail::check(
            untorn_read_heap_root(handle(), name, detail::recorded<T>(), sizeof(T), alignof(T), version, &found));
        return static_cast<const T *>(found);
    }
    /** The number of the commit. */
    std::uint64_t lsn() const { return static_cast<std::uint64_t>(detail::check(untorn_read_heap_lsn(handle()))); }
    /** Moves to the last durable commit, at the same address; look roots up again. False: it is the same commit. */
    bool refresh() { return detail::check(untorn_read_heap_refresh(handle())) == 1; }
};

template <class T> allocator<T>::allocator(const heap &of) : base_(detail::check(untorn_heap_base(of.handle()))) {
    detail::check_storable<T>();
}

} // namespace untorn

#include "untorn_section.hpp"

#endif // UNTORN_HAS_CPP17

#endif
