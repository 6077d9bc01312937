// Ids, queues and the room for events.
#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "request/request.h"
#include "test_memory.h"

using namespace treadle;

namespace {

struct Fixture {
    test::TestAllocator allocator;
    MemorySet memory{allocator.hooks()};

    Owned<Request> make(int32_t prompt_tokens = 3, int32_t limit = 10) {
        RequestParams params(&memory.other);
        std::pmr::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 1, &memory.other);
        return make_owned<Request>(&memory.other, &memory.other, std::move(params), std::move(prompt), limit,
                                   size_t{8});
    }
};

}  // namespace

TEST_CASE("a request id goes stale when its slot is used again") {
    Fixture fixture;
    RequestTable table(&fixture.memory.other, 2);
    auto a = fixture.make(), b = fixture.make(), c = fixture.make();
    table.add(a.get());
    table.add(b.get());
    CHECK(table.full());
    CHECK(a->id != 0);
    CHECK(a->id != b->id);
    CHECK(table.find(a->id) == a.get());
    table.remove(a.get());
    CHECK(table.find(a->id) == nullptr);
    table.add(c.get());
    CHECK(table.find(c->id) == c.get());
    CHECK(table.find(a->id) == nullptr);
    for (const uint64_t nonsense :
         {uint64_t{0}, UINT64_MAX, uint64_t{3}, uint64_t{1} << 32, c->id + (uint64_t{1} << 32)})
        CHECK(table.find(nonsense) == nullptr);
    c->released = true;
    CHECK(table.find(c->id) == nullptr);
}

TEST_CASE("a queue keeps its order through removals anywhere") {
    Fixture fixture;
    std::vector<Owned<Request>> requests;
    RequestQueue queue;
    for (int i = 0; i < 5; i++) {
        requests.push_back(fixture.make());
        queue.append(requests.back().get());
    }
    CHECK(queue.place(requests[3].get()) == 3);
    queue.remove(requests[2].get());
    queue.remove(requests[0].get());
    queue.remove(requests[4].get());
    CHECK(queue.size() == 2);
    CHECK(queue.place(requests[2].get()) == -1);
    CHECK(queue.take_front() == requests[1].get());
    CHECK(queue.take_front() == requests[3].get());
    CHECK(queue.take_front() == nullptr);
    CHECK(queue.empty());
}

TEST_CASE("a room holds 64 tokens and the end, and its ring of text survives every wrap") {
    Fixture fixture;
    auto request = fixture.make();
    EventRoom& room = request->room;
    int tokens = 0;
    while (room.has_room()) {
        room.push(EventKind::token, "12345678");
        tokens++;
    }
    CHECK(tokens == limits::event_room_min);
    room.push(EventKind::text, "abc");
    room.push(EventKind::finished, "");
    CHECK(room.count() == limits::event_room_min + 2);
    while (!room.empty()) room.pop();

    std::mt19937 random(3);
    std::deque<std::string> model;
    for (int i = 0; i < 20000; i++) {
        if (room.has_room() && random() % 2 == 0) {
            std::string text(random() % 9, static_cast<char>('a' + random() % 26));
            room.push(EventKind::token, text);
            model.push_back(text);
        } else if (!room.empty()) {
            std::string text(room.oldest()->text_bytes, 0);
            room.copy_oldest_text(text.data());
            CHECK(text == model.front());
            room.pop();
            model.pop_front();
        }
        CHECK(room.count() == static_cast<int32_t>(model.size()));
    }
}

TEST_CASE("events of several requests wait in one order") {
    Fixture fixture;
    auto a = fixture.make(), b = fixture.make();
    EventList list;
    for (int i = 0; i < 6; i++) {
        Request* request = i % 2 == 0 ? a.get() : b.get();
        EventNode* node = request->room.push(EventKind::token, "x");
        node->request = request;
        node->position = i;
        list.append(node);
    }
    EventNode* first_of_b = b->room.oldest();  // released: its nodes leave from the middle
    list.remove(first_of_b);
    b->room.pop();
    for (const int expected : {0, 2, 3, 4, 5}) {
        EventNode* node = list.oldest();
        CHECK(node->position == expected);
        list.remove(node);
        node->request->room.pop();
    }
    CHECK(list.oldest() == nullptr);
}

TEST_CASE("a progress event that waits is found for updating, others are not") {
    Fixture fixture;
    auto request = fixture.make();
    CHECK(request->room.newest_progress() == nullptr);
    EventNode* node = request->room.push(EventKind::progress, "");
    CHECK(request->room.newest_progress() == node);
    request->room.push(EventKind::token, "x");
    CHECK(request->room.newest_progress() == nullptr);
}
