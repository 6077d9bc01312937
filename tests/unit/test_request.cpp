// Ids, queues and the room for events.
#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "request/deadlines.h"
#include "request/request.h"
#include "test_memory.h"

using namespace treadle;

namespace {

struct Fixture {
    test::TestAllocator allocator;
    MemorySet memory{allocator.hooks()};

    Owned<Request> make(int32_t prompt_tokens = 3, int32_t limit = 10) {
        auto request = make_owned<Request>(&memory.other, &memory.other, RequestParams(&memory.other));
        std::pmr::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens), 1, &memory.other);
        request->sequences.push_back(make_owned<Sequence>(&memory.other, &memory.other, request.get(), 0,
                                                          std::move(prompt), limit, size_t{8}));
        request->live = 1;
        return request;
    }
    static EventRoom& room_of(const Owned<Request>& request) { return request->sequences[0]->room; }
};

}  // namespace

TEST_CASE("blocks for a sequence: the last token is never computed") {
    Fixture fixture;
    CHECK(fixture.make(1, 1)->sequences[0]->blocks_most() == 0);
    CHECK(fixture.make(1, 2)->sequences[0]->blocks_most() == 1);
    CHECK(fixture.make(1, 17)->sequences[0]->blocks_most() == 1);
    CHECK(fixture.make(1, 18)->sequences[0]->blocks_most() == 2);
}

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

TEST_CASE("slots of ids take turns") {
    Fixture fixture;
    constexpr int32_t capacity = 5;
    RequestTable table(&fixture.memory.other, capacity);
    auto stays = fixture.make();
    table.add(stays.get());
    std::map<uint64_t, uint64_t> uses;
    for (int i = 0; i < 400; i++) {
        auto request = fixture.make();
        table.add(request.get());
        uses[request->id & 0xffffffffu]++;
        const uint64_t generation = request->id >> 32;
        CHECK(generation == uses[request->id & 0xffffffffu]);
        table.remove(request.get());
    }
    CHECK(uses.size() == capacity - 1);
    for (const auto& [slot, count] : uses) CHECK(count == 100);
}

TEST_CASE("a queue keeps the order of arrival, whoever comes back") {
    Fixture fixture;
    std::vector<Owned<Request>> requests;
    SequenceQueue queue;
    const auto sequence = [&](size_t i) { return requests[i]->sequences[0].get(); };
    for (size_t i = 0; i < 5; i++) {
        requests.push_back(fixture.make());
        requests[i]->arrival = i;
    }
    for (const size_t i : {1, 3, 4, 0, 2}) queue.insert(sequence(i));
    for (size_t i = 0; i < 5; i++) CHECK(queue.place(sequence(i)) == static_cast<int32_t>(i));
    queue.remove(sequence(2));
    queue.remove(sequence(0));
    queue.remove(sequence(4));
    CHECK(queue.size() == 2);
    CHECK(queue.place(sequence(2)) == -1);
    CHECK(sequence(2)->queue == nullptr);
    CHECK(queue.front() == sequence(1));
    queue.insert(sequence(0));
    CHECK(queue.front() == sequence(0));
    CHECK(sequence(0)->queue == &queue);
    for (const size_t i : {1, 0, 3}) queue.remove(sequence(i));
    CHECK(queue.empty());
}

TEST_CASE("the nearest deadline is found, through additions and removals in any order") {
    Fixture fixture;
    Deadlines deadlines(&fixture.memory.other, 200);
    std::mt19937 random(5);
    std::vector<Owned<Request>> requests;
    std::multimap<int64_t, Request*> model;
    for (int i = 0; i < 200; i++) {
        requests.push_back(fixture.make());
        requests.back()->deadline_ns = static_cast<int64_t>(random() % 50);
    }
    for (int i = 0; i < 5000; i++) {
        Request* request = requests[random() % requests.size()].get();
        if (request->deadline_place < 0) {
            deadlines.add(request);
            model.emplace(request->deadline_ns, request);
        } else {
            deadlines.remove(request);
            deadlines.remove(request);  // harmless
            for (auto [at, end] = model.equal_range(request->deadline_ns); at != end; ++at)
                if (at->second == request) {
                    model.erase(at);
                    break;
                }
        }
        CHECK((deadlines.nearest() == nullptr) == model.empty());
        if (!model.empty()) CHECK(deadlines.nearest()->deadline_ns == model.begin()->first);
    }
}

TEST_CASE("a room holds 64 tokens and the end, and its ring of text survives every wrap") {
    Fixture fixture;
    auto request = fixture.make();
    EventRoom& room = fixture.room_of(request);
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
        Sequence* sequence = (i % 2 == 0 ? a : b)->sequences[0].get();
        EventNode* node = sequence->room.push(EventKind::token, "x");
        node->sequence = sequence;
        node->position = i;
        list.append(node);
    }
    EventNode* first_of_b = fixture.room_of(b).oldest();  // released: its nodes leave from the middle
    list.remove(first_of_b);
    fixture.room_of(b).pop();
    for (const int expected : {0, 2, 3, 4, 5}) {
        EventNode* node = list.oldest();
        CHECK(node->position == expected);
        list.remove(node);
        node->sequence->room.pop();
    }
    CHECK(list.oldest() == nullptr);
}

TEST_CASE("a progress event that waits is found for updating, others are not") {
    Fixture fixture;
    auto request = fixture.make();
    CHECK(fixture.room_of(request).newest_progress() == nullptr);
    EventNode* node = fixture.room_of(request).push(EventKind::progress, "");
    CHECK(fixture.room_of(request).newest_progress() == node);
    fixture.room_of(request).push(EventKind::token, "x");
    CHECK(fixture.room_of(request).newest_progress() == nullptr);
}
