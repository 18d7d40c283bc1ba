/* Live heaps whose process is killed within a call of the library: nothing is lost. */
#include "untorn.hpp"
#include "untorn_heap.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRUE_OR_ABORT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

static std::string path;

[[noreturn]] static void fail(int line, const char *what) {
    std::fprintf(stderr, "live_kill.cpp:%d: not true: %s (%s)\n", line, what, untorn_error_message());
    std::abort();
}

static untorn_heap *open_heap() {
    untorn_heap_options options = {};
    options.size = sizeof options;
    options.flags = UNTORN_HEAP_LIVE | UNTORN_CREATE;
    untorn_heap *heap = untorn_heap_open(path.c_str(), &options, nullptr);
    TRUE_OR_ABORT(heap);
    return heap;
}

struct numbers {
    long done;
};

static numbers *root_of(untorn_heap *heap) {
    void *found = nullptr;
    TRUE_OR_ABORT(untorn_heap_root(heap, "numbers", "numbers", sizeof(numbers), alignof(numbers), 1, &found) >= 0);
    return static_cast<numbers *>(found);
}

static void set_root(untorn_heap *heap, numbers *to) {
    TRUE_OR_ABORT(untorn_heap_set_root(heap, "numbers", to, "numbers", sizeof(numbers), alignof(numbers), 1) == 0);
}

/* After a kill: everything that was stored is there, without damage. */
static void look(long done) {
    untorn_heap *heap = open_heap();
    TRUE_OR_ABORT(untorn_heap_live_start(heap) == UNTORN_LIVE_WENT_ON);
    TRUE_OR_ABORT(root_of(heap)->done == done);
    void *block = untorn_heap_calloc(heap, 1, 5000);
    TRUE_OR_ABORT(block);
    block = untorn_heap_realloc(heap, block, 60000);
    TRUE_OR_ABORT(block && untorn_heap_free(heap, block) == 0);
    TRUE_OR_ABORT(untorn_heap_close(heap) == 0);
}

/* Makes a heap with 1 at its last cut and 2 in memory, and works in it between two stops. */
static void work(bool grows) {
    untorn_heap *heap = open_heap();
    numbers *all = root_of(heap);
    if (!all) set_root(heap, all = static_cast<numbers *>(untorn_heap_malloc(heap, sizeof *all)));
    void *block = untorn_heap_malloc(heap, 3000);
    TRUE_OR_ABORT(block);
    all->done = 1;
    TRUE_OR_ABORT(untorn_heap_commit(heap) == 0);
    all->done = 2;
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    block = grows ? untorn_heap_realloc(heap, block, 5000) : untorn_heap_calloc(heap, 1, 5000);
    raise(SIGSTOP);
    _exit(block ? 0 : 1);
}

/* Steps this far through a child, and kills it there. Returns the number of instructions; -1: no tracing here. */
static long killed_after(bool grows, long instructions) {
    const pid_t child = fork();
    TRUE_OR_ABORT(child >= 0);
    if (child == 0) work(grows);
    int status = 0;
    TRUE_OR_ABORT(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return -1;
    TRUE_OR_ABORT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    long done = 0;
    while (done < instructions) {
        if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) return -1;
        TRUE_OR_ABORT(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
        if (WSTOPSIG(status) != SIGTRAP) break;
        done++;
    }
    kill(child, SIGKILL);
    TRUE_OR_ABORT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    return done;
}

static void within_an_allocation(bool grows) {
    const long all = killed_after(grows, 1L << 40);
    if (all < 0) {
        std::puts("skipped: cannot trace a child here");
        return;
    }
    look(2);
    for (int part = 0; part < 12; part++) {
        killed_after(grows, all * part / 12);
        look(2);
    }
}

/* Kills its process while it is constructed. */
struct killer {
    explicit killer(long) { raise(SIGKILL); }
    long number;
};

static void within_root_or() {
    const pid_t child = fork();
    TRUE_OR_ABORT(child >= 0);
    if (child == 0) {
        untorn::heap_options options;
        options.flags = UNTORN_HEAP_LIVE;
        auto heap = untorn::heap::open_or_create(path, options);
        numbers *all = heap.root_or<numbers>("cpp");
        all->done = 1;
        heap.commit();
        all->done = 2;
        heap.root_or<killer>("killer", 1L);
        _exit(1);
    }
    int status = 0;
    TRUE_OR_ABORT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    untorn_heap *heap = open_heap();
    TRUE_OR_ABORT(untorn_heap_live_start(heap) == UNTORN_LIVE_WENT_ON);
    TRUE_OR_ABORT(untorn_heap_close(heap) == 0);
    untorn::heap again(path);
    TRUE_OR_ABORT(again.root<numbers>("cpp")->done == 2);
    again.close();
}

int main(int argc, char **argv) {
    TRUE_OR_ABORT(argc == 2);
    path = std::string(argv[1]) + "/heap";
    // Valgrind cannot be stepped through, and its children are not to be killed.
    if (std::getenv("UNDER_VALGRIND")) return 0;
    within_an_allocation(false);
    within_an_allocation(true);
    within_root_or();
    return 0;
}
