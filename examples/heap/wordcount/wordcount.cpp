/* Counts words for many clients; every count that it has replied to survives crashes.
 * c++ -std=c++17 wordcount.cpp $(pkg-config --cflags --libs untorn) -o wordcount && ./wordcount HEAP SOCKET */
#include <untorn.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* All data of the service: an ordinary table, stored in the heap. */
using table = untorn::in_heap::unordered_map<untorn::string, long>;

struct client {
    int socket;
    std::string asked, answers;
};

static bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80); }

static long add(table &words, std::string_view text) {
    long added = 0;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t end = at;
        while (end < text.size() && in_word(text[end])) end++;
        if (end > at) {
            words[text.substr(at, end - at)]++;
            added++;
        }
        at = end + 1;
    }
    return added;
}

static std::string top(const table &words, std::size_t n) {
    std::vector<const table::value_type *> all;
    for (auto &word : words) all.push_back(&word);
    n = std::min(n, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n), all.end(), [](auto *a, auto *b) {
        return std::tie(b->second, a->first) < std::tie(a->second, b->first);
    });
    std::string lines;
    for (std::size_t i = 0; i < n; i++) {
        lines += std::to_string(all[i]->second) + ' ' + std::string(all[i]->first) + '\n';
    }
    return lines + ".\n";
}

/* add TEXT · count WORD · top N */
static std::string answer(table &words, std::string_view line) {
    const std::size_t space = line.find(' ');
    const std::string_view command = line.substr(0, space);
    const std::string rest(space == line.npos ? "" : line.substr(space + 1));
    if (command == "add") return std::to_string(add(words, rest)) + '\n';
    if (command == "top") return top(words, std::strtoul(rest.c_str(), nullptr, 10));
    if (command == "count") {
        const auto found = words.find(rest);
        return std::to_string(found == words.end() ? 0 : found->second) + '\n';
    }
    return "add TEXT, count WORD, or top N\n";
}

static int listen_at(const char *path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (std::strlen(path) >= sizeof address.sun_path) return -1;
    std::strcpy(address.sun_path, path);
    unlink(path);
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = bind(socket, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    return bound && listen(socket, 64) == 0 ? socket : -1;
}

/* Commits all requests received so far as one, and then sends the replies. */
static void serve(untorn::heap &heap, table &words, int door) {
    std::vector<client> clients;
    for (;;) {
        std::vector<pollfd> waiting = {{door, POLLIN, 0}};
        for (auto &client : clients) waiting.push_back({client.socket, POLLIN, 0});
        if (poll(waiting.data(), waiting.size(), -1) < 0) continue;
        for (std::size_t i = 0; i < clients.size(); i++) {
            if (!waiting[i + 1].revents) continue;
            client &client = clients[i];
            char bytes[1 << 16];
            const ssize_t n = read(client.socket, bytes, sizeof bytes);
            if (n <= 0) {
                close(client.socket);
                client.socket = -1;
                continue;
            }
            client.asked.append(bytes, static_cast<std::size_t>(n));
            for (std::size_t end; (end = client.asked.find('\n')) != std::string::npos; client.asked.erase(0, end + 1)) {
                client.answers += answer(words, std::string_view(client.asked).substr(0, end));
            }
        }
        heap.commit();
        for (auto &client : clients) {
            for (std::string_view rest = client.answers; client.socket >= 0 && !rest.empty();) {
                const ssize_t n = write(client.socket, rest.data(), rest.size());
                if (n < 0) break;
                rest.remove_prefix(static_cast<std::size_t>(n));
            }
            client.answers.clear();
        }
        auto gone = [](const client &client) { return client.socket < 0; };
        clients.erase(std::remove_if(clients.begin(), clients.end(), gone), clients.end());
        if (waiting[0].revents) {
            const int socket = accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
            if (socket >= 0) clients.push_back({socket, "", ""});
        }
    }
}

int main(int argc, char **argv) try {
    if (argc != 3) return std::fputs("wordcount HEAP SOCKET\n", stderr), 2;
    std::signal(SIGPIPE, SIG_IGN);
    auto heap = untorn::heap::open_or_create(argv[1]);
    table &words = *heap.root_or<table>("words");
    const int door = listen_at(argv[2]);
    if (door < 0) return std::perror(argv[2]), 1;
    std::printf("%zu words\n", words.size());
    std::fflush(stdout);
    serve(heap, words, door);
} catch (const std::exception &e) {
    // No reply was sent for uncommitted changes.
    std::fprintf(stderr, "wordcount: %s\n", e.what());
    return 1;
}
