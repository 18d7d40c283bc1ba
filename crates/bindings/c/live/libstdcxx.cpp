/*
 * Functions that libstdc++.so has of its own, which no hook sees: of red-black trees, lists and hash tables. Linked instead
 * of them (--wrap), compiled with hooks, into libuntorn-live.a.
 */

#include <cstddef>
#include <cstdint>
#include <utility>

#include "untorn.h"

#if __has_include(<bits/stl_tree.h>)

#ifdef __clang__
/* Functions of C++, by their names for the linker. */
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif

namespace {

/* std::_Rb_tree_node_base: its layout is the ABI of libstdc++. */
enum colour : int { red = 0, black = 1 };
struct node {
    colour is;
    node *parent, *left, *right;
};

/* The header's parent is the root, its left and right are the first and the last node. */
node *&root_of(node &header) { return header.parent; }

void rotate_left(node *x, node *&root) {
    node *y = x->right;
    x->right = y->left;
    if (y->left) y->left->parent = x;
    y->parent = x->parent;
    if (x == root) root = y;
    else if (x == x->parent->left) x->parent->left = y;
    else x->parent->right = y;
    y->left = x;
    x->parent = y;
}

void rotate_right(node *x, node *&root) {
    node *y = x->left;
    x->left = y->right;
    if (y->right) y->right->parent = x;
    y->parent = x->parent;
    if (x == root) root = y;
    else if (x == x->parent->right) x->parent->right = y;
    else x->parent->left = y;
    y->right = x;
    x->parent = y;
}

node *first_of(node *x) {
    while (x->left) x = x->left;
    return x;
}

node *last_of(node *x) {
    while (x->right) x = x->right;
    return x;
}

} // namespace

extern "C" {

/* std::_Rb_tree_insert_and_rebalance(bool, node *, node *, node &) */
void __wrap__ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_(bool left, node *x, node *parent,
                                                                              node &header) {
    node *&root = root_of(header);
    x->parent = parent;
    x->left = x->right = nullptr;
    x->is = red;
    if (left) {
        parent->left = x; /* In an empty tree this is the header's first node. */
        if (parent == &header) {
            header.parent = header.right = x;
        } else if (parent == header.left) {
            header.left = x;
        }
    } else {
        parent->right = x;
        if (parent == header.right) header.right = x;
    }
    while (x != root && x->parent->is == red) {
        node *const up = x->parent->parent;
        const bool is_left = x->parent == up->left;
        node *const uncle = is_left ? up->right : up->left;
        if (uncle && uncle->is == red) {
            x->parent->is = uncle->is = black;
            up->is = red;
            x = up;
            continue;
        }
        if (is_left) {
            if (x == x->parent->right) {
                x = x->parent;
                rotate_left(x, root);
            }
            x->parent->is = black;
            up->is = red;
            rotate_right(up, root);
        } else {
            if (x == x->parent->left) {
                x = x->parent;
                rotate_right(x, root);
            }
            x->parent->is = black;
            up->is = red;
            rotate_left(up, root);
        }
    }
    root->is = black;
}

/* std::_Rb_tree_rebalance_for_erase(node *, node &) */
node *__wrap__ZSt28_Rb_tree_rebalance_for_erasePSt18_Rb_tree_node_baseRS_(node *const z, node &header) {
    node *&root = root_of(header);
    /* y is the node that leaves its place; x takes that place, under the parent `up`. */
    node *y = z, *x, *up;
    if (!y->left) {
        x = y->right;
    } else if (!y->right) {
        x = y->left;
    } else {
        y = first_of(y->right);
        x = y->right;
    }
    if (y != z) {
        z->left->parent = y;
        y->left = z->left;
        if (y != z->right) {
            up = y->parent;
            if (x) x->parent = y->parent;
            y->parent->left = x;
            y->right = z->right;
            z->right->parent = y;
        } else {
            up = y;
        }
        if (root == z) root = y;
        else if (z->parent->left == z) z->parent->left = y;
        else z->parent->right = y;
        y->parent = z->parent;
        std::swap(y->is, z->is);
        y = z;
    } else {
        up = y->parent;
        if (x) x->parent = y->parent;
        if (root == z) root = x;
        else if (z->parent->left == z) z->parent->left = x;
        else z->parent->right = x;
        if (header.left == z) header.left = z->right ? first_of(x) : z->parent;
        if (header.right == z) header.right = z->left ? last_of(x) : z->parent;
    }
    if (y->is == red) return y;
    while (x != root && (!x || x->is == black)) {
        const bool is_left = x == up->left;
        node *other = is_left ? up->right : up->left;
        if (other->is == red) {
            other->is = black;
            up->is = red;
            if (is_left) rotate_left(up, root);
            else rotate_right(up, root);
            other = is_left ? up->right : up->left;
        }
        const bool left_black = !other->left || other->left->is == black;
        const bool right_black = !other->right || other->right->is == black;
        if (left_black && right_black) {
            other->is = red;
            x = up;
            up = up->parent;
            continue;
        }
        if (is_left) {
            if (right_black) {
                other->left->is = black;
                other->is = red;
                rotate_right(other, root);
                other = up->right;
            }
            other->is = up->is;
            up->is = black;
            if (other->right) other->right->is = black;
            rotate_left(up, root);
        } else {
            if (left_black) {
                other->right->is = black;
                other->is = red;
                rotate_left(other, root);
                other = up->left;
            }
            other->is = up->is;
            up->is = black;
            if (other->left) other->left->is = black;
            rotate_right(up, root);
        }
        break;
    }
    if (x) x->is = black;
    return y;
}

/* std::__detail::_List_node_base: next and previous. */
struct list_node {
    list_node *next, *previous;
};

void __wrap__ZNSt8__detail15_List_node_base7_M_hookEPS0_(list_node *self, list_node *at) {
    self->next = at;
    self->previous = at->previous;
    at->previous->next = self;
    at->previous = self;
}

void __wrap__ZNSt8__detail15_List_node_base9_M_unhookEv(list_node *self) {
    list_node *const next = self->next, *const previous = self->previous;
    previous->next = next;
    next->previous = previous;
}

void __wrap__ZNSt8__detail15_List_node_base11_M_transferEPS0_S1_(list_node *self, list_node *first, list_node *last) {
    if (self == last) return;
    last->previous->next = self;
    first->previous->next = last;
    self->previous->next = first;
    list_node *const before = self->previous;
    self->previous = last->previous;
    last->previous = first->previous;
    first->previous = before;
}

void __wrap__ZNSt8__detail15_List_node_base10_M_reverseEv(list_node *self) {
    list_node *at = self;
    do {
        std::swap(at->next, at->previous);
        at = at->previous;
    } while (at != self);
}

void __real__ZNSt8__detail15_List_node_base4swapERS0_S1_(list_node &one, list_node &other);
void __wrap__ZNSt8__detail15_List_node_base4swapERS0_S1_(list_node &one, list_node &other) {
    for (list_node *list : {&one, &other}) {
        for (list_node *at : {list, list->next, list->previous}) untorn_section_log(at, sizeof *at);
    }
    __real__ZNSt8__detail15_List_node_base4swapERS0_S1_(one, other);
}

/* The table stores the policy for its next size: a float, and a number. */
std::size_t __real__ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm(const void *self, std::size_t n);
std::size_t __wrap__ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm(const void *self, std::size_t n) {
    untorn_section_log(self, 16);
    return __real__ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm(self, n);
}

std::pair<bool, std::size_t> __real__ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm(const void *self, std::size_t a,
                                                                                              std::size_t b, std::size_t c);
std::pair<bool, std::size_t> __wrap__ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm(const void *self, std::size_t a,
                                                                                              std::size_t b, std::size_t c) {
    untorn_section_log(self, 16);
    return __real__ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm(self, a, b, c);
}

} // extern "C"

#endif
