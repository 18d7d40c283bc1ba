/* A to-do list that survives crashes. cc todo.c $(pkg-config --cflags --libs untorn) -o todo
 * ./todo [list | add TEXT | done NUMBER | remove NUMBER] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <untorn.h>

struct item { struct item *next; long number; int done; char text[]; };
struct list { struct item *first; long last_number; };

static int fail(const char *what) { return fprintf(stderr, "%s: %s\n", what, untorn_error_message()), 1; }

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "list", *what = argc > 2 ? argv[2] : "";
    untorn_heap_options create = {.size = sizeof create, .flags = UNTORN_CREATE};
    untorn_heap *heap = untorn_heap_open("todo.heap", &create, NULL);
    struct list *list;
    if (untorn_heap_root(heap, "list", "struct list", sizeof *list, 8, 1, (void **)&list) < 0) return fail("open");
    if (!list && (!(list = untorn_heap_calloc(heap, 1, sizeof *list)) ||
                  untorn_heap_set_root(heap, "list", list, "struct list", sizeof *list, 8, 1) != 0)) return fail("make");
    struct item **at = &list->first, *item;
    if (strcmp(command, "add") == 0) {
        while (*at) at = &(*at)->next;
        if (!(item = untorn_heap_calloc(heap, 1, sizeof *item + strlen(what) + 1))) return fail("add");
        item->number = ++list->last_number;
        strcpy(item->text, what);
        *at = item;
    } else if (strcmp(command, "done") == 0 || strcmp(command, "remove") == 0) {
        while (*at && (*at)->number != atol(what)) at = &(*at)->next;
        if (!(item = *at)) return fprintf(stderr, "there is no number %s\n", what), 1;
        item->done = 1;
        if (strcmp(command, "remove") == 0) {
            *at = item->next;
            if (untorn_heap_free(heap, item) != 0) return fail("remove");
        }
    } else if (strcmp(command, "list") != 0) return fprintf(stderr, "list, add, done or remove\n"), 2;
    if (untorn_heap_commit(heap) != 0) return fail("commit");
    for (item = list->first; item; item = item->next) printf("%ld [%c] %s\n", item->number, " x"[item->done], item->text);
    return untorn_heap_close(heap) != 0;
}
